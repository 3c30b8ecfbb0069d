from __future__ import annotations

import math

import pytest
import torch

from runnel.core.errors import RunnelError
from runnel.core.weight_check import MAX_TOKENS, WeightCheck, pack, split


def proof_of(num_prompt: int = 2, num_tokens: int = 4, bound: float = 1e-5) -> WeightCheck:
    tokens = torch.arange(num_prompt + num_tokens)
    return WeightCheck(tokens[:num_prompt], tokens[num_prompt:], torch.full((num_tokens,), -2.0), bound)


def test_its_layout_never_changes() -> None:
    kinds = {tuple((k, v.shape, v.dtype) for k, v in pack(p).items()) for p in (None, proof_of(), proof_of(1, MAX_TOKENS - 1))}
    assert len(kinds) == 1


def test_parameters_without_a_proof_are_handed_on_as_they_are() -> None:
    params = {"w": torch.ones(2)}
    assert split(params)[0] is params


def test_the_mismatch_by_hand() -> None:
    gap = math.log(1.01)
    found = proof_of(bound=1e-4).check(torch.tensor([-2.0, -2.0, -2.0, -2.0 - gap]), 3)
    assert found["mismatch/canary_kl"] == pytest.approx((1.01 - gap - 1.0) / 4, rel=1e-3)
    assert found["mismatch/canary_max_ratio"] == pytest.approx(1.01, rel=1e-5)


@pytest.mark.parametrize("off", [0.1, -0.1, 90.0, math.nan, math.inf])
def test_an_engine_that_is_off_is_named_with_version_number_and_bound(off: float) -> None:
    weight_check = proof_of()
    weight_check.check(weight_check.logprobs + 1e-3, 7)
    text = r"version 7 disagrees.*4 canary tokens: mismatch/canary_kl = .* above 100 times learner\.max_mismatch = 1e-05"
    with pytest.raises(RunnelError, match=text):
        weight_check.check(weight_check.logprobs + off, 7)
