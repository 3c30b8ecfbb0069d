"""Settings that count only beside another one, or that another one puts out of use: refused by name, not taken and ignored.

The tests of single fields (`test_fields_of_*.py`) show a field beside what it needs; here it is alone, or beside what excludes
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_fields_of_environments as on_envs
import test_fields_of_language_models as on_text
from field_runs import Try, changed, fields_of, outcome

import runnel as rl
from runnel.core.config import override
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.run import registry
from runnel.tune.job import tried
from runnel.tune.settings import TuneConfig, make_setup

BUDGET = ("total_updates", "eval.episodes")
OTHER_REFUSALS = {
    *("placement.trainers", "placement.max_actors", "placement.max_policy_workers", "placement.reference_workers"),
    *("num_env_groups", "curriculum.kind"),
    *("vector.frame_stack", "dqn.burn_in"),
    *("channels.rewards", "channels.costs", "channels.weights"),
    "token_weights",
}
"""Refused too, but as what cannot work."""
ALWAYS = {
    *(
        "network",
        "model",
        "tasks",
        "chat",
        "tools",
        "deterministic",
        "dqn.double",
        "qmix.double",
        "pool.beat",
        "credit",
        "impala.rho_bar",
        "impala.c_bar",
        "appo.rho_bar",
        "appo.c_bar",
    ),
    *("record.max_steps", "replay.capacity", "data.max_prompt", "data.eval_path", "lm.heads", "lm.max_positions"),
    *(
        "eval.pass_reward",
        "aipo.max_ratio",
        "ppo.value_clip",
        "turn_ppo.value_clip",
        "loop.ratio",
        "a_lol.ratio",
        "a_lol.clip",
        "cispo.max_ratio",
        "cispo.min_ratio",
        "ppo_max.value_clip",
        "opmd.tau",
        "p3o.clip",
        "p3o.max_ratio",
        "max_log_ratio",
        "opmd.length_coef",
        "oreal.weigh_right",
        "raft.keep",
        "aggregation",
        "covariance.share",
        "covariance.low",
        "covariance.high",
        "dual_clip",
        "clip_low",
        "clip_high",
        "behaviour",
        "behaviour_low",
        "behaviour_high",
    ),
}
"""Read without what the tables put beside them, which makes a difference visible in a short run (or is another field that two
ways of naming one thing exclude). A clip range counts in one optimiser step too: engine and learner differ in their bits."""


def conditional(page: Any) -> list[tuple[str, str, Try]]:
    """Fields of a table that are shown beside settings which are not the recipe's own."""
    found = []
    for recipe, name in page.CASES:
        how = (page.TRIES | page.OF.get(recipe, {})).get(name, Try())
        own = {path: value for path, _, _, value in fields_of(registry.load_recipe(recipe).Config())} | page.BASE[recipe]
        beside = [key for key, value in how.given.items() if key not in BUDGET and own.get(key) != value]
        if beside and not {name, name.partition(".")[2]} & (OTHER_REFUSALS | ALWAYS):
            found.append((recipe, name, how))
    return found


CASES = [(page, *case) for page in (on_envs, on_text) for case in conditional(page)]


@pytest.mark.parametrize(("page", "recipe", "name", "how"), CASES, ids=[f"{r}-{n}" for _, r, n, _ in CASES])
def test_a_setting_without_what_it_counts_beside_is_refused(page: Any, recipe: str, name: str, how: Try) -> None:
    base = page.BASE[recipe]
    config = override(registry.load_recipe(recipe).Config(), base)
    hint, now = next((hint, value) for path, _, hint, value in fields_of(config) if path == name)
    value = changed(hint, now) if how.value is None else how.value
    found = outcome(recipe, "placed", **{**base, name: value}).refused
    assert isinstance(found, UnusedSettingError), f"{name} = {value!r} is taken"
    assert found.field == name


