"""Parameter shards: each rank keeps some rows of every parameter, and all ranks together keep all rows.

No rank needs the whole parameter. A publishing rank writes its rows to their place in the whole. A rank that loads a checkpoint
of another number of ranks reads only the rows that it keeps, from the shards of all ranks.
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
    """Rows of a parameter of `shape`, published as `dtype`. `parts` has (first row, tensor) pairs, mostly one."""

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
        """The shard as plain data for a checkpoint of this rank: a copy on the host."""
        return {"piece": self.value.detach().to("cpu", copy=True), "start": self.start, "of": self.shape[0]}


def rows_of_rank(num_rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and last row (exclusive) that `rank` keeps. Shards have equal sizes; the last ones may be shorter or empty.

    >>> [rows_of_rank(5, rank, 3) for rank in range(3)], rows_of_rank(2, 2, 3)
    ([(0, 2), (2, 4), (4, 5)], (2, 2))
    """
    size = -(-num_rows // ranks)
    return min(rank * size, num_rows), min((rank + 1) * size, num_rows)


@dataclass(frozen=True)
class ShardRows:
    """A parameter as the shards of several ranks, by first row. Shards are only joined when rows are read."""

    parts: tuple[tuple[int, Tensor], ...]
    num_rows: int

    def __getitem__(self, wanted: slice) -> Tensor:
        """Rows `start:stop`: a view if they lie in one shard, else a copy.

        >>> ShardRows(((0, torch.zeros(2)), (2, torch.ones(2))), 4)[1:3].tolist()
        [0.0, 1.0]
        """
        start, stop, _ = wanted.indices(self.num_rows)
        found = [t[max(start - at, 0) : stop - at] for at, t in self.parts if at < stop and at + len(t) > start]
        if not found:
            return self.parts[0][1][:0]
        return found[0] if len(found) == 1 else torch.cat(found)


def whole(value: Tensor | ShardRows) -> Tensor:
    """A parameter of a checkpoint as one tensor, for any number of ranks that saved it."""
    return value[:] if isinstance(value, ShardRows) else torch.as_tensor(value)


def has_pieces(state: object) -> bool:
    """Whether a state holds shards of parameters, so that it is the state of one rank of several."""
    if isinstance(state, Mapping):
        return state.keys() == KEYS or any(has_pieces(value) for value in state.values())
    return False


def join_pieces(states: Sequence[Plain]) -> Plain:
    """The state of the first rank, in which the `ShardRows` of all ranks replace every shard.

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
    # shards must follow each other without gap or overlap: a missing file must not become a shorter parameter
    ends = [0, *(at + len(t) for at, t in parts)]
    if ends[-1] != first["of"] or any(at != end for (at, _), end in zip(parts, ends[:-1], strict=True)):
        at = [(at, at + len(t)) for at, t in parts]
        raise DataError(f"pieces of a parameter of {first['of']} rows cover {at}: the checkpoint lacks the part of a rank")
    return ShardRows(tuple(parts) or ((0, torch.as_tensor(first["piece"])),), int(first["of"]))
