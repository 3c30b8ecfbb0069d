from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.model.causal_lm import ModelConfig, build_model, load_model_params, model_params
from runnel.testing.engines import PROPERTIES, check_engine

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)
VOCABULARY = 40
PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 20, 21, 22, 23, 24]]


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("0") + t) for t in tokens)


@cache
def reference_model() -> Any:
    return build_model(SIZES, VOCABULARY, seed=0)


def logprobs(params: Mapping[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """The reference: one plain forward pass of a model with these parameters."""
    model = reference_model()
    load_model_params(model, params, bind=False)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)


def make_params(shared: bool = False) -> ParamSet:
    torch.set_num_threads(1)
    return ParamSet(3, model_params(build_model(SIZES, VOCABULARY, seed=7)), shared=shared)


def make_native(num_slots: int = 4, **options: Any) -> NativeEngine:
    model = build_model(SIZES, VOCABULARY, seed=0)
    return NativeEngine(model, num_slots=num_slots, max_length=32, eos_id=2, decode_text=decode, **options)


def make_hf(num_slots: int = 4) -> HfEngine:
    return HfEngine(build_model(SIZES, VOCABULARY, seed=0), num_slots=num_slots, max_length=32, eos_id=2, decode_text=decode)


ENGINES: dict[str, Any] = {
    "native": make_native,
    "native, fixed shapes": partial(make_native, fixed_shapes=True),
    "native, recompute": partial(make_native, on_update="recompute"),
    "hf": make_hf,
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_slots", [2, 4])
@pytest.mark.parametrize("kind", ENGINES)
def test_engine_keeps_the_contract(kind: str, shared: bool, num_slots: int) -> None:
    make = ENGINES[kind]
    check_engine(lambda: make(num_slots), make_params(shared), prompts=PROMPTS, logprobs=logprobs, decode=decode)


class Forgetful(HfEngine):
    def restore(self, state):  # type: ignore[no-untyped-def]
        super().restore({**state, **{k: state[k][:1] for k in ("running", "rows")}})


class Deaf(HfEngine):
    """Takes new versions and keeps its weights."""

    def load_params(self, params):  # type: ignore[no-untyped-def]
        if self.version < 0:
            super().load_params(params)
        self.version = params.version


class Hot(HfEngine):
    """Log-probabilities at another temperature than the one it samples at."""

    def _forward(self, completion):  # type: ignore[no-untyped-def]
        return super()._forward(completion) * 0.9


class Overrun(HfEngine):
    """Does not see that a stop text begins in an earlier token."""

    def __init__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        self.decode_text = lambda tokens: decode(tokens[-1:])


class Trusting(NativeEngine):
    """Believes the session of a request, whatever its tokens are."""

    def __init__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        find = self._kept.find

        def trusts(prompt, session, running, **how):  # type: ignore[no-untyped-def]
            mine = next((h.tokens for h in self._kept.all if h.session == session), prompt)
            return find(torch.cat((mine, prompt[len(mine) :])), session, running, **how)

        self._kept.find = trusts  # type: ignore[method-assign]


class Stale(NativeEngine):
    """Gives the keys of old weights to requests of an exact version."""

    def load_params(self, params):  # type: ignore[no-untyped-def]
        super().load_params(params)
        for held in self._kept.all:
            held.version = params.version


class Unsaved(NativeEngine):
    """Loses what it has kept."""

    def snapshot(self):  # type: ignore[no-untyped-def]
        return {**super().snapshot(), "kept": []}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Forgetful, "snapshot: a restored engine"),
        (Deaf, "new weights: new weights must change"),
        (Hot, "logprob: logprob is off"),
        (Overrun, "stop texts: a completion ends behind"),
        (Trusting, "wrong session: "),
        (Stale, "turns of versions: "),
        (Unsaved, "snapshot of turns: the next turn"),
    ],
)
def test_check_engine_notices_a_broken_engine(broken: type[HfEngine | NativeEngine], reason: str) -> None:
    def make() -> HfEngine | NativeEngine:
        return broken(build_model(SIZES, VOCABULARY, seed=0), num_slots=4, max_length=32, eos_id=2, decode_text=decode)

    name = reason.split(":")[0]
    with pytest.raises(AssertionError, match=reason):
        check_engine(
            make, make_params(), prompts=PROMPTS, logprobs=logprobs, decode=decode, properties={name: PROPERTIES[name]}
        )
