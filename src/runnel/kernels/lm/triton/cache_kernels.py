# mypy: ignore-errors
"""Triton kernels for attention over a cache of keys and values, `[slots, kv_heads, length, head_dim]` a layer.

The queries that share a key-value head are one small matrix, so keys and values are read once for all of them.
"""

import torch

from runnel.kernels.lm.triton import tl, triton


@triton.jit
def _decode(
    TURNED,
    VALUE,
    KEYS,
    VALUES,
    POSITION,
    OUT,
    PART,
    PEAK,
    SUM,
    scale,
    turned_row,
    value_row,
    cache_slot,
    cache_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SPLITS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One row's queries of one key-value head over one part of its past; the last part also stores the new key and value."""
    row, kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(POSITION + row).to(tl.int32)
    dims = tl.arange(0, BLOCK_D)
    real = dims < D
    group = tl.arange(0, BLOCK_G)
    q = tl.load(
        TURNED + row * turned_row + (kv * GROUP + group[:, None]) * D + dims[None, :],
        mask=(group[:, None] < GROUP) & real[None, :],
        other=0.0,
    )
    base = row * cache_slot + kv * cache_head
    peak = tl.full([BLOCK_G], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    chunk = tl.cdiv(tl.cdiv(position, SPLITS), BLOCK_T) * BLOCK_T
    begin = split * chunk
    end = tl.minimum(begin + chunk, position)
    for start in range(begin, end, BLOCK_T):
        steps = start + tl.arange(0, BLOCK_T)
        past = steps < end
        k = tl.load(KEYS + base + steps[None, :] * D + dims[:, None], mask=past[None, :] & real[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="ieee" if EXACT else "tf32") * scale
        s = tl.where(past[None, :], s, -float("inf"))
        high = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp(s - high[:, None])
        shrink = tl.exp(peak - high)
        v = tl.load(VALUES + base + steps[:, None] * D + dims[None, :], mask=past[:, None] & real[None, :], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee" if EXACT else "tf32")
        total = total * shrink + tl.sum(p, 1)
        peak = high
    if split == SPLITS - 1:
        k = tl.load(TURNED + row * turned_row + (HEADS + kv) * D + dims, mask=real, other=0.0)
        v = tl.load(VALUE + row * value_row + kv * D + dims, mask=real, other=0.0)
        tl.store(KEYS + base + position * D + dims, k, mask=real)
        tl.store(VALUES + base + position * D + dims, v, mask=real)
        s = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
        high = tl.maximum(peak, s)
        p = tl.exp(s - high)
        shrink = tl.exp(peak - high)
        acc = acc * shrink[:, None] + p[:, None] * v.to(tl.float32)[None, :]
        total = total * shrink + p
        peak = high
    keep = (group[:, None] < GROUP) & real[None, :]
    at = (row * HEADS + kv * GROUP + group[:, None]) * D + dims[None, :]
    if SPLITS == 1:
        tl.store(OUT + at, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=keep)
    else:
        head = (row * SPLITS + split) * HEADS + kv * GROUP + group
        tl.store(PART + head[:, None] * D + dims[None, :], acc, mask=keep)
        tl.store(PEAK + head, peak, mask=group < GROUP)
        tl.store(SUM + head, total, mask=group < GROUP)


@triton.jit
def _merge(PART, PEAK, SUM, OUT, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    parts = tl.arange(0, SPLITS)
    at = (row * SPLITS + parts) * HEADS + head
    peaks = tl.load(PEAK + at)
    weight = tl.exp(peaks - tl.max(peaks, 0))
    total = tl.sum(weight * tl.load(SUM + at), 0)
    acc = tl.load(PART + at[:, None] * D + dims[None, :], mask=dims[None, :] < D, other=0.0)
    out = tl.sum(acc * weight[:, None], 0) / total
    tl.store(OUT + (row * HEADS + head) * D + dims, out.to(OUT.dtype.element_ty), mask=dims < D)


def decode_attention(turned, value, keys, values, positions, *, scale):
    """One new token a row: store its key and value at `positions`, attend to everything up to it. `-> [n, H * D]`

    `turned [n, H + K, D]` are rotated queries and keys, `value [n, K, D]`; `keys`, `values` `[slots, K, L, D]`; row i has
    slot i.
    """
    rows, kv, size = value.shape
    heads = turned.shape[1] - kv
    group = heads // kv
    out = torch.empty((rows, heads * size), dtype=turned.dtype, device=turned.device)
    splits = _splits(rows * kv, keys.shape[2])
    part, peak, total = out, out, out
    if splits > 1:
        part = torch.empty((rows, splits, heads, size), dtype=torch.float32, device=out.device)
        peak, total = (torch.empty((rows, splits, heads), dtype=torch.float32, device=out.device) for _ in range(2))
    block_d = triton.next_power_of_2(size)
    tensors = (turned, value, keys, values, positions, out, part, peak, total)
    strides = (turned.stride(0), value.stride(0), keys.stride(0), keys.stride(1))
    _decode[(rows, kv, splits)](
        *tensors,
        scale,
        *strides,
        HEADS=heads,
        GROUP=group,
        BLOCK_G=max(16, triton.next_power_of_2(group)),
        D=size,
        BLOCK_D=max(16, block_d),
        BLOCK_T=64,
        SPLITS=splits,
        EXACT=turned.dtype == torch.float32,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        _merge[(rows, heads)](part, peak, total, out, HEADS=heads, D=size, BLOCK_D=max(16, block_d), SPLITS=splits, num_warps=2)
    return out


def _splits(programs, length):
    """Parts of the past that are read side by side: enough to fill the device, none shorter than 256 tokens."""
    want = max(1, 256 // programs)
    return max(1, min(triton.next_power_of_2(want), triton.next_power_of_2(max(1, length // 256)), 32))


@triton.jit
def _prefill(
    Q,
    KEYS,
    VALUES,
    BLOCKS,
    OUT,
    scale,
    q_row,
    cache_slot,
    cache_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Up to BLOCK_M neighbouring queries of one row and one head, over everything up to each of them."""
    block, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(BLOCKS + block * 4).to(tl.int64)
    size = tl.load(BLOCKS + block * 4 + 1).to(tl.int32)
    slot = tl.load(BLOCKS + block * 4 + 2).to(tl.int64)
    position = tl.load(BLOCKS + block * 4 + 3).to(tl.int32)
    dims = tl.arange(0, BLOCK_D)
    real = dims < D
    m = tl.arange(0, BLOCK_M)
    keep = (m[:, None] < size) & real[None, :]
    q = tl.load(Q + (first + m[:, None]) * q_row + head * D + dims[None, :], mask=keep, other=0.0)
    base = slot * cache_slot + (head // GROUP) * cache_head
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, position + size, BLOCK_T):
        steps = start + tl.arange(0, BLOCK_T)
        there = steps < position + size
        k = tl.load(KEYS + base + steps[None, :] * D + dims[:, None], mask=there[None, :] & real[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="ieee" if EXACT else "tf32") * scale
        s = tl.where(steps[None, :] <= position + m[:, None], s, -float("inf"))
        high = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp(s - high[:, None])
        shrink = tl.exp(peak - high)
        v = tl.load(VALUES + base + steps[:, None] * D + dims[None, :], mask=there[:, None] & real[None, :], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee" if EXACT else "tf32")
        total = total * shrink + tl.sum(p, 1)
        peak = high
    at = (first + m[:, None]) * HEADS * D + head * D + dims[None, :]
    tl.store(OUT + at, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=keep)


PREFILL_BLOCK = 64


def prefill_attention(turned, keys, values, blocks, *, scale):
    """Queries `turned[:, :H]` of packed pieces over the cache, in which their keys and values already are. `-> [N, H * D]`

    `blocks [b, 4]` says for each block of at most `PREFILL_BLOCK` tokens: its first token, its size, its slot, its position.
    """
    kv, size = keys.shape[1], keys.shape[3]
    heads = turned.shape[1] - kv
    out = torch.empty((turned.shape[0], heads * size), dtype=turned.dtype, device=turned.device)
    strides = (turned.stride(0), keys.stride(0), keys.stride(1))
    _prefill[(blocks.shape[0], heads)](
        *(turned, keys, values, blocks, out),
        scale,
        *strides,
        HEADS=heads,
        GROUP=heads // kv,
        D=size,
        BLOCK_D=max(16, triton.next_power_of_2(size)),
        BLOCK_M=PREFILL_BLOCK,
        BLOCK_T=64,
        EXACT=turned.dtype == torch.float32,
        num_warps=4,
        num_stages=2,
    )
    return out
