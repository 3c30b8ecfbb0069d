"""A reference policy from a folder, or from the mean of several: its log-probabilities against plain transformers, resumed
runs, and what is refused before anything starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_tokenizers import family
from made_tokens import group, pairs

import runnel as rl
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.llm.algorithms.dpo import DPO, DPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.export import save_policy
from runnel.llm.learning.batches import join_rows
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.model.lora import LoraConfig
from runnel.llm.tokenize import CharTokenizer, load_tokenizer
from runnel.run import registry
from runnel.run.pipeline import learner_settings

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
VOCAB = CharTokenizer.vocab_size


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two models of one architecture, one of two layers, and one with another tokenizer."""
    torch.set_num_threads(1)
    base, out = tmp_path_factory.mktemp("references"), {}
    for name, seed, layers in (("one", 1, 1), ("two", 2, 1), ("deep", 3, 2)):
        model = build_model(dataclasses.replace(SIZES, layers=layers), VOCAB, seed=seed)
        save_policy(model, model_params(model), CharTokenizer(), base / name)
        out[name] = str(base / name)
    tokenizer = load_tokenizer(family(base / "tokenizer", "qwen"))
    model = build_model(SIZES, tokenizer.vocab_size, seed=1)
    save_policy(model, model_params(model), tokenizer, base / "foreign")
    return out | {"foreign": str(base / "foreign")}


def learner_of(algorithm: Any, reader: str, **changes: Any) -> TokenLearner:
    config = TokenLearnerConfig(warmup_updates=1, lr=1e-2, max_mismatch=1e9)
    model = build_model(SIZES, VOCAB, seed=0)
    return TokenLearner(dataclasses.replace(config, **changes), model, algorithms={reader: algorithm})


def by_transformers(names: list[str]) -> Any:
    """The mean of models, by the tensors of their files."""
    from transformers import AutoModelForCausalLM

    models = [AutoModelForCausalLM.from_pretrained(name, dtype=torch.float64) for name in names]
    states = [model.state_dict() for model in models]
    models[0].load_state_dict({k: torch.stack([state[k] for state in states]).mean(0) for k in states[0]})
    return models[0]


@pytest.mark.parametrize("names", [["one"], ["one", "two"], ["deep"]], ids=["one", "mean", "another architecture"])
@pytest.mark.parametrize("changes", [{}, {"lora": LoraConfig(rank=2)}], ids=["whole", "adapters"])
def test_log_probabilities_are_those_of_the_mean_model(names: list[str], changes: Any, folders: dict[str, str]) -> None:
    paths = [folders[name] for name in names]
    learner = learner_of(DPO(DPOConfig()), "pairs", reference=tuple(paths), **changes)
    segments = {"pairs": [pairs(np.random.default_rng(0), 2)]}
    batch, rows = learner.prepare(segments, progress=0.0), join_rows(segments["pairs"])
    model = by_transformers(paths)
    for start, length in zip(rows["row_start"].tolist(), rows["row_length"].tolist(), strict=True):
        tokens, mask = rows["tokens"][start : start + length], rows["loss_mask"][start : start + length][1:]
        with torch.no_grad():
            expected = model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0][mask]
        found = batch["reference_logprob"][start + 1 : start + length][mask]
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    before = {name: value.clone() for name, value in learner.reference.params().items()}
    learner.update(batch)
    assert all(torch.equal(value, before[name]) for name, value in learner.reference.params().items())


def test_a_resumed_learner_goes_on_with_it(folders: dict[str, str]) -> None:
    changes = {"reference": (folders["one"], folders["two"])}
    made = [{"rollouts": [group(np.random.default_rng(seed), [1.0, 0.0, 0.5])]} for seed in range(3)]

    def fresh() -> TokenLearner:
        algorithm = GRPO(GRPOConfig(kl_coef=0.1), channels={"exact": 1.0}, max_tokens=6)
        return learner_of(algorithm, "rollouts", **changes)

    def advance(learner: TokenLearner, segments: Any) -> Any:
        return learner.update(learner.prepare(segments, progress=0.0)).metrics

    one, other = fresh(), fresh()
    first = advance(one, made[0])
    assert first["kl"] > 1e-4, "the policy is another model than its reference from the start"
    advance(one, made[1])
    other.load_state_dict(one.state_dict())
    assert advance(one, made[2]) == advance(other, made[2])


