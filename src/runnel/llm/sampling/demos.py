"""Demonstrations: a data set is a sampler without inference.

Consumes examples, produces segments of prompt and answer. It waits for a free segment and for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from runnel.core.contracts.evaluation import AgentRoute, route
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.contracts.tasks import TaskSource
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Slot
from runnel.core.state import State
from runnel.llm.checks.sizes import CHECKED, some
from runnel.llm.sampling.groups import write_row
from runnel.llm.sampling.sampler import AGENT
from runnel.llm.tasks import Example, ExampleSource, TextTask
from runnel.llm.tokenize import Tokenizer, messages_of

MAX_SKIPPED = 100


class DemoSampler:
    """Writes the train examples of `task`, in a seeded order without end (core `Sampler`): one segment a step. What is longer
    than `max_length` tokens, the model's context, is passed over."""

    def __init__(
        self,
        task: TextTask,
        tokenizer: Tokenizer,
        *,
        seed: int,
        routes: Sequence[AgentRoute] = (AgentRoute(samples="demos"),),
        source: TaskSource | None = None,
        max_length: int | None = None,
    ) -> None:
        if any(e.answer is None for e in some(task.train, CHECKED)):
            raise ConfigError("task", task.name, "it has train examples without an answer; give each one, or skip the warm-up")
        self._tokenizer, self._max_length = tokenizer, max_length
        self._stream = route(routes, AGENT).samples
        self._source: TaskSource = source or ExampleSource(task.train, seed=seed, name="demos")
        self._events: list[State] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        writer = writers[self._stream]
        slot = writer.reserve()
        if slot is None:
            return 0
        tokens = self._fill(slot)
        writer.commit(slot, num_steps=tokens)
        return slot.spec.num_rows

    def _fill(self, slot: Slot) -> int:
        start = 0
        for row in range(slot.spec.num_rows):
            prompt, answer = self._next(slot.spec.sizes["N"] - start - 2 * (slot.spec.num_rows - row - 1))
            start += write_row(slot.arrays, row, start, torch.tensor(prompt), torch.tensor(answer))
        slot.header.used = {"N": start}
        slot.header.version_min = slot.header.version_max = -1
        return start

    def _next(self, room: int) -> tuple[list[int], list[int]]:
        """The next demonstration that fits; those that do not, or have no answer, are passed over and counted."""
        room = room if self._max_length is None else min(room, self._max_length)
        for _ in range(MAX_SKIPPED):
            task = self._source.next(1)[0]
            example: Example = task.data["example"]
            prompt, answer = self._tokenizer.render(messages_of(example.prompt)), self._tokenizer.answer(example.answer or "")
            if example.answer is not None and len(prompt) + len(answer) <= room:
                return prompt, answer
            reason = "no answer" if example.answer is None else f"{len(prompt) + len(answer)} tokens, room for {room}"
            text = f"passed over a demonstration: {reason} (train example {task.id})"
            self._events.append({"kind": "event", "level": "warning", "text": text})
        raise DataError(
            f"{MAX_SKIPPED} demonstrations in a row do not fit into {room} tokens; use a longer context, or shorter answers"
        )

    def waits_for(self) -> str:
        return f"a free segment of stream {self._stream!r}"

    def events(self) -> list[State]:
        out, self._events = self._events, []
        return out

    def snapshot(self) -> State:
        return {"source": self._source.snapshot()}

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._source.restore(state["source"])

    def close(self) -> None:
        """Nothing is held."""
