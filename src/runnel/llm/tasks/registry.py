"""Names to tasks: built-in ones, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference, load_object
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.tasks.text import TextTask

TASKS: Mapping[str, Callable[[], TextTask]] = {"reverse": make_reverse}


def make_task(name: str | Callable[[], TextTask]) -> TextTask:
    """A built-in task by name, or the user's own: a function, or `file.py:make_task` or `module:make_task`."""
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]()
    if isinstance(name, str) and not is_reference(name):
        raise ConfigError("task", name, f"choose one of {', '.join(sorted(TASKS))}, or write file.py:make_task")
    task = load_object(name, "task")() if isinstance(name, str) else name()
    if not isinstance(task, TextTask):
        raise ConfigError("task", name, f"it returned {type(task).__name__}; return a runnel.llm.tasks.TextTask")
    return task
