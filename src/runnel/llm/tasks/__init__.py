"""Text tasks: sources of prompts, and the rewards of completions."""

from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.registry import TASKS, make_task
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.tasks.text import DifficultyConfig, DifficultySource, Example, ExampleSource, TextTask

__all__ = [
    "TASKS",
    "DataConfig",
    "DifficultyConfig",
    "DifficultySource",
    "Example",
    "ExampleSource",
    "TextTask",
    "make_reverse",
    "make_task",
]
