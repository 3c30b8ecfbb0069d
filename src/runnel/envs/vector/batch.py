"""Vectors that come as batches: a library of its own steps all environments at once and gives arrays `[B, ...]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.action_codec import env_action, final_mask, flat_mask, read_masks
from runnel.core.checks import check_rewards
from runnel.core.errors import DataError
from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.core.state import State
from runnel.envs.bounds import Bounds, due_rows
from runnel.envs.spaces import MASK, Array, ObsLeaf, mask_in_obs, obs_leaves
from runnel.envs.vector.contract import Episode, Fault
from runnel.envs.vector.cpu_base import HostVector

Rows = NDArray[np.int64]


class BatchVector(HostVector):
    """Turns batches into a `StepOut`: observations by leaf, masks, final observations, episode records."""

    def __init__(
        self,
        spec: EnvSpec,
        space: Any,
        num_envs: int,
        *,
        seed: int,
        index0: int,
        name: str,
        bounded: bool = False,
        check: str = "",
    ) -> None:
        """`bounded`: whether it is held to the bounds of its observation space; a library's own may leave them."""
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=name, check=check)
        self._leaves: list[ObsLeaf] = obs_leaves(space)
        self._bounds = Bounds(self._leaves if bounded else [])
        self._mask_in_obs = mask_in_obs(space)
        self._total, self._length = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        plain = spec.action.kind == "discrete" and spec.action.start == 0
        self._env_actions: Callable[[Any], Any] = (lambda actions: actions) if plain else env_action(spec.action)
        self._cut = False
        """Whether the next step only ends what a resume could not bring back."""

    def _begin(self, obs: Any, info: Any) -> None:
        """All episodes begin."""
        self._total.fill(0.0)
        self._length.fill(0)
        self._reward.fill(0.0)
        self._clear_flags()
        self._show(obs, info)
        self._check_bounds(self._obs, slice(None))

    def _show(self, obs: Any, info: Any) -> None:
        """Write a batch of observations, held against their space, and the masks that go with them."""
        self._write(self._obs, obs, self.num_envs)
        if self._mask is not None:
            self._mask[:] = read_masks(obs[MASK] if self._mask_in_obs else info[MASK], self.spec.action, self.num_envs)
        if self._bounds and (rows := due_rows(self._clock, self.num_envs)) is not None:
            self._check_bounds(self._obs, rows)

    def _write(self, into: Mapping[str, Array], obs: Any, num_rows: int) -> None:
        """The first `num_rows` rows of `into`, by leaf."""
        for leaf in self._leaves:
            raw = leaf.checked(leaf.pick(obs), (num_rows,))
            into[leaf.key][:num_rows] = raw if leaf.encode is None else leaf.encode(raw)

    def _check_bounds(self, arrays: Mapping[str, Array], rows: slice) -> None:
        if (found := self._bounds.outside(arrays, rows)) is not None:
            raise DataError(f"{found[1]} [its row {found[0]}]")

    def _failure(self, error: Exception, env: Any = None) -> DataError:
        """An error with the name of the environment, and when it was; `env` is the user's own vector."""
        where = f"environment {self.name!r} (one of {self.num_envs} from index {self.index0} on, step {self._clock})"
        return self._told(where, error, env)

    def _outcome(self, reward: Any, terminated: Any, truncated: Any) -> Rows:
        """Record rewards and flags; returns the rows whose episodes ended."""
        check_rewards(reward, self.num_envs)
        self._reward[:], self._terminated[:], self._truncated[:] = reward, terminated, truncated
        self._total += reward
        self._length += 1
        rows: Rows = (self._terminated | self._truncated).nonzero()[0]
        self.out.final_rows = rows.tolist()
        return rows

    def _end(self, rows: Rows, final: Any, info: Any) -> None:
        """Episodes of `rows` ended with the batch of observations `final`, one for each of them; `info` is of all rows."""
        self._write(self._final, final, len(rows))
        self._check_bounds(self._final, slice(len(rows)))
        if self._mask is not None:
            self._end_masks(rows, final, info)
        for row in rows.tolist():
            self._ended.append(Episode(self.index0 + row, float(self._total[row]), int(self._length[row])))
        self._total[rows], self._length[rows] = 0.0, 0

    def _end_masks(self, rows: Rows, final: Any, info: Any) -> None:
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
        return {**self._save_host(), "total": self._total.copy(), "length": self._length.copy()}

    def _load_batch(self, state: State) -> None:
        self._load_host(state)
        self._total[:], self._length[:] = state["total"], state["length"]

    def _begin_anew(self, why: str) -> int:
        """Episodes cannot go on: the next step cuts them all. Counted; returns the seed to start again with."""
        self._cut = True
        fault: Fault = {"kind": "env_restarted", "env": self.index0, "episode": -1, "step": self._clock, "seed": self._seed}
        fault["num_envs"] = self.num_envs
        fault["error"] = f"{self.num_envs} environments from index {self.index0} on begin new episodes: {why}"
        self._faults.append(fault)
        return make_seed(self._seed, "resume", self.index0, self._clock)

    def _cut_all(self, obs: Any, info: Any) -> None:
        """A step that steps nothing: old episodes end at their last observation, new ones begin with `obs`."""
        self._cut = False
        self._clear_flags()
        for row in range(self.num_envs):
            self._keep_last(row)
        self._total.fill(0.0)
        self._length.fill(0)
        self._show(obs, info)


def take(obs: Any, rows: Rows) -> Any:
    """Some rows of a batch of observations, in the same structure."""
    if isinstance(obs, dict):
        return {k: take(x, rows) for k, x in obs.items()}
    if isinstance(obs, tuple):
        return tuple(take(x, rows) for x in obs)
    picked = np.asarray(obs)[rows]
    return _stacked(list(picked)) if picked.dtype == object else picked


def _stacked(each: list[Any]) -> Any:
    """Observations one by one (as Gymnasium keeps final ones) as a batch of them, nested as they are."""
    if isinstance(each[0], dict):
        return {k: _stacked([obs[k] for obs in each]) for k in each[0]}
    if isinstance(each[0], tuple):
        return tuple(_stacked([obs[i] for obs in each]) for i in range(len(each[0])))
    return np.stack(each)