IMAGES = {"env": "field_tasks:Frame", "env_kwargs": {"stack": 2}, "net.hidden": None}
ONE = {"ppo.num_epochs": 1, "ppo.num_minibatches": 1}
TOGETHER: list[tuple[str, dict[str, Any], str, Any]] = [
    ("ppo", {}, "total_tokens", 1000),
    ("ppo", {}, "sinks.project", "mine"),
    ("ppo", {"eval.episodes": 0}, "checkpoint.best", False),
    ("ppo", {"env": "tensor:CartPole-v1", "vector.backend": "auto"}, "wrappers", ("field_tasks:Half",)),
    ("grpo", {"track": ("csv",)}, "sinks.name", "mine"),
    ("ppo", {"track": ("mlflow",)}, "sinks.entity", "us"),
    ("ppo", {"track": ("trackio",)}, "sinks.group", "mine"),
    ("ppo", {}, "eval.stop_return", 475.0),
    ("ppo", {"eval.every": 1, "eval.episodes": 0}, "eval.every", 1),
    ("ppo", {"eval.episodes": 0}, "eval.stop_return", 475.0),
    ("grpo", {"eval.episodes": 0}, "eval.samples", 4),
    ("make_pairs", {}, "eval.pass_reward", 0.5),
    ("ppo", {"staleness.mode": "one_step"}, "staleness.max_lag", 2),
    ("dqn", {}, "net.shared", True),
    ("ppo", IMAGES, "ppo.normalise_obs", False),
    ("a2c", {"env": "FrozenLake-v1", "net.conv": "none"}, "net.conv", "none"),
    ("ppo", IMAGES, "compiled", "on"),
    ("ppo", {"net.hidden": (8, 8), "net.core": "gru"}, "compiled", "on"),
    ("ppo", {"net.hidden": (8, 8, 8)}, "compiled", "on"),
    ("ppo", {"net.hidden": (8, 8), "ppo.target_kl": 0.1}, "compiled", "on"),
    ("ppo", {"net.hidden": None, "network": "field_tasks:make_net"}, "compiled", "on"),
    ("ppo", {"net.hidden": (8, 8), "launcher": "local", "placement.trainers": 2}, "compiled", "on"),
    ("dqn", {"net.hidden": (8, 8), "dqn.dueling": True}, "compiled", "on"),
    ("dqn", {"net.hidden": (8, 8), "dqn.head": "c51"}, "compiled", "on"),
    ("appo", {"net.hidden": (8, 8, 8)}, "compiled", "on"),
    *((recipe, {}, "compiled", "on") for recipe in ("a2c", "impala")),
    *((recipe, {"net.activation": "silu"}, "compiled", "on") for recipe in ("sac", "td3", "ddpg")),
    ("sac", {"env": "CartPole-v1"}, "compiled", "on"),
    *((recipe, {"net.hidden": (8, 8)}, "compiled", "on") for recipe in ("mappo", "happo", "coma", "mat")),
    ("ippo", {"net.hidden": (8, 8, 8)}, "compiled", "on"),
    ("selfplay", {"net.hidden": (8, 8), "ppo.target_kl": 0.1}, "compiled", "on"),
    *(("qmix", {}, "compiled", mode) for mode in ("on", "off")),
    ("dqn", {"dqn.head": "c51"}, "dqn.huber", 2.0),
    ("dqn", {"dqn.head": "c51"}, "dqn.sigma", 0.5),
    ("dqn", {"net.core": "gru", "replay.prioritised": False}, "dqn.eta", 0.5),
    ("dqn", {"replay.prioritised": False}, "replay.beta", "linear(0.4, 1)"),
    ("sac", {"sac.auto_temperature": False}, "sac.target_entropy", -1.0),
    ("sac", {"env": "CartPole-v1", "sac.auto_temperature": False}, "sac.entropy_share", 0.5),
    ("sac", {"env": "CartPole-v1", "sac.target_entropy": 0.1}, "sac.entropy_share", 0.5),
    *(("ppo", ONE, f"ppo.{name}", 1.5) for name in ("clip_range", "value_clip", "dual_clip", "target_kl")),
    ("appo", {"appo.num_epochs": 1, "appo.num_minibatches": 1}, "appo.target_kl", 0.1),
    ("decoupled", {"decoupled.proximal": "reuse"}, "decoupled.clip_low", 0.1),
    ("decoupled", {"decoupled.proximal": "reuse"}, "decoupled.clip_high", 0.1),
    ("decoupled", {"decoupled.proximal": "reuse"}, "decoupled.dual_clip", 3.0),
    ("clip_cov", {"covariance.how": "kl"}, "covariance.low", 0.1),
    ("clip_cov", {"covariance.how": "kl"}, "covariance.high", 0.1),
]


