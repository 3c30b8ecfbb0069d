# mypy: ignore-errors
"""Compiled acting, one row at a time: for few rows, and inside compiled environments.

Parameters of actor and critic lie in one vector: log_std [A] (continuous actions), w1 [2, I, H1], w2 [2, H1, H2], the actor's
head [H2, A], the critic's [H2, 1], then the biases in the same order; index 0 of 2 is the actor.
"""

from __future__ import annotations

import math

import numpy as np

from runnel.kernels.jit import njit

LOWEST = np.float32(np.finfo(np.float32).min)
HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2.0 * math.pi))
BELOW_ONE = np.float32(1.0 - 2.0**-24)
_FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


def jit(function, inline="never"):
    """Compile a function.

    The compiler may reorder sums, which allows vector instructions. NaN and infinity stay exact, so that a run that diverges is
    noticed.
    """
    return njit(function, cache=True, fastmath=_FASTMATH, error_model="numpy", nogil=True, inline=inline)


def jit_inline(function):
    """`jit`, with the code of the function inlined into its callers."""
    return jit(function, inline="always")


@jit_inline
def tanh(x):
    """A rational approximation that compiles to vector instructions; within 4e-7 of the true value."""
    x = min(max(x, np.float32(-7.905311)), np.float32(7.905311))  # beyond, tanh is within 3e-7 of 1
    s = x * x
    p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
    p = p * s + np.float32(-8.60467152213735e-11)
    p = p * s + np.float32(5.12229709037114e-08)
    p = p * s + np.float32(1.48572235717979e-05)
    p = p * s + np.float32(6.37261928875436e-04)
    p = p * s + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
    q = q * s + np.float32(2.26843463243900e-03)
    q = q * s + np.float32(4.89352518554385e-03)
    return x * p / q


@jit
def split(vector, sizes):
    """Views of the parameters in one vector; `sizes` are I, H1, H2, A, and whether there is a log_std."""
    ni, h1, h2, a, gauss = sizes
    at = a if gauss else 0
    log_std = vector[:at]
    w1 = vector[at : at + 2 * ni * h1].reshape(2, ni, h1)
    at += 2 * ni * h1
    w2 = vector[at : at + 2 * h1 * h2].reshape(2, h1, h2)
    at += 2 * h1 * h2
    wa = vector[at : at + h2 * a].reshape(h2, a)
    at += h2 * a
    wc = vector[at : at + h2]
    at += h2
    b1 = vector[at : at + 2 * h1].reshape(2, h1)
    at += 2 * h1
    b2 = vector[at : at + 2 * h2].reshape(2, h2)
    at += 2 * h2
    return log_std, w1, w2, wa, wc, b1, b2, vector[at : at + a], vector[at + a : at + a + 1]


@jit
def _affine(x, weight, bias, out):
    """`x W + b` of one row. `[I], [I, O], [O] -> [O]`"""
    for j in range(out.shape[0]):
        out[j] = bias[j]
    for i in range(x.shape[0]):
        xi = x[i]
        for j in range(out.shape[0]):
            out[j] += xi * weight[i, j]


@jit
def _bend(h, relu):
    for j in range(h.shape[0]):
        h[j] = max(h[j], np.float32(0.0)) if relu else tanh(h[j])


@jit
def score_row(x, w1, w2, w3, b1, b2, b3, h1, h2, scores, relu):
    """The output of one row through two hidden layers, kept in `h1` and `h2`. `[I] -> [A]`"""
    _affine(x, w1, b1, h1)
    _bend(h1, relu)
    _affine(h1, w2, b2, h2)
    _bend(h2, relu)
    _affine(h2, w3, b3, scores)


@jit
def pick(scores, noise):
    """The action at `noise` in (0, 1) by the inverse of the cumulative distribution, and its log-probability. `[A]`"""
    top = scores[0]
    for k in range(1, scores.shape[0]):
        top = max(top, scores[k])
    total = np.float32(0.0)
    for k in range(scores.shape[0]):  # minus the largest: `exp` of a score alone may overflow
        total += np.exp(scores[k] - top)
    goal = min(noise, BELOW_ONE) * total
    at, reached = 0, np.exp(scores[0] - top)
    while reached <= goal and at < scores.shape[0] - 1:
        at += 1
        reached += np.exp(scores[at] - top)
    while scores[at] == LOWEST:  # rounding may lead to the end of the row, where an action may be forbidden
        at -= 1
    return at, scores[at] - top - np.log(total)
