"""The tasks of reasoning-gym, by name. A prompt is generated when it is first used; held-out prompts have other indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, overload

from runnel.core.errors import DataError
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.extract import shown
from runnel.llm.rewards.gym import gym_dataset, gym_entry
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.files import dressed
from runnel.llm.tasks.text import Example, TextTask

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

SUFFIX = "\nGive the final answer between <answer> and </answer>."
EXTRACT = "tag:answer|all"
MAX_TRIES = 50
"""Spare indices of each train example."""


def make_gym_task(name: str, config: DataConfig) -> TextTask:
    """The task `name` of reasoning-gym, with its own generator and its own score.

    Each prompt has a generator index: training has the indices below `num_train`, the evaluation the next ones. Repeated
    prompts are removed from the evaluation, and a train prompt that is held out is replaced.
    """
    total = (MAX_TRIES + 1) * (config.num_train + config.num_eval)
    settings = {"seed": 0, **config.parsed_settings(), "size": total}
    dataset = gym_dataset(name, tuple(sorted(settings.items())))
    suffix = SUFFIX if config.suffix is None else config.suffix
    form = config.extract or (EXTRACT if suffix == SUFFIX else "")
    make = partial(_example, dataset, system=config.system, suffix=suffix, form=form)
    first_spare = config.num_train + config.num_eval
    held: dict[str, Example] = {}
    for index in range(config.num_train, first_spare):
        example = make(index)
        held.setdefault(example.text, example)
    train = GymExamples(make, config.num_train, first_spare=first_spare, held=frozenset(held), name=name)
    options = {"dataset": name, "settings": settings, "extract": config.extract or EXTRACT}
    reward = RewardComponent("score", "reasoning_gym", options=options)
    return TextTask(f"reasoning_gym:{name}", train, list(held.values()), [reward], max_tokens=256)


def _example(dataset: ProceduralDataset, index: int, *, system: str, suffix: str, form: str) -> Example:
    """The example of a generator index; its demonstration has the `form` in which the reward looks for the answer."""
    entry = gym_entry(dataset, index)
    answer = None if entry["answer"] is None else shown(str(entry["answer"]), form)
    return Example(dressed(str(entry["question"]), system, suffix), answer, {"index": index})


class GymExamples(Sequence[Example]):
    """Train examples, generated on demand: example i has generator index i, or a spare index if that prompt is held out."""

    def __init__(self, make: Callable[[int], Example], size: int, *, first_spare: int, held: frozenset[str], name: str) -> None:
        self._make, self._size, self._first_spare, self._held, self._name = make, size, first_spare, held, name
        self._get = lru_cache(maxsize=1 << 16)(self._find)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> Example: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Example]: ...

    def __getitem__(self, i: int | slice) -> Example | Sequence[Example]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._size))]
        if not -self._size <= i < self._size:
            raise IndexError(i)
        return self._get(i % self._size)

    def _find(self, i: int) -> Example:
        for index in (i, *(self._first_spare + i * MAX_TRIES + k for k in range(MAX_TRIES))):
            example = self._make(index)
            if example.text not in self._held:
                return example
        raise DataError(
            f"reasoning_gym:{self._name}: {MAX_TRIES + 1} prompts in a row are held out; the task has too few different ones; "
            "lower data.num_eval, or widen it with data.settings"
        )
