"""An environment's state as plain data: by its own get_state and set_state, else by replaying its episode.

Any environment may offer the two methods; `get_state` must then return plain data that holds everything, its random
generator included. All others come back by `reset(seed)` and the actions since, which also shows when an environment is
not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from runnel.core.errors import DataError
from runnel.core.state import State
from runnel.core.worker import progressed


@runtime_checkable
class Stateful(Protocol):
    """An environment that saves and loads itself."""

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> None: ...


def stateful_part(env: Any) -> Stateful | None:
    """The layer of `env` that saves itself, where the layers around it keep nothing but a step count; else None."""
    from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

    while isinstance(env, OrderEnforcing | PassiveEnvChecker | TimeLimit):
        env = env.env
    return env if isinstance(env, Stateful) else None


def save_env(part: Stateful | None, actions: list[Any]) -> State:
    """What `load_env` needs beside the episode's seed and length."""
    if part is not None:
        return {"state": part.get_state()}
    return {"actions": np.array(actions)}


def load_env(env: Any, state: Any, *, actions: Sequence[Any], seed: int, length: int, where: str) -> Any:
    """Bring `env` back to where it was, by its own `state` or by playing `actions`. Returns its observation (None if it loaded
    itself)."""
    from gymnasium.wrappers import TimeLimit

    obs, _ = env.reset(seed=seed)
    progressed()
    part = stateful_part(env)
    if part is not None:
        part.set_state(state)
        while env is not part:
            if isinstance(env, TimeLimit):
                env._elapsed_steps = length
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
