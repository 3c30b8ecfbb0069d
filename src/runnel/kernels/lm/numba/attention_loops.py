# mypy: ignore-errors
"""Causal attention over packed rows and its gradient, as compiled loops for float32 on the CPU: no padding between rows.

A piece is a key-value head of a row; in the backward pass of a family of rows, whose first row gets gradients from all of
them. Its queries go through in tiles of `TILE`, which lie in the lanes of a vector: scores of a
tile are `[keys, TILE]`, so that maxima and sums over keys need no sum across lanes. A tile computes the keys up to its last
query. The backward pass computes the probabilities again, from the log of each query's sum.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths, loop_tiles
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
    load,
    number,
    pieces,
    store,
)
from runnel.kernels.lm.numba.loop_tiles import products, to_lanes, weigh
from runnel.kernels.lm.numba.loops import Loop

forget_older(__file__, loop_maths.__file__, loop_tiles.__file__)

TILE = LANES
F0, F1 = np.float32(0.0), np.float32(1.0)


@jit
def _clear(to, at, step, num, size):
    for a in range(num):
        for d in range(size):
            to[at + a * step + d] = F0


@jit
def _hide(scores, at, num):
    """Keys behind a query are not seen: key `a` of a tile by lanes below `a`."""
    for a in range(1, num):
        for i in range(a):
            scores[at + a * TILE + i] = np.float32(-np.inf)


@Loop
def _forward(words):
    """Words: heads, key-value heads, head size; turned, value, its row stride, bounds, trunks, scale, out, log of sums; memory
    of a thread, its size."""
    heads, kv_heads, size = words[3], words[4], words[5]
    turned, value, value_row = floats(words[6]), floats(words[7]), words[8]
    bounds, trunks = integers(words[9]), integers(words[10])
    scale, out, logs = np.float32(number(words[11])), floats(words[12]), floats(words[13])
    memory, query = floats(words[14]), enter(words) * words[15]
    best, early = query + size * TILE, query + (size + 2) * TILE
    total, row, out_row, group = best + TILE, (heads + kv_heads) * size, heads * size, heads // kv_heads
    for piece in pieces(words):
        r, kv = piece // kv_heads, piece % kv_heads
        start, end, before = bounds[r], bounds[r + 1], trunks[2 * r + 1]
        key, val = start * row + (heads + kv) * size, start * value_row + kv * size
        old_key, old_val = trunks[2 * r] * row + (heads + kv) * size, trunks[2 * r] * value_row + kv * size
        scores = early + before * TILE
        for head in range(kv * group, (kv + 1) * group):
            for first in range(0, end - start, TILE):
                num = min(TILE, end - start - first)
                own, to = first + num, (start + first) * out_row + head * size
                to_lanes(memory, query, TILE, turned, (start + first) * row + head * size, row, num, size)
                products(memory, early, turned, old_key, row, memory, query, before, size)
                products(memory, scores, turned, key, row, memory, query, own, size)
                _hide(memory, scores + first * TILE, num)
                top = load(memory, early)
                for j in range(1, before + own):
                    top = larger(top, load(memory, early + j * TILE))
                top, mass = add(fill(F0), -scale, top), fill(F0)
                for j in range(before + own):
                    p = exp(add(top, scale, load(memory, early + j * TILE)))
                    store(memory, early + j * TILE, p)
                    mass = add(mass, F1, p)
                store(memory, best, top)
                store(memory, total, mass)
                _clear(out, to, out_row, num, size)
                weigh(out, to, out_row, num, memory, early, 1, TILE, value, old_val, value_row, before, size)
                weigh(out, to, out_row, num, memory, scores, 1, TILE, value, val, value_row, own, size)
                for i in range(num):
                    share = F1 / memory[total + i]
                    logs[(start + first + i) * heads + head] = np.float32(math.log(memory[total + i])) - memory[best + i]
                    for d in range(size):
                        out[to + i * out_row + d] *= share


@jit
def _soften(memory, scores, dscores, count, log, scale):
    """Scores of a tile become probabilities, the gradients of those become the gradients of scores."""
    less, delta = load(memory, log), fill(F0)
    for j in range(count):
        p = exp(add(less, scale, load(memory, scores + j * TILE)))
        store(memory, scores + j * TILE, p)
        delta = fused(p, load(memory, dscores + j * TILE), delta)
    for j in range(count):
        p = add(fill(F0), scale, load(memory, scores + j * TILE))
        store(memory, dscores + j * TILE, fused(p, add(load(memory, dscores + j * TILE), -F1, delta), fill(F0)))


@Loop
def _backward(words):
    """Words: heads, key-value heads, head size, longest; turned, value, its row stride, bounds, trunks, families, scale, grad,
    log of sums; dturned, dvalue; memory of a thread, its size."""
    heads, kv_heads, size, longest = words[3], words[4], words[5], words[6]
    turned, value, value_row = floats(words[7]), floats(words[8]), words[9]
    bounds, trunks = integers(words[10]), integers(words[11])
    families, scale, grad, logs = integers(words[12]), np.float32(number(words[13])), floats(words[14]), floats(words[15])
    dturned, dvalue, memory, query = floats(words[16]), floats(words[17]), floats(words[18]), enter(words) * words[19]
    given, log = query + size * TILE, query + 2 * size * TILE
    early, dearly = log + TILE, log + (1 + longest) * TILE
    row, out_row, dvalue_row, group = (heads + kv_heads) * size, heads * size, kv_heads * size, heads // kv_heads
    for piece in pieces(words):
        family, kv = piece // kv_heads, piece % kv_heads
        at_key, at_val = (heads + kv) * size, kv * size
        start, end = bounds[families[family]], bounds[families[family + 1]]
        _clear(dturned, start * row + at_key, row, end - start, size)
        _clear(dvalue, start * dvalue_row + at_val, dvalue_row, end - start, size)
        for r in range(families[family], families[family + 1]):
            start, end, old, before = bounds[r], bounds[r + 1], trunks[2 * r], trunks[2 * r + 1]
            key, val, dval = start * row + at_key, start * value_row + at_val, start * dvalue_row + at_val
            old_key, old_val, old_dval = old * row + at_key, old * value_row + at_val, old * dvalue_row + at_val
            scores, dscores = early + before * TILE, dearly + before * TILE
            for head in range(kv * group, (kv + 1) * group):
                for first in range(0, end - start, TILE):
                    num = min(TILE, end - start - first)
                    own, at, to = first + num, (start + first) * row + head * size, (start + first) * out_row + head * size
                    to_lanes(memory, query, TILE, turned, at, row, num, size)
                    to_lanes(memory, given, TILE, grad, to, out_row, num, size)
                    for i in range(TILE):
                        memory[log + i] = -logs[(start + first + i) * heads + head] if i < num else F0
                    products(memory, early, turned, old_key, row, memory, query, before, size)
                    products(memory, scores, turned, key, row, memory, query, own, size)
                    products(memory, dearly, value, old_val, value_row, memory, given, before, size)
                    products(memory, dscores, value, val, value_row, memory, given, own, size)
                    _hide(memory, scores + first * TILE, num)
                    _soften(memory, early, dearly, before + own, log, scale)
                    weigh(dvalue, old_dval, dvalue_row, before, memory, early, TILE, 1, grad, to, out_row, num, size)
                    weigh(dvalue, dval, dvalue_row, own, memory, scores, TILE, 1, grad, to, out_row, num, size)
                    weigh(dturned, old_key, row, before, memory, dearly, TILE, 1, turned, at, row, num, size)
                    weigh(dturned, key, row, own, memory, dscores, TILE, 1, turned, at, row, num, size)
                    _clear(dturned, at, row, num, size)
                    weigh(dturned, at, row, num, memory, dearly, 1, TILE, turned, old_key, row, before, size)
                    weigh(dturned, at, row, num, memory, dscores, 1, TILE, turned, key, row, own, size)


def forward(turned, value, rows, scale):
    """Attention `[N, H * D]`, and the log of each query's sum of exponentials `[N, H]`."""
    (tokens, kv_heads, size), heads = value.shape, turned.shape[1] - value.shape[1]
    out, logs = turned.new_empty((tokens, heads * size)), turned.new_empty((tokens, heads))
    own = (size + 2 + rows.longest) * TILE
    memory = turned.new_empty(own * torch.get_num_threads())
    given = (turned, value, value.stride(0), rows.bounds.long(), rows.trunks, scale, out, logs, memory, own)
    _forward(len(rows.lengths) * kv_heads, heads, kv_heads, size, *given)
    return out, logs


def backward(grad, turned, value, rows, scale, logs):
    """Gradients of queries and keys `[N, H + K, D]` and of values `[N, K, D]`."""
    (_, kv_heads, size), heads = value.shape, turned.shape[1] - value.shape[1]
    dturned, dvalue = torch.empty_like(turned), turned.new_empty(value.shape)
    own = (2 * size + 1 + 2 * rows.longest) * TILE
    memory = turned.new_empty(own * torch.get_num_threads())
    where = (rows.bounds.long(), rows.trunks, rows.family_bounds)
    given = (turned, value, value.stride(0), *where, scale, grad, logs, dturned, dvalue, memory, own)
    _backward(len(rows.families) * kv_heads, heads, kv_heads, size, rows.longest, *given)
    return dturned, dvalue
