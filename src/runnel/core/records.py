"""Records of a sample stream: segments and their headers.

A segment is many rows in memory that the stream owns: `[T, B]` arrays for environments, ragged token rows for language
models. There is one header per segment and no Python object per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from runnel.core.errors import ConfigError, DataError


@dataclass(frozen=True)
class FieldSpec:
    """One named array of a segment. A dim is a number, or a name that the stream's `sizes` resolves.

    Some fields say what belongs to what, so that rows can be cut out with all that is theirs, and joined behind others. The
    values of an `index_of` field are places along those dims of the same segment (-1: none): `row_owner` of a token row is the
    number of its trajectory, `final_index` a place in `[T, B]`. Those of a `length_of` field say how many entries of that dim
    belong to each of its own, one after another: `row_length` the tokens of each row.
    """

    dims: tuple[str | int, ...]
    dtype: torch.dtype = torch.float32
    index_of: tuple[str, ...] = ()
    length_of: str = ""


@dataclass(frozen=True)
class StreamSpec:
    """A sample stream: its arrays, its rows, its bound.

    `sizes` gives each named dim its size; for a dim in `variable` this is the largest size, and the header has the
    size that was used. `rows` is the dim that counts rows (the unit of accounting); other dims may hold what belongs to them
    (`owners`): a conversation is one row here, and perhaps several rows of tokens to train on. `capacity` is the number of
    segments that exist at once: the bound of the stream. `batch_segments` is how many segments make one training batch.

    Every reader gets every segment. The first of `readers` paces: its version and what it consumed decide what writers may
    start, and it alone sends feedback. A slot is free when all `readers` have released it, so one that stands still holds the
    writers back. `lossy_readers` never do: a segment that they have not copied by then is dropped for them (`skipped`).
    A reader is named after the worker that reads.
    """

    name: str
    fields: Mapping[str, FieldSpec]
    sizes: Mapping[str, int]
    variable: tuple[str, ...] = ()
    rows: str = "B"
    capacity: int = 2
    batch_segments: int = 1
    readers: tuple[str, ...] = ("trainer",)
    lossy_readers: tuple[str, ...] = ()
    num_writers: int = 1
    device: str = "cpu"
    feedback: Mapping[str, FieldSpec] = field(default_factory=dict)
    """Fields that readers send back for each segment (priorities, success). Their memory is next to the segment."""
    unit_rows: int = 1
    """Number of neighbouring rows that are trained on together (a pair, a group). They are never split over ranks."""

    @property
    def num_rows(self) -> int:
        """Rows in every segment."""
        return self.sizes[self.rows]

    @property
    def ragged(self) -> str:
        """The dim of which each row has its own number of entries (tokens); "" if there is none."""
        return next((f.length_of for f in self.fields.values() if f.length_of), "")

    @cached_property
    def owners(self) -> dict[str, str]:
        """The field that says to what the entries of a variable dim belong, by dim; what others belong to comes first."""
        claims: dict[str, tuple[str, set[str]]] = {}
        for name, f in self.fields.items():
            if f.length_of:
                claims.setdefault(f.length_of, (name, {str(f.dims[0])}))
            elif f.index_of and (dim := str(f.dims[0])) in self.variable and dim not in f.index_of:
                claims.setdefault(dim, (name, {d for d in f.index_of if d in (self.rows, *self.variable)}))
        found, known = dict[str, str](), {self.rows}
        while due := [dim for dim, (_, of) in claims.items() if dim not in found and of and of <= known]:
            found |= {dim: claims[dim][0] for dim in due}
            known |= set(due)
        return found

    @property
    def all_readers(self) -> tuple[str, ...]:
        """The names of all readers; the one that paces is the first, lossy ones are the last."""
        return self.readers + self.lossy_readers

    @cached_property
    def variable_axes(self) -> list[tuple[str, int, str]]:
        """Field, axis and name of every variable dim."""
        axes = [(name, axis, dim) for name, f in self.fields.items() for axis, dim in enumerate(f.dims)]
        return [(name, axis, dim) for name, axis, dim in axes if isinstance(dim, str) and dim in self.variable]

    def shape(self, name: str, used: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Shape of a field at full size, or at the sizes in `used`."""
        spec = self.fields[name] if name in self.fields else self.feedback[name]
        sizes = {**self.sizes, **(used or {})}
        return tuple(d if isinstance(d, int) else sizes[d] for d in spec.dims)

    def check(self) -> None:
        """Raise a `ConfigError` for a stream that could never carry a batch."""
        for part, named in (("rows", (self.rows,)), ("variable", self.variable)):
            for name in named:
                if name not in self.sizes:
                    raise ConfigError(f"{self.name}.{part}", name, "this dim has no size; add it to sizes")
        for name, spec in (*self.fields.items(), *self.feedback.items()):
            for dim in (*spec.dims, *spec.index_of, *filter(None, [spec.length_of])):
                if isinstance(dim, str) and dim not in self.sizes:
                    raise ConfigError(f"{self.name}.{name}", spec.dims, f"dim {dim!r} has no size; add it to sizes")
        if self.rows in self.variable:
            raise ConfigError(f"{self.name}.rows", self.rows, "the rows of a segment are fixed; make another dim variable")
        if not self.readers:
            raise ConfigError(f"{self.name}.readers", self.readers, "name at least the reader that paces the writers")
        if twice := [name for name in self.all_readers if self.all_readers.count(name) > 1]:
            raise ConfigError(f"{self.name}.readers", self.all_readers, f"{twice[0]!r} is named twice; name each reader once")
        if self.capacity < self.batch_segments:
            fix = f"a batch needs {self.batch_segments} segments at once; use at least that"
            raise ConfigError(f"{self.name}.capacity", self.capacity, fix)

    def allocate(self) -> Batch:
        """Fresh memory for one segment at full size."""
        return Batch({k: torch.zeros(self.shape(k), dtype=f.dtype, device=self.device) for k, f in self.fields.items()})

    @property
    def side_by_side(self) -> int:
        """Number of neighbouring slots (of one batch) whose rows are adjacent in memory, so that a batch needs no copy."""
        return self.batch_segments if self.capacity % self.batch_segments == 0 else 1

    def block_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a field over `side_by_side` slots; a field without rows has a leading dim of slots instead."""
        dims, n = self.fields[name].dims, self.side_by_side
        if self.rows not in dims:
            return (n, *self.shape(name))
        return tuple(n * size if dim == self.rows else size for dim, size in zip(dims, self.shape(name), strict=True))

    def slots_of(self, block: Mapping[str, Tensor]) -> list[Batch]:
        """The arrays of each slot as views of a block (`block_shape`)."""
        slots = [Batch() for _ in range(self.side_by_side)]
        for name, f in self.fields.items():
            axis = f.dims.index(self.rows) if self.rows in f.dims else -1
            for i, slot in enumerate(slots):
                slot[name] = block[name][i] if axis < 0 else block[name].narrow(axis, i * self.num_rows, self.num_rows)
        return slots


@dataclass
class Header:
    """Data about a whole segment. It has only numbers, so it is stored in shared memory as it is.

    Rows have the ids `sample_id ... sample_id + num_rows - 1`, stable over resume. `sequence` orders the segments of a
    stream. `version_min` and `version_max` span the policy versions inside (per step or token they are in the arrays); -1
    means that no policy made the segment (demonstrations), so it cannot grow stale.
    """

    sequence: int = 0
    sample_id: int = 0
    num_steps: int = 0
    version_min: int = 0
    version_max: int = 0
    epoch: int = 0
    writer: int = 0
    agent: int = 0
    group_id: int = -1
    task_id: int = -1
    required_version: int = -1
    """Deterministic mode: exactly this policy version must make the segment; -1 leaves it open."""
    used: dict[str, int] = field(default_factory=dict)


@dataclass
class Slot:
    """A reserved segment that a writer fills. `arrays` have full size; `header.used` must have the used sizes at commit."""

    index: int
    spec: StreamSpec
    header: Header
    arrays: Batch


@dataclass
class Segment:
    """A finished segment as a reader sees it: arrays are cut to the used sizes. It is never written again."""

    index: int
    spec: StreamSpec
    header: Header
    arrays: Batch

    @property
    def num_rows(self) -> int:
        return self.spec.num_rows


SegmentView = Callable[[Segment], Segment]
"""What a learner sees of a segment in place of what was written."""


def trim(spec: StreamSpec, arrays: Batch, used: Mapping[str, int]) -> Batch:
    """Cut every variable dim of `arrays` to the length in `used`."""
    if not spec.variable:
        return arrays
    check_used(spec, used)
    out = Batch(arrays)
    for name, axis, dim in spec.variable_axes:
        out[name] = out[name].narrow(axis, 0, used[dim])
    return out


def check_used(spec: StreamSpec, used: Mapping[str, int]) -> None:
    """Raise a `DataError` if a segment claims more of a variable dim than the stream has."""
    for dim in spec.variable:
        if not 0 <= used.get(dim, -1) <= spec.sizes[dim]:
            raise DataError(f"stream {spec.name!r}: segment uses {used.get(dim)} of dim {dim!r}, which holds {spec.sizes[dim]}")


class Batch(dict[str, Tensor]):
    """A dict of tensors with the few operations that every stage needs.

    >>> b = Batch(obs=torch.zeros(4, 2), reward=torch.ones(4))
    >>> b.map(lambda x: x[:2])["reward"].tolist()
    [1.0, 1.0]
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Apply `fn` to each leaf."""
        return Batch({k: fn(v) for k, v in self.items()})

    def to(self, device: torch.device | str) -> Batch:
        """Each leaf on `device`; leaves that are there already are not copied."""
        return self.map(lambda x: x.to(device, non_blocking=True))

    def under(self, prefix: str) -> Batch:
        """The leaf `prefix`, and every leaf below `prefix/`, under their full names.

        >>> sorted(Batch({"obs/a": torch.zeros(1), "obs/b": torch.zeros(1), "act": torch.zeros(1)}).under("obs"))
        ['obs/a', 'obs/b']
        """
        return Batch({k: v for k, v in self.items() if k == prefix or k.startswith(prefix + "/")})

    @staticmethod
    def cat(batches: Sequence[Mapping[str, Tensor]], dim: int = 0) -> Batch:
        """Concatenate leaf by leaf; one batch is returned as it is, without a copy."""
        if len(batches) == 1:
            return Batch(batches[0])
        return Batch({k: torch.cat([b[k] for b in batches], dim=dim) for k in batches[0]})
