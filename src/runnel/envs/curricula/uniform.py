"""Tasks that are drawn evenly from their space, and what all curricula of environments share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from runnel.core.contracts.tasks import Draw, Task
from runnel.core.records import Batch, Segment
from runnel.core.rng import content_id, make_rng
from runnel.core.spaces import TaskSpace
from runnel.core.state import Array, Metrics, State
from runnel.core.trajectories import TASK_PARAMS, TASK_RETURN
from runnel.ops.returns import returns_so_far


class UniformTasks:
    """A `TaskSource` of tasks that are drawn evenly. Others override `draw`."""

    uses_history = True

    def __init__(self, space: TaskSpace, *, seed: int) -> None:
        self._seed = seed
        self._low = np.array(space.low)
        self._width = np.array(space.high) - self._low

    def next(self, draw: Draw) -> Task:
        rng = make_rng(self._seed, "task", draw.sequence, draw.row, draw.attempt)
        params = (self._low + self._width * self.draw(rng, draw.history)).astype(np.float32)
        return Task(content_id(params.tobytes()), {"task": params})

    def draw(self, rng: np.random.Generator, history: Mapping[str, Tensor]) -> Array:
        """A task, scaled to [0, 1]. `[d]`"""
        return rng.random(len(self._low))

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """It has no state: the draw decides."""


class NoHistory:
    """The `Curriculum` of sources that need to know nothing."""

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        return {}

    def history(self) -> Mapping[str, Tensor]:
        return {}

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


def scaled(params: Array, space: TaskSpace) -> Array:
    """Tasks `[..., d]` as parts of their space, in [0, 1]."""
    low, high = np.array(space.low), np.array(space.high)
    found: Array = (params - low) / np.where(high > low, high - low, 1.0)
    return found


def ended_episodes(segments: Mapping[str, Sequence[Segment]]) -> Iterator[tuple[Array, float]]:
    """Task `[d]` and return of each episode that ended in these segments, by segment, time and row."""
    for segment in (s for some in segments.values() for s in some):
        arrays = segment.arrays
        over = arrays["terminated"] | arrays["truncated"]
        returns = returns_so_far(arrays["rewards/env"], over, arrays[TASK_RETURN], gamma=1.0)
        params, found = arrays[TASK_PARAMS][: len(over)].cpu().numpy(), returns.cpu().numpy()
        for t, row in over.nonzero().tolist():
            yield params[t, row].astype(np.float64), float(found[t, row])