# ------------------------------------------------------------------------------------------------------------- refused
TINY = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "num_pairs": 2, "eval": {"episodes": 2}}


def build(recipe: str = "dpo", **learner: Any) -> rl.Experiment:
    settings = (TINY if recipe != "grpo" else {"lm": TINY["lm"], "grpo": {"kl_coef": 0.1}}) | {"learner": learner}
    return registry.build(recipe, registry.configure(registry.load_recipe(recipe), settings))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["nowhere"], "there is no such folder"),
        (["foreign"], "its vocabulary has .* tokens, and the policy's 262: it would judge other tokens"),
        (["one", "deep"], "its num_hidden_layers is 2, and that of .*one 1, so they have no mean"),
        ([""], "a name is empty"),
    ],
)
@pytest.mark.parametrize("recipe", ["dpo", "kto", "grpo"])
def test_a_reference_that_cannot_judge_is_refused_before_a_run_starts(
    recipe: str, names: list[str], says: str, folders: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=says) as found:
        build(recipe, reference=[folders.get(name, name) for name in names])
    assert found.value.field == "learner.reference"


def test_another_template_of_the_same_vocabulary_is_refused(tmp_path: Path) -> None:
    for name in ("policy", "other"):
        tokenizer = load_tokenizer(family(tmp_path / f"{name}-tokenizer", "qwen"))
        model = build_model(SIZES, tokenizer.vocab_size, seed=1)
        save_policy(model, model_params(model), tokenizer, tmp_path / name)
    template = tmp_path / "other/chat_template.jinja"
    template.write_text(template.read_text().replace("assistant\n{% endif %}", "assistant\n\n{% endif %}"))
    settings = {"model": str(tmp_path / "policy"), "num_pairs": 2, "max_tokens": 8}
    settings["learner"] = {"reference": [str(tmp_path / "other")]}
    config = registry.configure(registry.load_recipe("dpo"), settings)
    with pytest.raises(ConfigError, match="makes other tokens of a prompt or answer than the policy's"):
        registry.build("dpo", config)


def test_settings_beside_which_it_cannot_stand(folders: dict[str, str]) -> None:
    one = [folders["one"]]
    for more, field in (({"reference_every": 2}, "learner.reference_every"), ({"shard": True}, "learner.shard")):
        with pytest.raises(ConfigError) as found:
            build(reference=one, **more)
        assert found.value.field == field
    for recipe in ("simpo", "reward_model"):
        with pytest.raises(UnusedSettingError) as found:
            build(recipe, reference=one)
        assert found.value.field == "learner.reference"
    settings = {"lm": TINY["lm"], "grpo": {"kl_coef": 0.1}, "placement": {"reference_workers": 1}}
    config = registry.configure(registry.load_recipe("grpo"), settings | {"learner": {"reference": one}})
    with pytest.raises(ConfigError) as found:
        registry.build("grpo", config)
    assert found.value.field == "placement.reference_workers"


def test_paths_are_known_from_any_folder(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folders["one"]).parent)
    config = registry.configure(registry.load_recipe("dpo"), {"learner": {"reference": ["one", "hub/name"]}})
    assert registry.absolute_paths(config).learner.reference == (folders["one"], "hub/name")


def test_stages_without_a_reference_are_not_given_one() -> None:
    config = TokenLearnerConfig(reference=("somewhere",))
    assert "reference" not in learner_settings(config)
    assert learner_settings(config, reference=True)["reference"] == ["somewhere"]


def test_a_run_holds_to_the_mean(tmp_path: Path, folders: dict[str, str]) -> None:
    """DPO at its first update: with another model as reference the loss is not log 2; what a run saves is its settings."""
    settings = {**TINY, "total_updates": 1, "track": (), "eval": {"episodes": 0}, "name": "run"}
    settings["learner"] = {"reference": [folders["one"], folders["two"]]}
    run = rl.train("dpo", out=str(tmp_path), **settings)
    (row,) = run.rows()
    assert abs(row["metrics"]["loss/dpo"] - np.log(2.0)) > 1e-5
    saved = json.loads((run.path / "config.json").read_text())
    assert folders["two"] in json.dumps(saved)
