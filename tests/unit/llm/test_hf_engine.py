from __future__ import annotations

from typing import Any

import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.llm.engines.hf import HfEngine, draw, truncate
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)


def model() -> Any:
    torch.set_num_threads(1)
    return build_model(SIZES, 40, seed=3)


def make_engine(**options: Any) -> HfEngine:
    engine = HfEngine(model(), num_slots=4, max_length=64, eos_id=2, **options)
    engine.load_params(ParamSet(0, model_params(engine.model), shared=True))
    return engine


def test_same_tokens_as_the_native_engine_for_twenty_seeds() -> None:
    native = NativeEngine(model(), num_slots=4, max_length=64, eos_id=2)
    native.load_params(ParamSet(0, model_params(native.model), shared=True))
    requests = [make_request(i, [1, 5 + i, 7], seed=i, max_tokens=40, sampling=SamplingConfig(0.7)) for i in range(20)]
    for one, other in zip(generate(make_engine(), requests), generate(native, requests), strict=True):
        assert one.rows["tokens"].tolist() == other.rows["tokens"].tolist()
        torch.testing.assert_close(one.rows["logprob"], other.rows["logprob"], atol=1e-5, rtol=0)


def test_greedy_tokens_are_those_of_generate() -> None:
    engine = make_engine()
    prompt = [1, 8, 9, 10]
    request = make_request(0, prompt, seed=0, max_tokens=20, sampling=SamplingConfig(0.0))
    wanted = engine.model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=0, use_cache=True
    )
    assert generate(engine, [request])[0].rows["tokens"].tolist() == wanted[0, len(prompt) :].tolist()


def test_limits_together_are_those_of_generate() -> None:
    """Top-k, then top-p of what is left, then min-p: 0.4 + 0.3 are more than 0.7 of 0.9, so the third token is out."""
    logp = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    allowed = truncate(logp, SamplingConfig(top_k=3, top_p=0.7))
    torch.testing.assert_close(allowed.exp(), torch.tensor([4 / 7, 3 / 7, 0.0, 0.0]))
    torch.testing.assert_close(truncate(logp, SamplingConfig(top_k=3, min_p=0.6)).exp(), torch.tensor([4 / 7, 3 / 7, 0, 0]))
    assert truncate(logp, SamplingConfig()) is logp


def test_draw_inverts_the_cumulative_distribution() -> None:
    logp = torch.tensor([0.25, 0.0, 0.5, 0.25, 0.0]).log()
    assert [draw(logp, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.7501, 0.999999)] == [0, 0, 2, 2, 3, 3]
    assert draw(logp, 1.0) == 3, "never a token of probability 0"


def test_a_hook_changes_what_is_sampled_and_not_the_log_probability() -> None:
    def only_seven(logits: torch.Tensor, requests: Any) -> torch.Tensor:
        out = torch.full_like(logits, -torch.inf)
        out[:, 7] = logits[:, 7]
        return out

    engine = make_engine(logits_hook=only_seven)
    rows = generate(engine, [make_request(0, [1, 5], seed=0, max_tokens=3)])[0].rows
    assert rows["tokens"].tolist() == [7, 7, 7]
    assert rows["sampling_logprob"].tolist() == [0.0, 0.0, 0.0]
    assert bool((rows["logprob"] < -1).all())


def test_bad_input_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="64 positions"):
        HfEngine(model(), num_slots=1, max_length=65, eos_id=2)
    with pytest.raises(ConfigError, match="num_slots"):
        HfEngine(model(), num_slots=0, max_length=8, eos_id=2)
    with pytest.raises(DataError, match="decode_text"):
        make_engine().submit([make_request(0, [1], seed=0, max_tokens=1, sampling=SamplingConfig(stop=("END",)))])


def test_a_broken_model_is_named() -> None:
    engine = make_engine()
    params = {name: torch.full_like(p, torch.nan) for name, p in model_params(engine.model).items()}
    engine.load_params(ParamSet(1, params))
    engine.submit([make_request(0, [1], seed=0, max_tokens=1)])
    with pytest.raises(NonFiniteError, match="NaN"):
        engine.step()


def test_parameters_are_copied_unless_they_are_shared() -> None:
    engine = make_engine()
    own = model_params(engine.model)
    before = {name: p.clone() for name, p in own.items()}
    engine.load_params(ParamSet(1, {name: p + 1 for name, p in own.items()}))
    assert all(torch.equal(own[name], before[name]) for name in own), "the shared tensors must not be written to"


def test_shared_parameters_of_another_precision_are_copied() -> None:
    engine = make_engine()
    engine.model.to(torch.bfloat16)
    engine.load_params(ParamSet(1, model_params(model()), shared=True))
    assert {p.dtype for p in engine.model.parameters()} == {torch.bfloat16}
