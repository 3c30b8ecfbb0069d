"""Single answers with a label or a score: which of them fit, and the sampler that writes them to a stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runnel.core.errors import DataError
from runnel.core.records import Slot
from runnel.llm.sampling.demos import ExampleSampler
from runnel.llm.sampling.groups import write_row
from runnel.llm.tasks import Example, ExampleSource
from runnel.llm.tasks.preferences import Rated
from runnel.llm.tokenize import Tokenizer, messages_of


def rated_row(one: Rated, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Prompt and answer in tokens, as an engine would have made them (with their end)."""
    return tokenizer.render(messages_of(one.prompt)), tokenizer.answer(one.answer)


def fitting_rated(some: Sequence[Rated], tokenizer: Tokenizer, *, context: int | None) -> tuple[list[Rated], int, list[str]]:
    """The answers that a model with room for `context` tokens can read with their prompts; the length of the longest row, a
    mismatched one among them; and a warning if others are left out."""
    sizes = [tuple(map(len, rated_row(one, tokenizer))) for one in some]
    fits = [context is None or sum(size) <= context for size in sizes]
    told: list[str] = []
    if not all(fits):
        first = fits.index(False)
        where = some[first].place or f"answer {first}"
        text = f"{fits.count(False)} of {len(some)} prompts with their answers are longer than the model's context of {context}"
        text = f"{text} tokens, the first at {where} ({sum(sizes[first])} tokens)"
        if not any(fits):
            raise DataError(f"{text}; shorten them, or use a model with a longer context")
        told = [f"{text}; they are left out"]
    kept = [one for one, ok in zip(some, fits, strict=True) if ok]
    found = [size for size, ok in zip(sizes, fits, strict=True) if ok]
    longest = max(prompt for prompt, _ in found) + max(answer for _, answer in found)
    return kept, longest if context is None else min(longest, context), told


class RatedSampler(ExampleSampler):
    """Writes rated answers in a seeded order without end. With `mismatched`, each row is followed by its prompt with the answer
    of the next row of the segment (of the first one, for the last), cut at the end if a row has no room for it."""

    def __init__(self, some: Sequence[Rated], tokenizer: Tokenizer, *, seed: int, mismatched: bool, max_length: int) -> None:
        super().__init__(ExampleSource([Example(str(i)) for i in range(len(some))], seed=seed, name="rated"), "rated")
        self._some, self._tokenizer = list(some), tokenizer
        self._mismatched, self._max_length = mismatched, max_length

    def _fill(self, slot: Slot) -> int:
        each = 2 if self._mismatched else 1
        some = [self._some[self._source.next().data["index"]] for _ in range(slot.spec.num_rows // each)]
        rows, start = [rated_row(one, self._tokenizer) for one in some], 0
        for i, (one, (prompt, answer)) in enumerate(zip(some, rows, strict=True)):
            other = rows[(i + 1) % len(rows)][1][: self._max_length - len(prompt)]
            for side, text in enumerate((answer, other)[:each]):
                row = each * i + side
                slot.arrays["rating"][row] = one.rating
                if self._mismatched:
                    slot.arrays["mismatched"][row] = side == 1
                start += write_row(slot.arrays, row, start, torch.tensor(prompt), torch.tensor(text))
        return start
