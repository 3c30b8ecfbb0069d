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
from made_data import CARTPOLE, PENDULUM, STARTED

from runnel.envs.curricula.config import OF_KIND
from runnel.graphs.run_config import RunConfig
from runnel.run import registry

CREW = f"{Path(__file__).parents[1] / 'envs' / 'team_envs.py'}:Crew"
ENV: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "eval.episodes": 1,
    "eval.max_steps": 40,
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
    "ppo_lagrangian": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        **{"ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05, "total_updates": 10},  # until episodes end
    },
    "ippo": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        "teams": ("sender|a=one", "receiver|b=two"),
        **{"ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05},
    },
    "mappo": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        "teams": ("sender|a=one", "receiver|b=two"),
        **{"ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05},
    },
    "qmix": {
        **{name: value for name, value in REPLAY.items() if name != "vector.backend"},
        **{"env": CREW, "qmix.batch_size": 8, "qmix.target_every": 2, "update_ratio": 0.5, "qmix.lr": 0.05},
    },
    "selfplay": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        **{"ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05, "num_envs": 4, "num_steps": 16, "total_updates": 6},
        **{"pool.every": 1, "pool.size": 3, "pool.window": 4},
    },
    "coma": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        **{"total_updates": 4, "coma.lr": 0.05, "coma.critic_lr": 0.05, "coma.target_every": 2, "teams": ("each",)},
    },
    "happo": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        **{"happo.num_minibatches": 2, "happo.num_epochs": 2, "happo.lr": 0.05, "happo.critic_lr": 0.05},
    },
    "nfsp": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        "teams": ("sender|a=one", "receiver|b=two"),
        **{"nfsp.min_fill": 4, "nfsp.num_updates": 3, "nfsp.batch_size": 8, "nfsp.policy_batch_size": 8, "nfsp.lr": 0.05},
        **{"nfsp.target_every": 2, "nfsp.anticipation": 0.5, "total_updates": 4},
    },
    "mat": {
        **{name: value for name, value in ENV.items() if name != "vector.backend"},
        **{"env": CREW, "ppo.num_minibatches": 2, "ppo.num_epochs": 2, "ppo.lr": 0.05},
    },
    "masac": {
        **{name: value for name, value in REPLAY.items() if name != "vector.backend"},
        **{"env": CREW.replace("Crew", "Rowers"), "masac.batch_size": 8, "update_ratio": 0.5},
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
    "rlpd": {
        **REPLAY,
        "env": "Pendulum-v1",
        "data": PENDULUM,
        "rlpd.batch_size": 8,
        "rlpd.num_critics": 3,
        "rlpd.actor_every": 1,
        "update_ratio": 0.5,
    },
    "bc": {
        **{"data": CARTPOLE, "bc.batch_size": 8, "bc.lr": 0.05, "log_every": 1, "total_updates": 4},
        **{"eval.episodes": 1, "eval.max_steps": 40, "vector.backend": "serial", "net.hidden": (8,)},
    },
}
STREAM = {name: value for name, value in ENV.items() if name not in ("num_envs", "num_steps")} | {"total_updates": 12}
BASE["drm"] = {**REPLAY, "env": "Pendulum-v1", "update_ratio": 0.5}
BASE["drm"] |= {"drm.batch_size": 8, "drm.tau": 0.5, "drm.actor_delay": 1, "drm.perturb_every": 2}
BASE["drm"] |= {"drm.awake_below": 0.98, "drm.dormant_below": 0.9, "drm.perturb_rate": 0.5}
BASE |= {name: {**STREAM, "log_every": 1} for name in ("stream_ac", "stream_q")}
BASE["mex"] = {**BASE["td3"], "td3.eta": 0.5}
BASE["cip"] = {**BASE["sac"], "env": "runnel.envs.toy:PointMass", "env_kwargs": {"dims": 3}, "sac.empowerment": 0.5}
BASE["cip"] |= {"sac.fit_rows": 24, "sac.fit_every": 2, "sac.cause_threshold": 1.0}
BASE["sqirl"] = {**ENV, "num_steps": 64, "total_updates": 3, "sqirl.horizon": 5, "sqirl.batch_size": 16}
BASE["soap"] = BASE["ppo"]
BASE["gbrl"] = {k: v for k, v in BASE["ppo"].items() if not k.startswith(("ppo.", "net."))}
BASE["gbrl"] |= {"gbrl.num_minibatches": 2, "gbrl.num_epochs": 2, "gbrl.lr": 0.05}
SAME = {"cartpole": "ppo", "vdn": "qmix", "independent_q": "qmix"}
"""Recipes that are another one with other defaults: the same `build`."""

