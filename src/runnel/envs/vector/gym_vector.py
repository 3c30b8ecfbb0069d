"""Gymnasium's own vector environments behind the vector contract.

Gymnasium has three ways to reset after an episode's end:

- SAME_STEP: at once, as in our contract; the final observation comes in `info`.
- DISABLED: the caller resets, with a mask and seeds. The episodes are then those of `serial`, and a resume replays them.
- NEXT_STEP: the step after the end resets and ignores its action. Nobody may train on such a step, so rows that ended get the
  state of environments that were just reset (`array_state.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.action_codec import flat_mask
from runnel.core.errors import DataError
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec, Channels
from runnel.core.state import Array, State
from runnel.envs.spaces import MASK, Action, Info, Obs, action_spec, env_spec
from runnel.envs.vector.array_state import ArrayState, check_arrays
from runnel.envs.vector.batch import BatchVector, Rows, take
from runnel.envs.vector.contract import StepOut, mark_stack
from runnel.envs.vector.cpu_base import episode_seed, of_gymnasium, trusting_vector

if TYPE_CHECKING:
    import gymnasium as gym

MakeVec = Callable[[int], "gym.vector.VectorEnv"]
"""Makes a Gymnasium vector of a given number of environments."""
Flags = NDArray[np.bool_]
Convert = Callable[[Array], Action]
"""Turns network actions `[B, ...]` into what the environment takes."""
_POOL_SIZE = 64
"""The fewest episodes in a pool: a reset of the pool resets all of its rows."""


class Resets(ABC):
    """Begins the next episodes of a vector environment."""

    vec: gym.vector.VectorEnv

    @abstractmethod
    def begin(self, seed: int) -> tuple[Obs, Info]:
        """Reset all environments. Returns `(obs, info)`."""

    @abstractmethod
    def renew(self, rows: Rows, truncated: Flags, obs: Obs, info: Info) -> tuple[Obs, Obs, Info]:
        """Begin new episodes in `rows`, where a step ended with `obs` and `info` (`truncated` `[B]`: by a limit).

        Returns the final observations of `rows`, and `obs` and `info` of all rows for the next decision.
        """

    def last_info(self, info: Info) -> Info:
        """The part of a step's `info` that belongs to final observations, for all rows."""
        return info

    def after_step(self, actions: Array) -> None:
        """Record the network actions of a step, if a replay needs them."""

    @abstractmethod
    def save(self) -> State | None:
        """State from which `load` brings the environments back; None where that is impossible."""

    @abstractmethod
    def load(self, state: State, convert: Convert) -> Obs | None:
        """Undo `save`. If that needs a replay of actions (through `convert`), return the observations at its end, else None."""


class SameStep(Resets):
    """The environment resets itself at once and puts final observations into `info["final_obs"]`."""

    def __init__(self, vec: gym.vector.VectorEnv) -> None:
        self.vec = vec

    def begin(self, seed: int) -> tuple[Obs, Info]:
        obs, info = self.vec.reset(seed=seed)
        return obs, info

    def renew(self, rows: Rows, truncated: Flags, obs: Obs, info: Info) -> tuple[Obs, Obs, Info]:
        if "final_obs" not in info:
            raise DataError("ended an episode in SAME_STEP mode, but gave no info['final_obs']")
        return take(info["final_obs"], rows), obs, info

    def last_info(self, info: Info) -> Info:
        last: Info = info.get("final_info", {})
        return last

    def save(self) -> State | None:
        return {"state": self.vec.get_state()} if hasattr(self.vec, "get_state") else None

    def load(self, state: State, convert: Convert) -> Obs | None:
        self.vec.reset(seed=0)
        self.vec.set_state(state["state"])
        return None


class ResetPool(Resets):
    """The environment resets one step late. So rows that ended are filled from a pool: a second instance that was just
    reset."""

    def __init__(self, make: MakeVec, num_envs: int, name: str, index0: int) -> None:
        self.vec = make(num_envs)
        check_arrays(self.vec, name)
        self._action = action_spec(self.vec.single_action_space)
        # one more than `vec` has: `ArrayState` tells the axis of environments by its length
        self._pool = make(max(_POOL_SIZE, num_envs) + 1)
        self._index0, self._seed, self._block, self._used = index0, 0, -1, 0
        self._obs: Obs = None
        self._info: Info = {}
        self.vec.reset(seed=1)
        self._pool.reset(seed=2)
        self._state = ArrayState(self.vec, self._pool, name)
        self._pool.action_space.seed(0)
        self._state.prove(np.asarray(self._pool.action_space.sample()))

    def begin(self, seed: int) -> tuple[Obs, Info]:
        self._seed, self._block = seed, -1
        self._refill()
        obs, info = self.vec.reset(seed=make_seed(seed, "first", self._index0))
        return obs, info

    def _refill(self) -> None:
        self._block, self._used = self._block + 1, 0
        # the word in the seed is older than the name of this class: another one would change every episode
        self._obs, self._info = self._pool.reset(seed=make_seed(self._seed, "nursery", self._index0, self._block))

    def renew(self, rows: Rows, truncated: Flags, obs: Obs, info: Info) -> tuple[Obs, Obs, Info]:
        final, obs = take(obs, rows), np.array(obs)  # a copy: the environment may write into its own array at the next step
        while len(rows):
            if self._used == self._pool.num_envs:
                self._refill()
            count = min(len(rows), self._pool.num_envs - self._used)
            source = np.arange(self._used, self._used + count)
            self._state.move(rows[:count], source)
            obs[rows[:count]] = self._obs[source]
            info = with_masks(info, rows[:count], self._info, source, self._action)
            rows, self._used = rows[count:], self._used + count
        return final, obs, info

    def save(self) -> State | None:
        return {**self._state.save(), "seed": self._seed, "block": self._block, "used": self._used}

    def load(self, state: State, convert: Convert) -> Obs | None:
        self._seed, self._block = state["seed"], state["block"] - 1
        self._refill()
        self._used = state["used"]
        self.vec.reset(seed=0)
        self._state.load(state)
        return None


