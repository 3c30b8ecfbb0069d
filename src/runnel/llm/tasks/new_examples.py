"""The examples that were added while a run goes on, as a source of prompts reads them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from runnel.core.task_store import TaskStoreView
from runnel.llm.tasks.new_tasks import example_of
from runnel.llm.tasks.text import COLUMN, Example


class NewExamples:
    """All examples of a published store, or those of one `source`."""

    def __init__(self, source: str = "") -> None:
        self._source, self._view = source, TaskStoreView()
        self._all: list[Example] = []
        self._all_since: list[int] = []
        self._mine = [0]
        """By number of tasks in the store, how many of them are read here."""
        self.examples: list[Example] = []
        self.since: list[int] = []
        """By example, the number of the first segment that may play it."""

    def read(self, history: Mapping[str, Tensor]) -> None:
        """Look at this history from now on. It may be older than the one before."""
        view = self._view
        view.read(history)
        have = len(self._mine) - 1
        for task, since in zip(view.tasks[have:], view.since[have:], strict=True):
            example = example_of(task.data)
            if self._source in ("", example.columns.get(COLUMN)):
                self._all.append(example)
                self._all_since.append(since)
            self._mine.append(len(self._all))
        num = self._mine[len(view.tasks)]
        self.examples, self.since = self._all[:num], self._all_since[:num]
