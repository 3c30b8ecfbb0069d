"""SnapshotRL (Zhao et al. 2024, arXiv:2403.00673): episodes begin at states of a teacher's trajectories.

A student that begins where a teacher once was sees early what it would reach late by itself. Nothing but the environment is
changed. The states are grouped by what the environment shows in them, and each group is as likely as another, so that states
in which the teacher stayed long are not played most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runnel.core.contracts.tasks import Draw, Task
from runnel.core.rng import content_id, make_rng
from runnel.core.state import Array, State
from runnel.ops.clusters import k_means


class StartTasks:
    """A `TaskSource`: the number of a start state, or -1 where the environment is to begin as it likes.

    `groups` is the group of each state. Up to segment number `last`, the share `share` of episodes begins at a state.
    """

    uses_history = True

    def __init__(self, states: Sequence[bytes], groups: Array, *, seed: int, share: float, last: float) -> None:
        self._states, self._seed, self._share, self._last = states, seed, share, last
        self._members = [np.flatnonzero(groups == k) for k in range(int(groups.max()) + 1)]

    def next(self, draw: Draw) -> Task:
        rng = make_rng(self._seed, "start", draw.sequence, draw.row, draw.attempt)
        number = -1
        if draw.sequence < self._last and rng.random() < self._share:
            members = self._members[rng.integers(len(self._members))]
            number = int(members[rng.integers(len(members))])
        task_id = content_id(self._states[number] if number >= 0 else b"")
        return Task(task_id, {"task": np.array([number], np.float32)})

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """It has no state: the draw decides."""


def group_states(shown: Array, num: int, *, seed: int) -> Array:
    """Groups of states by what the environment shows in them, each number on the scale of its own spread. `[n, d] -> [n]`"""
    scale = shown.std(axis=0)
    points = (shown - shown.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    return k_means(points, num, make_rng(seed, "start groups"))
