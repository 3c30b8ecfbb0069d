"""Families of models: engine and learner give what plain transformers gives, or the family is refused by name."""

import copy

import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, RunnelError
from runnel.graphs import prompt_task
from runnel.llm.checks import at_start as start_check
from runnel.llm.checks.agreement import compare
from runnel.llm.checks.at_start import check_engine, check_family, check_learner, problem
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.module_runners import ModuleRunner
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import generate, make_request
from runnel.llm.engines.runners import DecoderRunner
from runnel.llm.model import token_model
from runnel.llm.model.causal_lm import hidden_states, model_params, num_positions, output_head
from runnel.llm.model.decoder import supported
from runnel.llm.model.tiny import WINDOW, tiny_config, tiny_model
from runnel.llm.model.token_model import TokenModel

WINDOWED = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4096}
ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128}
KNOWN = {  # family, settings, whether our own decoder runs it
    "llama": ("llama", {"attention_bias": True}, True),
    "qwen2": ("qwen2", {}, True),
    "qwen3": ("qwen3", {}, True),
    "qwen2-window": ("qwen2", WINDOWED, False),
    "qwen3-window": ("qwen3", WINDOWED, False),
    "mistral-window": ("mistral", {"sliding_window": 4096}, False),
    "gemma2": ("gemma2", {}, False),
    "gemma3": ("gemma3_text", {}, False),
    "phi3-window": ("phi3", {"sliding_window": 2048}, False),
    "phi3-longrope": ("phi3", {"rope_parameters": {**ROPE, "short_factor": [1.0] * 48, "long_factor": [4.0] * 48}}, False),
    "olmo3": ("olmo3", {}, False),
    "cohere2": ("cohere2", {}, False),
    "starcoder2": ("starcoder2", {"sliding_window": 4096}, False),
    "gpt-oss": ("gpt_oss", {}, False),
    "exaone4": ("exaone4", {"sliding_window": 4096}, False),
    "llama4": ("llama4_text", {}, False),
    "gpt-neo": ("gpt_neo", {}, False),
    "falcon-alibi": ("falcon", {"alibi": True}, False),
    "bloom": ("bloom", {}, False),
    "opt": ("opt", {}, False),
    "mpt": ("mpt", {}, False),
    "deepseek-v3": ("deepseek_v3", {}, False),
    "granite": ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.2}, False),
    "falcon-h1": ("falcon_h1", {"lm_head_multiplier": 0.04}, False),
    "recurrent-gemma": ("recurrent_gemma", {}, False),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 16}, False),
    "mamba": ("mamba", {}, False),
    "qwen3-next": ("qwen3_next", {}, False),
}


def tiny_of(family, settings):
    from transformers import CONFIG_MAPPING

    return tiny_model(tiny_config(CONFIG_MAPPING[family](**settings)))


def engine_of(model, kind=NativeEngine, **settings):
    engine = kind(model, num_slots=3, max_length=32, eos_id=-1, **settings)
    engine.load_params(ParamSet(0, model_params(model)))
    return engine