LOCAL = {"launcher": "local"}
IMAGES = {"env": "field_tasks:Frame", "net.hidden": None}
COSTLY = {"env": "field_tasks:Costly"}
TOLD = {"env": "field_tasks:Told"}
LEVELS = {**TOLD, "curriculum.kind": "plr", "curriculum.capacity": 4, "curriculum.replay": 0.9, "total_updates": 8}
PROGRESS = {**TOLD, "curriculum.kind": "alp_gmm", "curriculum.fit_every": 20, "total_updates": 12}
STARTS = {"curriculum.kind": "states", "curriculum.states": STARTED, "curriculum.until": 1.0}
VIDEOS = {"record.videos": 1, "record.max_steps": 8, "eval.every": 1}
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
    "channels.rewards": Try(("forward",), COSTLY),
    "channels.costs": Try(("cost",), COSTLY),
    "channels.weights": Try({"costs/cost": -0.5}, {**COSTLY, "channels.costs": ("cost",)}),
    "net.hidden": Try((9,)),
    "net.conv": Try("none", {**IMAGES, "env_kwargs": {"stack": 2}}),
    "net.channels": Try("last", {**IMAGES, "env_kwargs": {"stack": 5}}),
    "net.core_size": Try(given={"net.core": "gru"}),
    "net.shared": Try(True),
    "net.critic_only": Try(("luck",), {"env": "toy_envs:Luck"}),
    "curriculum.kind": Try("uniform", TOLD),
    "curriculum.replay": Try(0.6, LEVELS),
    "curriculum.capacity": Try(3, LEVELS),
    "curriculum.temperature": Try(50.0, LEVELS),
    "curriculum.staleness": Try(1.0, LEVELS),
    "curriculum.fit_every": Try(30, PROGRESS),
    "curriculum.max_gaussians": Try(2, PROGRESS),
    "curriculum.explore": Try(1.0, PROGRESS),
    "curriculum.share": Try(1.0, STARTS),
    "curriculum.until": Try(0.25, {**STARTS, "curriculum.share": 1.0, "total_steps": 64}),
    "curriculum.groups": Try(1, STARTS),
    "curriculum.cut": Try(2, {**STARTS, "curriculum.share": 1.0}),
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
    "qmix.mixer": Try("vdn"),
    "qmix.lr": Try("linear(1e-2, 0)"),
    "qmix.epsilon": Try(0.0),
    "qmix.double": Try(given={"qmix.lr": 0.5, "qmix.target_every": 4, "qmix.batch_size": 32}),
    "qmix.burn_in": Try(2, {"net.core": "gru"}),
    "qmix.eta": Try(given={"net.core": "gru", "replay.prioritised": True}),
    "qmix.max_grad_norm": Try(0.01),
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
    "exchange.settings": Try(("clip_range",), {"population": 2, "exchange.every": 2}),
    "exchange.spread": Try(given={"population": 2, "exchange.every": 2}),
    "exchange.every": Try(1, {"population": 2}),
}
TRIES |= {name.replace("ppo.", "appo.", 1): how for name, how in TRIES.items() if name.startswith("ppo.")}
TRIES |= {name.replace("ppo.", "gbrl.", 1): how for name, how in TRIES.items() if name.startswith("ppo.")}
TRIES |= {"appo.rho_bar": Try(2.0, {"total_updates": 6}), "appo.c_bar": Try(given={"total_updates": 6})}
OF_EPISODES = {f"curriculum.{name}": Try() for name, kind in OF_KIND.items() if kind in ("plr", "alp_gmm")}
"""Settings of curricula that must see episodes in their order, which a replay recipe refuses."""
OF: dict[str, dict[str, Try]] = {
    "ippo": {
        "env": Try("team_frames:Frames"),
        "env_kwargs": Try({"num_symbols": 4}),
        "teams": Try(("s.*=sender", "r.*=ear")),
        "credit": Try("group", {"teams": (), "env": "runnel.envs.team.toy:Fleet"}),
        "net.core_size": Try(),
        "net.conv": Try("none", {"env": "team_frames:Frames", "env_kwargs": {"stack": 2}, "net.hidden": None}),
        "net.channels": Try("last", {"env": "team_frames:Frames", "env_kwargs": {"stack": 5}, "net.hidden": None}),
    },
    "ppo_lagrangian": {
        "env": Try("tensor:field_tasks:Fast"),
        "env_kwargs": Try({"radius": 0.3}),
        "channels.rewards": Try(("forward",)),
        "channels.costs": Try(("cost",)),
        "channels.weights": Try({"rewards/env": 0.5}),
        "lagrangian.limits": Try({"hazard": 0.0}),
        "net.critic_only": Try(("luck",)),
        "net.conv": Try("none"),
        "net.channels": Try("last"),
        "net.core_size": Try(),
    },
    "qmix": {
        "env": Try("tensor:TwoStep"),
        "env_kwargs": Try({"longest": 3}),
        "teams": Try((".*=one",)),
        "net.critic_only": Try(("luck",), {"env": "team_frames:Lucks"}),
        "net.conv": Try("none", {"env": "team_frames:Frames", "env_kwargs": {"stack": 2}, "net.hidden": None}),
        "net.channels": Try("last", {"env": "team_frames:Frames", "env_kwargs": {"stack": 5}, "net.hidden": None}),
        "replay.compress_frames": Try(),
        "total_steps": Try(40),
        "total_updates": Try(3),
        "team_reward": Try("sum"),
        "replay.n_step": Try(2),
    },
    "masac": {
        "env": Try("tensor:Meeting"),
        "env_kwargs": Try({"longest": 3}),
        "teams": Try((".*=one",)),
        "net.conv": Try("none"),
        "net.channels": Try("last"),
        "net.core_size": Try(),
        "net.critic_only": Try(("luck",)),
        "replay.compress_frames": Try(),
        "total_steps": Try(40),
        "total_updates": Try(3),
        "team_reward": Try("sum"),
        "replay.n_step": Try(2),
    },
    "dqn": {"total_steps": Try(40), "total_updates": Try(3), **OF_EPISODES},
    "gbrl": {"net.core_size": Try(), "gbrl.num_bins": Try(2)},
    "soap": {"net.core_size": Try(), "net.critic_only": Try(("luck",))},
    "rlpd": {"net.critic_only": Try(("luck",)), "mix": Try(("offline=0.25",)), "net.core_size": Try(), "total_steps": Try(56)},
    "bc": {"net.critic_only": Try(("luck",)), "num_env_groups": Try(2), "net.core_size": Try(), "total_steps": Try(16)},
    "sac": {"env": Try("MountainCarContinuous-v0"), "env_kwargs": Try({"g": 5.0}), "net.core_size": Try()},
}
OF["ippo"]["net.entities"] = Try("attention", {"env": "runnel.envs.team.toy:Swarm", "teams": ()})
OF["ippo"]["net.critic_only"] = Try(("luck",), {"env": "team_frames:Lucks"})
OF["selfplay"] = {
    **{name: how for name, how in OF["ippo"].items() if name.startswith("net.")},
    "env": Try("team_frames:Frames"),
    "env_kwargs": Try({"most_rounds": 4}),
    "teams": Try((".*=main",)),
    "pool.beat": Try(0.2, {"pool.every": 50}),
    "pool.exploiter_wins": Try(0.6),
}
OF["mappo"] = {**OF["ippo"], "ppo.huber_delta": Try(0.01), "ppo.value_decay": Try(0.1), "ppo.max_grad_norm": Try(0.1)}
OF["happo"] = {**OF["ippo"], "happo.huber_delta": Try(0.01), "happo.value_decay": Try(0.1), "happo.max_grad_norm": Try(0.01)}
OF["happo"] |= {"happo.value_clip": Try(1e-4)}
OF["nfsp"] = {
    **{name: how for name, how in OF["ippo"].items() if name.startswith(("env", "teams", "net"))},
    **{"nfsp.epsilon": Try(0.9), "nfsp.max_grad_norm": Try(0.01), "nfsp.min_fill": Try(40)},
    **{"nfsp.replay_size": Try(10), "nfsp.reservoir_size": Try(5)},
}
OF["coma"] = {name: how for name, how in OF["ippo"].items() if name != "credit"}
OF["coma"] |= {"coma.max_grad_norm": Try(0.01), "coma.target_every": Try(1)}
OF["mat"] = {name: how for name, how in OF["ippo"].items() if name.startswith(("net.", "ppo."))}
OF["mat"] |= {name: OF["qmix"][name] for name in ("env", "env_kwargs", "teams", "net.critic_only", "team_reward")}
OF["mat"] |= {"ppo.heads": Try(2), "ppo.width": Try(32), "ppo.blocks": Try(2)}
CONTROL = {
    name: replace(how, given={**how.given, "env_kwargs": {"stack": 2, **how.given.get("env_kwargs", {}), "box": True}})
    for name, how in TRIES.items()
    if how.given.get("env") in (IMAGES["env"], COSTLY["env"])
}
NO_CHANNELS = {
    "channels.rewards": Try(("forward",)),
    "channels.costs": Try(("cost",)),
    "channels.weights": Try({"rewards/env": 0.5}),
}
OF |= {recipe: OF[recipe] | NO_CHANNELS for recipe in ("rlpd", "bc")}
OF["sac"]["net.critic_only"] = Try(("luck",), {"env": "toy_envs:Luck", "env_kwargs": {"box": True}})
VECTORS = {"net.core_size": Try(), "net.conv": Try("none"), "net.channels": Try("last"), "net.critic_only": Try(("luck",))}
OF["sqirl"] = VECTORS
OF["stream_ac"] = OF["stream_q"] = VECTORS | {
    "num_env_groups": Try(),
    **{"stream_ac.lr": Try(1e-4), "stream_q.lr": Try(1e-4), "stream_q.epsilon": Try(0.0)},
}
OF["cip"] = {"sac.fit_rows": Try(48), "sac.cause_threshold": Try(0.01)}
OF |= dict.fromkeys(("td3", "ddpg", "drm"), OF["sac"] | CONTROL)
OF["drm"] |= {"drm.exploration_noise": Try(2.0), "drm.perturb_low": Try(0.85)}
"""Where a recipe needs another value."""

