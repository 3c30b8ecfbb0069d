"""Adapters in the one decoder: peft's numbers and gradients, a version that is the adapters alone, and weights that are read in
one place."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.core.contracts.learning import SingleProcess
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import generate, make_request
from runnel.llm.engines.vllm import VllmEngine
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel, build_model, model_params, shared_copy
from runnel.llm.model.lora import SCALE, Adapters, LoraConfig, MergedModel, make_adapters, save_adapters
from runnel.llm.model.token_model import TokenModel

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)
CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
LENGTHS = [7, 13]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def qwen(*, tied: bool, width: int = 32) -> Any:
    """A model with biases at query, key and value."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes: Any = {"hidden_size": width, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=40, max_position_embeddings=64, tie_word_embeddings=tied)
    model = Qwen2ForCausalLM(config).eval()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p)
    return model


def gpt2() -> Any:
    """A family that the decoder does not know, whose matrices are `[in, out]`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=2)).eval()


def adapted(model: Any = None, *, targets=(), **settings: Any) -> TokenModel:
    model = build_model(SIZES, 40, seed=1) if model is None else model
    return TokenModel(model, lora=LoraConfig(rank=3, alpha=5.0, targets=targets), **settings)


def through_peft(model: Any, adapters: Adapters, targets: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """peft's own modules in a copy of `model`, with the same adapters; its layers by name."""
    import peft

    twin = copy.deepcopy(model)
    wanted = peft.LoraConfig(r=3, lora_alpha=5.0, target_modules=list(targets) or "all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(twin, wanted)
    layers = {n: m for n, m in twin.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
    assert layers.keys() == {name for name, _, _ in adapters.modules()}
    for name, down, up in adapters.modules():
        layers[name].lora_A.default.weight.data = down.clone()
        layers[name].lora_B.default.weight.data = up.clone()
    return twin, layers


def train(model: TokenModel, tokens: Tensor, *, steps: int = 1, lr: float = 1e-2) -> list[float]:
    said = []
    for _ in range(steps):
        model.zero_grad()
        hidden = model.packed_hidden(tokens, PackedRows([len(tokens)], device=tokens.device))
        logprob, _ = model.target_logprobs(hidden, tokens.roll(-1), temperature=1.0)
        (-logprob.mean()).backward()
        model.gather()
        model.step(lr, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)
        said.append(float(logprob.detach().mean()))
    return said


def shake(adapters: Adapters) -> None:
    for _, _, up in adapters.modules():
        up.normal_()


# ------------------------------------------------------------------------------------------------------- against peft
@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj", "down_proj"), ("up_proj",)])
@pytest.mark.parametrize("config", [LoraConfig(rank=3), LoraConfig(rank=4, alpha=8.0)])
def test_new_adapters_are_those_of_peft_after_the_same_seed(config, targets):
    import peft

    model = qwen(tied=False)
    found = make_adapters(model, LoraConfig(config.rank, config.alpha, targets))
    torch.manual_seed(0)
    wanted = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(targets) or "all-linear")
    peft.get_peft_model(model, wanted)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
    assert layers.keys() == {name for name, _, _ in found.modules()}
    assert found.scale == config.alpha / config.rank
    for name, down, up in found.modules():
        assert torch.equal(down, layers[name].lora_A.default.weight)
        assert not bool(up.any())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", ["none", "mlp", "block"])
@pytest.mark.parametrize(
    ("tied", "targets"), [(True, ()), (False, ("q_proj", "v_proj", "down_proj", "lm_head")), (False, ("up_proj",))]
)
def test_log_probabilities_and_gradients_are_those_of_pefts_modules(tied, targets, recompute, device):
    precision, kind, slack = ("float64", torch.float64, 1.0) if device == "cpu" else ("float32", torch.float32, 100.0)
    model = qwen(tied=tied).to(device, kind)
    plain = copy.deepcopy(model)
    ours = adapted(model, precision=precision, targets=targets, recompute=recompute, device=device)
    shake(ours.adapters)
    twin, layers = through_peft(plain, ours.adapters, targets)
    tokens = torch.randint(0, 40, (sum(LENGTHS),), device=device)
    a, b = torch.randn(2, len(tokens), device=device, dtype=kind)
    ours.zero_grad()
    rows = PackedRows(LENGTHS, device=device)
    logprob, entropy = ours.target_logprobs(ours.packed_hidden(tokens, rows), tokens.roll(-1), temperature=0.9)
    (a * logprob + 0.3 * b * entropy).sum().backward()
    total, start, expected = 0.0, 0, []
    for size in LENGTHS:
        part = slice(start, start + size)
        logp = torch.log_softmax(twin(tokens[None, part]).logits[0] / 0.9, dim=-1)
        expected.append(logp.gather(1, tokens.roll(-1)[part, None])[:, 0])
        total = total + (a[part] * expected[-1] - 0.3 * b[part] * (logp.exp() * logp).sum(dim=-1)).sum()
        start += size
    total.backward()
    torch.testing.assert_close(logprob.to(kind), torch.cat(expected), atol=slack * 2e-6, rtol=0)
    for name, grad in ours._named(ours._grad).items():
        module, kind = name.removesuffix(".weight").rsplit(".", 1)
        other = getattr(layers[module], kind).default.weight.grad
        torch.testing.assert_close(grad, other, atol=slack * 1e-5 * float(other.abs().max()), rtol=slack * 1e-5)
    assert len(ours._master) == sum(t.numel() for t in ours.adapters.tensors.values()), "nothing is kept of what is frozen"


@pytest.mark.parametrize("model", [lambda: qwen(tied=True), gpt2])
def test_an_engine_says_what_peft_says(model):
    """Of a family that the decoder knows, and of one whose modules get the adapters merged in."""
    base = model()
    adapters = make_adapters(base, LoraConfig(rank=3, alpha=5.0))
    shake(adapters)
    twin, _ = through_peft(base, adapters, ())
    prompt, tokens = torch.tensor([3, 4, 5]), torch.tensor([7, 1, 30, 2])
    logits = twin(torch.cat((prompt, tokens))[None]).logits[0, 2:-1]
    expected = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0].detach()
    for kind in (NativeEngine, HfEngine):
        own = copy.deepcopy(base)
        before = {n: p.clone() for n, p in own.named_parameters()}
        engine = kind(own, num_slots=2, max_length=32, eos_id=-5)
        for version in (1, 2):
            engine.load_params(ParamSet(version, adapters.params()))
            torch.testing.assert_close(engine.logprobs(prompt, tokens), expected, atol=1e-5, rtol=0)
        reply = generate(engine, [make_request(0, [3, 4, 5], seed=0, max_tokens=6)])[0].rows
        torch.testing.assert_close(reply["logprob"], engine.logprobs(prompt, reply["tokens"]), atol=1e-5, rtol=0)
        engine.load_params(ParamSet(3, before))
        torch.testing.assert_close(engine.logprobs(prompt, tokens), said_by(base, prompt, tokens), atol=1e-5, rtol=0)


