# mypy: ignore-errors
"""Products of small matrices for compiled loops, on tiles whose rows are vectors (`LANES` numbers side by side)."""

from __future__ import annotations

import numpy as np

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths
from runnel.kernels.lm.numba.loop_maths import LANES, add, fill, jit, load, store

forget_older(__file__, loop_maths.__file__)

F0 = np.float32(0.0)


@jit
def products(to, at, coef, first, step, source, start, num, size):
    """`to[a, i] = sum_d coef[a, d] source[d, i]` over the lanes `i`, for `num` rows `a` that lie `step` apart."""
    for a in range(0, num - num % 8, 8):
        c0 = first + a * step
        c1, c2, c3, c4 = c0 + step, c0 + 2 * step, c0 + 3 * step, c0 + 4 * step
        c5, c6, c7 = c0 + 5 * step, c0 + 6 * step, c0 + 7 * step
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = fill(F0)
        for d in range(size):
            x = load(source, start + d * LANES)
            s0, s1 = add(s0, coef[c0 + d], x), add(s1, coef[c1 + d], x)
            s2, s3 = add(s2, coef[c2 + d], x), add(s3, coef[c3 + d], x)
            s4, s5 = add(s4, coef[c4 + d], x), add(s5, coef[c5 + d], x)
            s6, s7 = add(s6, coef[c6 + d], x), add(s7, coef[c7 + d], x)
        line = at + a * LANES
        store(to, line, s0)
        store(to, line + LANES, s1)
        store(to, line + 2 * LANES, s2)
        store(to, line + 3 * LANES, s3)
        store(to, line + 4 * LANES, s4)
        store(to, line + 5 * LANES, s5)
        store(to, line + 6 * LANES, s6)
        store(to, line + 7 * LANES, s7)
    for a in range(num - num % 8, num):
        s0 = fill(F0)
        for d in range(size):
            s0 = add(s0, coef[first + a * step + d], load(source, start + d * LANES))
        store(to, at + a * LANES, s0)


@jit
def weigh(to, at, step, num, weight, start, step_a, step_b, source, first, step_s, count, size):
    """`to[a, d] += sum_b weight[a, b] source[b, d]` for `num` rows `a` and `count` rows `b`."""
    for d in range(0, size - size % LANES, LANES):
        for a in range(0, num - num % 4, 4):
            w0, line = start + a * step_a, at + a * step + d
            w1, w2, w3 = w0 + step_a, w0 + 2 * step_a, w0 + 3 * step_a
            s0, s1 = load(to, line), load(to, line + step)
            s2, s3 = load(to, line + 2 * step), load(to, line + 3 * step)
            for b in range(count):
                x, k = load(source, first + b * step_s + d), b * step_b
                s0, s1 = add(s0, weight[w0 + k], x), add(s1, weight[w1 + k], x)
                s2, s3 = add(s2, weight[w2 + k], x), add(s3, weight[w3 + k], x)
            store(to, line, s0)
            store(to, line + step, s1)
            store(to, line + 2 * step, s2)
            store(to, line + 3 * step, s3)
        for a in range(num - num % 4, num):
            s0 = load(to, at + a * step + d)
            for b in range(count):
                s0 = add(s0, weight[start + a * step_a + b * step_b], load(source, first + b * step_s + d))
            store(to, at + a * step + d, s0)
    for a in range(num):
        for b in range(count):
            w = weight[start + a * step_a + b * step_b]
            for d in range(size - size % LANES, size):
                to[at + a * step + d] += w * source[first + b * step_s + d]


@jit
def wide_products(to, at, coef, source, start, num, size):
    """`products` over lines of two vectors: every coefficient is read once for `2 LANES` lanes. Rows lie side by side."""
    for a in range(0, num - num % 4, 4):
        c0 = a * size
        c1, c2, c3 = c0 + size, c0 + 2 * size, c0 + 3 * size
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = fill(F0)
        for d in range(size):
            x, y = load(source, start + 2 * d * LANES), load(source, start + (2 * d + 1) * LANES)
            s0, t0 = add(s0, coef[c0 + d], x), add(t0, coef[c0 + d], y)
            s1, t1 = add(s1, coef[c1 + d], x), add(t1, coef[c1 + d], y)
            s2, t2 = add(s2, coef[c2 + d], x), add(t2, coef[c2 + d], y)
            s3, t3 = add(s3, coef[c3 + d], x), add(t3, coef[c3 + d], y)
        line = at + 2 * a * LANES
        store(to, line, s0)
        store(to, line + LANES, t0)
        store(to, line + 2 * LANES, s1)
        store(to, line + 3 * LANES, t1)
        store(to, line + 4 * LANES, s2)
        store(to, line + 5 * LANES, t2)
        store(to, line + 6 * LANES, s3)
        store(to, line + 7 * LANES, t3)
    for a in range(num - num % 4, num):
        s0 = t0 = fill(F0)
        for d in range(size):
            s0 = add(s0, coef[a * size + d], load(source, start + 2 * d * LANES))
            t0 = add(t0, coef[a * size + d], load(source, start + (2 * d + 1) * LANES))
        store(to, at + 2 * a * LANES, s0)
        store(to, at + (2 * a + 1) * LANES, t0)


@jit
def to_lanes(to, at, line, source, first, step, num, size):
    """Rows `source[i, d]`, `num` of them, as lanes `to[d, i]` of lines of `line` numbers; the other lanes are 0."""
    for i in range(line):
        for d in range(size):
            to[at + d * line + i] = source[first + i * step + d] if i < num else F0


@jit
def to_rows(to, at, step, source, first, line, num, size):
    """Lanes `source[d, i]` as rows `to[i, d]`, `num` of them."""
    for i in range(num):
        for d in range(size):
            to[at + i * step + d] = source[first + d * line + i]
