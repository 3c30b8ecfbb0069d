"""Scores of reasoning-gym: each task's own `score_answer`. It runs in a worker process, because some parse or evaluate text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.llm.rewards.extract import extract as find

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset


def score(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    dataset: str,
    index: Sequence[int],
    extract: str = "tag:answer",
    settings: Mapping[str, object] | None = None,
    **columns: object,
) -> list[float]:
    """The task's own score of each answer, from 0 to 1; a completion in which the rule `extract` finds no answer gets 0.

    The entry is generated again here from its index, so that its solution need not be sent. It is an error if its prompt
    differs.
    """
    scorer = gym_dataset(dataset, tuple(sorted((settings or {}).items())))
    entries = {i: gym_entry(scorer, i) for i in set(index)}
    for i, prompt in zip(index, prompts, strict=True):
        if str(entries[i]["question"]) not in prompt:
            raise ValueError(f"index {i} of {dataset} gives another prompt here; its generator is not deterministic")
    answers = [find(completion, extract) for completion in completions]
    return [0.0 if a is None else float(scorer.score_answer(a, entries[i])) for a, i in zip(answers, index, strict=True)]


@lru_cache(maxsize=4)
def gym_dataset(name: str, settings: tuple[tuple[str, object], ...]) -> ProceduralDataset:
    """The data set `name` of reasoning-gym, with its settings."""
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ConfigError("task", f"reasoning_gym:{name}", 'it needs reasoning-gym; pip install "runnel[tasks]"') from error
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        known = ", ".join(sorted(DATASETS))
        raise ConfigError("task", f"reasoning_gym:{name}", f"reasoning-gym has no such task; it has {known}")
    try:
        return reasoning_gym.create_dataset(name, **dict(settings))
    except (AssertionError, TypeError, ValueError) as error:
        given = ", ".join(f"{k}={v}" for k, v in settings)
        raise ConfigError("data.settings", given, f"reasoning-gym refuses {name}: {error}") from error


def gym_entry(dataset: ProceduralDataset, index: int) -> State:
    """Entry `index`: question, answer, metadata. Some generators draw from Python's global random state. It is seeded with the
    index meanwhile, so that an entry is the same in every process."""
    before = random.getstate()
    random.seed(index)
    try:
        return dict(dataset[index])
    finally:
        random.setstate(before)
