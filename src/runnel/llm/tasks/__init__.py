"""Text tasks: sources of prompts, and the rewards of completions."""

from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.difficulty import DifficultyConfig, DifficultySource
from runnel.llm.tasks.new_tasks import NewTasksConfig
from runnel.llm.tasks.registry import TASKS, make_task
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.tasks.sources import SourcesConfig
from runnel.llm.tasks.text import Example, ExampleSource, TextTask

__all__ = [
    "TASKS",
    "DataConfig",
    "DifficultyConfig",
    "DifficultySource",
    "Example",
    "ExampleSource",
    "NewTasksConfig",
    "SourcesConfig",
    "TextTask",
    "make_reverse",
    "make_task",
]
