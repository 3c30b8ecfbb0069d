"""What graphs of language models refuse before anything starts, and what they wire."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_tokenizers import save_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import runnel as rl
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import UnusedSettingError
from runnel.llm.engines.requests import generate, make_request
from runnel.llm.model.causal_lm import model_params
from runnel.run import registry

TINY: dict[str, Any] = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": ()}


def build(recipe: str, **settings: Any) -> rl.Experiment:
    return registry.build(recipe, registry.configure(registry.load_recipe(recipe), {**TINY, **settings}))


STALE: list[tuple[str, dict[str, Any]]] = [
    ("learner.num_epochs = 2", {"learner": {"num_epochs": 2}}),
    ("learner.num_minibatches = 4", {"learner": {"num_minibatches": 4}}),
    ("staleness.mode = 'one_step'", {"staleness": {"mode": "one_step"}}),
    ("staleness.mode = 'window'", {"staleness": {"mode": "window"}}),
]


@pytest.mark.parametrize("recipe", ["reinforce", "rloo", "remax", "oreal"])
@pytest.mark.parametrize(("named", "settings"), STALE, ids=[named for named, _ in STALE])
def test_the_plain_policy_gradient_is_refused_on_samples_of_older_weights(recipe: str, named: str, settings: Any) -> None:
    """Its loss has no importance weight, so from the second step on it would be the gradient of something else."""
    with pytest.raises(rl.ConfigError, match=rf"^{named}.*importance weight.*aipo"):
        build(recipe, **settings)


def test_what_weighs_its_samples_may_use_them_again() -> None:
    assert build("rloo").title == "reverse"
    weighed = (
        *("reinforce_plus_plus", "cispo", "topr", "opmd", "p3o", "pacs", "a_lol", "raft"),
        *("clip_cov", "kl_cov", "rl_plus", "ppo_max"),
    )
    for recipe in ("grpo", "aipo", "decoupled", "online_dpo", *weighed):
        for _, settings in STALE:
            assert build(recipe, **settings).title == "reverse"


# ------------------------------------------------------------------------------------------------------------------- turns
OF_TURNS: list[tuple[str, str, dict[str, Any]]] = [
    ("gigpo", "gigpo.gamma", {"gigpo": {"gamma": 0.5}}),
    ("turn_ppo", "turn_ppo.gae_lambda", {"turn_ppo": {"gae_lambda": 0.5}}),
    ("grpo", "grpo.duration_power", {"grpo": {"duration_power": 1.0}}),
]


class Talks:
    """What a config of conversations has."""

    has_turns = True


@pytest.mark.parametrize(("recipe", "field", "settings"), OF_TURNS, ids=[field for _, field, _ in OF_TURNS])
def test_settings_of_turns_are_refused_for_completions_alone(recipe: str, field: str, settings: Any) -> None:
    with pytest.raises(UnusedSettingError, match=rf"^{field} = .*a completion is one turn"):
        build(recipe, **settings)
    config = registry.load_recipe(recipe).Config
    assert field in config().unused()
    assert field not in type("Config", (Talks, config), {})().unused()


def test_measured_durations_are_refused_where_runs_must_repeat() -> None:
    talks = type("Config", (Talks, registry.load_recipe("grpo").Config), {})
    config = talks(grpo=rl.llm.GRPOConfig(duration_power=1.0))
    config.check()
    with pytest.raises(rl.ConfigError, match=r"^grpo.duration_power = 1.0: durations are measured"):
        replace(config, deterministic=True).check()


# ----------------------------------------------------------------------------------------------------------- reward models
@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model as the recipe leaves it."""
    run = rl.train("reward_model", out=str(tmp_path_factory.mktemp("runs")), total_updates=1, num_pairs=2, **TINY)
    return run.path / "model"


