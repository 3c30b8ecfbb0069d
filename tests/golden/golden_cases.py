"""What golden runs are of: every recipe as it is, and every form in which one of them computes the same in another way.

`CLASSICAL` are cases on environments, by name; those on language models are in `golden_token_cases.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from tiny_recipes import TWO_STEPS

HERE = Path(__file__).parent
Settings = dict[str, Any]
BY_KERNELS: Settings = {"compiled": "on"}
BY_TORCH: Settings = {"compiled": "off"}
"""The two forms of a small network. This is the only place where a case says `compiled`."""
EVERY: Settings = {
    **{"seed": 3, "track": (), "name": "run", "checkpoint": {"every": "never"}, "placement": {"threads": 1}},
    "eval": {"every": 0, "episodes": 2, "stop_return": None},
}
SERIAL: Settings = {"vector": {"backend": "serial"}}
"""Left open, the back end would depend on the number of cores."""


@dataclass(frozen=True)
class Case:
    """A recipe (or a pipeline) with settings. Without `loops`, torch does what a language model's compiled loops would do."""

    recipe: str
    settings: Settings
    loops: bool = True


def merged(*parts: Mapping[str, Any]) -> Settings:
    """Settings over settings; groups are merged too."""
    out: Settings = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
            out[name] = merged(out[name], value) if both else value
    return out


# ------------------------------------------------------------------------------------------------------------- environments
TOY = "runnel.envs.toy"
OF_TESTS = HERE.parent / "system" / "toy_envs.py"
BRIGHT = {"env": f"{HERE.parent / 'learning' / 'pixel_env.py'}:Bright"}
WALK = {"env": f"{HERE / 'masked_walk.py'}:MaskedWalk"}
POINT = {"env": f"{TOY}:PointMass", "env_kwargs": {"dims": 2, "noise": 0.1}}
RECALL = {"env": f"{TOY}:Recall"}
TENSORS = {"env": "tensor:CartPole-v1", "num_envs": 4}

PLAIN = {"ppo": {"normalise_obs": False, "normalise_reward": False}}
PPO = merged(SERIAL, {"total_updates": 3, "num_envs": 4, "num_steps": 16, "ppo": {"num_epochs": 2, "num_minibatches": 2}})
APPO = merged(SERIAL, {"total_updates": 3, "num_steps": 16, "appo": {"num_epochs": 2, "num_minibatches": 2}})
CLIPS = {"value_clip": 0.02, "dual_clip": 1.5, "clip_range": 0.02, "entropy_coef": 0.01}
DQN = merged(
    SERIAL,
    {"total_steps": 72, "min_fill": 56, "num_steps": 8, "update_ratio": 0.25, "log_every": 1},
    {"dqn": {"batch_size": 32, "target_every": 2, "lr": 1e-2, "epsilon": "linear(1, 0.1)", "double": True}},
)
OFF_POLICY = merged(SERIAL, {"total_steps": 48, "min_fill": 40, "num_steps": 4, "log_every": 1, "net": {"hidden": (32, 32)}})
RELU, TANH = {"net": {"activation": "relu"}}, {"net": {"activation": "tanh"}}

FORMS: dict[str, tuple[str, Settings]] = {
    "ppo discrete tanh": ("ppo", merged(PPO, PLAIN, TANH)),
    "ppo discrete relu": ("ppo", merged(PPO, PLAIN, RELU)),
    "ppo continuous tanh": ("ppo", merged(PPO, PLAIN, POINT, TANH)),
    "ppo continuous relu": ("ppo", merged(PPO, PLAIN, POINT, RELU)),
    "ppo masked": ("ppo", merged(PPO, PLAIN, WALK)),
    "ppo masked bandit": ("ppo", merged(PPO, PLAIN, {"env": f"{TOY}:MaskedBandit"})),
    "ppo several leaves": ("ppo", merged(PPO, PLAIN, {"env": f"{OF_TESTS}:DictGoal"})),
    "ppo normalised": ("ppo", merged(PPO, {"ppo": {"normalise_obs": True, "normalise_reward": True}})),
    "ppo continuous normalised": ("ppo", merged(PPO, POINT, {"ppo": {"normalise_obs": True, "normalise_reward": True}})),
    "ppo clips": ("ppo", merged(PPO, PLAIN, {"ppo": {**CLIPS, "num_epochs": 4}})),
    "ppo continuous clips": ("ppo", merged(PPO, PLAIN, POINT, RELU, {"ppo": {**CLIPS, "num_epochs": 4}})),
    "ppo many rows": ("ppo", merged(PPO, PLAIN, {"num_envs": 8, "num_steps": 160, "ppo": {"num_minibatches": 1}})),
    "ppo tensors": ("ppo", merged({k: v for k, v in PPO.items() if k != "vector"}, PLAIN, TENSORS)),
    "ppo tensors normalised": ("ppo", merged({k: v for k, v in PPO.items() if k != "vector"}, TENSORS)),
    "appo discrete": ("appo", APPO),
    "appo continuous": ("appo", merged(APPO, POINT, RELU)),
    "appo masked clips": ("appo", merged(APPO, WALK, {"appo": CLIPS})),
    "dqn double": ("dqn", DQN),
    "dqn single huber": ("dqn", merged(DQN, TANH, {"dqn": {"double": False, "huber": 0.1, "target_tau": 0.5}})),
    "dqn masked": ("dqn", merged(DQN, WALK)),
    "dqn masked single": ("dqn", merged(DQN, WALK, {"dqn": {"double": False}})),
    "dqn priorities": ("dqn", merged(DQN, {"replay": {"prioritised": True, "n_step": 3}})),
}
"""What runs by Numba's kernels and by torch: the same numbers, other bits."""