def said_by(model: Any, prompt: Tensor, tokens: Tensor) -> Tensor:
    logits = model(torch.cat((prompt, tokens))[None]).logits[0, len(prompt) - 1 : -1].detach()
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]


def test_adapters_are_saved_as_peft_loads_them(tmp_path):
    from peft import PeftModel

    for i, targets in enumerate([(), ("q_proj", "v_proj"), ("model.layers.1.mlp.down_proj",)]):
        model = adapted(targets=targets)
        shake(model.adapters)
        folder = str(tmp_path / str(i))
        save_adapters(model.model, model.adapters, folder)
        again = PeftModel.from_pretrained(build_model(SIZES, 40, seed=1), folder)
        tokens = torch.randint(0, 40, (1, 9))
        twin, _ = through_peft(build_model(SIZES, 40, seed=1), model.adapters, targets)
        torch.testing.assert_close(again(tokens).logits, twin(tokens).logits, atol=1e-6, rtol=0)


# ----------------------------------------------------------------------------------------------------------- training
def test_training_moves_only_adapters_and_a_version_is_nothing_else():
    model, tokens = adapted(), torch.randint(0, 40, (12,))
    base = {n: p.clone() for n, p in model_params(model.model).items()}
    said = train(model, tokens, steps=30)
    assert said[-1] > said[0] + 0.5
    assert all(torch.equal(base[n], p) for n, p in model_params(model.model).items())
    assert all(name == SCALE or ".lora_" in name for name in model.params())
    assert sum(p.numel() for p in model.params().values()) == len(model._master) + 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_engine_learner_and_reference_read_one_base(precision):
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    base = build_model(SIZES, 40, seed=1, dtype=kind)
    model = adapted(shared_copy(base), precision=precision)
    reference = model.frozen_copy()
    engine = NativeEngine(shared_copy(base), num_slots=2, max_length=32, eos_id=-5)
    places = {m.model.norm.weight.data_ptr() for m in (base, model.model, engine.model, reference.model)}
    assert len(places) == 1
    tokens = torch.randint(0, 40, (12,))
    train(model, tokens, steps=10)
    engine.load_params(ParamSet(1, model.params(), shared=True))
    known = engine._runner.decoder.adapters
    assert all(known[n].data_ptr() == t.data_ptr() for n, t in model.adapters.tensors.items()), "nothing is copied"
    reply = generate(engine, [make_request(0, [3, 4, 5], seed=0, max_tokens=10)])[0].rows
    row = torch.cat([torch.tensor([3, 4, 5]), reply["tokens"]])
    with torch.no_grad():
        gap = (reply["logprob"] - model.row_logprobs(row, 3)).abs().max()
        moved = (reference.row_logprobs(row, 3) - model.row_logprobs(row, 3)).abs().max()
    assert float(gap) < (1e-5 if precision == "float32" else 0.05)
    assert float(moved) > 0.1, "the reference stays where it was"


