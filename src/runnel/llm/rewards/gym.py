"""Scores of reasoning-gym: each task's own `score_answer`. It runs in a worker process, because some parse or evaluate text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from runnel.core.errors import ConfigError
from runnel.llm.rewards.extract import extract as find


def score(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    dataset: str,
    entry: Sequence[dict[str, Any]],
    extract: str = "tag:answer",
    settings: dict[str, Any] | None = None,
    **columns: Any,
) -> list[float]:
    """What the task says of each answer, from 0 to 1; a completion in which the rule `extract` finds no answer gets 0."""
    scorer = gym_dataset(dataset, tuple(sorted((settings or {}).items())))
    answers = [find(completion, extract) for completion in completions]
    return [0.0 if a is None else float(scorer.score_answer(a, e)) for a, e in zip(answers, entry, strict=True)]


@lru_cache(maxsize=4)
def gym_dataset(name: str, settings: tuple[tuple[str, Any], ...]) -> Any:
    """The data set `name` of reasoning-gym, with its settings."""
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ConfigError("task", f"reasoning_gym:{name}", 'it needs reasoning-gym; pip install "runnel[tasks]"') from error
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        known = ", ".join(sorted(DATASETS))
        raise ConfigError("task", f"reasoning_gym:{name}", f"reasoning-gym has no such task; it has {known}")
    return reasoning_gym.create_dataset(name, **dict(settings))
