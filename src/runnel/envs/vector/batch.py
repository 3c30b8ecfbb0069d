"""Base of vectors whose library steps all environments at once and returns arrays `[B, ...]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runnel.core.action_codec import env_action, final_mask, flat_mask, read_masks
from runnel.core.checks import check_rewards
from runnel.core.errors import DataError
from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, State
from runnel.envs.bounds import Bounds, due_rows
from runnel.envs.channels import ChannelReader
from runnel.envs.spaces import MASK, Action, Info, Obs, ObsLeaf, mask_in_obs, obs_leaves
from runnel.envs.vector.contract import Episode, Fault
from runnel.envs.vector.cpu_base import CpuVector

if TYPE_CHECKING:
    import gymnasium as gym

Rows = NDArray[np.int64]


class BatchVector(CpuVector):
    """Turns batches into a `StepOut`: observations by leaf, masks, final observations, episode records."""

    def __init__(
        self,
        spec: EnvSpec,
        space: gym.Space,
        num_envs: int,
        *,
        seed: int,
        index0: int,
        name: str,
        bounded: bool = False,
        check: str = "",
    ) -> None:
        """`bounded`: check observations against the bounds of their space; some libraries' own environments leave them."""
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=name, check=check)
        self._leaves: list[ObsLeaf] = obs_leaves(space)
        self._bounds = Bounds(self._leaves if bounded else [])
        self._mask_in_obs = mask_in_obs(space)
        self._total, self._length = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._read_channels = ChannelReader(spec.channels)
        self._sums = {name: np.zeros(num_envs) for name in spec.channels.names}
        plain = spec.action.kind == "discrete" and spec.action.start == 0
        self._env_actions: Callable[[Array], Action] = (lambda actions: actions) if plain else env_action(spec.action)
        self._cut = False
        """Whether the next step only truncates the episodes that a resume could not restore."""

    def _begin(self, obs: Obs, info: Info) -> None:
        """Begin all episodes, with observations `obs`."""
        self._forget_all()
        self._clear_rewards()
        self._clear_flags()
        self._show(obs, info)
        self._check_bounds(self._obs, slice(None))

    def _forget_all(self) -> None:
        """Count return, length and sums of all episodes from 0."""
        for numbers in (self._total, self._length, *self._sums.values()):
            numbers.fill(0)

    def _show(self, obs: Obs, info: Info) -> None:
        """Check a batch of observations against its space and write it, with its masks."""
        self._write(self._obs, obs, self.num_envs)
        if self._mask is not None:
            self._mask[:] = read_masks(obs[MASK] if self._mask_in_obs else info[MASK], self.spec.action, self.num_envs)
        if self._bounds and (rows := due_rows(self._clock, self.num_envs)) is not None:
            self._check_bounds(self._obs, rows)

    def _write(self, into: Mapping[str, Array], obs: Obs, num_rows: int) -> None:
        """Write `num_rows` observations into the first rows of `into`, by leaf."""
        for leaf in self._leaves:
            raw = leaf.checked(leaf.pick(obs), (num_rows,))
            into[leaf.key][:num_rows] = raw if leaf.encode is None else leaf.encode(raw)

    def _check_bounds(self, arrays: Mapping[str, Array], rows: slice) -> None:
        if (found := self._bounds.outside(arrays, rows)) is not None:
            raise DataError(f"{found[1]} [its row {found[0]}]")

    def _failure(self, error: Exception, env: gym.Env = None) -> DataError:
        """The error with the name of the environment and the step; `env` is the user's own vector."""
        where = f"environment {self.name!r} (one of {self.num_envs} from index {self.index0} on, step {self._clock})"
        return self._error(where, error, env)

    def _outcome(self, reward: Array, terminated: Array, truncated: Array, info: Info, last: Info) -> Rows:
        """Record rewards, channels and flags. Returns the rows whose episodes ended; of those, `last` is the step's info."""
        check_rewards(reward, self.num_envs)
        self._reward[:], self._terminated[:], self._truncated[:] = reward, terminated, truncated
        self._total += reward
        self._length += 1
        ended = self._terminated | self._truncated
        for name, numbers in self._read_channels.of_batch(info, last, ended).items():
            self._channels[name][:] = numbers
            self._sums[name] += numbers
        rows: Rows = ended.nonzero()[0]
        self.out.final_rows = rows.tolist()
        return rows

    def _end(self, rows: Rows, final: Obs, info: Info) -> None:
        """End the episodes of `rows`. `final` has one observation for each of them; `info` is of all rows."""
        self._write(self._final, final, len(rows))
        self._check_bounds(self._final, slice(len(rows)))
        if self._mask is not None:
            self._end_masks(rows, final, info)
        for row in rows.tolist():
            sums = {name: float(numbers[row]) for name, numbers in self._sums.items()}
            self._ended.append(Episode(self.index0 + row, float(self._total[row]), int(self._length[row]), channels=sums))
        for numbers in (self._total, self._length, *self._sums.values()):
            numbers[rows] = 0

    def _end_masks(self, rows: Rows, final: Obs, info: Info) -> None:
        masks = None
        if self._mask_in_obs:
            masks = flat_mask(final[MASK], self.spec.action)
        elif MASK in info:
            masks = flat_mask(info[MASK], self.spec.action)[rows]
        for f, row in enumerate(rows.tolist()):
            raw = None if masks is None else masks[f]
            self._final[MASK][f] = final_mask(raw, self.spec.action, terminated=bool(self._terminated[row]))

    # ---------------------------------------------------------------------------- what cannot be brought back on resume
    def _save_batch(self) -> State:
        sums = {name: numbers.copy() for name, numbers in self._sums.items()}
        return {**self._save_outputs(), "total": self._total.copy(), "length": self._length.copy(), "sums": sums}

    def _load_batch(self, state: State) -> None:
        self._load_outputs(state)
        self._total[:], self._length[:] = state["total"], state["length"]
        for name, numbers in self._sums.items():
            numbers[:] = state["sums"][name]

    def _begin_anew(self, why: str) -> int:
        """Make the next step truncate all episodes, and count a fault. Returns the seed for the new episodes."""
        self._cut = True
        fault: Fault = {"kind": "env_restarted", "env": self.index0, "episode": -1, "step": self._clock, "seed": self._seed}
        fault["num_envs"] = self.num_envs
        fault["error"] = f"{self.num_envs} environments from index {self.index0} on begin new episodes: {why}"
        self._faults.append(fault)
        return make_seed(self._seed, "resume", self.index0, self._clock)

    def _cut_all(self, obs: Obs, info: Info) -> None:
        """A step without actions: old episodes end at their last observation, new ones begin with `obs`."""
        self._cut = False
        self._clear_flags()
        for row in range(self.num_envs):
            self._keep_last(row)
        self._forget_all()
        self._show(obs, info)


def take(obs: Obs, rows: Rows) -> Obs:
    """Some rows of a batch of observations, nested as it is."""
    if isinstance(obs, dict):
        return {k: take(x, rows) for k, x in obs.items()}
    if isinstance(obs, tuple):
        return tuple(take(x, rows) for x in obs)
    picked = np.asarray(obs)[rows]
    return _stacked(list(picked)) if picked.dtype == object else picked


def _stacked(each: list[Obs]) -> Obs:
    """A batch of single observations, nested as they are. Gymnasium keeps final observations in an array of objects."""
    if isinstance(each[0], dict):
        return {k: _stacked([obs[k] for obs in each]) for k in each[0]}
    if isinstance(each[0], tuple):
        return tuple(_stacked([obs[i] for obs in each]) for i in range(len(each[0])))
    return np.stack(each)
