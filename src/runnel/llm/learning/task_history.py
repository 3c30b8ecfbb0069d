"""What the trainer learns of prompts, for the sources that choose them (`llm/tasks/difficulty.py`, `sources.py`).

The trainer sees every batch in the order of the stream, so there is one history for all actors, and it does not depend on how
many there are. It travels beside each version of the parameters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.contracts.tasks import Curriculum, TakesTasks, Task
from runnel.core.records import Batch, Segment
from runnel.core.state import Metrics, Settings, State
from runnel.core.task_store import TaskStore, TaskStoreView
from runnel.core.task_table import TaskTable
from runnel.llm.algorithms.base import sum_channels
from runnel.llm.learning.batches import join_rows
from runnel.llm.tasks.difficulty import DifficultyConfig
from runnel.llm.tasks.new_tasks import example_of
from runnel.llm.tasks.sources import SourcesConfig
from runnel.llm.tasks.text import COLUMN, Example, TextTask
from runnel.ops.credit import group_advantage


class DifficultyHistory:
    """A `Curriculum`: the running mean reward of each prompt on the stream `rollouts`. `channels` are the reward channels and
    their weights."""

    def __init__(self, config: DifficultyConfig, *, channels: Mapping[str, float], capacity: int) -> None:
        self._config, self._channels = config, dict(channels)
        self.table = TaskTable(capacity=capacity, momentum=config.momentum)
        self._newest = 0

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        for segment in segments.get("rollouts", ()):
            self._newest = max(self._newest, segment.header.sequence)
            for task_id, mean in group_totals(segment, self._channels):
                self.table.add(task_id, mean, sequence=segment.header.sequence)
        if not (num := len(self.table.ids)):
            return {}
        c, means = self._config, self.table.mean
        return {"tasks/seen": float(num), "tasks/in_band": float(((c.low <= means) & (means <= c.high)).mean())}

    def history(self) -> Mapping[str, Tensor]:
        return self.table.columns()

    def snapshot(self) -> State:
        return {"table": self.table.snapshot()}

    def restore(self, state: State) -> None:
        self.table.restore(state["table"])


class SourceHistory:
    """A `Curriculum`: how much each of several sources still teaches, and the share that it is to have (DUMP, Wang et al. 2025,
    arXiv:2504.09710).

        L_j = the mean of |A| over the last `window` groups of source j,    A as in GRPO
        U_j = L_j + explore sqrt(2 ln(n + 1) / (n_j + 1))                   of n groups, n_j were of source j
        share_j = exp(U_j / temperature) / sum_i exp(U_i / temperature)

    A group that was replaced as `no_signal` has advantages of 0. `find` gives an example by its id.
    """

    def __init__(
        self,
        config: SourcesConfig,
        names: Sequence[str],
        *,
        channels: Mapping[str, float],
        find: Callable[[int], Example | None],
    ) -> None:
        self._config, self._channels, self._find = config, dict(channels), find
        self.counts = dict.fromkeys(names, 0)
        self.recent = {name: deque[float](maxlen=config.window) for name in names}

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        found = [one for s in segments.get("rollouts", ()) for one in group_advantages(s, self._channels)]
        examples = [(self._find(task_id), size) for task_id, size in found]
        for example, size in examples:
            if example is not None:  # else it is gone from the data since it was played
                name = str(example.columns[COLUMN])
                self.counts[name] += 1
                self.recent[name].append(size)
        shares = self.shares().tolist()
        metrics = {f"tasks/share/{name}": share for name, share in zip(self.counts, shares, strict=True)}
        return metrics | {f"tasks/advantage/{name}": sum(some) / len(some) for name, some in self.recent.items() if some}

    def shares(self) -> Tensor:
        """The share of each source. `[S]`"""
        c, n = self._config, sum(self.counts.values())
        if c.pick == "even":
            return torch.full((len(self.counts),), 1 / len(self.counts), dtype=torch.float64)
        means = [sum(some) / max(len(some), 1) for some in self.recent.values()]
        bonus = [c.explore * math.sqrt(2 * math.log(n + 1) / (count + 1)) for count in self.counts.values()]
        return torch.softmax((torch.tensor(means) + torch.tensor(bonus)).double() / c.temperature, dim=0)

    def history(self) -> Mapping[str, Tensor]:
        return {"shares": self.shares()}

    def snapshot(self) -> State:
        return {"counts": dict(self.counts), "recent": {name: list(some) for name, some in self.recent.items()}}

    def restore(self, state: State) -> None:
        self.counts = dict(state["counts"])
        for name, some in self.recent.items():
            some.clear()
            some.extend(state["recent"][name])


class NewPrompts:
    """A `Curriculum`: the prompts that were added during the run. `first_of` gives the number of the first segment that sees
    the history of a version. Added examples are found by their ids in `task`, too."""

    def __init__(self, store: TaskStore, *, first_of: Callable[[int], int], task: TextTask) -> None:
        self._store, self._first_of, self._task = store, first_of, task

    def add(self, tasks: Sequence[Settings], *, version: int) -> int:
        """Take new examples, as `example_data` writes them; returns how many are new."""
        before = len(self._store)
        for data in tasks:
            example = example_of(data)
            self._store.add(Task(example.id, dict(data)), since=self._first_of(version))
            self._task.add(example)
        return len(self._store) - before

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        return {"tasks/added": float(len(self._store))}

    def history(self) -> Mapping[str, Tensor]:
        return self._store.columns()

    def snapshot(self) -> State:
        return self._store.snapshot()

    def restore(self, state: State) -> None:
        self._store.restore(state)
        view = TaskStoreView()
        view.read(self._store.columns())
        for task in view.tasks:
            self._task.add(example_of(task.data))


class JoinedHistory:
    """Several histories as one `Curriculum`."""

    def __init__(self, parts: Mapping[str, Curriculum]) -> None:
        self._parts = dict(parts)

    def add(self, tasks: Sequence[Settings], *, version: int) -> int:
        """New tasks go to the parts that take some."""
        return sum(part.add(tasks, version=version) for part in self._parts.values() if isinstance(part, TakesTasks))

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        return {name: value for part in self._parts.values() for name, value in part.see(segments, batch).items()}

    def history(self) -> Mapping[str, Tensor]:
        return {name: value for part in self._parts.values() for name, value in part.history().items()}

    def snapshot(self) -> State:
        return {name: part.snapshot() for name, part in self._parts.items()}

    def restore(self, state: State) -> None:
        for name, part in self._parts.items():
            part.restore(state[name])


def group_advantages(segment: Segment, channels: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    """Task and mean size of the advantages of the groups behind a segment (as `group_totals`)."""
    if "replaced/task_id" in segment.arrays:
        yield from ((task_id, 0.0) for task_id in segment.arrays["replaced/task_id"].tolist() if task_id >= 0)
    rows = join_rows([segment])
    advantage = group_advantage(sum_channels(rows, channels), rows["group"], scale=True)
    yield segment.header.task_id, float(advantage.abs().double().mean())


def group_totals(segment: Segment, channels: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    """Task and mean reward of the groups behind a segment: those that it replaced as `no_signal`, then its own."""
    arrays = segment.arrays
    if "replaced/task_id" in arrays:
        pairs = zip(arrays["replaced/task_id"].tolist(), arrays["replaced/reward"].tolist(), strict=True)
        yield from ((task_id, reward) for task_id, reward in pairs if task_id >= 0)
    yield segment.header.task_id, float(sum_channels(join_rows([segment]), channels).double().mean())