def changed(scorer: Path, folder: Path, **settings: Any) -> Path:
    """A copy with other settings in its config.json."""
    shutil.copytree(scorer, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def test_a_reward_model_that_cannot_judge_is_refused_before_anything_starts(scorer: Path, tmp_path: Path) -> None:
    def refused(folder: Path, why: str) -> None:
        out = tmp_path / "runs"
        with pytest.raises(rl.ConfigError, match=rf"^reward_model = .*{why}"):
            rl.train("grpo", out=str(out), reward_model=str(folder), total_updates=1, **TINY)
        assert not out.exists()

    refused(tmp_path / "nowhere", "no such folder.*runnel train reward_model")
    refused(changed(scorer, tmp_path / "three", num_labels=3, id2label={"0": "a", "1": "b", "2": "c"}), "3 outputs.* has 1")
    headless = changed(scorer, tmp_path / "headless")
    tensors = load_file(headless / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, headless / "model.safetensors", metadata={"format": "pt"})
    refused(headless, r"score\.weight.*random numbers")
    alone = changed(scorer, tmp_path / "alone")
    for file in alone.glob("*token*"):
        file.unlink()
    refused(alone, "tokenizer cannot be loaded")
    foreign = changed(scorer, tmp_path / "foreign", runnel_rows="")
    larger = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path / "larger", None, eos="</s>"))
    larger.add_tokens([f"word{i}" for i in range(99)])
    larger.save_pretrained(foreign)
    refused(foreign, "tokenizer has .* tokens, but its embedding")


def test_a_reward_model_with_another_tokenizer_is_told(scorer: Path, tmp_path: Path) -> None:
    """It is given text, so it can judge; that its tokens are others is worth knowing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build("grpo", reward_model=str(scorer)).title == "reverse"
    other = changed(scorer, tmp_path / "other", runnel_rows="")
    save_tokenizer(other, None, eos="</s>")
    with pytest.warns(UserWarning, match="another tokenizer than the policy"):
        build("grpo", reward_model=str(other))


# ----------------------------------------------------------------------------------------------------------- deterministic
def test_engines_of_a_deterministic_run_give_the_same_bits_whoever_runs_beside() -> None:
    """A policy worker answers together what has arrived by then, a matter of timing; so shapes must not depend on it."""
    wide = {"lm": {"layers": 1, "width": 256, "heads": 2, "kv_heads": 2, "inner": 512}}

    def gap(deterministic: bool) -> float:
        settings = {**wide, "deterministic": deterministic, "placement": {"policy_workers": 1}, "launcher": "local"}
        engine = build("grpo", **settings).inference[0].make()
        engine.load_params(ParamSet(0, model_params(engine.model)))
        asked = [make_request(i, list(range(7, 9 + i)), seed=i, max_tokens=6) for i in range(7)]
        together = {r.id: r.rows["logprob"] for r in generate(engine, asked)}
        return max(float((generate(engine, [a])[0].rows["logprob"] - together[a.id]).abs().max()) for a in asked)

    assert gap(True) == 0.0
    assert gap(False) > 0.0, "this model is too small to show a difference: the first half proves nothing"


def test_vllm_batches_by_timing_and_is_refused_in_a_deterministic_run() -> None:
    with pytest.raises(rl.ConfigError, match=r"^engine\.kind = 'vllm'.*timing.*native"):
        build("grpo", deterministic=True, engine={"kind": "vllm"})


def test_an_imitation_that_ends_before_the_learning_rate_has_risen_is_told() -> None:
    """Six updates of a rate that rises over 20: (1 + 2 + ... + 6) / 20 of a full one."""

    def told(**settings: Any) -> list[str]:
        more = {"total_updates": 60, **settings}
        return [text for text in build("grpo", task="reverse", **more).look() if "imitation" in text]

    (text,) = told(warmup_updates=6)
    assert "warmup_updates = 6" in text
    assert "learner.warmup_updates = 20" in text
    assert "as much as 1.1 updates at learner.sft_lr" in text
    assert not told(warmup_updates=6, learner={"warmup_updates": 0})
    assert not told(warmup_updates=10)
    assert not told()
    assert not told(warmup_updates=6, total_updates=20), "a run that is a first try is not told so"