class Masked(Resets):
    """The caller resets rows that ended, by `reset(seed=..., options={"reset_mask": ...})`, with the seeds of `serial`."""

    def __init__(self, vec: gym.vector.VectorEnv, name: str, index0: int) -> None:
        self.vec, self._name, self._index0 = vec, name, index0
        self._action = action_spec(vec.single_action_space)
        b = vec.num_envs
        self._seed, self._clock = 0, 0
        self._episode, self._start, self._used = (np.zeros(b, np.int64) for _ in range(3))
        self._history: list[Array] = []

    def begin(self, seed: int) -> tuple[Obs, Info]:
        self._seed, self._clock, self._history = seed, 0, []
        self._episode.fill(-1)
        return self._reset(np.arange(self.vec.num_envs))

    def _reset(self, rows: Rows) -> tuple[Obs, Info]:
        self._episode[rows] += 1
        self._start[rows] = self._clock
        for row in rows.tolist():
            self._used[row] = episode_seed(self._seed, self._index0 + row, int(self._episode[row]))
        return self._reset_to(rows, self._used[rows].tolist())

    def _reset_to(self, rows: Rows, seeds: list[int]) -> tuple[Obs, Info]:
        """Reset `rows` with `seeds`. A reset of all rows has no mask."""
        b = self.vec.num_envs
        every: list[int | None] = [None] * b
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            every[row] = seed
        options = None if len(rows) == b else {"reset_mask": np.isin(np.arange(b), rows)}
        obs, info = self.vec.reset(seed=every, options=options)
        return obs, info

    def renew(self, rows: Rows, truncated: Flags, obs: Obs, info: Info) -> tuple[Obs, Obs, Info]:
        final = take(obs, rows)
        over = self._over(rows, truncated, info)
        if not len(over):
            return final, obs, info
        obs, first = self._reset(over)
        return final, obs, with_masks(info, over, first, over, self._action)

    def _over(self, rows: Rows, truncated: Flags, info: Info) -> Rows:
        """Those of `rows` that need a reset."""
        return rows

    def after_step(self, actions: Array) -> None:
        self._clock += 1
        self._history.append(actions.copy())
        # prune when half of the history is older than every open episode, so that its cost is spread over many steps
        if len(self._history) > 2 * (self._clock - int(self._start.min())) + 1024:
            del self._history[: len(self._history) - (self._clock - int(self._start.min()))]

    def save(self) -> State | None:
        length = self._clock - int(self._start.min())
        counters = {"episode": self._episode.copy(), "start": self._start.copy(), "used": self._used.copy()}
        played = np.array(self._history[len(self._history) - length :])
        return {**counters, "seed": self._seed, "clock": self._clock, "actions": played}

    def load(self, state: State, convert: Convert) -> Obs | None:
        """Replay all environments, each from its own reset on. What a row plays before its reset does not matter."""
        self._seed, self._clock = state["seed"], state["clock"]
        for name in ("episode", "start", "used"):
            getattr(self, f"_{name}")[:] = state[name]
        self._history = list(np.asarray(state["actions"]))
        first, every = self._clock - len(self._history), np.arange(self.vec.num_envs)
        obs, _ = self._reset_to(every, self._used.tolist())
        for clock, actions in enumerate(self._history, start=first):
            due = np.flatnonzero(self._start == clock)
            if len(due) and clock > first:
                obs, _ = self._reset_to(due, self._used[due].tolist())
            obs, _, terminated, truncated, info = self.vec.step(convert(actions))
            ended = np.flatnonzero(terminated | truncated)
            over = self._over(ended, truncated, info)
            if len(over):
                self._check_over(over, clock)
                obs, _ = self._reset_to(over, self._used[over].tolist())
        due = np.flatnonzero(self._start == self._clock)
        if len(due) and self._history:
            obs, _ = self._reset_to(due, self._used[due].tolist())
        return obs

    def _check_over(self, over: Rows, clock: int) -> None:
        wrong = [row for row in over.tolist() if self._start[row] <= clock]
        if wrong:
            raise DataError(
                f"environment {self._name!r} (index {self._index0 + wrong[0]}) is not deterministic: its episode (seed "
                f"{self._used[wrong[0]]}) ended early in a replay of its actions"
            )


