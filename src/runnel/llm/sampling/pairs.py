"""Pairs of a chosen and a rejected answer: `PairSampler` writes them to a stream, `PairWriter` makes them from rollouts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.core.contracts.learning import Update
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Segment, Slot
from runnel.core.state import Metrics, State
from runnel.llm.algorithms.base import sum_channels, trajectory_reward
from runnel.llm.learning.batches import join_rows
from runnel.llm.model.causal_lm import model_params
from runnel.llm.sampling.demos import ExampleSampler
from runnel.llm.sampling.groups import write_row
from runnel.llm.tasks import Example, ExampleSource, TextTask
from runnel.llm.tasks.preferences import Pair, append_pairs
from runnel.llm.tokenize import Tokenizer, messages_of
from runnel.ops.credit import best_and_worst, compared_in_order

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pair_rows(pair: Pair, tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of both rows in tokens, the chosen one first, as an engine would have made them (with their end)."""
    prompt = tokenizer.render(messages_of(pair.prompt))
    return [(prompt, tokenizer.answer(answer)) for answer in (pair.chosen, pair.rejected)]


def fitting(pairs: Sequence[Pair], tokenizer: Tokenizer, *, context: int | None) -> tuple[list[Pair], int, list[str]]:
    """The pairs that a model with room for `context` tokens can read, the length of their longest row, and a warning if others
    are left out."""
    sizes = [max(len(prompt) + len(answer) for prompt, answer in pair_rows(pair, tokenizer)) for pair in pairs]
    fits = [context is None or size <= context for size in sizes]
    told: list[str] = []
    if not all(fits):
        first = fits.index(False)
        where = pairs[first].place or f"pair {first}"
        text = f"{fits.count(False)} of {len(pairs)} pairs are longer than the model's context of {context} tokens"
        text = f"{text}, the first at {where} ({sizes[first]} tokens)"
        if not any(fits):
            raise DataError(f"{text}; shorten them, or use a model with a longer context")
        told = [f"{text}; they are left out"]
    kept = [pair for pair, ok in zip(pairs, fits, strict=True) if ok]
    return kept, max(size for size, ok in zip(sizes, fits, strict=True) if ok), told


class PairSampler(ExampleSampler):
    """Writes pairs in a seeded order without end."""

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer, *, seed: int) -> None:
        super().__init__(ExampleSource([Example(str(i)) for i in range(len(pairs))], seed=seed, name="pairs"), "pairs")
        self._pairs, self._tokenizer = list(pairs), tokenizer

    def _fill(self, slot: Slot) -> int:
        start, room = 0, slot.spec.sizes["N"]
        for i in range(slot.spec.num_rows // 2):
            pair = self._pairs[self._source.next().data["index"]]
            for name in {"margin", "weight"} & slot.arrays.keys():
                slot.arrays[name][2 * i : 2 * i + 2] = getattr(pair, name)
            for side, (prompt, answer) in enumerate(pair_rows(pair, self._tokenizer)):
                if start + len(prompt) + len(answer) > room:
                    raise DataError(f"pairs do not fit their segment of {room} tokens; raise max_length")
                start += write_row(slot.arrays, 2 * i + side, start, torch.tensor(prompt), torch.tensor(answer))
        return start


def parsed_order(order: Sequence[str], channels: Collection[str]) -> dict[str, float]:
    """Reward channels in the order of their importance, with the margins behind their names (0 without one).

    >>> parsed_order(["exact", "format=0.5"], ["format", "exact"])
    {'exact': 0.0, 'format': 0.5}
    """
    found: dict[str, float] = {}
    for text in order:
        name, _, margin = text.partition("=")
        if name not in channels:
            raise ConfigError("order", text, f"there is no reward channel {name!r}; the task has {', '.join(channels)}")
        if name in found:
            raise ConfigError("order", text, f"{name!r} is there twice; name each channel once")
        try:
            found[name] = float(margin or 0.0)
        except ValueError:
            found[name] = -1.0
        if not 0.0 <= found[name] < math.inf:
            raise ConfigError("order", text, "write NAME or NAME=MARGIN, with a margin of at least 0")
    return found


class PairWriter:
    """A core `Learner` that trains nothing: it writes the best and the worst completion of each prompt to a file.

    They are those of the highest and the lowest reward. With an `order` of reward channels, by name with a margin, the first
    channel in which two completions differ by more decides between them (`compared_in_order`); the best is the one that wins
    most often against the others of its prompt, the worst the one that loses most often. Such an order is no scale: margins may
    put three completions into a circle, so a pair is written only if its best one wins against its worst one.

    A resumed run cuts the file back to its size at the checkpoint.
    """

    def __init__(
        self,
        path: str | Path,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        task: TextTask,
        order: Mapping[str, float] | None = None,
    ) -> None:
        self.order = dict(order or {})
        self.path, self.model, self.tokenizer, self.task = Path(path), model, tokenizer, task
        self.channels = dict(zip(task.channels, task.weights, strict=True))
        self.num_bytes = 0
        self.version = 0

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        some = [s for part in segments.values() for s in part]
        rows = join_rows(some)
        if len(rows["row_length"]) != len(rows["group"]):
            raise DataError("pairs are written of completions of one turn; this stream has several rows a trajectory")
        return rows

    def update(self, batch: Batch) -> Update:
        rewards = sum_channels(batch, self.channels)
        best, worst = self._in_order(batch) if self.order else best_and_worst(rewards, batch["group"])
        pairs = [self._pair(batch, int(high), int(low)) for high, low in zip(best, worst, strict=True)]
        kept = [p for p in pairs if p.chosen and p.rejected and p.chosen != p.rejected]
        if self.num_bytes == 0:
            self.path.unlink(missing_ok=True)
        append_pairs(self.path, kept)
        self.num_bytes = self.path.stat().st_size
        self.version += 1
        metrics: Metrics = {"pairs": float(len(kept)), "reward/mean": float(rewards.mean())}
        return Update(metrics)

    def _in_order(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The best and the worst row of each group by the order of the channels. `-> [P], [P]`"""
        channels = torch.stack([trajectory_reward(batch, name) for name in self.order])
        better = compared_in_order(channels, list(self.order.values()))
        better = better * (batch["group"][:, None] == batch["group"][None, :])
        best, worst = best_and_worst(better.sum(1), batch["group"])
        wins = better[best, worst] > 0
        return best[wins], worst[wins]

    def _pair(self, batch: Batch, chosen: int, rejected: int) -> Pair:
        task_id = int(batch["task_id"][chosen])
        example = self.task.find(task_id)
        if example is None:
            why = "was the data edited, or the checkpoint made by a release that numbered examples by their place?"
            raise DataError(f"task {self.task.name!r} has no train example with the id {task_id}; {why} Start a new run")
        return Pair(example.prompt, self._text(batch, chosen), self._text(batch, rejected))

    def _text(self, batch: Batch, row: int) -> str:
        start, end = int(batch["row_start"][row]), int(batch["row_start"][row] + batch["row_length"][row])
        return self.tokenizer.decode(batch["tokens"][start + int(batch["prompt_length"][row]) : end].tolist())

    def params(self) -> Mapping[str, Tensor]:
        return model_params(self.model)

    def state_dict(self) -> State:
        return {"num_bytes": self.num_bytes, "version": self.version}

    def load_state_dict(self, state: State) -> None:
        self.num_bytes, self.version = state["num_bytes"], state["version"]
        if self.path.is_file():
            with self.path.open("r+b") as file:
                file.truncate(self.num_bytes)
