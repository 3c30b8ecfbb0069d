"""Tasks that are added to a run while it goes on: who asks for them, and which versions have them (tasks.jsonl).

New tasks count from a version on that is written down before any trainer hears of them. So a run that goes on from an earlier
checkpoint takes the same tasks at the same versions again. An order that a killed run has not answered is answered by the next
start of the run, so none is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from runnel.core.config import override
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.core.task_store import stored_bytes
from runnel.data.rows import Row as FileRow
from runnel.data.rows import read_rows
from runnel.flow.workers.trainer import Arrival
from runnel.llm.tasks.new_tasks import TaskRoom, example_data, example_of
from runnel.llm.tasks.text import Example
from runnel.run import registry
from runnel.run.saved import open_run
from runnel.track.folder import Row, RunFolder
from runnel.track.task_log import TaskLog


def add_tasks(run: str | Path, examples: str | Path | Sequence[Settings | Example], *, trust: bool = False) -> int:
    """Add prompts to a run that is being trained: a file of rows as its task has them, or such rows, or `rl.Example`s.

    They are played from one of the next versions on, which the run notes. All are checked first; if one is refused, none is
    added. Returns how many the run did not know yet. `trust`: as in `rl.load`.
    """
    folder, module, saved = open_run(run, trust=trust)
    if folder.holder().state not in ("here", "unknown"):
        raise ConfigError("run", str(run), "no process is training it; resume it, and add tasks while it goes on")
    given = read_rows(examples, setting="tasks") if isinstance(examples, str | Path) else list(examples)
    if not given:
        raise ConfigError("tasks", [], "give at least one example")
    orders = TaskOrders(folder, registry.build_saved(module.name, override(module.Config(), saved)).room)
    orders.expect(folder)
    made = [orders.room.example(one, _place(one, i)) for i, one in enumerate(given)]
    fresh, _ = orders.sort(made)
    folder.add_order({"op": "tasks", "id": secrets.token_hex(8), "tasks": [example_data(example) for example in made]})
    return len(fresh)


def _place(given: Settings | Example, index: int) -> str:
    return given.place if isinstance(given, FileRow) else f"example {index}"


class TaskOrders:
    """The tasks that a run was asked to take, and has taken."""

    def __init__(self, folder: RunFolder, room: TaskRoom | None) -> None:
        self._room, self._log = room, TaskLog(folder.tasks)
        self._answered = {row["order"] for row in self._log.rows}
        self._known: set[int] = set()
        self._num_bytes = 0
        self.waiting: list[Row] = []
        """Orders that will be taken at the next version."""
        for row in self._log.taken:
            self._count([(example_of(task).id, task) for task in row["tasks"]])

    @property
    def room(self) -> TaskRoom:
        """The room of the run; a `ConfigError` if it has none."""
        if self._room is None:
            fix = "this run has no room for new tasks; start a run on prompts with --new-tasks.capacity N"
            raise ConfigError("new_tasks.capacity", 0, fix)
        return self._room

    def unanswered(self, folder: RunFolder) -> list[Row]:
        """Orders of a process that ended before it could answer them."""
        orders = folder.read_orders(0)[0]
        return [order for order in orders if order["op"] == "tasks" and order["id"] not in self._answered]

    def expect(self, folder: RunFolder) -> None:
        """Count the tasks that others have ordered and the run has not taken yet."""
        for order in self.unanswered(folder):
            with suppress(ConfigError):  # the run will refuse it
                self.sort([example_of(task) for task in order["tasks"]])

    def sort(self, examples: Sequence[Example]) -> tuple[list[Row], int]:
        """Those examples that the run does not know, as plain data, and the number of the others. Room is kept for them; a
        `ConfigError` if there is too little."""
        fresh = {e.id: example_data(e) for e in examples if e.id not in self._known and not self.room.knows(e.id)}
        config = self.room.config
        left, left_bytes = config.capacity - len(self._known), config.max_bytes - self._num_bytes
        more = "give fewer, or start a run with more room"
        if len(fresh) > left:
            raise ConfigError("new_tasks.capacity", config.capacity, f"{len(fresh)} new tasks, and {left} places left; {more}")
        if (size := sum(map(stored_bytes, fresh.values()))) > left_bytes:
            told = f"{len(fresh)} new tasks of {size} bytes, and {left_bytes} bytes left; {more}"
            raise ConfigError("new_tasks.max_bytes", config.max_bytes, told)
        self._count(list(fresh.items()))
        return list(fresh.values()), len(examples) - len(fresh)

    def _count(self, tasks: Sequence[tuple[int, Row]]) -> None:
        self._known |= {task_id for task_id, _ in tasks}
        self._num_bytes += sum(stored_bytes(task) for _, task in tasks)

    def hear(self, orders: Sequence[Row], tell: Callable[[str, str], None]) -> None:
        """Check `orders`. One that cannot be followed is told (`tell` gets a text and a level), and changes nothing."""
        for order in orders:
            if order["op"] != "tasks" or order["id"] in self._answered:
                continue
            self._answered.add(order["id"])
            try:
                fresh, doubles = self.sort(self._checked(order))
            except (ConfigError, DataError) as error:
                self._log.add({"order": order["id"], "refused": str(error)})
                tell(f"refused: {error}", "warning")
                continue
            if fresh:
                self.waiting.append({"order": order["id"], "tasks": fresh})
            else:
                self._log.add({"order": order["id"], "refused": "all of its tasks are known already"})
            tell(f"new tasks were ordered: {len(fresh)}{f' ({doubles} more are known already)' if doubles else ''}", "info")

    def _checked(self, order: Row) -> list[Example]:
        examples = [example_of(task) for task in order["tasks"]]
        for index, example in enumerate(examples):
            self.room.check(example, f"example {index} of an order")
        return examples

    def record(self, version: int) -> list[Arrival]:
        """Write down that the history of `version` is the first to have the tasks that wait; returns them for the trainer."""
        orders, self.waiting = self.waiting, []
        for order in orders:
            self._log.add({"order": order["order"], "version": version, "tasks": order["tasks"]})
        return [{"version": version, "tasks": order["tasks"]} for order in orders]

    def replay(self) -> list[Arrival]:
        """All tasks that were taken, in the order of their versions, for a trainer at any version."""
        return [{"version": row["version"], "tasks": row["tasks"]} for row in self._log.taken]
