"""Rows that begin alike, computed once: the completions of a group have one prompt, whose states are the same in each of them.

Attention is causal, so what a token becomes depends on the tokens before it alone. Tokens behind the last one that is asked
about are left out too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.llm.model.attention import PackedRows

FAMILY = 8
"""Rows that share a beginning, at most: a family's gradient is one thread's work, and there should be some for all threads."""


@dataclass(frozen=True)
class Folded:
    """Packed rows without what they have twice: which tokens are kept `[n]`, how they lie, and where what was asked about is
    now `[M]`."""

    kept: Tensor
    rows: PackedRows
    position: Tensor


@dataclass
class _Row:
    """A row from its first token `start`; up to and with `first` it is shared, up to and with `last` it is needed. What others
    begin with too lies in front of `lead`, the rest from `own` on (places among the kept tokens)."""

    index: int
    start: int
    first: int
    last: int
    lead: int = 0
    own: int = 0


def fold(tokens: Tensor, lengths: Sequence[int], row: Tensor, position: Tensor) -> Folded:
    """Share the beginnings of rows that lie packed in `tokens` `[N]`. States at `position` `[M]`, in the rows `row` `[M]`, are
    asked for (at least one); a row's beginning ends with its first such state.

    >>> tokens = torch.tensor([5, 6, 7, 8, 5, 6, 9, 5, 4])
    >>> found = fold(tokens, [4, 3, 2], torch.tensor([0, 0, 1, 1, 2]), torch.tensor([1, 2, 5, 6, 7]))
    >>> tokens[found.kept].tolist(), found.rows.lengths, found.rows.families
    ([5, 6, 7, 9, 5], [2, 1, 1, 1], [3, 1])
    >>> found.position.tolist()
    [1, 2, 1, 3, 4]
    """
    ids, rows = tokens.numpy(), _asked(lengths, row.numpy(), position.numpy())
    kept: list[np.ndarray] = []
    sizes: list[int] = []
    families: list[int] = []
    size = 0
    for family in _families(ids, rows):
        head, alone = family[0], len(family) == 1
        pieces = [(head.start, (head.last if alone else head.first) + 1)]
        size = lead = size + head.first + 1 - head.start
        for one in family:
            one.lead, one.own = lead, size
            size += one.last - one.first
            if one.last > one.first and not alone:
                pieces.append((one.first + 1, one.last + 1))
        kept += [np.arange(*piece) for piece in pieces]
        sizes += [end - start for start, end in pieces]
        families.append(len(pieces))
    where = _moved(rows, len(lengths), row.numpy(), position.numpy())
    return Folded(torch.from_numpy(np.concatenate(kept)), PackedRows(sizes, families=families), torch.from_numpy(where))


def _asked(lengths: Sequence[int], row: np.ndarray, position: np.ndarray) -> list[_Row]:
    """Rows in which something is asked about."""
    first, last = np.full(len(lengths), np.iinfo(np.int64).max), np.full(len(lengths), -1)
    np.minimum.at(first, row, position)
    np.maximum.at(last, row, position)
    starts = np.cumsum(lengths) - lengths
    found = zip(starts.tolist(), first.tolist(), last.tolist(), strict=True)
    return [_Row(i, start, one, other) for i, (start, one, other) in enumerate(found) if other >= 0]


def _families(ids: np.ndarray, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows with one beginning, at most `FAMILY` together, in the order of the first of them."""
    found: list[list[_Row]] = []
    latest: dict[bytes, list[_Row]] = {}
    for one in rows:
        key = ids[one.start : one.first + 1].tobytes()
        family = latest.get(key)
        if family is None or len(family) == FAMILY:
            found.append(family := [])
            latest[key] = family
        family.append(one)
    return iter(found)


def _moved(rows: Sequence[_Row], num_rows: int, row: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Where states are now: the first of a row is the last one of its beginning."""
    table = np.zeros((3, num_rows), dtype=np.int64)
    for one in rows:
        table[:, one.index] = one.first, one.lead - 1, one.own - one.first - 1
    first, lead, shift = table[:, row]
    where: np.ndarray = np.where(position == first, lead, position + shift)
    return where
