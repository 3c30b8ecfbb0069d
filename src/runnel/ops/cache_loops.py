# mypy: ignore-errors
"""Attention of one new token a row over a cache, as a compiled loop for float32 on the CPU (`cache_kernels.py` on CUDA)."""

from __future__ import annotations

import numpy as np
import torch

from runnel.ops import loop_maths
from runnel.ops.loop_maths import enter, exp, floats, integers, number, take
from runnel.ops.loops import Loop
from runnel.ops.row_kernels import forget_older

forget_older(__file__, loop_maths.__file__)


@Loop
def _decode(words):
    """Words: rows, heads, key-value heads, head size, longest; turned, value, its row stride; keys, values, strides of slot,
    head; positions, scores, out, scale. A piece is a key-value head of a row."""
    heads, kv_heads, size, longest = words[4], words[5], words[6], words[7]
    turned, value, value_row = floats(words[8]), floats(words[9]), words[10]
    keys, values, slot_step, head_step = floats(words[11]), floats(words[12]), words[13], words[14]
    positions, scores, out, scale = integers(words[15]), floats(words[16]), floats(words[17]), np.float32(number(words[18]))
    group, s = heads // kv_heads, enter(words) * longest
    while True:
        piece = take(words)
        if piece >= words[1]:
            return
        row, kv = piece // kv_heads, piece % kv_heads
        position, base = positions[row], row * slot_step + kv * head_step
        new = (row * (heads + kv_heads) + heads + kv) * size
        for d in range(size):
            keys[base + position * size + d] = turned[new + d]
            values[base + position * size + d] = value[row * value_row + kv * size + d]
        count = position + 1
        for head in range(kv * group, (kv + 1) * group):
            q, to = (row * (heads + kv_heads) + head) * size, (row * heads + head) * size
            top = np.float32(-np.inf)
            for j in range(0, count - count % 4, 4):
                at = base + j * size
                s0 = s1 = s2 = s3 = np.float32(0.0)
                for d in range(size):
                    x = turned[q + d]
                    s0 += x * keys[at + d]
                    s1 += x * keys[at + size + d]
                    s2 += x * keys[at + 2 * size + d]
                    s3 += x * keys[at + 3 * size + d]
                scores[s + j], scores[s + j + 1], scores[s + j + 2], scores[s + j + 3] = s0, s1, s2, s3
            for j in range(count - count % 4, count):
                at, s0 = base + j * size, np.float32(0.0)
                for d in range(size):
                    s0 += turned[q + d] * keys[at + d]
                scores[s + j] = s0
            for j in range(count):
                top = max(top, scores[s + j])
            total = np.float32(0.0)
            for j in range(count):
                p = exp((scores[s + j] - top) * scale)
                scores[s + j] = p
                total += p
            for d in range(size):
                out[to + d] = np.float32(0.0)
            for j in range(0, count - count % 4, 4):
                at = base + j * size
                p0, p1, p2, p3 = scores[s + j], scores[s + j + 1], scores[s + j + 2], scores[s + j + 3]
                for d in range(size):
                    a = p0 * values[at + d] + p1 * values[at + size + d]
                    b = p2 * values[at + 2 * size + d] + p3 * values[at + 3 * size + d]
                    out[to + d] += a + b
            for j in range(count - count % 4, count):
                at, p0 = base + j * size, scores[s + j]
                for d in range(size):
                    out[to + d] += p0 * values[at + d]
            for d in range(size):
                out[to + d] /= total


def decode_attention(turned, value, keys, values, positions, *, scale):
    """Put the new keys and values of rows `0 ... n - 1` into their slots, and attend to everything up to there.

    Queries and keys `[n, H + K, D]`, values `[n, K, D]`, caches `[slots, K, length, D]`, positions `[n]` -> `[n, H * D]`
    """
    n, kv_heads, size = value.shape
    heads = turned.shape[1] - kv_heads
    value = value if value.stride()[1:] == (size, 1) else value.contiguous()
    longest = keys.shape[2]
    out, scores = turned.new_empty((n, heads * size)), turned.new_empty((torch.get_num_threads(), longest))
    steps = (value, value.stride(0), keys, values, keys.stride(0), keys.stride(1))
    _decode(
        n * kv_heads, n, heads, kv_heads, size, longest, turned.contiguous(), *steps, positions.contiguous(), scores, out, scale
    )
    return out
