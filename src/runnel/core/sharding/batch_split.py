"""Split a batch over the ranks of a trainer: by whole segments if their number divides evenly, else each segment by rows.

The parts together are the whole batch. So any number of ranks trains on the same rows as one rank would. Ranks take each step
together, so the slowest decides: where rows have different lengths, whole segments are dealt out so that the ranks get about
equally many tokens (the idea is ByteScale's, Ge et al. 2025, arXiv:2502.21231).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    if not spec.is_ragged:
        return [i * ranks // len(headers) for i in range(len(headers))]
    return deal([header.used[spec.variable[0]] for header in headers], ranks)


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

    Fields along a dim of variable length are cut with their rows: tokens by `row_start` and `row_length`, final observations
    by `final_index`, which counts in `[T, B]`.
    """
    spec = segment.spec
    num = spec.num_rows // parts
    first = part * num
    small = replace(spec, sizes={**spec.sizes, spec.rows: num})
    out = Batch()
    for name, value in segment.arrays.items():
        dims = spec.fields[name].dims
        out[name] = value.narrow(dims.index(spec.rows), first, num) if spec.rows in dims else value
    used = dict(segment.header.used)
    if "row_start" in out:
        _cut_tokens(spec, out, used)
    elif "final_index" in out:
        _cut_ends(spec, out, used, first, num)
    return Segment(segment.index, small, replace(segment.header, used=used), out)


def _cut_tokens(spec: StreamSpec, out: Batch, used: dict[str, int]) -> None:
    """Keep only the tokens of the rows in `out`. Tokens are stored row after row."""
    start = int(out["row_start"][0])
    length = int(out["row_start"][-1] + out["row_length"][-1]) - start
    for name, axis, dim in spec.variable_axes:
        if name in out:
            out[name], used[dim] = out[name].narrow(axis, start, length), length
    out["row_start"] = out["row_start"] - start


def _cut_ends(spec: StreamSpec, out: Batch, used: dict[str, int], first: int, num: int) -> None:
    """Keep only the final observations of the rows in `out`, and count `final_index` among these rows."""
    step = out["final_index"].div(spec.num_rows, rounding_mode="floor")
    row = out["final_index"].remainder(spec.num_rows) - first
    kept = ((row >= 0) & (row < num)).nonzero().squeeze(1)
    for name, axis, dim in spec.variable_axes:
        if name in out:
            out[name], used[dim] = out[name].index_select(axis, kept), len(kept)
    out["final_index"] = (step * num + row)[kept]
