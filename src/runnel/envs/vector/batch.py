"""Vectors that come as batches: a library of its own steps all environments at once and gives arrays `[B, ...]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.actions import env_action, flat_mask
from runnel.core.checks import check_rewards
from runnel.core.errors import DataError
from runnel.core.protocols import State
from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.envs.spaces import MASK, ObsLeaf, mask_in_obs, obs_leaves
from runnel.envs.vector.contract import Episode, Fault
from runnel.envs.vector.host import HostVector

Rows = NDArray[np.int64]


class BatchVector(HostVector):
    """Turns batches into a `StepOut`: observations by leaf, masks, final observations, episode records."""

    def __init__(self, spec: EnvSpec, space: Any, num_envs: int, *, seed: int, index0: int, name: str) -> None:
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=name)
        self._leaves: list[ObsLeaf] = obs_leaves(space)
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
        for leaf in self._leaves:
            self._check_shape(leaf, obs)
        self._show(obs, info, slice(None))

    def _check_shape(self, leaf: ObsLeaf, obs: Any) -> None:
        raw = np.asarray(leaf.pick(obs))
        shape = raw.shape if leaf.encode is None else leaf.encode(raw).shape
        if shape != (self.num_envs, *leaf.spec.shape):
            raise DataError(
                f"environment {self.name!r} gave {leaf.key!r} of shape {shape}, but its space says {leaf.spec.shape} "
                f"for each of {self.num_envs}"
            )

    def _show(self, obs: Any, info: Any, rows: Any) -> None:
        """Write the rows `rows` of a batch of observations."""
        for leaf in self._leaves:
            raw = leaf.pick(obs)
            into = self._obs[leaf.key]
            into[rows] = raw[rows] if leaf.encode is None else leaf.encode(raw[rows])
        if self._mask is not None:
            self._mask[rows] = flat_mask(obs[MASK] if self._mask_in_obs else info[MASK], self.spec.action)[rows]

    def _outcome(self, reward: Any, terminated: Any, truncated: Any) -> Rows:
        """Record rewards and flags; returns the rows whose episodes ended."""
        check_rewards(reward, self.num_envs)
        self._reward[:], self._terminated[:], self._truncated[:] = reward, terminated, truncated
        self._total += reward
        self._length += 1
        rows: Rows = (self._terminated | self._truncated).nonzero()[0]
        self.out.final_rows = rows.tolist()
        return rows

    def _end(self, rows: Rows, final: Any) -> None:
        """Episodes of `rows` ended with the batch of observations `final`, one for each of them."""
        for leaf in self._leaves:
            raw = leaf.pick(final)
            self._final[leaf.key][: len(rows)] = raw if leaf.encode is None else leaf.encode(raw)
        for row in rows.tolist():
            self._ended.append(Episode(self.index0 + row, float(self._total[row]), int(self._length[row])))
        self._total[rows], self._length[rows] = 0.0, 0

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
        self._show(obs, info, slice(None))


def take(obs: Any, rows: Rows) -> Any:
    """Some rows of a batch of observations, in the same structure."""
    if isinstance(obs, dict):
        return {k: take(x, rows) for k, x in obs.items()}
    if isinstance(obs, tuple):
        return tuple(take(x, rows) for x in obs)
    picked = np.asarray(obs)[rows]
    return np.stack(list(picked)) if picked.dtype == object else picked
