"""Settings on resume: one that may change really counts from then on (`field_runs.py`), the others are refused and nothing of
the run is touched.

The first part of a tiny run is saved, and goes on twice: as it was, and with one setting changed. What is heard from then on,
or what was built, must differ.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import test_fields_of_environments as on_environments
import test_fields_of_language_models as on_text
from field_runs import Try, built, changed, fields_of, names_of, play

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.core.config import override
from runnel.core.resuming import rule_at
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import one_budget
from runnel.run import registry
from runnel.run.group import ProcessGroup
from runnel.run.wiring import wire
from runnel.track.folder import RunFolder

OWN = {
    "ppo": ("ppo.",),
    "appo": ("appo.rho_bar", "appo.c_bar"),
    "mappo": ("ppo.huber_delta",),
    "qmix": ("qmix.", "team_reward"),
    "masac": ("masac.share", "masac.agent_id"),
    "selfplay": ("pool.",),
    "happo": ("happo.",),
    "nfsp": ("nfsp.",),
    "coma": ("coma.",),
    "mat": ("ppo.width", "ppo.heads", "ppo.blocks", "team_reward"),
    "dqn": ("dqn.", "replay."),
    "sac": ("sac.",),
    "td3": ("td3.",),
    "mex": ("td3.eta", "td3.contrast"),
    "cip": ("sac.fit_every", "sac.cause_threshold", "sac.swap", "sac.empowerment"),
    "drm": ("drm.",),
    "gbrl": ("gbrl.policy_rate", "gbrl.value_rate", "gbrl.num_bins"),
    "sqirl": ("sqirl.",),
    "stream_ac": ("stream_ac.",),
    "stream_q": ("stream_q.",),
    "grpo": ("grpo.", "learner.", "top_", "min_p"),
    "gigpo": ("gigpo.step_coef", "gigpo.scale"),
    "loop": ("loop.ratio",),
}
"""Recipes, and what of them is changed here; others have settings of the same classes."""
STEPS = {"learner.num_epochs": 3, "learner.lr": 0.1}
TRIES = {
    "grpo.kl_in": Try(given={"grpo.kl_coef": 0.5, **STEPS}),
    "grpo.clip_low": Try(0.001, STEPS),
    "grpo.clip_high": Try(0.001, STEPS),
    "sac.metrics_every": Try(5),
    "td3.metrics_every": Try(5),
    "drm.metrics_every": Try(5),
    "ppo.target_kl": Try(1e-9),
    "pool.exploiter_wins": Try(0.501, {"pool.exploiters": 1}),
    "pool.exploiter_updates": Try(2, {"pool.exploiters": 1}),
}
NOT_HERE = {
    "learner.sft_lr": "is of the warm-up, which is over",
    "learner.critic_lr": "grpo has no critic",
    "learner.shard": "system/test_sharded_runs.py",
    "grpo.duration_power": "completions have no durations",
    "replay.mmap_dir": "the memory is made there, as that of a new run",
}


def how(recipe: str, name: str) -> Try:
    there = on_environments if recipe in on_environments.BASE else on_text
    return TRIES.get(name) or getattr(there, "OF", {}).get(recipe, {}).get(name) or there.TRIES.get(name) or Try()


def cases() -> list[tuple[str, str]]:
    found = []
    for recipe, starts in OWN.items():
        config = registry.load_recipe(recipe).Config()
        names = [n for n in names_of(recipe) if n.startswith(starts) and rule_at(config, n).may_change]
        found += [(recipe, n) for n in names if n not in NOT_HERE]
    return found


class Settings(dict[str, Any]):
    """Settings that are known by their text."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


def base_of(recipe: str, given: Any) -> Settings:
    there: Any = on_environments if recipe in on_environments.BASE else on_text
    base = {**there.BASE[recipe], **given, "eval.episodes": 0}
    more = {"total_steps": base["total_steps"] + 64} if "total_steps" in base else {}
    return Settings({**base, **more, "total_updates": 7})


def group_of(recipe: str, settings: dict[str, Any]) -> tuple[Experiment, ProcessGroup]:
    config = one_budget(override(registry.load_recipe(recipe).Config(), settings), settings)
    experiment = registry.build(recipe, config)
    return experiment, wire(experiment, {"main": experiment.worker_names()}, "main", clock=ManualClock())


@functools.lru_cache(maxsize=8)
def saved(recipe: str, settings: Settings) -> Any:
    """The state of a run at version 3."""
    _, group = group_of(recipe, settings)
    try:
        group.start()
        while group.trainer is not None and group.trainer.version < 3:
            group.round()
        return group.snapshot()
    finally:
        group.close()


@functools.lru_cache(maxsize=8)
def rest(recipe: str, seen: str, base: Settings, changes: Settings) -> Any:
    """What is heard of the rest of the run, or what it is made of when it goes on."""
    states = saved(recipe, base)
    experiment, group = group_of(recipe, {**base, **changes})
    try:
        if seen == "heard":
            return play(experiment, group, states)
        group.start(states, epoch=1)
        return dict(built([*group.workers]))
    finally:
        group.close()