REFUSED = {
    "a2c": {"staleness.mode": "it does not correct for older data"},
    "ppo_lagrangian": {"net.core": "the critics of costs have no memory"},
    "coma": {"staleness.mode": "coma does not correct for older data"},
    "mat": {"staleness.mode": "mat does not correct for older data"},
    "happo": {"staleness.mode": "segments of several policies would be taken as they come"},
    "sqirl": {"staleness.mode": "which steps are random depends on the version"},
}
"""Refusals that are not for want of use: a recipe cannot do it."""

IN_FOLDERS = (
    *("out", "name", "tags", "init_from", "log_every", "track", "trace", "trace_mb", "control", "stop_on"),
    *("eval.stop_return", "checkpoint.every", "checkpoint.keep", "checkpoint.best", "record.keep", "placement.threads"),
)
"""What files, the console or the process show: `test_fields_in_folders.py`. None of it is the recipe's own."""
ELSEWHERE = {
    "staleness.balance": "system/test_restarts.py",
    "placement.replan_s": "system/test_restarts.py",
    "placement.predicted_per_s": "unit/report/test_plans.py",
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
    **dict.fromkeys(("curriculum.states", "curriculum.states_digest"), "system/test_start_states.py"),
}
"""What only other processes, or a disk, show."""

WITH_DATA = {
    **dict.fromkeys(("env", "env_kwargs", "wrappers"), "system/test_data_sets.py"),
    **dict.fromkeys(("data", "data_digest"), "system/test_data_sets.py"),
    **dict.fromkeys(("net.conv", "net.channels"), "unit/nets/test_convolutions.py"),
    "net.entities": "unit/nets/test_entities.py",
    "replay.compress_frames": "unit/data/test_replay_memory.py",
}
"""Settings of recipes that read a data set, which is of one environment: with another one they are refused, and other settings
of the environment, images among them, need other data."""

