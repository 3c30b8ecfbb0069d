"""Retry of any text task: a reply that is not right is answered, and the model tries again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import overload

import numpy as np

from runnel.core.contracts.chat import Lane, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.llm.rewards.components import RewardFn
from runnel.llm.rewards.judging import RewardJob, joined, judge, scalar
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.registry import make_task
from runnel.llm.tasks.text import Example, TextTask
from runnel.llm.tokenize import messages_of
from runnel.llm.worlds.feedback import code_feedback
from runnel.llm.worlds.world import World, entry, entry_between, share, whole


class Retry(World):
    """The prompts of a text task, with up to `max_tries` replies to each. The reward is that of the last reply.

    `task` is a `TextTask`, or what `--task` takes (with `data` as there). A reply is right if its reward, the weighted sum of
    the task's channels, is at least `right_at`. The n-th try's reward counts `discount` to the power of n - 1. After a reply
    that is not right the world says so; of the built-in reward `python_tests` it says how many tests hold, and why the first
    of the others does not.

    Rewards are called in a thread of this process, whatever their component says of processes, and a built-in one that is
    pure is called inline. A reward that fails is a failure of the conversation. A time limit is that of a step.
    """

    name = "retry"

    def __init__(
        self,
        *,
        task: TextTask | str | Callable[[], TextTask] = "reverse",
        max_tries: int = 3,
        right_at: float = 1.0,
        discount: float = 1.0,
        data: DataConfig | None = None,
    ) -> None:
        super().__init__()
        if data is not None and isinstance(task, TextTask):
            raise ConfigError("retry.data", data, "is for a task that is given by its name; this one is made already")
        self._task = task if isinstance(task, TextTask) else _made(task, data)
        self.max_tokens = self._task.max_tokens
        self._max_tries = whole("retry.max_tries", max_tries, 1, 1000)
        self._right_at = share("retry.right_at", right_at, -1e9, 1e9)
        self._discount = share("retry.discount", discount, 0, 1)
        self.rewards = dict(zip(self._task.channels, self._task.weights, strict=True))
        self._parts = [part.resolved() for part in self._task.components]
        self._functions: list[RewardFn] = []
        self.lane: Lane = "inline" if all(part.run == "inline" for part in self._parts) else "thread"
        if per_token := [part.name for part in self._parts if part.level == "token"]:
            fix = "is given by token, which a world does not see; give it by sequence"
            raise ConfigError("retry.task", per_token[0], fix)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return _Places("train", len(self._task.train)), _Places("eval", len(self._task.eval))

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"split": "train", "index": int(rng.integers(len(self._task.train)))}

    def begin(self, task: Settings) -> Turn:
        if entry(task, "split", str, self.name) not in ("train", "eval"):
            raise DataError(f"world {self.name!r}: the task's split is {task['split']!r}; use train or eval")
        size = len(self._task.train if task["split"] == "train" else self._task.eval)
        entry_between(task, "index", 0, size - 1, self.name)
        return Turn(messages_of(self._example().prompt))

    def answer(self, text: str) -> Turn:
        example, tries = self._example(), self.now["turns"]
        found = self._rewards(example, text)
        right = self._task.total({name: found.get(name) for name in self.rewards}) >= self._right_at
        if right or tries >= self._max_tries:
            return Turn((), {name: self._discount ** (tries - 1) * value for name, value in found.items()}, terminated=True)
        left = self._max_tries - tries
        details = "".join(f"\n{said}" for part in self._parts if (said := code_feedback(part, example, text)))
        return Turn(f"That is not right.{details}\nTry again. Tries left: {left}.")

    def script(self) -> str:
        """The answer that the task has for imitation."""
        answer = self._example().answer
        if answer is None:
            raise DataError(f"world {self.name!r}: the example has no answer to imitate: {self._example().text[:80]!r}")
        return answer

    def _example(self) -> Example:
        split, index = self.now["task"]["split"], int(self.now["task"]["index"])
        return (self._task.train if split == "train" else self._task.eval)[index]

    def _rewards(self, example: Example, text: str) -> dict[str, float]:
        """The reward of a reply by channel, without channels that do not apply."""
        columns = {name: [value] for name, value in example.columns.items()}
        job = RewardJob(0, [example.text], [text], columns, messages=[messages_of(example.prompt)])
        self._functions = self._functions or [part.function() for part in self._parts]
        pairs = zip(self._functions, self._parts, strict=True)
        verdict = joined(job, {part.name: judge(fn, part, job) for fn, part in pairs})
        if verdict.rewards is None:
            raise DataError(f"world {self.name!r}: the reward failed: {verdict.failure}{verdict.lines}")
        return {name: scalar(values[0]) for name, values in verdict.rewards.items() if values[0] is not None}


@lru_cache(maxsize=8)
def _made(task: str | Callable[[], TextTask], data: DataConfig | None) -> TextTask:
    """The task of that name, once: each conversation has a world of its own, and files are long."""
    return make_task(task, data)


class _Places(Sequence[Settings]):
    """The examples of a split, as tasks that name their places."""

    def __init__(self, split: str, size: int) -> None:
        self._split, self._range = split, range(size)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, i: int) -> Settings: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Settings]: ...

    def __getitem__(self, i: int | slice) -> Settings | Sequence[Settings]:
        if isinstance(i, slice):
            return [self[j] for j in self._range[i]]
        return {"split": self._split, "index": self._range[i]}
