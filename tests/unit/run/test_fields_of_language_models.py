"""Every setting of every recipe of language models, and of the pipelines, counts or is refused (`field_runs.py`).

A new setting fails here until the table says how it is shown to count, unless its type says enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from field_runs import Try, changed, check_field, check_shown, fields_of, names_of, outcome
from field_tasks import folder, model_folder, pairs_file, rows_file
from test_fields_of_environments import ELSEWHERE as ON_ENVIRONMENTS
from test_fields_of_environments import IN_FOLDERS

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.graphs.run_config import RunConfig
from runnel.llm.algorithms.base import PolicyConfig
from runnel.run import registry
from runnel.run.pipeline import PIPELINES, PipelineConfig, load_pipeline

SIZES = {"lm.layers": 1, "lm.width": 16, "lm.heads": 2, "lm.kv_heads": 2, "lm.inner": 16, "lm.max_positions": 64}
TEXT: dict[str, Any] = {
    **SIZES,
    "task": "field_tasks:make_task",
    "eval.episodes": 2,
    "learner.warmup_updates": 1,
    "learner.lr": 1e-2,
    "placement.threads": 1,
    "total_updates": 2,
}
ROLLOUTS = {**TEXT, "num_prompts": 2, "group_size": 3}
GROUPS = {
    **{
        name: name
        for name in (
            *("grpo", "dapo", "gspo", "rloo", "reinforce", "remax", "aipo", "decoupled"),
            *("gigpo", "turn_ppo", "loop", "grpo_roc", "spa"),
            *("reinforce_plus_plus", "cispo", "topr", "opmd", "p3o", "pacs", "oreal", "a_lol", "raft", "ppo_max", "rl_plus"),
        )
    },
    "clip_cov": "covariance",
    "token_ppo": "ppo",
    "online_dpo": "dpo",
    "rebel": "rebel",
    "inpo": "inpo",
}
"""Recipes on rollouts, and the name of their algorithm's settings."""
REFERENCE_FREE = ("simpo", "cpo", "orpo", "rrhf")
"""Recipes on pairs without a reference; each one's settings have its name."""
PAIRED = ("dpo", "rebel", "inpo")
"""Groups of settings of recipes on rollouts that learn from pairs: they are no `PolicyConfig`."""
BASE: dict[str, dict[str, Any]] = {
    "sft": {**TEXT, "demo_rows": 4},
    **{name: {**TEXT, "num_pairs": 2} for name in ("dpo", *REFERENCE_FREE)},
    "reward_model": {**TEXT, "num_pairs": 2},
    "make_pairs": {**{k: v for k, v in ROLLOUTS.items() if "learner." not in k}, "pairs_out": str(folder() / "p.jsonl")},
    **dict.fromkeys(GROUPS, ROLLOUTS),
}
SAME = {"reverse": "grpo", "dr_grpo": "grpo", "stable_reinforce": "reinforce_plus_plus", "kl_cov": "clip_cov"}
"""Recipes that are another one with other defaults: the same `build`."""