OF_EVERY_RUN = (*RunConfig.__dataclass_fields__, "vector", "curriculum")
SHARED = {name for name in names_of("ppo") if name.partition(".")[0] in OF_EVERY_RUN}
BUILT_ON = {"drm": "td3", "mex": "td3", "cip": "sac", "stream_q": "stream_ac"}
"""Recipes with another learner in the graph of one before: what both have is shown there."""
GRAPHS = ("ppo", "dqn")
"""Recipes that show what every run has, once for each graph; of the others everything but that is changed."""
CASES = [
    (recipe, name)
    for recipe in BASE
    for name in names_of(recipe)
    if name not in {*IN_FOLDERS, *ELSEWHERE, "replay.mmap_dir"}
    and (name not in SHARED or recipe in GRAPHS)
    and (recipe not in BUILT_ON or name not in names_of(BUILT_ON[recipe]))
    and (recipe not in ("rlpd", "bc") or name not in WITH_DATA)
]


@pytest.mark.parametrize(("recipe", "name"), CASES, ids=[f"{recipe}-{name}" for recipe, name in CASES])
def test_a_setting_counts_or_is_refused(recipe: str, name: str) -> None:
    check_field(recipe, name, BASE[recipe], TRIES | OF.get(recipe, {}), REFUSED.get(recipe, {}))


@pytest.mark.parametrize("recipe", ["ppo", "appo", "dqn", "ippo", "selfplay"])
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
    check_shown(ELSEWHERE | WITH_DATA)
