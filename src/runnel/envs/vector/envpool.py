"""EnvPool (`envpool:HalfCheetah-v4`) behind the vector contract: C++ environments on threads of their own.

`send` gives the actions to EnvPool's threads and returns at once; `recv` waits for them. EnvPool resets on the step after an
episode's end. That step is made here at once, for the rows that ended, so it never becomes a transition. EnvPool cannot save
its state: after a resume all episodes begin anew, which is counted as a fault.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from runnel.core.action_codec import flat_mask
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_seed
from runnel.core.spaces import Channels
from runnel.core.state import Array, Settings, State
from runnel.envs.fire import NO_FIRE, FireFirst
from runnel.envs.spaces import MASK, Action, Info, Obs, env_spec
from runnel.envs.vector.batch import BatchVector, Rows, take
from runnel.envs.vector.contract import StepOut, mark_stack
from runnel.envs.wrappers import batch_of_one, first_row, plain_info

PREFIX = "envpool:"
Pool = Any
"""EnvPool's object of many environments, or its spec; the package has no types."""


def make_pool(target: str, num_envs: int, *, seed: int, threads: int = 0, kwargs: Settings | None = None) -> Pool:
    """EnvPool's environments of `target` (with or without the prefix)."""
    options = {"num_envs": num_envs, "num_threads": min(threads or num_envs, num_envs), "seed": seed, **(kwargs or {})}
    return _ask("make", target, kwargs, env_type="gymnasium", **options)


def pool_config(target: str, kwargs: Settings | None = None) -> Settings:
    """The settings of EnvPool's `target` under `kwargs`."""
    return dict(_ask("make_spec", target, kwargs, **(kwargs or {})).config._asdict())


def _ask(function: str, target: str, kwargs: Settings | None, **options: object) -> Pool:
    """Call a function of EnvPool for `target`; refuse a name or an argument that EnvPool does not know."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, "EnvPool is not installed; pip install envpool") from error
    name = target.removeprefix(PREFIX)
    if name not in envpool.list_all_envs():
        raise ConfigError("env", target, "EnvPool has no such environment; see envpool.list_all_envs()")
    try:
        with warnings.catch_warnings():  # Gymnasium warns that EnvPool's bounds are in double precision
            warnings.simplefilter("ignore")
            return getattr(envpool, function)(name, **options)
    except (TypeError, AssertionError, KeyError) as error:
        raise ConfigError("env_kwargs", dict(kwargs or {}), f"EnvPool's {name} does not take this: {error}") from error


def fire_first(config: Settings, num_envs: int) -> FireFirst | None:
    """Plays FIRE after a lost life, for a game with that action. EnvPool itself plays it only at its resets."""
    game, resets = config.get("task"), config.get("use_fire_reset", False)
    has_fire = config.get("full_action_space", False) or game not in NO_FIRE
    return FireFirst(num_envs) if resets and has_fire else None


def spaces_of(pool: Pool) -> tuple[gym.Space, gym.Space]:
    """Observation and action space of `pool`. EnvPool makes them when they are read, with the same warnings as above."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pool.observation_space, pool.action_space