LOCAL, FILE = {"launcher": "local"}, {"task": rows_file(), "max_tokens": 4}
GYM = {"task": "reasoning_gym:leg_counting", "lm.max_positions": 2048, "max_tokens": 4}
GYM |= {"data.num_train": 20, "data.num_eval": 8}
SAMPLES, WARM, STEPS = {"eval.samples": 2}, {"warmup_updates": 1}, {"learner.num_epochs": 3, "learner.lr": 0.1}
ENDS, SIX = {"stop": tuple(map(chr, range(40, 60)))}, {"group_size": 6}
"""Completions of different lengths; groups in which several are right, and several wrong."""
BAND = {"filter.low": 0.2, "filter.high": 0.4, "filter.retry_after": 6}
VISITS = {"filter.on": True, "total_updates": 10}
MIX = {"task": "reverse", "tasks": ("a=field_tasks:make_task", "b=field_tasks:make_task")}
BANDIT = {**MIX, "sources.pick": "ucb", "total_updates": 6}
TALK = {"chat": "field_tasks:Talking", "task": "reverse", "max_turns": 3}
TOOLS = {"tools": ("field_tasks:shout",), "lm.max_positions": 1024}
GROWS = {**TALK, "talk.first": 1, "total_updates": 4}
GAME = {"task": "reverse", "chat": "signal", "lm.max_positions": 128, "max_tokens": 4}
USUAL_SIZES = {name: value for name, _, _, value in fields_of(registry.load_recipe("grpo").Config()) if name in SIZES}
TRIES: dict[str, Try] = {
    "device": Try("cpu:0", seen="wired"),
    "launcher": Try(seen="placed"),
    "total_steps": Try(16),
    "total_tokens": Try(1),
    "deterministic": Try(given={"data.background_rewards": True}, seen="wired"),
    "staleness.max_lag": Try(1, {"staleness.mode": "window"}, seen="placed"),
    "staleness.max_concurrent": Try(seen="placed"),
    "eval.temperature": Try(0.01, SAMPLES, seen="wired"),
    "eval.pass_k": Try((2,), SAMPLES),
    "eval.pass_reward": Try(0.01, SAMPLES),
    "record.groups_every": Try(2),
    "placement.groups": Try(("actor-* trainer",), LOCAL, seen="placed"),
    "placement.trainers": Try(2, LOCAL, seen="placed"),
    "placement.policy_workers": Try(seen="placed"),
    "placement.max_actors": Try(2, LOCAL, seen="placed"),
    "placement.max_policy_workers": Try(3, {**LOCAL, "placement.policy_workers": 1}, seen="placed"),
    "task": Try("reverse"),
    "chat": Try(TALK["chat"], {"task": "reverse"}),
    "tools": Try(TOOLS["tools"], {"lm.max_positions": 1024}),
    "max_turns": Try(2, TALK),
    "max_context": Try(14, TALK),
    "talk.history": Try(given=TALK),
    "talk.dialect": Try("python", {**TALK, **TOOLS}),
    "talk.step_timeout_s": Try(given=TALK, seen="wired"),
    "talk.tool_timeout_s": Try(given=TALK, seen="wired"),
    "talk.retries": Try(0, {**TALK, "chat": "field_tasks:Failing"}),
    "talk.first": Try(1, TALK),
    "talk.grow_every": Try(1, GROWS),
    "tasks": Try(MIX["tasks"], {"task": "reverse"}),
    "agents": Try(("listener=frozen",), GAME),
    "sources.pick": Try("ucb", MIX),
    "sources.window": Try(1, BANDIT),
    "sources.temperature": Try(10.0, BANDIT),
    "sources.explore": Try(0.0, BANDIT),
    "new_tasks.max_bytes": Try(given={"new_tasks.capacity": 4}, seen="wired"),
    "model": Try(model_folder(), USUAL_SIZES, seen="wired"),
    "reward_model": Try(model_folder(scores=True)),
    "pairs": Try(pairs_file()),
    "max_refills": Try(seen="wired"),
    "reset_share": Try(1.0),
    "max_tokens": Try(2),
    "top_k": Try(1),
    "stop": Try(tuple(map(chr, range(1, 127)))),
    "demo_rows": Try(given=WARM),
    "mix": Try(("demos=0.5",)),
    "data.prompt": Try("question", FILE),
    "data.answer": Try("solution", FILE | WARM),
    "data.reward": Try(("length",), FILE),
    "data.options": Try(("length.target=3",), {**FILE, "data.reward": ("length",)}, seen="wired"),
    "data.reward_timeout_s": Try(seen="wired"),
    "data.background_rewards": Try(seen="wired"),
    "data.extract": Try("last_line", FILE, seen="wired"),
    "data.system": Try("Be brief.", FILE),
    "data.suffix": Try("!", FILE),
    "data.max_prompt": Try(10, FILE | {"eval.episodes": 6}),
    "data.eval_path": Try(rows_file("held", 60), FILE),
    "data.eval_share": Try(0.5, FILE),
    "data.num_train": Try(10, GYM),
    "data.num_eval": Try(3, GYM | {"eval.episodes": 4}),
    "data.settings": Try(("max_animals=5",), GYM),
    "filter.on": Try(seen="wired"),
    "filter.low": Try(0.8, VISITS),
    "filter.high": Try(0.15, VISITS),
    "filter.momentum": Try(0.9, {**VISITS, **BAND, "total_updates": 16}),
    "filter.retry_after": Try(1, {**VISITS, "filter.high": 0.15}),
    "lm.path": Try("model"),
    "lm.width": Try(32),
    "lm.heads": Try(4, {"lm.kv_heads": 1}),
    "lm.kv_heads": Try(1),
    "lm.max_positions": Try(14, FILE),
    "learner.sft_lr": Try(given=WARM),
    "learner.micro_batch_tokens": Try(4),
    "learner.recompute": Try(seen="wired"),
    "learner.lora.alpha": Try(given={"learner.lora.rank": 2}),
    "learner.lora.targets": Try(("q_proj",), {"learner.lora.rank": 2}),
    "learner.max_grad_norm": Try(1e-6),
    "learner.offload": Try(("optimiser",), seen="wired"),
    "learner.max_mismatch": Try(1e-30),
    "engine.kind": Try("hf", seen="wired"),
    "engine.num_slots": Try(seen="wired"),
    "engine.precision": Try("bfloat16"),
    "engine.on_update": Try(seen="wired"),
    "engine.fixed_shapes": Try(seen="wired"),
    "engine.keep_prefixes": Try(False, seen="wired"),
    "engine.vllm.python": Try("python"),
    "dapo.overlong_buffer": Try(3),
    "dapo.overlong_penalty": Try(given={"dapo.overlong_buffer": 3}),
    "aipo.max_ratio": Try(1.0, STEPS),
    "cispo.max_ratio": Try(1.0, STEPS),
    "cispo.min_ratio": Try(1.0, STEPS),
    "reinforce_plus_plus.max_log_ratio": Try(1e-6, STEPS),
    "opmd.tau": Try(10.0, STEPS),
    "opmd.length_coef": Try(given=ENDS),
    "opmd.pass_reward": Try(-1.0, {"opmd.length_coef": 1.0, **ENDS}),
    "p3o.clip": Try(1e-4, STEPS),
    "p3o.max_ratio": Try(1.0, STEPS),
    "oreal.weigh_right": Try(given=SIX),
    "raft.keep": Try(given=SIX),
    "oreal.pass_reward": Try(0.0),
    "a_lol.ratio": Try("token", STEPS),
    "a_lol.clip": Try(0.0, STEPS),
    "raft.pass_reward": Try(0.0, {"raft.keep": "passing"}),
    "covariance.share": Try(1.0, {"covariance.low": -100.0}),
    "covariance.low": Try(-100.0, {"covariance.share": 1.0}),
    "covariance.high": Try(-100.0, {"covariance.share": 1.0, "covariance.low": -200.0}),
    "covariance.distance_coef": Try(5.0, {"covariance.how": "kl", **STEPS}),
    "ppo_max.reward_clip": Try(0.5),
    "ppo_max.advantage_clip": Try(0.1),
    "ppo_max.value_clip": Try(1e-3, STEPS | {"learner.critic_lr": 0.1}),
    "decoupled.behaviour_from": Try("sampling_logprob", {"top_k": 3}),
    "decoupled.behaviour": Try(given={"decoupled.behaviour_high": 1.01, **STEPS, "total_updates": 4}),
    "decoupled.behaviour_low": Try(0.99, {**STEPS, "total_updates": 4}),
    "decoupled.behaviour_high": Try(1.01, {**STEPS, "total_updates": 4}),
    "dpo.loss": Try("ipo"),
    "dpo.smoothing": Try(0.2),
    "inpo.tau": Try(0.01),
    "ppo.value_clip": Try(1e-3, STEPS | {"learner.critic_lr": 0.1}),
    "grpo_roc.pass_reward": Try(0.0),
    "turn_ppo.value_clip": Try(1e-3, STEPS | {"learner.critic_lr": 0.1}),
    **{name: Try(0.5, TALK) for name in ("gigpo.gamma", "turn_ppo.gamma", "turn_ppo.gae_lambda")},
    "loop.ratio": Try("trajectory", {"loop.clip_high": 0.01, **STEPS}),
}
DATA_ONLY = {
    name: Try(how.value, {k: v for k, v in how.given.items() if k not in WARM}, how.seen)
    for name, how in TRIES.items()
    if name in ("data.answer", "demo_rows", "data.extract", "learner.sft_lr")
}
UNUSED_HERE = {
    "staleness.mode": Try(seen="placed"),
    "data.background_rewards": Try(True),
    "placement.max_actors": Try(2),
    "placement.max_policy_workers": Try(2),
}
OF: dict[str, dict[str, Try]] = {
    "sft": DATA_ONLY | UNUSED_HERE | {"placement.groups": Try(("demos-* trainer",), LOCAL, seen="placed")},
    "dpo": DATA_ONLY | UNUSED_HERE | {"placement.groups": Try(("pairs-* trainer",), LOCAL, seen="placed")},
    "make_pairs": {
        "learner.offload": Try(("optimiser",)),
        "learner.lora.targets": Try(("q_proj",)),
        "learner.lora.alpha": Try(),
        "learner.sft_lr": Try(),
        "demo_rows": Try(),
        "min_p": Try(0.99),
    },
}
SCORED = {
    name: Try(how.value, {k: v for k, v in how.given.items() if k != "max_tokens"}, how.seen)
    for name, how in (TRIES | OF["dpo"]).items()
    if "max_tokens" in how.given
}
OF["reward_model"] = (
    OF["dpo"]
    | SCORED
    | {
        "eval.temperature": Try(0.5),
        "eval.pass_k": Try((2,)),
        "eval.pass_reward": Try(0.5),
        "data.reward": Try(("math",), {"task": rows_file()}),  # answers have the form in which a reward looks for them
        "data.options": Try(("exact.extract=boxed",), {"task": rows_file()}),
        "data.extract": Try("boxed", {"task": rows_file()}),
    }
)
REFRESHED = {"learner.reference_every": 1, "total_updates": 3}
HELD = {"total_updates": 3}
"""The weight of entropy moves after the first update."""
for recipe, group in GROUPS.items():
    held = getattr(getattr(registry.load_recipe(recipe).Config(), group), "kl_coef", 1.0) > 0
    kl = {} if held or group in PAIRED else {f"{group}.kl_coef": 0.5}
    OF[recipe] = {
        f"{group}.kl_in": Try(given=kl),
        f"{group}.duration_power": Try(given={} if recipe == "rl_plus" else TALK),  # that one has no conversations
        f"{group}.clip_low": Try(1e-4, STEPS),
        f"{group}.clip_high": Try(1e-4, STEPS),
        f"{group}.dual_clip": Try(1.001, STEPS),
        f"{group}.aggregation": Try(given=ENDS),
        f"{group}.entropy_target": Try(100.0, HELD),
        f"{group}.entropy_step": Try(1e-3, HELD | {f"{group}.entropy_target": 100.0}),
        f"{group}.max_entropy_coef": Try(1e-5, HELD | {f"{group}.entropy_target": 100.0}),
        "learner.reference_every": Try(1, kl | {"total_updates": 3}),
        # REBEL compares with what was recorded: it has no reference
        "learner.reference_decay": Try(given={**kl, **({} if group == "rebel" else REFRESHED)}),
        "placement.reference_workers": Try(given=kl, seen="placed"),
    }