@pytest.mark.parametrize(("recipe", "name"), cases())
def test_a_setting_that_may_change_counts_from_then_on(recipe: str, name: str) -> None:
    one = how(recipe, name)
    base = base_of(recipe, one.given)
    config = override(registry.load_recipe(recipe).Config(), base)
    hint, now = next((hint, value) for n, _, hint, value in fields_of(config) if n == name)
    value = changed(hint, now) if one.value is None else one.value
    assert rest(recipe, one.seen, base, Settings()) != rest(recipe, one.seen, base, Settings({name: value}))


@pytest.mark.parametrize("recipe", OWN)
def test_without_a_change_the_rest_is_the_same(recipe: str) -> None:
    base = base_of(recipe, {})
    first = rest(recipe, "heard", base, Settings())
    rest.cache_clear()
    assert rest(recipe, "heard", base, Settings()) == first


# ---------------------------------------------------------------------------------------------------------------- in folders
TINY: dict[str, Any] = {
    "num_envs": 1,
    "num_steps": 8,
    "vector.backend": "serial",
    "net.hidden": (8,),
    "eval.episodes": 0,
    "min_fill": 32,
    "total_steps": 64,
    "update_ratio": 0.25,
    "track": (),
    "name": "run",
}


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    own = {
        "dqn": {"dqn.batch_size": 8, "dqn.epsilon": "linear(1, 0.04, 0.5)"},
        "sac": {"env": "Pendulum-v1", "sac.batch_size": 8, "sac.auto_temperature": False},
    }
    return {name: rl.train(name, out=str(out / name), **TINY, **settings).path for name, settings in own.items()}


@pytest.mark.parametrize(
    ("recipe", "name", "value", "was"),
    [
        ("sac", "sac.temperature", 0.5, 1.0),
        ("sac", "sac.gamma", 0.5, 0.99),
        ("dqn", "dqn.gamma", 0.5, 0.99),
        ("dqn", "replay.n_step", 3, 1),
        ("dqn", "replay.alpha", 0.1, 0.6),
        ("dqn", "update_ratio", 1.0, 0.25),
        ("dqn", "update_ratio", 0.1, 0.25),
        ("dqn", "num_steps", 4, 8),
        ("dqn", "net.activation", "tanh", "relu"),
        ("dqn", "env", "Acrobot-v1", "CartPole-v1"),
        ("dqn", "env_kwargs", {"sutton_barto_reward": True}, {}),
        ("dqn", "seed", 2, 1),
        ("dqn", "name", "other", "run"),
    ],
)
def test_what_would_be_mixed_or_ignored_is_refused_and_nothing_is_touched(
    recipe: str, name: str, value: Any, was: Any, runs: dict[str, Path]
) -> None:
    run = runs[recipe]
    before = contents(run)
    with pytest.raises(rl.ConfigError) as caught:
        rl.resume(run, total_steps=128, **{name: value})
    assert caught.value.field == name
    assert all(word in str(caught.value) for word in (repr(value), f"this run has {was!r}", f"--init-from {run}"))
    assert contents(run) == before
    assert RunFolder(run).read_rows()[0][-1]["status"] == "finished"


def test_a_larger_budget_tells_which_schedules_jump(runs: dict[str, Path], tmp_path: Path) -> None:
    """The value that is told is that of the first update after the resume."""
    run = shutil.copytree(runs["dqn"], tmp_path / "run")
    with pytest.warns(UserWarning, match=r"dqn.epsilon jumps from 0.04 to 0.52: linear\(1, 0.04, 0.5\)"):
        longer = rl.resume(run, total_steps=256, log_every=1)
    assert longer.rows()[1]["metrics"]["epsilon"] == pytest.approx(1 - 0.96 * (64 / 256) / 0.5)
    events = longer.rows("event")
    assert [e["level"] for e in events if "dqn.epsilon jumps" in e["text"]] == ["warning"]
    assert any(e["text"].startswith("total_steps = 256 (was 64)") for e in events)


def test_a_schedule_that_is_given_anew_is_not_told(runs: dict[str, Path], tmp_path: Path, recwarn: Any) -> None:
    run = shutil.copytree(runs["dqn"], tmp_path / "run")
    longer = rl.resume(run, total_steps=128, log_every=1, **{"dqn.epsilon": 0.04})
    assert not [w for w in recwarn if "jumps" in str(w.message)]
    assert {row["metrics"]["epsilon"] for row in longer.rows()[1:]} == {0.04}


def test_settings_around_a_run_change_with_a_resume(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["dqn"], tmp_path / "run")
    new: dict[str, Any] = {"eval.every": 4, "eval.episodes": 2, "checkpoint.every": 2, "checkpoint.keep": 2}
    new |= {"log_every": 2, "track": ("csv",), "tags": ("later",), "dqn.epsilon": 0.1}
    longer = rl.resume(run, total_steps=128, **new)
    first = RunFolder(runs["dqn"]).read_rows()[0][-2]["version"]
    assert {v for v in range(first + 1, longer.version) if v % 4 == 0} <= {r["version"] for r in longer.rows("eval")}
    assert {r["version"] % 2 for r in longer.rows() if first < r["version"] < longer.version} == {0}
    assert len([p for p in (run / "checkpoints").iterdir() if p.name[0].isdigit()]) == 2
    assert list(run.rglob("*.csv"))
    assert RunFolder(run).read_config()["tags"] == ["later"]
    told = [e["text"] for e in longer.rows("event")]
    assert any("checkpoint.keep = 2 (was 3): counts from the next checkpoint on" in text for text in told)