class PoolVector(BatchVector):
    """`num_envs` environments of EnvPool, stepped by `threads` threads."""

    def __init__(
        self,
        target: str,
        num_envs: int,
        *,
        seed: int,
        index0: int = 0,
        threads: int = 0,
        kwargs: Settings | None = None,
        channels: Channels | None = None,
    ) -> None:
        def make(seed: int) -> Pool:
            return make_pool(target, num_envs, seed=make_seed(seed, "envpool", index0), threads=threads, kwargs=kwargs)

        self._make, pool = make, make(seed)
        space, action_space = spaces_of(pool)
        spec = mark_stack(env_spec(space, action_space), int(pool.config.get("stack_num", 0)))
        spec = replace(spec, channels=channels or Channels())
        super().__init__(spec, space, num_envs, seed=seed, index0=index0, name=target)
        self._pool, self._fresh = pool, True
        self._fire = fire_first(pool.config, num_envs)
        self._ids = np.arange(num_envs, dtype=np.int32)
        self._idle = np.zeros((num_envs, *action_space.shape), action_space.dtype)

    def _renew(self, seed: int) -> tuple[Obs, Info]:
        """Begin all episodes under `seed`. EnvPool takes a seed only when it is made, so another seed needs another pool."""
        if not self._fresh or seed != self._seed:
            self._pool.close()
            self._pool = self._make(seed)
        self._fresh = False
        obs, info = self._pool.reset()
        if self._fire is not None:
            self._fire.begin(self._ids, info["lives"])
        return obs, info

    def reset(self, seed: int | None = None) -> StepOut:
        seed = self._seed if seed is None else seed
        self._clock, self._ended, self._cut = 0, [], False
        obs, info = self._renew(seed)
        self._seed = seed
        try:
            self._begin(obs, info)
        except DataError as error:
            raise self._failure(error) from error
        return self.out

    def send(self, actions: Tensor) -> None:
        self._clock += 1
        if not self._cut:
            raw = actions.cpu().numpy()
            self._check_actions(raw)
            raw = raw if self._fire is None else self._fire.actions(raw)
            self._pool.send(self._env_actions(raw))

    def recv(self) -> StepOut:
        try:
            if self._cut:
                self._cut_all(*self._renew(self._new_seed))
            else:
                self._take_in(*self._pool.recv())
        except DataError as error:
            raise self._failure(error) from error
        return self.out

    def _take_in(self, obs: Obs, reward: Array, terminated: Array, truncated: Array, info: Info) -> None:
        if self._fire is not None:
            self._fire.see(info["lives"])
        rows = self._outcome(reward, terminated, truncated, info, info)
        if len(rows):
            self._end(rows, take(obs, rows), info)
            # the step that resets: EnvPool ignores its actions, and it is made for the ended rows alone
            first, _, _, _, first_info = self._pool.step(self._idle[: len(rows)], self._ids[rows])
            if self._fire is not None:
                self._fire.begin(rows, first_info["lives"])
            self._show(obs, info)
            self._show_first(first, rows)
        else:
            self._show(obs, info)

    def _show_first(self, first: Obs, rows: Rows) -> None:
        """Write the first observations of new episodes into `rows`."""
        for leaf in self._leaves:
            raw = leaf.pick(first)
            self._obs[leaf.key][rows] = raw if leaf.encode is None else leaf.encode(raw)
        if self._mask is not None:  # EnvPool gives masks in observations only
            self._mask[rows] = flat_mask(first[MASK], self.spec.action)

    def snapshot(self) -> State:
        return self._save_batch()

    def restore(self, state: State) -> None:
        self._load_batch(state)
        self._new_seed = self._begin_anew("EnvPool cannot save its state")

    def close(self) -> None:
        self._pool.close()


class OnePool(gym.Env):  # type: ignore[misc]
    """One environment of EnvPool as a Gymnasium environment. A reset with a seed makes a new pool."""

    def __init__(self, target: str, kwargs: Settings | None = None) -> None:
        self._target, self._kwargs = target, kwargs
        self._pool = make_pool(target, 1, seed=0, kwargs=kwargs)
        self.observation_space, self.action_space = spaces_of(self._pool)
        self.num_frames = int(self._pool.config.get("stack_num", 0))
        self._fire = fire_first(self._pool.config, 1)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._pool.close()
            self._pool = make_pool(self._target, 1, seed=seed, kwargs=self._kwargs)
        obs, info = self._pool.reset()
        if self._fire is not None:
            self._fire.begin(slice(None), info["lives"])
        return first_row(obs), {}

    def step(self, action: Action) -> tuple[Obs, float, bool, bool, Info]:
        actions = batch_of_one(self.action_space, action)
        actions = actions if self._fire is None else self._fire.actions(actions)
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        if self._fire is not None:
            self._fire.see(info["lives"])
        return first_row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), plain_info(info)

    def close(self) -> None:
        self._pool.close()
