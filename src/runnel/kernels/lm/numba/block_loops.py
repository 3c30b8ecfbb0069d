# mypy: ignore-errors
"""What `triton/block_kernels.py` does on CUDA, as compiled loops for float32 on the CPU: one pass over memory each."""

from __future__ import annotations

import math

import numpy as np
import torch

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths
from runnel.kernels.lm.numba.loop_maths import exp, floats, number, pieces
from runnel.kernels.lm.numba.loops import Loop

forget_older(__file__, loop_maths.__file__)

SUM_ROWS = 64
"""Rows whose gradients of a norm's weight are summed together: a number of its own, so that threads do not change a sum."""


# ------------------------------------------------------------------------------------------------------- normalisation
@Loop
def _rms_forward(words):
    """Words: rows, rows of a piece, width, x, delta (0: none), total, weight, out, inverse, eps."""
    rows, size, width = words[3], words[4], words[5]
    x, delta, total, weight = floats(words[6]), floats(words[7]), floats(words[8]), floats(words[9])
    out, inverse, eps = floats(words[10]), floats(words[11]), number(words[12])
    adds = words[7] != 0
    for piece in pieces(words):
        for row in range(piece * size, min(rows, (piece + 1) * size)):
            at, square = row * width, np.float32(0.0)
            if adds:
                for j in range(width):
                    s = x[at + j] + delta[at + j]
                    total[at + j] = s
                    square += s * s
            else:
                for j in range(width):
                    square += x[at + j] * x[at + j]
            scale = np.float32(1.0 / math.sqrt(square / width + eps))
            inverse[row] = scale
            source = total if adds else x
            for j in range(width):
                out[at + j] = source[at + j] * scale * weight[j]


def rms_forward(x, add, weight, eps):
    """`add` is (delta, where the sum goes) or None. Returns the normalised rows and the inverse of each row's size."""
    x, width = x.contiguous(), x.shape[-1]
    rows = x.numel() // width if width else 0
    out, inverse = torch.empty_like(x), x.new_empty((*x.shape[:-1], 1))
    delta, total = (0, 0) if add is None else (add[0].contiguous(), add[1])
    _rms_forward.by_rows(rows, width, width, x, delta, total, weight, out, inverse, eps)
    return out, inverse


@Loop
def _rms_backward(words):
    """Words: rows, rows of a piece, width, grad, dtotal (0: none), x, weight, inverse, dx, dweight of each piece."""
    rows, size, width = words[3], words[4], words[5]
    grad, dtotal, x, weight = floats(words[6]), floats(words[7]), floats(words[8]), floats(words[9])
    inverse, dx, dweight = floats(words[10]), floats(words[11]), floats(words[12])
    adds = words[7] != 0
    for piece in pieces(words):
        total = piece * width
        for j in range(width):
            dweight[total + j] = np.float32(0.0)
        for row in range(piece * size, min(rows, (piece + 1) * size)):
            at, scale, mean = row * width, inverse[row], np.float32(0.0)
            for j in range(width):
                part = grad[at + j] * x[at + j] * scale
                dweight[total + j] += part
                mean += part * weight[j]
            mean = mean / np.float32(width) * scale
            if adds:
                for j in range(width):
                    dx[at + j] = (grad[at + j] * weight[j] - x[at + j] * mean) * scale + dtotal[at + j]
            else:
                for j in range(width):
                    dx[at + j] = (grad[at + j] * weight[j] - x[at + j] * mean) * scale


def rms_backward(grad, dtotal, x, weight, inverse):
    """Gradients of the rows and of the weight."""
    grad, width = grad.contiguous(), grad.shape[-1]
    rows = grad.numel() // width if width else 0
    pieces = -(-rows // SUM_ROWS)
    dx, dweight = torch.empty_like(grad), grad.new_empty((pieces, width))
    dtotal = 0 if dtotal is None else dtotal.contiguous()
    _rms_backward(pieces, rows, SUM_ROWS, width, grad, dtotal, x.contiguous(), weight, inverse, dx, dweight)
    return dx, dweight.sum(dim=0)


# ----------------------------------------------------------------------------------------------------------- positions
@Loop
def _rotate(words):
    """Words: rows, rows of a piece, heads, half a head, x, its row stride, cos, sin, out, its row stride, sign."""
    rows, size, heads, half = words[3], words[4], words[5], words[6]
    x, x_row, cos, sin = floats(words[7]), words[8], floats(words[9]), floats(words[10])
    out, out_row, sign = floats(words[11]), words[12], np.float32(words[13])
    for piece in pieces(words):
        for row in range(piece * size, min(rows, (piece + 1) * size)):
            angle = row * half
            for head in range(heads):
                a, to = row * x_row + head * 2 * half, row * out_row + head * 2 * half
                for j in range(half):
                    c, s = cos[angle + j], sin[angle + j] * sign
                    first, second = x[a + j], x[a + half + j]
                    out[to + j] = first * c - second * s
                    out[to + half + j] = second * c + first * s


def rotate(x, cos, sin, out, *, back):
    """`x [N, H, D]` turned by its positions, or back, into `out`. Heads lie side by side; rows may lie apart."""
    x = x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
    rows, heads, width = x.shape
    given = (x, x.stride(0), cos.contiguous(), sin.contiguous(), out, out.stride(0), -1 if back else 1)
    _rotate.by_rows(rows, heads * width, heads, width // 2, *given)


# --------------------------------------------------------------------------------------------------------- gated units
@Loop
def _swiglu_forward(words):
    """Words: rows, rows of a piece, inner width, x, out."""
    rows, size, width = words[3], words[4], words[5]
    x, out = floats(words[6]), floats(words[7])
    for piece in pieces(words):
        for row in range(piece * size, min(rows, (piece + 1) * size)):
            gate, to = row * 2 * width, row * width
            for j in range(width):
                g = x[gate + j]
                out[to + j] = g / (np.float32(1.0) + exp(-g)) * x[gate + width + j]


def swiglu_forward(x):
    """`silu(gate) * up`."""
    x, width = x.contiguous(), x.shape[-1] // 2
    out = x.new_empty((*x.shape[:-1], width))
    _swiglu_forward.by_rows(x.shape[0], 2 * width, width, x, out)
    return out


@Loop
def _swiglu_backward(words):
    """Words: rows, rows of a piece, inner width, grad, x, dx, out."""
    rows, size, width = words[3], words[4], words[5]
    grad, x, dx, out = floats(words[6]), floats(words[7]), floats(words[8]), floats(words[9])
    for piece in pieces(words):
        for row in range(piece * size, min(rows, (piece + 1) * size)):
            gate, at = row * 2 * width, row * width
            for j in range(width):
                g, up, d = x[gate + j], x[gate + width + j], grad[at + j]
                share = np.float32(1.0) / (np.float32(1.0) + exp(-g))
                active = g * share
                dx[gate + j] = d * up * share * (np.float32(1.0) + g - active)
                dx[gate + width + j] = d * active
                out[at + j] = active * up


def swiglu_backward(grad, x):
    """The gradient of gate and up, and `silu(gate) * up` once more."""
    grad, x = grad.contiguous(), x.contiguous()
    rows, width = grad.shape
    dx, out = torch.empty_like(x), torch.empty_like(grad)
    _swiglu_backward.by_rows(rows, 2 * width, width, grad, x, dx, out)
    return dx, out
