"""Share the computation of common prefixes: the completions of a group have one prompt, whose states are equal in all of them.

Attention is causal, so a token's state depends only on the tokens up to it. For the same reason, tokens behind the last
requested state of a row are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.llm.model.attention import PackedRows

FAMILY = 8
"""The most rows that share one prefix. One thread computes a family's gradient, so threads need several families."""


@dataclass(frozen=True)
class Folded:
    """Packed rows without repeated prefixes: indices of the kept tokens `[n]`, their layout, and the new positions of the
    requested states `[M]`."""

    kept: Tensor
    rows: PackedRows
    position: Tensor


@dataclass
class _Row:
    """A row in which states are requested. `start` is its first token, `first` and `last` its first and last requested state.
    Tokens up to and including `first` are the prefix. Among the kept tokens, the prefix ends before index `lead`, and the rest
    of the row begins at index `own`."""

    index: int
    start: int
    first: int
    last: int
    lead: int = 0
    own: int = 0


def fold(tokens: Tensor, lengths: Sequence[int], row: Tensor, position: Tensor) -> Folded:
    """Share the prefixes of rows that are packed in `tokens` `[N]`. States at `position` `[M]`, in the rows `row` `[M]`, are
    requested (at least one). A row's prefix ends with its first requested state.

    >>> tokens = torch.tensor([5, 6, 7, 8, 5, 6, 9, 5, 4])
    >>> found = fold(tokens, [4, 3, 2], torch.tensor([0, 0, 1, 1, 2]), torch.tensor([1, 2, 5, 6, 7]))
    >>> tokens[found.kept].tolist(), found.rows.lengths, found.rows.families
    ([5, 6, 7, 9, 5], [2, 1, 1, 1], [3, 1])
    >>> found.position.tolist()
    [1, 2, 1, 3, 4]
    """
    ids, rows = tokens.numpy(), _requested(lengths, row.numpy(), position.numpy())
    kept: list[np.ndarray] = []
    sizes: list[int] = []
    families: list[int] = []
    size = 0
    for family in _families(ids, rows):
        head, alone = family[0], len(family) == 1
        spans = [(head.start, (head.last if alone else head.first) + 1)]
        size = lead = size + head.first + 1 - head.start
        for one in family:
            one.lead, one.own = lead, size
            size += one.last - one.first
            if one.last > one.first and not alone:
                spans.append((one.first + 1, one.last + 1))
        kept += [np.arange(*span) for span in spans]
        sizes += [end - start for start, end in spans]
        families.append(len(spans))
    where = _moved(rows, len(lengths), row.numpy(), position.numpy())
    return Folded(torch.from_numpy(np.concatenate(kept)), PackedRows(sizes, families=families), torch.from_numpy(where))


def _requested(lengths: Sequence[int], row: np.ndarray, position: np.ndarray) -> list[_Row]:
    """Rows in which a state is requested."""
    first, last = np.full(len(lengths), np.iinfo(np.int64).max), np.full(len(lengths), -1)
    np.minimum.at(first, row, position)
    np.maximum.at(last, row, position)
    starts = np.cumsum(lengths) - lengths
    found = zip(starts.tolist(), first.tolist(), last.tolist(), strict=True)
    return [_Row(i, start, one, other) for i, (start, one, other) in enumerate(found) if other >= 0]


def _families(ids: np.ndarray, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows with the same prefix, at most `FAMILY` together, in the order of their first rows."""
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
    """New positions of the requested states: a row's first one is the last state of its prefix."""
    table = np.zeros((3, num_rows), dtype=np.int64)
    for one in rows:
        table[:, one.index] = one.first, one.lead - 1, one.own - one.first - 1
    first, lead, shift = table[:, row]
    where: np.ndarray = np.where(position == first, lead, position + shift)
    return where
