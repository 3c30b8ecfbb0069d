"""Causal attention over packed rows: sequences of different length one after the other, without padding between them.

A prefix that several rows share is computed once (`fold`): the completions of a group have one prompt, whose states are equal
in all of them. Attention is causal, so a token's state depends only on the tokens up to it. For the same reason, `fold` leaves
out tokens behind the last requested state of a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import add
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from runnel.kernels.lm.numba.loops import loops
from runnel.llm.model.blocks import Context, run
from runnel.llm.model.weights import is_half

LOOP_LENGTH = 512
"""Up to so many tokens a row, the compiled loop is faster than torch's attention."""


class PackedRows:
    """Index tensors for rows of the given lengths that are packed into one dimension of `N` tokens.

    Rows may form families: `families` gives the number of neighbouring rows in each. The first row of a family is the prefix
    that its other rows share, and each of those continues it. By default every row is a family of its own.
    """

    def __init__(
        self, lengths: Sequence[int], *, device: str | torch.device = "cpu", families: Sequence[int] | None = None
    ) -> None:
        self.lengths = list(lengths)
        self.families = [1] * len(self.lengths) if families is None else list(families)
        starts = accumulate(self.families, initial=0)
        self.first = [row for row, size in zip(starts, self.families, strict=False) for _ in range(size)]
        """The first row of each row's family."""
        self.before = [self.lengths[f] if f != i else 0 for i, f in enumerate(self.first)]
        """Length of the shared prefix before each row; 0 for a row that has none."""
        self.longest = max(map(add, self.before, self.lengths))
        self.device = torch.device(device)

    @cached_property
    def _lengths(self) -> Tensor:
        return torch.tensor(self.lengths, device=self.device)

    @cached_property
    def starts(self) -> Tensor:
        """First token of each row. `[R]`"""
        return self._lengths.cumsum(0) - self._lengths

    @cached_property
    def rows(self) -> Tensor:
        """The row of each token. `[N]`"""
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.device), self._lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its sequence (shared prefix, then row). `[N]`"""
        within = torch.arange(sum(self.lengths), device=self.device) - self.starts[self.rows]
        return within + self.trunks[self.rows, 1]

    @cached_property
    def trunks(self) -> Tensor:
        """Shared prefix of each row: its first token and its length (0 for a row without one). `[R, 2]`"""
        first = torch.tensor(self.first, device=self.device)
        return torch.stack((self.starts[first], torch.tensor(self.before, device=self.device)), dim=1)

    @cached_property
    def family_bounds(self) -> Tensor:
        """First row of each family, and the end of the last family. `[F + 1]`"""
        return torch.tensor(list(accumulate(self.families, initial=0)), device=self.device)

    @cached_property
    def bounds(self) -> Tensor:
        """First token of each row, and the end of the last row, as variable-length kernels read them. `[R + 1] int32`"""
        ends = torch.cat((self._lengths.new_zeros(1), self._lengths.cumsum(0)))
        return ends.to(torch.int32)

    @cached_property
    def padded(self) -> Tensor:
        """Token indices of each sequence (shared prefix, then row), padded to the longest; padding repeats the last token.
        `[R, L]`"""
        steps = torch.arange(self.longest, device=self.device)
        start, before = self.trunks[:, :1], self.trunks[:, 1:]
        own = self.starts[:, None] + torch.minimum(steps - before, self._lengths[:, None] - 1)
        return torch.where(steps < before, start + steps, own)


def packed_attention(turned: Tensor, value: Tensor, rows: PackedRows, *, scale: float) -> Tensor:
    """Causal attention inside each row and to its shared prefix. Queries and keys `[N, H + K, D]`, values `[N, K, D]` ->
    `[N, H * D]`

    CUDA in half precision uses the variable-length flash kernel (without families), the CPU in float32 a compiled loop. In all
    other cases, and for long rows, rows are padded for this operation. Attention is causal, so padding behind a row's end
    cannot change the row.
    """
    num_kv = value.shape[1]
    heads = turned.shape[1] - num_kv
    query, key = turned[:, :heads], turned[:, heads:]
    if query.is_cuda and is_half(query):
        return flash_rows(turned, value, rows.bounds, rows.longest, scale=scale)
    if rows.longest <= LOOP_LENGTH and loops(turned, value):
        return cast(Tensor, run(_PackedLoop, turned, value, rows, scale))
    if len(rows.lengths) == 1:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    else:
        q, k, v = (x[rows.padded].transpose(1, 2) for x in (query, key, value))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=heads != num_kv)
    return out.transpose(1, 2)[rows.rows, rows.positions].reshape(-1, heads * query.shape[2])


def flash_rows(turned: Tensor, value: Tensor, bounds: Tensor, longest: int, *, scale: float) -> Tensor:
    """`packed_attention` on CUDA in half precision. `bounds` `[R + 1] int32`; no row is longer than `longest`."""
    from torch.nn.attention.varlen import varlen_attn

    heads = turned.shape[1] - value.shape[1]
    known = _parameters()
    causal: dict[str, object] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known and heads != value.shape[1]:  # older versions accept fewer key-value heads without being told
        causal["enable_gqa"] = True
    query, key = turned[:, :heads], turned[:, heads:]
    out: Tensor = varlen_attn(query, key, value, bounds, bounds, longest, longest, scale=scale, **causal)  # type: ignore
    return out.reshape(-1, heads * turned.shape[2])


class _PackedLoop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, turned: Tensor, value: Tensor, rows: PackedRows, scale: float) -> Tensor:
        from runnel.kernels.lm.numba import attention_loops

        turned = turned.contiguous()
        # the loop reads values at any stride between tokens, but the heads of one token must be dense
        value = value if value.stride()[1:] == (value.shape[2], 1) else value.contiguous()
        out, logs = attention_loops.forward(turned, value, rows, scale)  # type: ignore[no-untyped-call]
        ctx.save_for_backward(turned, value, logs)
        ctx.settings = rows, scale
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        from runnel.kernels.lm.numba import attention_loops

        turned, value, logs = ctx.saved_tensors
        args = (grad.contiguous(), turned, value, *ctx.settings, logs)
        return *attention_loops.backward(*args), None, None  # type: ignore[no-untyped-call]


@lru_cache
def _parameters() -> frozenset[str]:
    """Parameter names of torch's variable-length attention; they have changed between versions."""
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)


