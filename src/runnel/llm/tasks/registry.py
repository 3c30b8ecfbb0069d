"""Makes tasks by name: built-in ones, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from runnel.core.config import refuse_unused
from runnel.core.errors import ConfigError
from runnel.core.resolve import called, is_reference, load_object
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.files import make_file_task
from runnel.llm.tasks.gym import make_gym_task
from runnel.llm.tasks.prompts import is_data
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.tasks.text import TextTask

TASKS: Mapping[str, Callable[[], TextTask]] = {"reverse": make_reverse}
GYM = "reasoning_gym:"
OF_ANY = ("plain", "max_prompt", "reward_timeout_s", "background_rewards")
NOT_OF_PYTHON = {
    f.name: "a task in Python makes its examples and its reward itself" for f in fields(DataConfig) if f.name not in OF_ANY
}
NOT_OF_WORLDS = {
    f.name: "an environment makes its messages itself"
    for f in fields(DataConfig)
    if f.name not in ("plain", "background_rewards", "reward_timeout_s", "settings")
}
NOT_OF_GENERATORS = dict.fromkeys(
    ("prompt", "answer", "reward", "options", "eval_path", "eval_share"), "reasoning_gym makes its prompts and scores itself"
)
NOT_OF_FILES = dict.fromkeys(("num_train", "num_eval", "settings"), "is of a generated task")


def make_task(name: str | Callable[[], TextTask], data: DataConfig | None = None) -> TextTask:
    """A built-in task by name, `reasoning_gym:NAME`, a file or folder of data, or the user's own: a function, or
    `file.py:make_task` or `module:make_task`. `data` configures the prompts of the second and third."""
    data = data or DataConfig()
    if isinstance(name, str) and name.startswith(GYM):
        refuse_unused(data, NOT_OF_GENERATORS, "data.")
        return make_gym_task(name.removeprefix(GYM), data)
    if isinstance(name, str) and is_data(name):
        refuse_unused(data, NOT_OF_FILES, "data.")
        return make_file_task(name, data)
    refuse_unused(data, NOT_OF_PYTHON, "data.")
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]()
    if isinstance(name, str) and not is_reference(name):
        known = f"{', '.join(sorted(TASKS))}, {GYM}NAME"
        raise ConfigError("task", name, f"choose one of {known}; a .jsonl or .parquet file; or write file.py:make_task")
    make = load_object(name, "task") if isinstance(name, str) else name
    task = called(make, field="task", target=name, how="make_task()")
    if not isinstance(task, TextTask):
        raise ConfigError("task", name, f"it returned {type(task).__name__}; return a runnel.llm.tasks.TextTask")
    return task
