"""Moments and references that the host keeps: the same numbers to the last bit, and less room on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runnel.core.contracts.learning import SingleProcess
from runnel.llm.model import adamw
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.token_model import TokenModel

SIZES = ModelConfig(layers=2, width=32, heads=2, kv_heads=2, inner=64, max_positions=64)
GPU = (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
PLACES = [("cpu", "float32"), ("cpu", "bfloat16"), pytest.param("cuda", "bfloat16", marks=GPU)]


def trained(device: str, precision: Any, *, offload: bool, steps: int = 3) -> tuple[TokenModel, list[float]]:
    """A model after a few steps, and its losses."""
    model = TokenModel(build_model(SIZES, 40, seed=1), device=device, precision=precision, weight_decay=0.1, offload=offload)
    tokens, losses = torch.arange(24, device=device) * 7 % 40, []
    for _ in range(steps):
        model.zero_grad()
        hidden = model.packed_hidden(tokens[:-1], PackedRows([23], device=device))
        loss = -model.target_logprobs(hidden, tokens[1:], temperature=1.0)[0].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        model.gather()
        model.step(1e-2, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)
        losses.append(float(loss.detach()))
    return model, losses


@pytest.mark.parametrize(("device", "precision"), PLACES)
def test_moments_on_the_host_change_nothing_else(device: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "CHUNK", 1000)  # many chunks, the last of them short
    model, losses = trained(device, precision, offload=False)
    other, found = trained(device, precision, offload=True)
    assert found == losses
    assert losses[-1] < losses[0]
    assert all(x.device.type == "cpu" for x in (*other._optimiser.mean, *other._optimiser.square))
    mine, theirs = model.state_dict(), other.state_dict()
    for kind in ("model", "mean", "square"):
        for name in mine[kind]:
            torch.testing.assert_close(theirs[kind][name], mine[kind][name], rtol=0, atol=0)
    fresh = TokenModel(build_model(SIZES, 40, seed=2), device=device, precision=precision, offload=True)  # type: ignore[arg-type]
    fresh.load_state_dict(mine)
    torch.testing.assert_close(dict(fresh.params()), dict(model.params()), rtol=0, atol=0)


@pytest.mark.parametrize(("device", "precision"), PLACES)
def test_a_reference_on_the_host_is_on_the_device_only_while_it_is_asked(device: str, precision: str) -> None:
    model, _ = trained(device, precision, offload=False)
    near, far = model.frozen_copy(), model.frozen_copy(offload=True)
    row = torch.arange(12, device=device)
    expected = near.row_logprobs(row, 3)
    assert far._vector.untyped_storage().nbytes() == 0, "nothing of it is on the device"
    for _ in range(2):
        with far.resident():
            torch.testing.assert_close(far.row_logprobs(row, 3), expected, rtol=0, atol=0)
        assert far._vector.untyped_storage().nbytes() == 0
    model.step(1e-1, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)
    for one in (near, far):
        one.move_towards(model, 0.5)
    with far.resident():
        moved = near.row_logprobs(row, 3)
        torch.testing.assert_close(far.row_logprobs(row, 3), moved, rtol=0, atol=0)
    assert not torch.equal(moved, expected)
    torch.testing.assert_close(far.state_dict()["model"], near.state_dict()["model"], rtol=0, atol=0)
