from __future__ import annotations

import pytest
import torch

from runnel.core.protocols import ParamSet
from runnel.llm.engines.native import NativeEngine
from runnel.nets.causal_lm import ModelConfig, build_model, model_params
from runnel.testing.engines import check_engine

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)


def make_engine(num_slots: int = 4) -> NativeEngine:
    model = build_model(SIZES, 40, seed=0)
    return NativeEngine(model, num_slots=num_slots, max_length=32, eos_id=2, pad_id=0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_slots", [2, 4])
def test_native_engine_keeps_the_contract(shared: bool, num_slots: int) -> None:
    torch.set_num_threads(1)
    params = ParamSet(3, model_params(build_model(SIZES, 40, seed=7)), shared=shared)
    check_engine(lambda: make_engine(num_slots), params, prompts=[[1, 5, 6, 7], [1, 9], [1, 20, 21, 22, 23, 24]])


def test_check_engine_notices_a_broken_engine() -> None:
    class Forgetful(NativeEngine):
        def restore(self, state):  # type: ignore[no-untyped-def]
            super().restore({**state, "running": state["running"][:1]})

    model = build_model(SIZES, 40, seed=0)
    params = ParamSet(0, model_params(model))
    with pytest.raises(AssertionError, match="restored engine"):
        check_engine(
            lambda: Forgetful(build_model(SIZES, 40, seed=0), num_slots=4, max_length=32, eos_id=2, pad_id=0),
            params,
            prompts=[[1, 5, 6, 7], [1, 9], [1, 20, 21]],
        )