"""Where a recipe needs another value, or other settings beside it."""

OF_ENVIRONMENTS = ("vector.", "curriculum.", "zoo")
ELSEWHERE = {name: test for name, test in ON_ENVIRONMENTS.items() if not name.startswith(OF_ENVIRONMENTS)}
ELSEWHERE["learner.shard"] = "system/test_sharded_runs.py"
ELSEWHERE |= dict.fromkeys(("talk.time_limit_s", "talk.max_calls", "talk.tool_chars"), "unit/llm/test_chat_session.py")
PROMISE = "deterministic"
"""A promise: where there is nothing to keep it by, it changes nothing (and refuses what would break it: below)."""
GRAPHS = ("grpo", "sft", "dpo", "reward_model")
"""Recipes of which all settings are changed: one for each graph, and a reward model."""
BY_NEEDS = tuple(f"learner.{name}" for name in ("critic_lr", "reference_every", "reference_decay", "temperature"))
"""Settings that depend on what an algorithm needs: changed in all recipes."""
SAME_FOR_ALL = ("lm", "data", "engine", "filter", "sources", "new_tasks", "tasks")
OF_ROLLOUTS = {"device", *(n for n in names_of("grpo") if n.partition(".")[0] in SAME_FOR_ALL)}
"""What the graph of rollouts makes of these, it makes of them for every recipe."""


