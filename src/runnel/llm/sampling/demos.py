"""Samplers without inference: what an actor runs to train on given rows (demonstrations here, preferences in `pairs.py`).

They consume examples and produce segments of prompts and answers. They wait for a free segment and for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Slot
from runnel.core.state import State
from runnel.llm.checks.sizes import CHECKED, some
from runnel.llm.sampling.groups import write_row
from runnel.llm.sampling.token_weights import weights_of
from runnel.llm.tasks import Example, ExampleSource, TextTask
from runnel.llm.tokenize import Tokenizer, messages_of

MAX_SKIPPED = 100
"""So many demonstrations in a row that do not fit are an error: perhaps none fits."""


class ExampleSampler:
    """A core `Sampler` without inference: each step fills one segment of `stream` with rows that no policy made."""

    def __init__(self, source: ExampleSource, stream: str) -> None:
        self._source, self._stream = source, stream
        self._events: list[State] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        writer = writers[self._stream]
        slot = writer.reserve()
        if slot is None:
            return 0
        num_tokens = self._fill(slot)
        slot.header.used = {"N": num_tokens}
        slot.header.version_min = slot.header.version_max = -1
        writer.commit(slot, num_steps=num_tokens)
        return slot.spec.num_rows

    def _fill(self, slot: Slot) -> int:
        """Write all rows of a segment; returns their number of tokens."""
        raise NotImplementedError

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
        """Nothing to release."""


class DemoSampler(ExampleSampler):
    """Writes the train examples of `task`, in a seeded order without end. Examples with more than `max_length` tokens, the
    model's context, are skipped. `weights` names the column with the weights of parts of an answer (`token_weights.py`)."""

    def __init__(
        self,
        task: TextTask,
        tokenizer: Tokenizer,
        *,
        seed: int,
        max_length: int | None = None,
        stream: str = "demos",
        weights: str = "",
    ) -> None:
        if any(e.answer is None for e in some(task.train, CHECKED)):
            raise ConfigError("task", task.name, "it has train examples without an answer; give each one, or skip the warm-up")
        super().__init__(ExampleSource(task.train, seed=seed, name="demos"), stream)
        self._tokenizer, self._max_length, self._weights = tokenizer, max_length, weights

    def _fill(self, slot: Slot) -> int:
        start = 0
        for row in range(slot.spec.num_rows):
            # each later row needs two tokens at least: one of a prompt, one of an answer
            example, prompt, answer = self._next(slot.spec.sizes["N"] - start - 2 * (slot.spec.num_rows - row - 1))
            end = start + write_row(slot.arrays, row, start, torch.tensor(prompt), torch.tensor(answer))
            if self._weights:
                weights = weights_of(example, self._weights, answer, self._tokenizer)
                slot.arrays["weight"][start:end] = torch.tensor([0.0] * len(prompt) + weights)
            start = end
        return start

    def _next(self, room: int) -> tuple[Example, list[int], list[int]]:
        """The next demonstration that fits. Each one that does not fit or has no answer is skipped, with a warning."""
        room = room if self._max_length is None else min(room, self._max_length)
        for _ in range(MAX_SKIPPED):
            task = self._source.next()
            example: Example = task.data["example"]
            prompt, answer = self._tokenizer.render(messages_of(example.prompt)), self._tokenizer.answer(example.answer or "")
            if example.answer is not None and len(prompt) + len(answer) <= room:
                return example, prompt, answer
            reason = "no answer" if example.answer is None else f"{len(prompt) + len(answer)} tokens, room for {room}"
            text = f"passed over a demonstration: {reason} (train example {task.data['index']})"
            self._events.append({"kind": "event", "level": "warning", "text": text})
        raise DataError(
            f"{MAX_SKIPPED} demonstrations in a row do not fit into {room} tokens; use a longer context, or shorter answers"
        )