def asked(lengths=(3, 14, 9)):
    return [make_request(i, list(range(8 + i, 8 + i + n)), seed=i, max_tokens=9) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("name", KNOWN)
def test_engine_and_learner_give_what_transformers_gives(name):
    family, settings, ours = KNOWN[name]
    model = tiny_of(family, settings)
    assert supported(model) == ours == isinstance(engine_of(model)._runner, DecoderRunner)
    found = compare(model)
    assert found.same_tokens == found.num_rows
    assert max(found.engine, found.learner, found.causal) < 1e-4


def test_tiny_windows_are_shorter_than_the_prompts_they_are_compared_on():
    """The comparison sees a window: without its mask, the same weights say something else."""
    model = tiny_of("mistral", {"sliding_window": 4096})
    assert model.config.sliding_window == WINDOW
    plain = copy.deepcopy(model)
    plain.config.sliding_window = None
    tokens = torch.arange(8, 28)[None]
    with torch.no_grad():
        gap = (model(input_ids=tokens).logits - plain(input_ids=tokens).logits).abs().amax(dim=(0, 2))
    assert gap[:WINDOW].max() < 1e-5 < 0.1 < gap[WINDOW:].max()


@pytest.mark.parametrize("family", ["gemma2", "mamba", "falcon_h1", "openai-gpt"])
def test_the_reference_engine_draws_the_same_tokens(family):
    """Whatever a family keeps of the past: keys, states, both, or nothing."""
    model = tiny_of(family, {})
    ours, plain = (generate(engine_of(copy.deepcopy(model), kind), asked()) for kind in (NativeEngine, HfEngine))
    for a, b in zip(ours, plain, strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [NativeEngine, HfEngine])
@pytest.mark.parametrize("family", ["gemma2", "qwen3_next"])
def test_a_restored_engine_goes_on_with_what_the_family_keeps(family, kind):
    model = tiny_of(family, {})
    whole = {reply.id: reply for reply in generate(engine_of(copy.deepcopy(model), kind), asked())}
    engine = engine_of(copy.deepcopy(model), kind)
    engine.submit(asked())
    for _ in range(4):
        assert not engine.step()
    state, again = engine.snapshot(), engine_of(copy.deepcopy(model), kind)
    again.restore(state)
    replies = []
    while again.pending():
        replies += again.step()
    assert sorted(r.id for r in replies) == sorted(whole)
    for reply in replies:
        assert reply.rows["tokens"].tolist() == whole[reply.id].rows["tokens"].tolist()
        assert torch.equal(reply.rows["logprob"], whole[reply.id].rows["logprob"])


@pytest.mark.parametrize("family", ["gemma2", "qwen3_next"])
def test_with_fixed_shapes_neighbours_change_not_one_bit(family):
    model = tiny_of(family, {})
    together = generate(engine_of(copy.deepcopy(model), fixed_shapes=True), asked())
    for request, beside in zip(asked(), together, strict=True):
        alone = generate(engine_of(copy.deepcopy(model), fixed_shapes=True), [request])[0].rows
        assert alone["tokens"].tolist() == beside.rows["tokens"].tolist()
        assert torch.equal(alone["logprob"], beside.rows["logprob"])


@pytest.mark.parametrize("family", ["falcon_h1", "recurrent_gemma", "cohere2", "granite", "gemma2", "opt", "mpt"])
def test_the_head_is_the_models_own(family):
    """Scales and soft caps behind the output embedding, by whatever name a family has for them; with gradients."""
    settings = {"falcon_h1": {"lm_head_multiplier": 0.04}, "granite": {"logits_scaling": 8.0}, "cohere2": {"logit_scale": 0.1}}
    model = tiny_of(family, settings.get(family, {}))
    tokens = torch.arange(8, 20)[None]
    hidden = hidden_states(model, tokens)
    expected = model(input_ids=tokens, use_cache=False).logits
    found = output_head(model)(hidden)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    ours, own = (torch.autograd.grad(x.square().sum(), model.get_output_embeddings().weight)[0] for x in (found, expected))
    torch.testing.assert_close(ours, own, atol=1e-4, rtol=1e-4)


def test_rows_end_where_transformers_would_change_the_angles_of_all_tokens():
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0], "long_factor": [2.0]}
    data = {"max_position_embeddings": 4096, "rope_parameters": rope}
    assert num_positions(data) == 64
    assert num_positions({"max_position_embeddings": 4096}) == num_positions({"text_config": {"n_positions": 4096}}) == 4096
    assert num_positions({"max_seq_len": 12}) == 12
    assert num_positions({"hidden_size": 64}) is None
    model = tiny_of(*KNOWN["phi3-longrope"][:2])
    with pytest.raises(ConfigError, match="the model has 128 positions"):
        NativeEngine(model, num_slots=1, max_length=129, eos_id=-1)


# -------------------------------------------------------------------------------------------------------------- at start
REFUSALS = {
    "bert": ({}, "depends on later ones"),
    "roberta": ({"is_decoder": True}, "engine's log-probabilities differ"),
    "doge": ({}, "learner's log-probabilities differ"),
    "rwkv": ({}, "rescales its own weights"),
    "cpmant": ({}, "does not run as a causal decoder"),
    "reformer": ({"is_decoder": True}, "no tiny copy"),
}