def test_a_model_comes_back_and_another_base_is_refused():
    first, second = adapted(), adapted()
    tokens = torch.randint(0, 40, (12,))
    start = {n: p.clone() for n, p in first.params().items()}
    train(first, tokens, steps=2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for model in (first, second):
        train(model, tokens)
    pairs = zip(first.params().values(), second.params().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(not torch.equal(p, start[n]) for n, p in first.params().items())
    assert not first.state_dict()["rest"], "the config says what the adapters stand beside"
    with pytest.raises(ConfigError, match=r"model = .*trained beside"):
        adapted(build_model(SIZES, 40, seed=2)).load_state_dict(first.state_dict())


def test_a_start_from_another_run_travels_with_the_adapters():
    """Nobody elsewhere can build it from the config."""
    model, other = adapted(), build_model(SIZES, 40, seed=7)
    model.start_from(model_params(other))
    engine = NativeEngine(build_model(SIZES, 40, seed=1), num_slots=1, max_length=32, eos_id=-5)
    engine.load_params(ParamSet(0, model.params()))
    prompt, tokens = torch.tensor([3, 4]), torch.tensor([7, 1, 30])
    torch.testing.assert_close(engine.logprobs(prompt, tokens), said_by(other, prompt, tokens), atol=1e-5, rtol=0)
    again = adapted()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.model.model.norm.weight, other.model.norm.weight)
    assert torch.equal(
        again.params()["lm_head.weight" if not SIZES.tie_embeddings else "model.embed_tokens.weight"],
        other.model.embed_tokens.weight,
    )


def test_a_scalar_model_trains_adapters_and_its_whole_head():
    model = adapted(ScalarModel(build_model(SIZES, 40, seed=1)))
    before = {n: p.clone() for n, p in model.params().items()}
    tokens, rows = torch.randint(0, 40, (12,)), PackedRows([12])
    for _ in range(3):
        model.zero_grad()
        score = model.model.score(model.packed_hidden(tokens, rows))
        (score - 3.0).square().sum().backward()
        model.gather()
        model.step(1e-2, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)
    after = model.params()
    assert "score.weight" in after
    assert not any("embed" in n or n.endswith("_proj.weight") for n in after)
    assert sum(not torch.equal(after[n], before[n]) for n in after) > 5
    twin = TokenModel(ScalarModel(build_model(SIZES, 40, seed=1)), frozen=True)
    twin.load_params(after)
    with torch.no_grad():
        expected = model.model.score(model.packed_hidden(tokens, rows))
        torch.testing.assert_close(twin.model.score(twin.packed_hidden(tokens, rows)), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("targets", [("lm_head",), ("embed_tokens",), ("q_proj", "lm_head")])
def test_adapters_of_a_tied_embedding_are_refused_by_name(targets):
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets.*embedding"):
        adapted(targets=targets)
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets.*embedding"):
        adapted(qwen(tied=False), targets=("embed_tokens",))
    with pytest.raises(ConfigError, match=r"lora\.targets"):
        adapted(targets=("nonsense",))
    with pytest.raises(ConfigError, match=r"lora\.rank"):
        LoraConfig(rank=-1)


@pytest.mark.parametrize("model", [lambda: qwen(tied=False), gpt2])
def test_what_vllm_is_sent_is_what_peft_merges(model):
    base = model()
    adapters = make_adapters(base, LoraConfig(rank=3, alpha=5.0))
    shake(adapters)
    _, layers = through_peft(base, adapters, ())
    engine = VllmEngine.__new__(VllmEngine)  # without a process behind it
    engine._make_model, engine._model = lambda: base, None
    whole = engine._whole(adapters.params())
    assert whole.keys() == model_params(base).keys()
    for name, layer in layers.items():
        layer.merge()
        torch.testing.assert_close(whole[f"{name}.weight"], layer.get_base_layer().weight.detach(), atol=1e-6, rtol=0)
    rest = [n for n in whole if n.removesuffix(".weight") not in layers]
    assert all(torch.equal(whole[n], dict(model_params(base))[n]) for n in rest)


def test_merging_leaves_what_others_read():
    base = build_model(SIZES, 40, seed=1)
    twin, adapters = shared_copy(base), make_adapters(base, LoraConfig(rank=3, alpha=5.0))
    shake(adapters)
    before = {n: p.clone() for n, p in model_params(base).items()}
    merged = MergedModel(twin)
    merged.load(adapters)
    name = "model.layers.0.mlp.down_proj.weight"
    module, down, up = next(m for m in adapters.modules() if m[0] == name.removesuffix(".weight"))
    expected = before[name].double().numpy() + 5.0 / 3.0 * (up.double().numpy() @ down.double().numpy())
    np.testing.assert_allclose(twin.get_submodule(module).weight.detach().numpy(), expected, atol=1e-5)
    assert all(torch.equal(p, before[n]) for n, p in model_params(base).items())
    merged.load(None)
    assert all(torch.equal(p, before[n]) for n, p in model_params(twin).items())


# ---------------------------------------------------------------------------------------------------------------- CUDA
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("recompute", ["none", "mlp", "block"])
def test_recorded_passes_with_adapters_are_the_plain_ones(recompute):
    found = []
    for record in (True, False):
        torch.manual_seed(1)
        model = qwen(tied=False, width=64)
        model = adapted(model, precision="bfloat16", device="cuda", recompute=recompute if record else "none")
        torch.manual_seed(3)
        shake(model.adapters)
        if not record:
            model._graphed = None
        out = []
        for lengths in ([5, 9, 3], [20, 30], [5, 9, 3], [5, 9, 3]):
            tokens = (torch.arange(sum(lengths), device="cuda") * 7) % 40
            model.zero_grad()
            hidden = model.packed_hidden(tokens, PackedRows(lengths, device="cuda"))
            logprob, _ = model.target_logprobs(hidden, tokens.roll(-1), temperature=1.0)
            logprob.sum().backward()
            out.append((logprob.detach().clone(), model._grad.clone()))
        found.append(out)
    for (a, grad), (b, other) in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=5e-2, rtol=0)
        assert float(other.norm()) > 0
        assert float((grad - other).norm() / other.norm()) < 0.03


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_on_cuda_an_engine_follows_versions_without_recording_anew():
    sizes = replace(SIZES, width=64)  # heads of 16: what the kernels take
    base = build_model(sizes, 40, seed=1, dtype=torch.bfloat16, device="cuda")
    model = adapted(shared_copy(base), precision="bfloat16", device="cuda")
    shared, apart = (NativeEngine(shared_copy(base), num_slots=8, max_length=64, eos_id=-5) for _ in range(2))
    tokens = torch.randint(0, 40, (12,), device="cuda")
    for version in range(1, 4):
        train(model, tokens, steps=3)
        for engine, is_shared in ((shared, True), (apart, False)):
            copies = {n: p.clone() for n, p in model.params().items()}
            engine.load_params(ParamSet(version, model.params() if is_shared else copies, shared=is_shared))
            asked = [make_request(i, [3, 4, 5], seed=i, max_tokens=20) for i in range(8)]
            for reply in generate(engine, asked):
                row = torch.cat([torch.tensor([3, 4, 5]), reply.rows["tokens"]]).cuda()
                with torch.no_grad():
                    gap = (reply.rows["logprob"] - model.row_logprobs(row, 3).cpu()).abs().mean()
                assert float(gap) < 0.02
