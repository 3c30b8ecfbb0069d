"""Every setting of every recipe on environments counts or is refused (`field_runs.py`).

A new setting fails here until the table says how it is shown to count, unless its type says enough.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from field_runs import Try, check_field, check_shown, names_of, outcome

from runnel.graphs.run_config import RunConfig
from runnel.run import registry

ENV: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "eval.episodes": 1,
    "vector.backend": "serial",
    "net.hidden": (8,),
    "total_updates": 2,
}
REPLAY: dict[str, Any] = {**ENV, "num_envs": 1, "log_every": 1, "min_fill": 32, "total_steps": 48, "total_updates": 10}
BASE: dict[str, dict[str, Any]] = {
    "ppo": {**ENV, "ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05},
    "a2c": ENV,
    "impala": ENV,
    "appo": {**ENV, "appo.num_minibatches": 2, "appo.num_epochs": 2, "appo.lr": 0.05},
    "ippo": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        "teams": ("sender|a=one", "receiver|b=two"),
        **{"ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05},
    },
    "dqn": {
        **REPLAY,
        "dqn.batch_size": 8,
        "dqn.target_every": 2,
        "update_ratio": 0.5,
        "dqn.lr": 0.05,
        "replay.prioritised": True,
    },
    "sac": {**REPLAY, "env": "Pendulum-v1", "sac.batch_size": 8, "update_ratio": 0.5},
    "td3": {**REPLAY, "env": "Pendulum-v1", "td3.batch_size": 8, "update_ratio": 0.5, "td3.tau": 0.5, "td3.actor_delay": 1},
    "ddpg": {**REPLAY, "env": "Pendulum-v1", "ddpg.batch_size": 8, "update_ratio": 0.5, "ddpg.tau": 0.5},
}
SAME = {"cartpole": "ppo"}
"""Recipes that are another one with other defaults: the same `build`."""

LOCAL = {"launcher": "local"}
IMAGES = {"env": "field_tasks:Frame", "net.hidden": None}
VIDEOS = {"record.videos": 1, "eval.every": 1}
TRIES: dict[str, Try] = {
    "device": Try("cpu:0", seen="wired"),
    "launcher": Try(seen="placed"),
    "total_steps": Try(16),
    "total_tokens": Try(16),
    "deterministic": Try(seen="wired"),  # inference answers rows apart
    "staleness.max_lag": Try(1, {"staleness.mode": "window"}, seen="placed"),
    "staleness.max_concurrent": Try(seen="placed"),
    "eval.max_steps": Try(3),
    "eval.pass_k": Try((2,)),
    "record.every": Try(given=VIDEOS),
    "record.max_steps": Try(3, VIDEOS),
    "record.fps": Try(7.0, {"record.videos": 1}, seen="wired"),
    "record.groups_every": Try(2),
    "placement.groups": Try(("actor-* trainer",), LOCAL, seen="placed"),
    "placement.trainers": Try(2, LOCAL, seen="placed"),
    "placement.policy_workers": Try(seen="placed"),
    "placement.max_actors": Try(3, LOCAL, seen="placed"),
    "placement.max_policy_workers": Try(3, {**LOCAL, "placement.policy_workers": 1}, seen="placed"),
    "env": Try("Acrobot-v1"),
    "env_kwargs": Try({"sutton_barto_reward": True}),
    "wrappers": Try(("field_tasks:Half",)),
    "vector.backend": Try("gymnasium", seen="wired"),
    "vector.on_error": Try(seen="wired"),
    "vector.frame_stack": Try(2, IMAGES),
    "net.hidden": Try((9,)),
    "net.conv": Try("none", {**IMAGES, "env_kwargs": {"stack": 2}}),
    "net.channels": Try("last", {**IMAGES, "env_kwargs": {"stack": 5}}),
    "net.core_size": Try(given={"net.core": "gru"}),
    "net.shared": Try(True),
    "compiled": Try("off", seen="wired"),
    "network": Try("field_tasks:make_net", {"net.hidden": None}),
    "member": Try(1, {"population": 2}, seen="wired"),
    "ppo.lr": Try("linear(1e-2, 0)"),
    "ppo.num_minibatches": Try(4),
    "ppo.value_clip": Try(1e-4),
    "ppo.dual_clip": Try(1.01),
    "ppo.target_kl": Try(1e-6),
    "a2c.lr": Try(0.05),
    "impala.lr": Try(0.05),
    "impala.rho_bar": Try(2.0, {"impala.lr": 0.05, "total_updates": 6}),
    "impala.c_bar": Try(given={"impala.lr": 0.05, "total_updates": 6}),
    "dqn.epsilon": Try(0.0),
    "dqn.double": Try(given={"dqn.lr": 0.5, "dqn.target_every": 3}),
    "dqn.num_atoms": Try(given={"dqn.head": "c51"}),
    "dqn.v_min": Try(given={"dqn.head": "c51"}),
    "dqn.v_max": Try(given={"dqn.head": "c51"}),
    "dqn.sigma": Try(given={"dqn.head": "hl_gauss"}),
    "dqn.burn_in": Try(2, {"net.core": "gru"}),
    "dqn.eta": Try(given={"net.core": "gru"}),
    "dqn.max_grad_norm": Try(0.01),
    "dqn.huber": Try(0.01),
    "replay.capacity": Try(32),
    "replay.alpha": Try(given={"replay.prioritised": True}),
    "replay.beta": Try(given={"replay.prioritised": True}),
    "replay.min_priority": Try(1.0, {"replay.prioritised": True}),
    "replay.compress_frames": Try(given={**IMAGES, "vector.frame_stack": 2}, seen="wired"),
    "replay.mmap_bytes": Try(1, seen="wired"),
    "sac.entropy_share": Try(given={"env": "CartPole-v1"}),
    "num_env_groups": Try(2, {"num_envs": 2}),
}
TRIES |= {name.replace("ppo.", "appo.", 1): how for name, how in TRIES.items() if name.startswith("ppo.")}
TRIES |= {"appo.rho_bar": Try(2.0, {"total_updates": 6}), "appo.c_bar": Try(given={"total_updates": 6})}
OF: dict[str, dict[str, Try]] = {
    "ippo": {
        "env": Try("team_frames:Frames"),
        "env_kwargs": Try({"num_symbols": 4}),
        "teams": Try(("s.*=sender", "r.*=ear")),
        "net.core_size": Try(),
        "net.conv": Try("none", {"env": "team_frames:Frames", "env_kwargs": {"stack": 2}, "net.hidden": None}),
        "net.channels": Try("last", {"env": "team_frames:Frames", "env_kwargs": {"stack": 5}, "net.hidden": None}),
    },
    "dqn": {"total_steps": Try(40), "total_updates": Try(3)},
    "sac": {"env": Try("MountainCarContinuous-v0"), "env_kwargs": Try({"g": 5.0}), "net.core_size": Try()},
}
CONTROL = {
    name: replace(how, given={**how.given, "env_kwargs": {"stack": 2, **how.given.get("env_kwargs", {}), "box": True}})
    for name, how in TRIES.items()
    if "env" in how.given
}
OF |= {"td3": OF["sac"] | CONTROL, "ddpg": OF["sac"] | CONTROL}
"""Where a recipe needs another value."""

REFUSED = {"a2c": {"staleness.mode": "it does not correct for older data"}}
"""Refusals that are not for want of use: a recipe cannot do it."""

IN_FOLDERS = (
    *("out", "name", "tags", "init_from", "log_every", "track", "trace", "trace_mb", "control", "stop_on"),
    *("eval.stop_return", "checkpoint.every", "checkpoint.keep", "checkpoint.best", "record.keep", "placement.threads"),
)
"""What files, the console or the process show: `test_fields_in_folders.py`. None of it is the recipe's own."""
ELSEWHERE = {
    **dict.fromkeys(("sinks.project", "sinks.entity", "sinks.group", "sinks.name"), "unit/track/test_track_sinks.py"),
    "placement.stage_timeout_s": "system/test_restarts.py",
    "placement.max_restarts": "system/test_restarts.py",
    "placement.stall_timeout_s": "system/test_rough_handling.py",
    "cluster.address": "unit/cli/test_jobs.py",
    "cluster.place": "unit/run/test_needs.py",
    "vector.num_workers": "unit/envs/test_vector_choice.py",
    "vector.threads": "unit/envs/test_vector_choice.py",
    "vector.step_timeout_s": "contract/test_vectors.py",
    "zoo": "unit/run/test_zoo.py",
}
"""What only other processes, or a disk, show."""

