# mypy: ignore-errors
"""Attention of one new token a row over a cache, compiled for float32 on the CPU (`triton/cache_kernels.py` on CUDA)."""

from __future__ import annotations

import numpy as np
import torch

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths
from runnel.kernels.lm.numba.loop_maths import (
    LANES,
    add,
    enter,
    exp,
    fill,
    floats,
    fused,
    integers,
    jit,
    larger,
    largest,
    load,
    number,
    pieces,
    store,
    total,
)
from runnel.kernels.lm.numba.loops import Loop

forget_older(__file__, loop_maths.__file__)

F0, F1 = np.float32(0.0), np.float32(1.0)


@jit
def attend(query, q, cache, base, values, count, size, scores, s, scale, out, to):
    """`softmax(scale q K^T) V` of one query over `count` keys from `cache[base]` on, and values from `cache[values]` on.

    `scores[s ...]` has room for `count` numbers, rounded up to whole vectors.
    """
    whole = size - size % LANES
    for j in range(count):
        at, line, rest = base + j * size, fill(F0), F0
        for d in range(0, whole, LANES):
            line = fused(load(query, q + d), load(cache, at + d), line)
        for d in range(whole, size):
            rest += query[q + d] * cache[at + d]
        scores[s + j] = total(line) + rest
    end = -(-count // LANES) * LANES
    for j in range(count, end):
        scores[s + j] = np.float32(-np.inf)
    top = load(scores, s)
    for j in range(LANES, end, LANES):
        top = larger(top, load(scores, s + j))
    less, mass = fill(-scale * largest(top)), fill(F0)
    for j in range(0, end, LANES):
        p = exp(add(less, scale, load(scores, s + j)))
        store(scores, s + j, p)
        mass = add(mass, F1, p)
    share = F1 / total(mass)
    for d in range(0, whole, LANES):
        s0 = s1 = s2 = s3 = fill(F0)
        for j in range(0, count - count % 4, 4):
            at = values + j * size + d
            s0, s1 = add(s0, scores[s + j], load(cache, at)), add(s1, scores[s + j + 1], load(cache, at + size))
            s2 = add(s2, scores[s + j + 2], load(cache, at + 2 * size))
            s3 = add(s3, scores[s + j + 3], load(cache, at + 3 * size))
        for j in range(count - count % 4, count):
            s0 = add(s0, scores[s + j], load(cache, values + j * size + d))
        store(out, to + d, add(fill(F0), share, add(add(s0, F1, s1), F1, add(s2, F1, s3))))
    for d in range(whole, size):
        rest = F0
        for j in range(count):
            rest += scores[s + j] * cache[values + j * size + d]
        out[to + d] = rest * share


@Loop
def _decode(words):
    """Words: heads, key-value heads, head size, longest; turned, value, its row stride; keys, how far off values are, strides
    of slot, head; positions, scores, out, scale. A piece is a key-value head of a row."""
    heads, kv_heads, size, longest = words[3], words[4], words[5], words[6]
    turned, value, value_row = floats(words[7]), floats(words[8]), words[9]
    keys, to_values, slot_step, head_step = floats(words[10]), words[11], words[12], words[13]
    positions, scores, out, scale = integers(words[14]), floats(words[15]), floats(words[16]), np.float32(number(words[17]))
    group, s = heads // kv_heads, enter(words) * longest
    for piece in pieces(words):
        row, kv = piece // kv_heads, piece % kv_heads
        position, base = positions[row], row * slot_step + kv * head_step
        new = (row * (heads + kv_heads) + heads + kv) * size
        for d in range(size):
            keys[base + position * size + d] = turned[new + d]
            keys[base + to_values + position * size + d] = value[row * value_row + kv * size + d]
        for head in range(kv * group, (kv + 1) * group):
            q, to = (row * (heads + kv_heads) + head) * size, (row * heads + head) * size
            attend(turned, q, keys, base, base + to_values, position + 1, size, scores, s, scale, out, to)


def decode_attention(turned, value, keys, values, positions, *, scale):
    """Put the new keys and values of rows `0 ... n - 1` into their slots, and attend to everything up to there.

    Queries and keys `[n, H + K, D]`, values `[n, K, D]`, caches `[slots, K, length, D]`, positions `[n]` -> `[n, H * D]`
    """
    n, kv_heads, size = value.shape
    heads = turned.shape[1] - kv_heads
    value = value if value.stride()[1:] == (size, 1) else value.contiguous()
    longest = -(-keys.shape[2] // LANES) * LANES
    out, scores = turned.new_empty((n, heads * size)), turned.new_empty((torch.get_num_threads(), longest))
    apart = (values.data_ptr() - keys.data_ptr()) // keys.element_size()
    steps = (value, value.stride(0), keys, apart, keys.stride(0), keys.stride(1))
    _decode(
        n * kv_heads, heads, kv_heads, size, longest, turned.contiguous(), *steps, positions.contiguous(), scores, out, scale
    )
    return out