@pytest.mark.parametrize(
    ("recipe", "given", "name", "value"), TOGETHER, ids=[f"{r}-{n}-{i}" for i, (r, _, n, _) in enumerate(TOGETHER)]
)
def test_a_setting_that_another_puts_out_of_use_is_refused(recipe: str, given: dict[str, Any], name: str, value: Any) -> None:
    base = (on_envs.BASE | on_text.BASE)[recipe]
    settings = {k: v for k, v in {**base, **given}.items() if k != name}
    assert outcome(recipe, "placed", **settings).refused is None
    found = outcome(recipe, "placed", **{**settings, name: value}).refused
    assert isinstance(found, UnusedSettingError), f"{name} = {value!r} is taken beside {given}"
    assert found.field == name


def test_what_does_count_there_is_taken() -> None:
    for recipe, settings in [
        ("ppo", {"eval.every": 1, "eval.stop_return": 475.0}),
        ("ppo", {"track": ("wandb",), "sinks.project": "mine", "sinks.entity": "us", "sinks.group": "g", "sinks.name": "n"}),
        ("ppo", {"track": ("mine.py:Sink",), "sinks.group": "g"}),
        ("ppo", {"net.hidden": (8, 8), "compiled": "on"}),
        ("ppo", {"net.hidden": (8, 8), "compiled": "off", "ppo.target_kl": 0.1}),
        ("ppo", {"net.hidden": (8, 8), "population": 2, "compiled": "on"}),
        ("appo", {"net.hidden": (8, 8), "compiled": "on"}),
        ("dqn", {"net.hidden": (8, 8), "compiled": "on"}),
        ("sac", {"compiled": "off"}),
        ("ippo", {"net.hidden": (8, 8), "compiled": "on"}),
        ("selfplay", {"net.hidden": (8, 8), "compiled": "on"}),
        ("mappo", {"compiled": "off"}),
        ("ppo", {**ONE, "ppo.clip_range": 0.1, "staleness.mode": "one_step"}),
        ("appo", {"appo.num_epochs": 1, "appo.num_minibatches": 1, "appo.clip_range": 0.1}),
        ("decoupled", {"decoupled.proximal": "loglinear", "decoupled.clip_low": 0.1}),
    ]:
        assert outcome(recipe, "placed", **{**(on_envs.BASE | on_text.BASE)[recipe], **settings}).refused is None


def test_a_folder_for_replay_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = outcome("dqn", "placed", **on_envs.BASE["dqn"], **{"replay.mmap_dir": str(tmp_path / "none")}).refused
    assert isinstance(found, ConfigError)
    assert found.field == "replay.mmap_dir"
    assert "no such folder" in str(found)


def test_both_may_still_be_searched_together() -> None:
    """A trial without the one leaves the other as it is; alone, what can never count is refused before the first trial."""
    base = {k: v for k, v in on_envs.BASE["dqn"].items() if k != "total_updates"}
    config = override(registry.load_recipe("dqn").Config(), base)
    both = TuneConfig(search=("dqn.head={value, c51}", "dqn.num_atoms=int(11, 51)"))
    setup = make_setup("dqn", config, both)
    assert set(setup.space) == {"dqn.head", "dqn.num_atoms"}
    without = tried(config, {"dqn.head": "value", "dqn.num_atoms": 11})
    assert without.dqn.num_atoms == rl.agents.DQNConfig().num_atoms  # type: ignore[attr-defined]
    assert tried(config, {"dqn.head": "c51", "dqn.num_atoms": 11}).dqn.num_atoms == 11  # type: ignore[attr-defined]
    with pytest.raises(UnusedSettingError, match=r"dqn\.num_atoms"):
        make_setup("dqn", config, TuneConfig(search=("dqn.num_atoms=int(11, 51)",)))