FAMILY = 8
"""The most rows that share one prefix. One thread computes a family's gradient, so threads need several families."""


@dataclass(frozen=True)
class Folded:
    """Packed rows without repeated prefixes: indices of the kept tokens `[n]`, their layout, and the new positions of the
    requested states `[M]`."""

    kept: Tensor
    rows: PackedRows
    position: Tensor


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
    kept: list[tuple[int, int]] = []  # first token and end of each kept span
    families: list[int] = []
    place, size = np.zeros(len(tokens), dtype=np.int64), 0  # of each token among those that are kept
    for family in _families(tokens.numpy(), _requested(lengths, row.numpy(), position.numpy())):
        start, first, last = family[0]
        spans = [(start, last + 1)]
        if len(family) > 1:
            spans = [(start, first + 1), *((one + 1, end + 1) for _, one, end in family if end > one)]
        for begin, end in spans:
            place[begin:end] = np.arange(size, size + end - begin)
            size += end - begin
        for _, one, _ in family:  # a row's first requested state is the last state of its prefix
            place[one] = place[first]
        kept += spans
        families.append(len(spans))
    rows = PackedRows([end - begin for begin, end in kept], families=families)
    tokens_kept = np.concatenate([np.arange(*span) for span in kept])
    return Folded(torch.from_numpy(tokens_kept), rows, torch.from_numpy(place[position.numpy()]))


def _requested(lengths: Sequence[int], row: np.ndarray, position: np.ndarray) -> list[tuple[int, int, int]]:
    """First token, and first and last requested state, of each row in which a state is requested."""
    first, last = np.full(len(lengths), np.iinfo(np.int64).max), np.full(len(lengths), -1)
    np.minimum.at(first, row, position)
    np.maximum.at(last, row, position)
    starts = np.cumsum(lengths) - lengths
    return [one for one in zip(starts.tolist(), first.tolist(), last.tolist(), strict=True) if one[2] >= 0]


def _families(ids: np.ndarray, rows: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Rows (as of `_requested`) with the same prefix, at most `FAMILY` together, in the order of their first rows."""
    found: list[list[tuple[int, int, int]]] = []
    latest: dict[bytes, list[tuple[int, int, int]]] = {}
    for one in rows:
        start, first, _ = one
        key = ids[start : first + 1].tobytes()
        family = latest.get(key)
        if family is None or len(family) == FAMILY:
            found.append(family := [])
            latest[key] = family
        family.append(one)
    return found
