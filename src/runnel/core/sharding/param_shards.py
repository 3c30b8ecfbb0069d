"""Parameters that several ranks keep in parts: each has some rows of every one, and together they have them all.

Nobody needs the whole to move it. Who publishes writes its rows to where they belong in the whole; who loads a checkpoint that
was made on another number of ranks reads, of the pieces of all, the rows that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.state import Plain, State

KEYS = {"piece", "start", "of"}


@dataclass(frozen=True)
class ParamShard:
    """Rows of a parameter of `shape`, which is published as `dtype`: `parts` are tensors and their first rows, mostly one."""

    parts: tuple[tuple[int, Tensor], ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(value: Tensor) -> ParamShard:
        """All rows of a parameter."""
        return ParamShard(((0, value),), tuple(value.shape), value.dtype)

    @property
    def start(self) -> int:
        return self.parts[0][0]

    @property
    def value(self) -> Tensor:
        """The rows of the first part."""
        return self.parts[0][1]

    def put(self, whole: Tensor) -> None:
        """Write the rows to their place in the whole parameter."""
        for start, rows in self.parts:
            place = whole[start : start + len(rows)] if whole.dim() else whole
            place.copy_(rows.detach())

    def state(self) -> State:
        """As plain data, for a checkpoint of this rank; a copy on the host."""
        return {"piece": self.value.detach().to("cpu", copy=True), "start": self.start, "of": self.shape[0]}


def rows_of_rank(num_rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and last row (exclusive) that `rank` keeps: parts of one size, and the last ones shorter or empty.

    >>> [rows_of_rank(5, rank, 3) for rank in range(3)], rows_of_rank(2, 2, 3)
    ([(0, 2), (2, 4), (4, 5)], (2, 2))
    """
    size = -(-num_rows // ranks)
    return min(rank * size, num_rows), min((rank + 1) * size, num_rows)


@dataclass(frozen=True)
class ShardRows:
    """A parameter in the pieces of several ranks, by their first rows; they stay where they are until rows are asked for."""

    parts: tuple[tuple[int, Tensor], ...]
    num_rows: int

    def __getitem__(self, wanted: slice) -> Tensor:
        """ShardRows `start:stop`, from one piece as a view, from several as a copy.

        >>> ShardRows(((0, torch.zeros(2)), (2, torch.ones(2))), 4)[1:3].tolist()
        [0.0, 1.0]
        """
        start, stop, _ = wanted.indices(self.num_rows)
        found = [t[max(start - at, 0) : stop - at] for at, t in self.parts if at < stop and at + len(t) > start]
        if not found:
            return self.parts[0][1][:0]
        return found[0] if len(found) == 1 else torch.cat(found)


def whole(value: Tensor | ShardRows) -> Tensor:
    """A parameter of a checkpoint in one piece, however many ranks it was saved by."""
    return value[:] if isinstance(value, ShardRows) else torch.as_tensor(value)


def has_pieces(state: object) -> bool:
    """Whether a state holds pieces of parameters: it is of one rank among several."""
    if isinstance(state, Mapping):
        return state.keys() == KEYS or any(has_pieces(value) for value in state.values())
    return False


def join_pieces(states: Sequence[Plain]) -> Plain:
    """The state of the first rank, with every piece in it replaced by the `ShardRows` of all ranks.

    >>> one, two = ({"w": {"piece": torch.full((1,), x), "start": i, "of": 2}, "n": 7} for i, x in enumerate((3.0, 4.0)))
    >>> joined = join_pieces([one, two])
    >>> joined["w"][:].tolist(), joined["n"]
    ([3.0, 4.0], 7)
    """
    first = states[0]
    if not isinstance(first, Mapping):
        return first
    if first.keys() != KEYS:
        return {key: join_pieces([state[key] for state in states]) if has_pieces(first[key]) else first[key] for key in first}
    parts = sorted(((int(s["start"]), torch.as_tensor(s["piece"])) for s in states if len(s["piece"])), key=lambda p: p[0])
    ends = [0, *(at + len(t) for at, t in parts)]
    if ends[-1] != first["of"] or any(at != end for (at, _), end in zip(parts, ends[:-1], strict=True)):
        at = [(at, at + len(t)) for at, t in parts]
        raise DataError(f"pieces of a parameter of {first['of']} rows cover {at}: the checkpoint lacks the part of a rank")
    return ShardRows(tuple(parts) or ((0, torch.as_tensor(first["piece"])),), int(first["of"]))
