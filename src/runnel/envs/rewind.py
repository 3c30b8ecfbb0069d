"""Saves and restores one environment: by its own get_state and set_state, else by a replay of its episode.

Any environment may have the two methods. `get_state` must then return its whole state as plain data, with its random
generator. All other environments are restored by `reset(seed)` and the actions since. Such a replay also finds out when an
environment is not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from runnel.core.errors import DataError
from runnel.core.state import Array, State
from runnel.core.worker import progressed
from runnel.envs.spaces import Action, Info, Obs

if TYPE_CHECKING:
    import gymnasium as gym


@runtime_checkable
class Stateful(Protocol):
    """An environment that can save and load itself."""

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...


def stateful_part(env: gym.Env) -> Stateful | None:
    """The layer of `env` that can save itself, if the wrappers around it hold no more than step counts; else None."""
    from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

    from runnel.envs.started import StartedEnv  # that module imports this one

    while isinstance(env, OrderEnforcing | PassiveEnvChecker | TimeLimit | StartedEnv):
        env = env.env
    return env if isinstance(env, Stateful) else None


def save_env(part: Stateful | None, actions: Sequence[Array]) -> State:
    """The state that `load_env` needs, beside the episode's seed and length."""
    if part is not None:
        return {"state": part.get_state()}
    return {"actions": np.array(actions)}


def reset_to(env: gym.Env, seed: int, task: Array | None) -> tuple[Obs, Info]:
    """Reset `env`; it plays `task` `[d]` if one is given, else what it likes."""
    first: tuple[Obs, Info] = env.reset(seed=seed) if task is None else env.reset(seed=seed, options={"task": task.copy()})
    return first


def load_env(
    env: gym.Env,
    state: State,
    *,
    actions: Sequence[Action],
    seed: int,
    length: int,
    where: str,
    task: Array | None = None,
) -> Obs:
    """Restore `env`, by its own `state` or by playing `actions`. Returns the last observation of a replay, else None."""
    from gymnasium.wrappers import TimeLimit

    from runnel.envs.started import StartedEnv

    obs, _ = reset_to(env, seed, task)
    progressed()
    part = stateful_part(env)
    if part is not None:
        part.set_state(state)
        while env is not part:
            if isinstance(env, TimeLimit):  # its step count is the one thing that the inner state does not have
                env._elapsed_steps = length
            elif isinstance(env, StartedEnv):
                env.went_on(length)
            env = env.env
        return None
    for step, action in enumerate(actions, start=1):
        obs, _, terminated, truncated, _ = env.step(action)
        progressed()
        if terminated or truncated:
            raise DataError(
                f"environment {where} is not deterministic: its episode (seed {seed}) ended at step {step} of a replay of "
                f"{len(actions)}. Implement get_state() and set_state(state) on it"
            )
    return obs