def with_masks(info: Info, rows: Rows, first: Info, source: Rows, action: ActionSpec) -> Info:
    """`info` of a step, with the masks of the episodes that begin in `rows`.

    Those masks are rows `source` of `first`, the info of the reset. The other rows keep theirs: a reset of some rows gives
    zeros for all others.
    """
    if MASK not in info:
        return info
    if MASK not in first:
        raise DataError("began an episode without an action_mask; put one into the info of every reset, too")
    mask = np.array(flat_mask(info[MASK], action))
    mask[rows] = flat_mask(first[MASK], action)[source]
    return {**info, MASK: mask}


def choose_resets(make: MakeVec, num_envs: int, *, name: str, index0: int) -> Resets:
    """The `Resets` for the mode that the environment declares (`metadata["autoreset_mode"]`)."""
    from gymnasium.vector import AutoresetMode

    vec = make(num_envs)
    mode = AutoresetMode(vec.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
    if mode == AutoresetMode.SAME_STEP:
        return SameStep(vec)
    if mode == AutoresetMode.DISABLED:
        return Masked(vec, name, index0)
    vec.close()
    return ResetPool(make, num_envs, name, index0)


class GymVector(BatchVector):
    """A `gymnasium.vector.VectorEnv` behind the vector contract; `resets` begins its episodes."""

    def __init__(
        self,
        resets: Resets,
        *,
        seed: int,
        index0: int = 0,
        name: str = "",
        has_mask: bool | None = None,
        stack: int = 0,
        check: str = "",
        channels: Channels | None = None,
    ) -> None:
        """`has_mask` None: find out from the `info` of a reset."""
        vec = self._vec = trusting_vector(resets.vec)
        self._resets, self._new_seed = resets, seed
        has_mask = MASK in resets.begin(seed)[1] if has_mask is None else has_mask
        space = vec.single_observation_space
        spec = env_spec(space, vec.single_action_space, has_mask=has_mask)
        spec = replace(mark_stack(spec, stack), channels=channels or Channels())
        bounded = not (stack or of_gymnasium(vec))
        super().__init__(spec, space, vec.num_envs, seed=seed, index0=index0, name=name, bounded=bounded, check=check)

    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended, self._cut = 0, [], False
        try:
            self._begin(*self._resets.begin(self._seed))
        except Exception as error:
            raise self._failure(error, self._vec) from error
        return self.out

    def send(self, actions: Tensor) -> None:
        self._clock += 1
        played = actions.cpu().numpy()
        self._check_actions(played)
        try:
            if self._cut:
                self._cut_all(*self._resets.begin(self._new_seed))
            else:
                self._step(played)
        except Exception as error:
            raise self._failure(error, self._vec) from error

    def _step(self, played: Array) -> None:
        obs, reward, terminated, truncated, info = self._vec.step(self._env_actions(played))
        self._resets.after_step(played)
        self._check_mask(info)
        rows = self._outcome(reward, terminated, truncated, info, self._resets.last_info(info))
        if len(rows):
            last = self._last_masks(info)
            final, obs, info = self._resets.renew(rows, self._truncated, obs, info)
            self._end(rows, final, last)
        self._show(obs, info)

    def _last_masks(self, info: Info) -> Info:
        """The masks where episodes ended, as a copy: the next reset may write into the same memory."""
        last = self._resets.last_info(info) if self._mask is not None else {}
        return {MASK: deepcopy(last[MASK])} if MASK in last else {}

    def _check_mask(self, info: Info) -> None:
        if self._mask is None and MASK in info:
            raise DataError("gave an action_mask, but none at its first reset; put one into every info")

    def snapshot(self) -> State:
        return {**self._save_batch(), "cut": self._cut, "vec": self._resets.save()}

    def restore(self, state: State) -> None:
        self._load_batch(state)
        if state["vec"] is None or state["cut"]:
            self._new_seed = self._begin_anew("it cannot save its state; implement get_state() and set_state(state)")
            return
        obs = self._resets.load(state["vec"], self._env_actions)
        if obs is not None:
            self._verify(obs)

    def _verify(self, obs: Obs) -> None:
        for leaf in self._leaves:
            stored = self._obs[leaf.key]
            if not np.array_equal(leaf.read(obs).astype(stored.dtype), stored, equal_nan=stored.dtype == np.float32):
                raise DataError(
                    f"environment {self.name!r} is not deterministic: a replay gave another {leaf.key!r}. Draw all its "
                    "randomness from the seeds of reset, or use vector.backend=serial"
                )

    def close(self) -> None:
        self._vec.close()