def is_shown(recipe: str, name: str) -> bool:
    """Whether a setting is changed in a recipe."""
    if recipe in GRAPHS:
        return not (name == PROMISE and recipe != "grpo")
    if recipe == "make_pairs":
        return name not in OF_ROLLOUTS and name != "pairs_out"
    return name in BY_NEEDS or name.startswith(f"{GROUPS.get(recipe, recipe)}.")


CASES = [
    (recipe, name)
    for recipe in BASE
    for name in names_of(recipe)
    if name not in {*IN_FOLDERS, *ELSEWHERE} and is_shown(recipe, name)
]


@pytest.mark.parametrize(("recipe", "name"), CASES, ids=[f"{recipe}-{name}" for recipe, name in CASES])
def test_a_setting_counts_or_is_refused(recipe: str, name: str) -> None:
    check_field(recipe, name, BASE[recipe], TRIES | OF.get(recipe, {}), {})


@pytest.mark.parametrize("recipe", ["sft", "dpo", "reward_model"])
def test_a_deterministic_run_refuses_what_depends_on_timing(recipe: str) -> None:
    given = {"launcher": "local", "staleness.mode": "window", PROMISE: True}
    found = outcome(recipe, "placed", **BASE[recipe] | given)
    assert isinstance(found.refused, ConfigError)
    assert found.refused.field == "staleness.mode"


