"""Environments whose episodes may begin in the middle of another one: at a state that was recorded.

A state is recorded by `StartedEnv.save` and taken back by `reset`. It is the environment's own `get_state()` where it has
`set_state(state)` beside it; of MuJoCo and of Gymnasium's classic control it is what their simulation consists of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.utils import seeding

from runnel.core.codec import from_bytes, to_bytes
from runnel.core.errors import CheckpointError, ConfigError, DataError
from runnel.core.state import State
from runnel.core.user_code import summary
from runnel.envs.rewind import Stateful
from runnel.envs.spaces import MASK, Action, Info, Obs, StepResult
from runnel.envs.starts import START_TASKS

_STATELESS = (
    *(wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.TimeLimit, wrappers.ClipAction, wrappers.RescaleAction),
    *(wrappers.FlattenObservation, wrappers.DtypeObservation, wrappers.ReshapeObservation, wrappers.RescaleObservation),
    *(wrappers.FilterObservation, wrappers.ClipReward),
)
"""Wrappers that hold nothing of an episode but its length, which begins anew at a recorded state."""


class Savable(Protocol):
    """What can save the state of an environment, and take it back."""

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...


@dataclass(frozen=True)
class _MuJoCo:
    """The state of MuJoCo's integration: with it, a simulation goes on to the same bits."""

    env: Any

    def get_state(self) -> State:
        import mujoco  # type: ignore[import-untyped]

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        found = np.zeros(mujoco.mj_stateSize(self.env.model, kind))
        mujoco.mj_getState(self.env.model, self.env.data, found, kind)
        return {"integration": found}

    def set_state(self, state: State) -> None:
        import mujoco

        kind, given = mujoco.mjtState.mjSTATE_INTEGRATION, np.asarray(state["integration"], np.float64)
        if given.size != (due := mujoco.mj_stateSize(self.env.model, kind)):
            raise DataError(f"its state has {given.size} numbers, and this model has {due}")
        mujoco.mj_setState(self.env.model, self.env.data, given, kind)
        mujoco.mj_forward(self.env.model, self.env.data)  # what follows from the state: contacts, sensors, positions of bodies
        mujoco.mj_setState(self.env.model, self.env.data, given, kind)  # which changed where the next solver begins


@dataclass(frozen=True)
class _ClassicControl:
    """CartPole, Acrobot, MountainCar and Pendulum: the numbers in `state`."""

    env: Any

    def get_state(self) -> State:
        return {"state": np.array(self.env.state)}

    def set_state(self, state: State) -> None:
        now = self.env.state
        given = np.array(state["state"])
        if given.shape != np.shape(now):
            raise DataError(f"its state has the shape {given.shape}, and this environment's has {np.shape(now)}")
        self.env.state = given if isinstance(now, np.ndarray) else tuple(given.tolist())


def savable_part(env: gym.Env) -> Savable | None:
    """What saves and sets the state of `env`; None if nothing can, or if a wrapper around it may hold a part of the state."""
    while type(env) in _STATELESS:
        env = env.env
    if isinstance(env, Stateful):
        return env
    family = type(env).__module__.rpartition(".")[0]
    if family == "gymnasium.envs.mujoco":
        return _MuJoCo(env)
    return _ClassicControl(env) if family == "gymnasium.envs.classic_control" else None


class StartedEnv(gym.Wrapper):  # type: ignore[misc]
    """An environment that begins at one of `states` where `reset(options={"task": [number]})` asks for it (-1: where it
    likes), or at the one of `reset(options={"state": bytes})`.

    Such an episode has random numbers of its own: those of `np_random` are drawn from the seed of `reset`, not from the
    state. With `exact` they are those of the state, if it has some. With `cut`, it is truncated after so many steps.
    """

    def __init__(self, env: gym.Env, states: Sequence[bytes] = (), *, cut: int = 0, exact: bool = False) -> None:
        super().__init__(env)
        found = savable_part(env)
        if found is None:
            fix = "give it get_state() and set_state(state), and no wrapper that holds a state (docs/guides/curricula.md)"
            raise ConfigError("env", _name(env), f"its state cannot be saved in the middle of an episode; {fix}")
        self._part, self._states, self._cut, self._exact = found, states, cut, exact
        self.task_space = spaces.Box(*(np.array(ends, np.float32) for ends in (START_TASKS.low, START_TASKS.high)))
        self._last: tuple[Obs, Info] = (None, {})
        self._left = 0
        """Steps until the episode is cut; 0: it is not."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        options = dict(options or {})
        number, record = int(options.pop("task", (-1,))[0]), options.pop("state", None)
        first = self.env.reset(seed=seed, options=options or None)
        if number >= 0:
            if number >= len(self._states):
                raise DataError(f"start state {number} is not there; there are {len(self._states)}, counted from 0")
            record = self._states[number]
        self._left = 0 if record is None else self._cut
        self._last = first if record is None else self._begin(record, seed, f"start state {number}" if number >= 0 else "state")
        return self._last

    def _begin(self, record: bytes, seed: int | None, what: str) -> tuple[Obs, Info]:
        try:
            found = from_bytes(record)
            self._part.set_state(found["state"])
        except Exception as error:
            raise DataError(
                f"{what} does not fit environment {_name(self.env)!r} ({summary(error)}); record the states again, in the "
                "environment as it is now"
            ) from error
        if seed is not None and not self._exact:
            self.unwrapped.np_random, _ = seeding.np_random(seed)
        return found["obs"], dict(found["info"])

    def went_on(self, steps: int) -> None:
        """Its episode, which has just begun, is so many steps further: somebody has set the state that it has there."""
        self._left = max(self._left - steps, 0)

    def step(self, action: Action) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._last = (obs, info)
        if self._left:
            self._left -= 1
            truncated = truncated or self._left == 0
        return obs, reward, terminated, truncated, info

    def save(self) -> bytes:
        """The state as it is now, with what the environment shows in it."""
        obs, info = self._last
        shown = {MASK: info[MASK]} if MASK in info else {}
        try:
            return to_bytes({"state": self._part.get_state(), "obs": obs, "info": shown})
        except CheckpointError as error:
            raise DataError(f"environment {_name(self.env)!r}: its get_state() or its observation: {error}") from error


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
