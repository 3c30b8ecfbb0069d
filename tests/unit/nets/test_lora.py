"""Adapters through peft: only they move, what is published is the merged model, and everything comes back."""

from __future__ import annotations

import pytest
import torch

from runnel.core.errors import ConfigError
from runnel.core.protocols import OneProcess, ParamSet
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import generate, make_request
from runnel.nets.causal_lm import ModelConfig, build_model, copy_model, model_params
from runnel.nets.lora import Adapters, LoraConfig
from runnel.nets.token_model import TokenModel
from runnel.ops.attention import PackedRows

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def adapted(seed=1, precision="float32", **settings):
    model = build_model(SIZES, 40, seed=seed)
    config = LoraConfig(rank=4, **settings)
    return TokenModel(model, precision=precision, adapters=Adapters(model, config))


def advance(model, tokens, lr=1e-2):
    rows = PackedRows([len(tokens)])
    model.zero_grad()
    logprob, _ = model.target_logprobs(model.packed_hidden(tokens, rows), tokens.roll(-1), temperature=1.0)
    (-logprob.mean()).backward()
    model.gather()
    model.step(lr, max_grad_norm=1.0, collective=OneProcess(), name="grad_norm", version=0)
    return float(logprob.detach().mean())


def test_a_new_adapter_changes_nothing_and_training_moves_only_adapters():
    plain = build_model(SIZES, 40, seed=1)
    model = adapted()
    assert all(torch.equal(a, b) for a, b in zip(model_params(plain).values(), model.params().values(), strict=True))
    base = {n: p.detach().clone() for n, p in model.model.named_parameters() if "lora_" not in n}
    tokens = torch.randint(0, 40, (12,))
    first = advance(model, tokens)
    for _ in range(30):
        last = advance(model, tokens)
    assert last > first + 0.5
    assert all(torch.equal(base[n], p) for n, p in model.model.named_parameters() if n in base)
    moved = [n for n, p in model.params().items() if not torch.equal(p, model_params(plain)[n])]
    assert moved
    assert all("_proj" in n for n in moved)
    assert len(model._master) < 0.5 * sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_engine_with_the_published_weights_agrees_with_the_learner(precision):
    model = adapted(precision=precision)
    tokens = torch.randint(0, 40, (12,))
    for _ in range(10):
        advance(model, tokens)
    twin = copy_model(model.plain)
    engine = NativeEngine(twin, num_slots=2, max_length=32, eos_id=-5)
    engine.load_params(ParamSet(1, model.params(), shared=True))
    assert twin.model.norm.weight.data_ptr() == model.plain.model.norm.weight.data_ptr(), "nothing is copied"
    reply = generate(engine, [make_request(0, [3, 4, 5], seed=0, max_tokens=10)])[0].rows
    full = torch.cat([torch.tensor([3, 4, 5]), reply["tokens"]])
    with torch.no_grad():
        hidden = model.packed_hidden(full, PackedRows([13]))
        logprob, _ = model.target_logprobs(hidden[2:-1], full[3:], temperature=1.0)
    torch.testing.assert_close(reply["logprob"], logprob, atol=1e-5 if precision == "float32" else 0.05, rtol=0)


def test_state_and_starts_come_back():
    first, second = adapted(seed=1), adapted(seed=2)
    tokens = torch.randint(0, 40, (12,))
    advance(first, tokens)
    second.load_state_dict(first.state_dict())
    for model in (first, second):
        advance(model, tokens)
    assert all(torch.equal(a, b) for a, b in zip(first.params().values(), second.params().values(), strict=True))
    other = build_model(SIZES, 40, seed=7)
    second = adapted(seed=3)
    second.start_from(model_params(other))
    assert all(torch.equal(p, model_params(other)[n]) for n, p in second.params().items())
    frozen = first.frozen_copy()
    assert all(torch.equal(a, b) for a, b in zip(first.params().values(), frozen.params().values(), strict=True))
    assert not any("lora" in n for n in frozen.params())


def test_targets_are_checked_and_adapters_are_saved(tmp_path):
    from peft import PeftModel

    with pytest.raises(ConfigError, match=r"lora\.targets"):
        adapted(targets=("nonsense",))
    with pytest.raises(ConfigError, match=r"lora\.rank"):
        LoraConfig(rank=-1)
    model = adapted(targets=("q_proj", "v_proj"))
    tokens = torch.randint(0, 40, (12,))
    advance(model, tokens)
    model._adapters.save(str(tmp_path))
    again = PeftModel.from_pretrained(build_model(SIZES, 40, seed=1), str(tmp_path)).merge_and_unload()
    for name, value in model.params().items():
        torch.testing.assert_close(dict(again.named_parameters())[name].detach(), value, atol=1e-6, rtol=0)