def test_pairs_are_written_where_they_are_told(tmp_path: Path) -> None:
    outcome("make_pairs", "heard", **BASE["make_pairs"] | {"pairs_out": str(tmp_path / "pairs.jsonl")})
    assert (tmp_path / "pairs.jsonl").stat().st_size > 0


PIPELINE_CASES = [(name, field) for name in PIPELINES for field, *_ in fields_of(load_pipeline(name).Config())]
OF_PIPELINES = {
    **{name: how.value for name, how in TRIES.items() if how.value is not None},
    "out": "elsewhere",
    "task": "file.py:make_task",
    "device": "cuda",
    "learner.precision": "float64",
    "learner.lora.rank": 2,
    "lm.heads": 8,
    "lm.kv_heads": 2,
    "ppo.kl_in": "loss",
    "dpo.smoothing": 0.2,
}


@pytest.mark.parametrize(("name", "field"), PIPELINE_CASES, ids=["-".join(case) for case in PIPELINE_CASES])
def test_a_setting_of_a_pipeline_reaches_a_stage_or_is_refused(name: str, field: str) -> None:
    pipeline = load_pipeline(name)
    before = pipeline.Config()
    hint, now = next((hint, value) for path, _, hint, value in fields_of(before) if path == field)
    after = override(before, {field: OF_PIPELINES[field] if field in OF_PIPELINES else changed(hint, now)})
    stages = pipeline.stages(after)
    configs = [registry.configure(registry.load_recipe(s.recipe), s.settings) for s in stages if field != "device"]
    if refused := next((found for config in (after, *configs) if (found := _refusal(config))), ""):
        assert refused == field
    elif field != "out":  # where the stages lie
        assert stages != pipeline.stages(before)


def _refusal(config: PipelineConfig | RunConfig) -> str:
    """The field by which a pipeline or a stage is refused, if it is."""
    try:
        config.check()
    except ConfigError as error:
        return error.field
    return ""


def test_no_recipe_and_no_setting_is_left_out() -> None:
    known = {name for recipe in BASE for name in names_of(recipe)}
    for recipe, other in SAME.items():
        assert registry.load_recipe(recipe).module.build is registry.load_recipe(other).module.build
        assert set(names_of(recipe)) == set(names_of(other))
    for recipe, group in GROUPS.items():
        config = registry.load_recipe(recipe).Config()
        assert group in PAIRED or isinstance(getattr(config, group), PolicyConfig)
    of_text = {r for r in registry.RECIPES if "task" in names_of(r)}
    assert of_text == {*BASE, *SAME}
    listed = {*TRIES, *ELSEWHERE}
    assert listed - {"replay.mmap_dir"} <= known, f"there is no setting {listed - known}"
    check_shown(ELSEWHERE)