@pytest.mark.parametrize("family", REFUSALS)
def test_a_family_that_differs_is_refused_by_name(family):
    from transformers import CONFIG_MAPPING

    settings, reason = REFUSALS[family]
    with pytest.raises(ConfigError, match=f"model = .*{family}.*{reason}.*use ") as error:
        check_family(CONFIG_MAPPING[family](**settings))
    assert ("--engine.kind hf" in str(error.value)) == (family == "roberta")


def test_families_that_agree_are_checked_once(monkeypatch):
    from transformers import CONFIG_MAPPING

    calls = []
    monkeypatch.setattr(start_check, "compare", lambda model, engine: calls.append(engine) or compare(model, engine=engine))
    monkeypatch.setattr(start_check, "_found", {})
    for _ in range(2):
        check_family(CONFIG_MAPPING["gemma2"]())
    check_family(CONFIG_MAPPING["gemma2"](), engine="hf")
    assert calls == ["native", "hf"]


def test_a_mask_that_is_dropped_is_found_on_the_tiny_copy(monkeypatch):
    """The comparison is with transformers, not with ourselves: plain causal attention, as engines had it, is refused."""
    from transformers import CONFIG_MAPPING

    forward = ModuleRunner._forward

    def causal(self, tokens, positions, seen):
        steps = torch.arange(seen.shape[1])
        mask = (seen[:, None] > 0) & (steps <= steps[-tokens.shape[1] :, None])
        return forward(self, tokens, positions, torch.zeros(mask[:, None].shape).masked_fill(~mask[:, None], -torch.inf))

    monkeypatch.setattr(ModuleRunner, "_forward", causal)
    assert problem(CONFIG_MAPPING["starcoder2"](sliding_window=None)) is None
    found = problem(CONFIG_MAPPING["starcoder2"](sliding_window=4096))
    assert "engine's log-probabilities differ" in str(found)
    assert "--engine.kind hf" in str(found)


def test_real_weights_are_held_against_transformers_in_engine_and_learner(monkeypatch):
    model = tiny_of("granite", {"logits_scaling": 8.0})
    engine, learner = engine_of(copy.deepcopy(model)), TokenModel(copy.deepcopy(model), frozen=True)
    check_engine(engine)
    check_learner(learner)
    assert (engine.num_tokens, engine.pending()) == (0, 0)
    plain = model.get_output_embeddings()
    monkeypatch.setattr(engine._runner, "_head", plain)
    monkeypatch.setattr(token_model, "output_head", lambda model: plain)
    with pytest.raises(RunnelError, match="'granite' model the engine's log-probabilities differ"):
        check_engine(engine)
    with pytest.raises(RunnelError, match="'granite' model the learner's log-probabilities differ"):
        check_learner(learner)


def test_a_family_whose_rows_run_one_by_one_is_told():
    with pytest.warns(UserWarning, match="'mamba' keep more than keys and values, so the engine runs a row at a time"):
        check_engine(engine_of(tiny_of("mamba", {})))


def run_from(model, folder):
    import runnel as rl
    from runnel.llm.tokenize import CharTokenizer

    model.resize_token_embeddings(CharTokenizer.vocab_size)
    model.save_pretrained(folder / "model")
    CharTokenizer().save(folder / "model")
    sizes = {"num_prompts": 2, "group_size": 2, "max_tokens": 8, "total_updates": 1, "eval": {"episodes": 0}}
    return rl.train("grpo", task="reverse", model=str(folder / "model"), out=str(folder / "runs"), **sizes)


def test_a_run_from_a_refused_folder_ends_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"model = .*'bert' is refused"):
        run_from(tiny_of("bert", {}), tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_run_from_a_folder_compares_engine_and_learner_once(tmp_path, monkeypatch):
    seen = []
    for name in ("check_engine", "check_learner"):
        check = getattr(start_check, name)
        monkeypatch.setattr(prompt_task, name, lambda what, name=name, check=check: (seen.append(name), check(what)))
    run = run_from(tiny_of("mistral", {"sliding_window": 4096}), tmp_path)
    assert run.status == "finished"
    assert sorted(seen) == ["check_engine", "check_learner"]
