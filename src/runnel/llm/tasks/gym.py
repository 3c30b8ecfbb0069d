"""Every task of reasoning-gym by name. Prompts are made when they are first played; held-out ones come from other indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

from runnel.core.errors import DataError
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.extract import shown
from runnel.llm.rewards.gym import gym_dataset, gym_entry
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.files import dressed
from runnel.llm.tasks.text import Example, TextTask

SUFFIX = "\nGive the final answer between <answer> and </answer>."
EXTRACT = "tag:answer|all"
MAX_TRIES = 50


def make_gym_task(name: str, config: DataConfig) -> TextTask:
    """The task `name` of reasoning-gym: its own generator, its own score.

    A prompt is generator index i; training plays indices below `num_train` and the evaluation those behind. Prompts that come
    out the same are removed from the evaluation, and a train prompt that is held out is replaced.
    """
    total = (MAX_TRIES + 1) * (config.num_train + config.num_eval)
    settings = {"seed": 0, **config.parsed_settings(), "size": total}
    dataset = gym_dataset(name, tuple(sorted(settings.items())))
    suffix = SUFFIX if config.suffix is None else config.suffix
    form = config.extract or (EXTRACT if suffix == SUFFIX else "")
    make = _Maker(dataset, config.system, suffix, form)
    held: dict[str, Example] = {}
    for index in range(config.num_train, config.num_train + config.num_eval):
        held.setdefault(make.question(index), make(index))
    train = GymExamples(make, config.num_train, first_spare=config.num_train + config.num_eval, held=frozenset(held), name=name)
    options = {"dataset": name, "settings": settings, "extract": config.extract or EXTRACT}
    reward = RewardComponent("score", "reasoning_gym", options=options)
    return TextTask(f"reasoning_gym:{name}", train, list(held.values()), [reward], max_tokens=256)


class _Maker:
    """Makes the example of a generator index, with its answer in the `form` in which the reward looks for it."""

    def __init__(self, dataset: Any, system: str, suffix: str, form: str) -> None:
        self.dataset, self._system, self._suffix, self._form = dataset, system, suffix, form

    def question(self, index: int) -> str:
        return str(gym_entry(self.dataset, index)["question"])

    def __call__(self, index: int) -> Example:
        entry = gym_entry(self.dataset, index)
        answer = entry["answer"]
        demonstration = None if answer is None else shown(str(answer), self._form)
        return Example(dressed(str(entry["question"]), self._system, self._suffix), demonstration, {"index": index})


class GymExamples(Sequence[Example]):
    """Train examples, made on demand: place i has generator index i, or a spare index if that prompt is held out."""

    def __init__(self, make: _Maker, size: int, *, first_spare: int, held: frozenset[str], name: str) -> None:
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

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(self._size))

    def _find(self, i: int) -> Example:
        for index in (i, *(self._first_spare + i * MAX_TRIES + k for k in range(MAX_TRIES))):
            if self._make.question(index) not in self._held:
                return self._make(index)
        raise DataError(
            f"reasoning_gym:{self._name}: {MAX_TRIES + 1} prompts in a row are held out; the task has too few different ones; "
            "lower data.num_eval, or widen it with data.settings"
        )


def gym_tasks() -> list[str]:
    """Names of all tasks of reasoning-gym, where it is installed."""
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        return []
    return sorted(DATASETS)