SHARED = {name for name in names_of("ppo") if name.partition(".")[0] in (*RunConfig.__dataclass_fields__, "vector")}
GRAPHS = ("ppo", "dqn")
"""Recipes that show what every run has, once for each graph; of the others everything but that is changed."""
CASES = [
    (recipe, name)
    for recipe in BASE
    for name in names_of(recipe)
    if name not in {*IN_FOLDERS, *ELSEWHERE, "replay.mmap_dir"} and (name not in SHARED or recipe in GRAPHS)
]


@pytest.mark.parametrize(("recipe", "name"), CASES, ids=[f"{recipe}-{name}" for recipe, name in CASES])
def test_a_setting_counts_or_is_refused(recipe: str, name: str) -> None:
    check_field(recipe, name, BASE[recipe], TRIES | OF.get(recipe, {}), REFUSED.get(recipe, {}))


@pytest.mark.parametrize("recipe", ["ppo", "appo", "dqn"])
def test_kernels_that_are_asked_for_arrive(recipe: str) -> None:
    pytest.importorskip("numba")
    modes = ("auto", "on", "off")
    found = [outcome(recipe, "wired", **BASE[recipe] | {"net.hidden": (8, 8), "compiled": mode}).wired for mode in modes]
    assert len({tuple(sorted(x.items())) for x in found}) == 3


def test_the_file_behind_a_large_memory_lies_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, make = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **rest: where.append(rest["dir"]) or make(**rest))
    outcome("dqn", "wired", **BASE["dqn"], **{"replay.mmap_bytes": 1, "replay.mmap_dir": str(tmp_path)})
    assert set(where) == {str(tmp_path)}


def test_no_recipe_and_no_setting_is_left_out() -> None:
    known = {name for recipe in BASE for name in names_of(recipe)}
    for recipe, other in SAME.items():
        assert registry.load_recipe(recipe).module.build is registry.load_recipe(other).module.build
        assert set(names_of(recipe)) == set(names_of(other))
    on_environments = {r for r in registry.RECIPES if "env" in names_of(r)}
    assert on_environments == {*BASE, *SAME}
    listed = {*TRIES, *IN_FOLDERS, *ELSEWHERE, *(name for some in (*OF.values(), *REFUSED.values()) for name in some)}
    assert listed <= known, f"there is no setting {listed - known}"
    check_shown(ELSEWHERE)