# --------------------------------------------------------------------------------------------------------------- classical
OWN_UPDATES: dict[str, Settings] = {
    **{name: {"total_updates": 3, **SERIAL} for name in ("ppo", "cartpole", "a2c", "impala", "appo", "gbrl", "soap")},
    "ppo_lagrangian": {"total_updates": 3},
    "ippo": {"total_updates": 3},
    "mappo": {"total_updates": 3},
    **{
        name: {"total_steps": 600, "num_envs": 4, "min_fill": 256, "log_every": 1}
        for name in ("qmix", "vdn", "independent_q", "masac")
    },
    "selfplay": {"total_updates": 3, "pool": {"every": 1}},
    "happo": {"total_updates": 3},
    "nfsp": {"total_updates": 3, "nfsp": {"min_fill": 100, "num_updates": 8, "target_every": 3}},
    "coma": {"total_updates": 3},
    "mat": {"total_updates": 3},
    "dqn": {"log_every": 1, **SERIAL},
    **{name: {"log_every": 1, **SERIAL} for name in ("stream_ac", "stream_q", "sqirl")},
    **{name: {"total_steps": 272, "log_every": 1, **SERIAL} for name in ("sac", "td3", "ddpg", "drm", "mex")},
    "cip": {"total_steps": 272, "log_every": 1, "sac": {"fit_rows": 512, "fit_every": 4, "cause_threshold": 0.5}, **SERIAL},
    "rlpd": {"total_steps": 272, "log_every": 1, "rlpd": {"actor_every": 1}, **SERIAL},
    "bc": {"total_updates": 4, "log_every": 1, **SERIAL},
}
OTHERS: dict[str, tuple[str, Settings]] = {
    "ippo recurrent, segments of two lengths": (
        "ippo",
        {
            "total_updates": 3,
            "num_steps": 32,
            "net": {"hidden": (16,), "core": "gru", "core_size": 8},
            "teams": ("sender=sender: 16 steps, burn-in 5", "receiver=receiver"),
        },
    ),
    "ppo gymnasium vector": ("ppo", merged(PPO, {"vector": {"backend": "gymnasium"}})),
    "ppo three layers silu": ("ppo", merged(PPO, {"net": {"hidden": (32, 16, 16), "activation": "silu"}})),
    "ppo shared layers": ("ppo", merged(PPO, {"net": {"shared": True}})),
    "ppo composite actions": (
        "ppo",
        merged(PPO, PLAIN, {"env": f"{OF_TESTS}:Composite", "env_kwargs": {"action": "dict", "masked": True}}),
    ),
    "ppo images": ("ppo", merged(PPO, BRIGHT, {"num_envs": 2, "num_steps": 8})),
    "ppo gru": ("ppo", merged(PPO, RECALL, {"net": {"core": "gru", "core_size": 16, "hidden": (16,)}})),
    "ppo lstm": ("ppo", merged(PPO, POINT, {"net": {"core": "lstm", "core_size": 16, "hidden": (16,)}})),
    "ppo target kl": ("ppo", merged(PPO, {"ppo": {"target_kl": 1e-4, "num_epochs": 4}})),
    "ppo population": ("ppo", merged(PPO, {"population": 3})),
    "ppo population normalised tensors": (
        "ppo",
        merged({k: v for k, v in PPO.items() if k != "vector"}, TENSORS, {"population": 2}),
    ),
    "ppo tensors pendulum": (
        "ppo",
        merged({k: v for k, v in PPO.items() if k != "vector"}, {"env": "tensor:Pendulum-v1", "num_envs": 4}),
    ),
    "ppo ring": ("ppo", merged(PPO, {"num_env_groups": 2})),
    "ppo one step off": ("ppo", merged(PPO, {"num_actors": 2, "staleness": {"mode": "one_step"}})),
    "ppo policy workers": ("ppo", merged(PPO, {"num_actors": 2, "placement": {"policy_workers": 1}})),
    "appo lstm": ("appo", merged(APPO, RECALL, {"net": {"core": "lstm", "core_size": 16, "hidden": (16,)}})),
    "a2c continuous": ("a2c", merged(SERIAL, POINT, {"total_updates": 3})),
    "a2c gru": ("a2c", merged(SERIAL, RECALL, {"total_updates": 3, "net": {"core": "gru", "core_size": 16, "hidden": (16,)}})),
    "impala masked": ("impala", merged(SERIAL, WALK, {"total_updates": 4})),
    "impala images": ("impala", merged(SERIAL, BRIGHT, {"total_updates": 3, "num_envs": 2, "num_steps": 8})),
    "dqn c51": ("dqn", merged(DQN, {"dqn": {"head": "c51", "num_atoms": 21, "v_min": 0.0, "v_max": 20.0}})),
    "dqn hl gauss": ("dqn", merged(DQN, {"dqn": {"head": "hl_gauss", "num_atoms": 21, "v_min": 0.0, "v_max": 20.0}})),
    "dqn dueling": ("dqn", merged(DQN, WALK, {"dqn": {"dueling": True}})),
    "dqn rainbow": (
        "dqn",
        merged(
            DQN,
            {"replay": {"prioritised": True, "n_step": 3}},
            {"dqn": {"head": "c51", "dueling": True, "num_atoms": 21, "v_min": 0.0, "v_max": 20.0}},
        ),
    ),
    "dqn images": ("dqn", merged(DQN, BRIGHT, {"net": {"hidden": (32,)}, "dqn": {"batch_size": 8}})),
    "dqn gru": (
        "dqn",
        merged(DQN, RECALL, {"net": {"core": "gru", "core_size": 16, "hidden": (16,)}, "dqn": {"batch_size": 4, "burn_in": 2}}),
    ),
    "dqn lstm priorities": (
        "dqn",
        merged(
            DQN,
            {"net": {"core": "lstm", "core_size": 16, "hidden": (16,)}, "dqn": {"batch_size": 4}},
            {"replay": {"prioritised": True}},
        ),
    ),
    "dqn two actors": ("dqn", merged(DQN, {"num_actors": 2})),
    "sac continuous": ("sac", merged(OFF_POLICY, POINT, {"sac": {"batch_size": 16}})),
    "sac discrete": ("sac", merged(OFF_POLICY, {"env": "CartPole-v1", "sac": {"batch_size": 16}})),
    "sac masked priorities": (
        "sac",
        merged(OFF_POLICY, WALK, {"sac": {"batch_size": 16}, "replay": {"prioritised": True, "n_step": 2}}),
    ),
    "sac fixed temperature": (
        "sac",
        merged(OFF_POLICY, POINT, {"sac": {"batch_size": 16, "auto_temperature": False, "temperature": 0.2}}),
    ),
    "sac images": ("sac", merged(OFF_POLICY, BRIGHT, {"sac": {"batch_size": 8}})),
    "td3": ("td3", merged(OFF_POLICY, POINT, {"td3": {"batch_size": 16}})),
    "ddpg": ("ddpg", merged(OFF_POLICY, POINT, {"ddpg": {"batch_size": 16}})),
    "sac continuous, torch": ("sac", merged(OFF_POLICY, POINT, BY_TORCH, {"sac": {"batch_size": 16}})),
    "sac fixed temperature, torch": (
        "sac",
        merged(OFF_POLICY, POINT, BY_TORCH, {"sac": {"batch_size": 16, "auto_temperature": False, "temperature": 0.2}}),
    ),
    "td3, torch": ("td3", merged(OFF_POLICY, POINT, BY_TORCH, {"td3": {"batch_size": 16}})),
    "ddpg, torch": ("ddpg", merged(OFF_POLICY, POINT, BY_TORCH, {"ddpg": {"batch_size": 16}})),
}

CLASSICAL: dict[str, Case] = {
    **{f"recipe {name}": Case(name, merged(TWO_STEPS[name], own)) for name, own in OWN_UPDATES.items()},
    **{f"{name}, kernels": Case(recipe, merged(own, BY_KERNELS)) for name, (recipe, own) in FORMS.items()},
    **{f"{name}, torch": Case(recipe, merged(own, BY_TORCH)) for name, (recipe, own) in FORMS.items()},
    **{name: Case(recipe, own) for name, (recipe, own) in OTHERS.items()},
}

SAME = {f"{name}, kernels": f"{name}, torch" for name in FORMS}
"""Accelerated cases, and those that compute the same without."""
