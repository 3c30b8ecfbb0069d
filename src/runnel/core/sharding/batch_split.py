"""Split a batch over the ranks of a trainer: by whole segments if their number divides evenly, else each segment by rows.

The parts together are the whole batch. So any number of ranks trains on the same rows as one rank would. Ranks take each step
together, so the slowest decides: where rows have different lengths, whole segments are dealt out so that the ranks get about
equally many tokens (the idea is ByteScale's, Ge et al. 2025, arXiv:2502.21231).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Header, Segment, StreamSpec


def shares_evenly(spec: StreamSpec, num_segments: int, ranks: int) -> bool:
    """Whether `num_segments` segments split into `ranks` parts of equal size. Rows of one unit stay together."""
    return num_segments % ranks == 0 or spec.num_rows % (ranks * spec.unit_rows) == 0


def check_shares(spec: StreamSpec, num_segments: int, ranks: int) -> None:
    """Refuse a batch that `ranks` cannot share evenly; the error names a number of ranks that can."""
    if shares_evenly(spec, num_segments, ranks):
        return
    fits = next(n for n in range(ranks, 0, -1) if shares_evenly(spec, num_segments, n))
    batch = f"{num_segments} segments of {spec.num_rows // spec.unit_rows} units on stream {spec.name!r}"
    raise ConfigError("placement.trainers", ranks, f"a batch is {batch}, which {ranks} ranks cannot share evenly; use {fits}")


def share_of(segments: Sequence[Segment], rank: int, ranks: int) -> list[Segment]:
    """The part of rank `rank` in the segments of a batch."""
    if len(segments) % ranks:
        return [cut(segment, rank, ranks) for segment in segments]
    owners = owners_of([s.header for s in segments], segments[0].spec, ranks) if segments else []
    return [segment for segment, owner in zip(segments, owners, strict=True) if owner == rank]


def owners_of(headers: Sequence[Header], spec: StreamSpec, ranks: int) -> list[int]:
    """The rank that gets each segment of a batch: neighbours, or by tokens where rows have different lengths."""
    if not (dim := spec.ragged):
        return [i * ranks // len(headers) for i in range(len(headers))]
    return deal([header.used[dim] for header in headers], ranks)


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each item, so that all get equally many items and sums of `sizes` that are about equal.

    The largest first, each to the rank with the smallest sum that has a place left. Ties go to the first.

    >>> deal([9, 8, 1, 2], 2)
    [0, 1, 0, 1]
    """
    owners, sums, places = [0] * len(sizes), [0] * ranks, [len(sizes) // ranks] * ranks
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rank = min((r for r in range(ranks) if places[r]), key=lambda r: (sums[r], r))
        owners[item] = rank
        sums[rank] += sizes[item]
        places[rank] -= 1
    return owners


def cut(segment: Segment, part: int, parts: int) -> Segment:
    """Part number `part` of `parts` of a segment's rows, as a new segment. Its arrays are views where possible.

    What belongs to the rows goes with them (`StreamSpec.owners`): rows of tokens and their tokens, final observations. Places
    are counted anew (`FieldSpec.index_of`); one that is not in this part becomes -1.
    """
    spec, found = segment.spec, segment.arrays
    num, device = spec.num_rows // parts, next(iter(found.values())).device
    kept = {spec.rows: torch.arange(part * num, (part + 1) * num, device=device)}
    for dim, name in spec.owners.items():
        kept[dim] = _belonging(spec, name, found[name], kept)
    out = Batch()
    for name, value in found.items():
        f = spec.fields[name]
        for axis, size in enumerate(f.dims):
            if size in kept:
                value = _select(value, axis, kept[str(size)])
        out[name] = _counted_anew(spec, value, f.index_of, kept) if f.index_of else value
    if "row_start" in out:
        out["row_start"] = out["row_length"].cumsum(0) - out["row_length"]  # tokens lie row after row
    used = segment.header.used | {dim: len(index) for dim, index in kept.items() if dim in spec.variable}
    small = replace(spec, sizes={**spec.sizes, spec.rows: num})
    return Segment(segment.index, small, replace(segment.header, used=used), out)


def _belonging(spec: StreamSpec, name: str, value: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
    """Places along a dim of what belongs to `kept`, by the values of its owner field."""
    f = spec.fields[name]
    if f.length_of:
        owner = torch.repeat_interleave(torch.arange(len(value), device=value.device), value)
        return torch.isin(owner, kept[str(f.dims[0])]).nonzero().squeeze(1)
    mine = torch.ones_like(value, dtype=torch.bool)
    for dim, place in zip(f.index_of, _places(spec, value, f.index_of), strict=True):
        if dim in kept:
            mine &= torch.isin(place, kept[dim])
    return mine.nonzero().squeeze(1)


def _places(spec: StreamSpec, value: Tensor, dims: Sequence[str]) -> list[Tensor]:
    """Places in an array of `dims`, which is counted through, as places along each of them."""
    out = list[Tensor]()
    for dim in reversed(dims[1:]):
        out.insert(0, value.remainder(spec.sizes[dim]))
        value = value.div(spec.sizes[dim], rounding_mode="floor")
    return [value, *out]


def _counted_anew(spec: StreamSpec, value: Tensor, dims: Sequence[str], kept: Mapping[str, Tensor]) -> Tensor:
    """Places in an array of `dims`, among what is kept of each."""
    out = torch.zeros_like(value)
    for dim, place in zip(dims, _places(spec, value, dims), strict=True):
        if dim not in kept:
            out = out * spec.sizes[dim] + place
            continue
        now = value.new_full((spec.sizes[dim] + 1,), -1)  # the last one is found at -1
        now[kept[dim]] = torch.arange(len(kept[dim]), device=value.device, dtype=value.dtype)
        out = out * len(kept[dim]) + now[place]
    return out


def _select(value: Tensor, axis: int, index: Tensor) -> Tensor:
    """Entries along an axis: a view if they are neighbours."""
    first, num = (int(index[0]), len(index)) if len(index) else (0, 0)
    if num == 0 or int(index[-1]) - first == num - 1:
        return value.narrow(axis, first, num)
    return value.index_select(axis, index)
