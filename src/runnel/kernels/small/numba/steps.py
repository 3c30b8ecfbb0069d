# mypy: ignore-errors
"""The kernels of `ppo.py` and `dqn.py`: networks of two hidden layers, their losses and Adam, compiled by Numba.

Parameters lie in one vector in the order of `parameters()` (`rows.py` has the layout of an actor and a critic). The formulas
are those of `losses/` and `nets/optim.py`; the tests compare both. BLAS computes the products of matrices, and one loop
computes everything between two products.
"""

from __future__ import annotations

import math

import numpy as np

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths
from runnel.kernels.lm.numba.loop_maths import exp
from runnel.kernels.small.numba import rows
from runnel.kernels.small.numba.rows import BELOW_ONE, HALF_LOG_TWO_PI, LOWEST, jit, jit_inline, pick, score_row, split, tanh

forget_older(__file__, rows.__file__, loop_maths.__file__)


@jit
def _activate(h, bias, relu):
    """Bias and nonlinearity, in place. `[N, H], [H]`"""
    for n in range(h.shape[0]):
        row = h[n]
        if relu:
            for j in range(h.shape[1]):
                row[j] = max(row[j] + bias[j], np.float32(0.0))
        else:
            for j in range(h.shape[1]):
                row[j] = tanh(row[j] + bias[j])


@jit
def _through(grad, h, to_bias, relu):
    """A gradient through the nonlinearity that gave `h`, in place, and its sum over the rows. `[N, H], [N, H], [H]`"""
    # tanh'(x) = 1 - tanh(x)^2 and relu'(x) need only the output `h`, so the input need not be kept
    to_bias[:] = 0.0
    for n in range(h.shape[0]):
        g, a = grad[n], h[n]
        if relu:
            for j in range(h.shape[1]):
                g[j] = g[j] if a[j] > np.float32(0.0) else np.float32(0.0)
                to_bias[j] += g[j]
        else:
            for j in range(h.shape[1]):
                g[j] *= np.float32(1.0) - a[j] * a[j]
                to_bias[j] += g[j]


@jit
def values(vector, sizes, relu, x, memory, out):
    """The critic, in chunks of as many rows as `memory` has. `[N, I] -> [N]`"""
    _, w1, w2, _, wc, b1, b2, _, bc = split(vector, sizes)
    size = memory[0].shape[0]
    for first in range(0, x.shape[0], size):
        rows = x[first : first + size]
        h1, h2 = memory[1][1][: rows.shape[0]], memory[2][1][: rows.shape[0]]
        np.dot(rows, w1[1], h1)
        _activate(h1, b1[1], relu)
        np.dot(h1, w2[1], h2)
        _activate(h2, b2[1], relu)
        np.dot(h2, wc, out[first : first + size])
    out += bc[0]


@jit_inline
def _draw(n, log_std, scores, noise, mask, action, moves, logprob):
    """What row n does by its scores `[A]`, which are written over, and its noise."""
    if log_std.shape[0] > 0:
        found = np.float32(0.0)
        for k in range(scores.shape[0]):
            z = noise[n, k]
            moves[n, k] = scores[k] + np.exp(log_std[k]) * z
            found -= np.float32(0.5) * z * z + log_std[k] + HALF_LOG_TWO_PI
        logprob[n] = found
        return
    if mask.shape[0] > 0:
        for k in range(scores.shape[0]):
            if not mask[n, k]:
                scores[k] = LOWEST
    action[n], logprob[n] = pick(scores, noise[n, 0])


@jit
def act(vector, sizes, relu, x, noise, mask, action, moves, logprob, h1, h2, scores):
    """Actions and log-probabilities of rows `[B, I]`: `action` `[B]` by uniform noise, or `moves` `[B, A]` by normal noise."""
    log_std, w1, w2, wa, _, b1, b2, ba, _ = split(vector, sizes)
    for n in range(x.shape[0]):
        score_row(x[n], w1[0], w2[0], wa, b1[0], b2[0], ba, h1, h2, scores, relu)
        _draw(n, log_std, scores, noise, mask, action, moves, logprob)


@jit
def act_in_chunks(vector, sizes, relu, x, noise, mask, action, moves, logprob, memory):
    """`act` for many rows, by products of as many of them as `memory` has."""
    log_std, w1, w2, wa, _, b1, b2, ba, _ = split(vector, sizes)
    size = memory[0].shape[0]
    for first in range(0, x.shape[0], size):
        rows = x[first : first + size]
        h1, h2, scores = memory[1][0][: rows.shape[0]], memory[2][0][: rows.shape[0]], memory[5][: rows.shape[0]]
        np.dot(rows, w1[0], h1)
        _activate(h1, b1[0], relu)
        np.dot(h1, w2[0], h2)
        _activate(h2, b2[0], relu)
        np.dot(h2, wa, scores)
        scores += ba
        if log_std.shape[0] == 0:
            _pick_rows(first, scores, memory[7][: rows.shape[0]], noise, mask, action, logprob)
            continue
        for i in range(rows.shape[0]):
            _draw(first + i, log_std, scores[i], noise, mask, action, moves, logprob)


@jit
def _pick_rows(first, scores, weights, noise, mask, action, logprob):
    """`pick` for the rows `[n, A]` from `first` on. All exponentials are one loop, which compiles to vector instructions."""
    for i in range(scores.shape[0]):
        if mask.shape[0] > 0:
            for k in range(scores.shape[1]):
                if not mask[first + i, k]:
                    scores[i, k] = LOWEST
        top = scores[i, 0]
        for k in range(1, scores.shape[1]):
            top = max(top, scores[i, k])
        for k in range(scores.shape[1]):
            scores[i, k] -= top
    flat, into = scores.reshape(-1), weights.reshape(-1)
    for k in range(flat.shape[0]):
        into[k] = exp(flat[k])
    for i in range(scores.shape[0]):
        total = np.float32(0.0)
        for k in range(scores.shape[1]):
            total += weights[i, k]
        goal = min(noise[first + i, 0], BELOW_ONE) * total
        at, reached = 0, weights[i, 0]
        while reached <= goal and at < scores.shape[1] - 1:
            at += 1
            reached += weights[i, at]
        while weights[i, at] == np.float32(0.0):  # rounding may lead to the end of the row, where an action may be forbidden
            at -= 1
        action[first + i], logprob[first + i] = at, scores[i, at] - np.log(total)


@jit
def _losses(scores, value, to_scores, to_value, to_log_std, log_std, rows, count, coefs, numbers):
    """Gradients of the loss over `count` rows in scores `[n, A]`, values `[n]` and log_std; sums of metrics go to `numbers`."""
    action, moves, mask, logprob, advantage, target, behaviour = rows
    clip, dual_clip, value_clip, value_coef, entropy_coef = coefs
    n, a = scores.shape
    scale = np.float32(1.0) / np.float32(count)
    gauss = log_std.shape[0] > 0
    spread = np.float32(0.0)
    for k in range(log_std.shape[0]):
        spread += log_std[k] + HALF_LOG_TWO_PI
    to_log_std[:] = 0.0
    for i in range(n):
        if gauss:
            found = -spread
            for k in range(a):
                z = (moves[i, k] - scores[i, k]) * np.exp(-log_std[k])
                to_scores[i, k] = z  # kept here until the gradient needs it
                found -= np.float32(0.5) * z * z
            entropy = spread + np.float32(0.5) * np.float32(a)
        else:
            if mask.shape[0] > 0:
                for k in range(a):
                    if not mask[i, k]:
                        scores[i, k] = LOWEST
            top = scores[i, 0]
            for k in range(1, a):
                top = max(top, scores[i, k])
            # to_scores keeps `exp(score - top)` until the gradient needs it
            total, mean = np.float32(0.0), np.float32(0.0)
            for k in range(a):
                e = np.exp(scores[i, k] - top)
                to_scores[i, k] = e
                total += e
                mean += e * (scores[i, k] - top)
            log_total = np.log(total)
            entropy = log_total - mean / total
            found = scores[i, action[i]] - top - log_total
        log_ratio = found - logprob[i]
        ratio = np.exp(log_ratio)
        near = min(max(ratio, np.float32(1.0) - clip), np.float32(1.0) + clip)
        gain, held = ratio * advantage[i], near * advantage[i]
        earned, earns = (gain, True) if gain <= held else (held, False)
        if dual_clip > 0.0 and advantage[i] < 0.0 and earned < dual_clip * advantage[i]:
            earned, earns = dual_clip * advantage[i], False
        slope = -scale * gain if earns else np.float32(0.0)
        if gauss:
            for k in range(a):
                z = to_scores[i, k]
                to_log_std[k] += slope * (z * z - np.float32(1.0)) - entropy_coef * scale
                to_scores[i, k] = slope * z * np.exp(-log_std[k])
        else:
            for k in range(a):
                p = to_scores[i, k] / total
                logp = scores[i, k] - top - log_total
                to_scores[i, k] = p * (entropy_coef * scale * (logp + entropy) - slope)
            to_scores[i, action[i]] += slope
        error = value[i] - target[i]
        squared, half_slope = error * error, error
        if value_clip > 0.0:
            moved = value[i] - behaviour[i]
            close = behaviour[i] + min(max(moved, -value_clip), value_clip) - target[i]
            if close * close > squared:
                squared, half_slope = close * close, close if abs(moved) < value_clip else np.float32(0.0)
        to_value[i] = value_coef * scale * half_slope
        numbers[1] -= earned * scale
        numbers[2] += np.float32(0.5) * squared * scale
        numbers[3] += entropy * scale
        numbers[4] += (ratio - log_ratio - np.float32(1.0)) * scale
        numbers[5] += scale if ratio != near else np.float32(0.0)
    numbers[0] = numbers[1] + value_coef * numbers[2] - entropy_coef * numbers[3]


@jit
def adam(vector, grad, mean, square, scale, rate, b1, b2, eps, count):
    """One step of Adam along `scale * grad`."""
    c1, c2 = np.float32(1.0 / (1.0 - b1**count)), np.float32(1.0 / math.sqrt(1.0 - b2**count))
    # float32 throughout: one float64 number would make the loop float64, with half as many numbers in a vector register
    f1, f2, lr, e, s = np.float32(b1), np.float32(b2), np.float32(rate), np.float32(eps), np.float32(scale)
    one = np.float32(1.0)
    for i in range(vector.shape[0]):
        g = s * grad[i]
        m = f1 * mean[i] + (one - f1) * g
        v = f2 * square[i] + (one - f2) * g * g
        mean[i], square[i] = m, v
        vector[i] -= lr * c1 * m / (np.sqrt(v) * c2 + e)


@jit
def step(vector, grads, moments, sizes, relu, obs, columns, order, coefs, adam_numbers, memory, parts, numbers):
    """One optimiser step over the rows `order` of the batch: `gradients` of all chunks, and `descend`."""
    gradients(vector, grads, sizes, relu, obs, columns, order, 0, grads.shape[0], coefs, memory, parts)
    descend(vector, grads, moments, adam_numbers, parts, numbers)


@jit
def gradients(vector, grads, sizes, relu, obs, columns, order, first, stop, coefs, memory, parts):
    """The part of the gradient from each chunk c of the rows `order`, into `grads[c]`, for `first` <= c < `stop`.

    Its part of the metrics goes into `parts[c]`. A chunk has as many rows as `memory`; the last one may have fewer.
    """
    size = memory[0].shape[0]
    for c in range(first, stop):
        rows = order[c * size : (c + 1) * size]
        _gradient(vector, grads[c], sizes, relu, obs, columns, rows, order.shape[0], coefs, memory, parts[c])


@jit
def descend(vector, grads, moments, adam_numbers, parts, numbers):
    """Adam along the sum of `grads`, clipped to the largest norm; metrics and norm go into `numbers` `[7]`.

    If the loss is not finite, nothing changes.
    """
    numbers[:] = 0.0
    for c in range(parts.shape[0]):
        for k in range(6):
            numbers[k] += parts[c, k]
    if not np.isfinite(numbers[0]):
        return
    grad = grads[0]
    for c in range(1, grads.shape[0]):
        for i in range(grad.shape[0]):
            grad[i] += grads[c, i]
    numbers[6] = _descend(vector, grad, moments, adam_numbers)


@jit
def _gradient(vector, grad, sizes, relu, obs, columns, order, count, coefs, memory, numbers):
    log_std, w1, w2, wa, wc, b1, b2, ba, bc = split(vector, sizes)
    to_log_std, to_w1, to_w2, to_wa, to_wc, to_b1, to_b2, to_ba, to_bc = split(grad, sizes)
    n = order.shape[0]
    h1 = (memory[1][0][:n], memory[1][1][:n])
    h2 = (memory[2][0][:n], memory[2][1][:n])
    d1 = (memory[3][0][:n], memory[3][1][:n])
    d2 = (memory[4][0][:n], memory[4][1][:n])
    x, scores, value, to_scores, to_value = memory[0][:n], memory[5][:n], memory[6][:n], memory[7][:n], memory[8][:n]
    taken, moves, open_, parts = memory[9][:n], memory[10][:n], memory[11][:n], memory[12]
    action, actions, mask, logprob, advantage, target, behaviour = columns
    for i in range(n):
        k = order[i]
        x[i] = obs[k]
        if log_std.shape[0] > 0:
            moves[i] = actions[k]
        else:
            taken[i] = action[k]
        if mask.shape[0] > 0:
            open_[i] = mask[k]
        parts[0, i], parts[1, i], parts[2, i], parts[3, i] = logprob[k], advantage[k], target[k], behaviour[k]
    for s in range(2):
        np.dot(x, w1[s], h1[s])
        _activate(h1[s], b1[s], relu)
        np.dot(h1[s], w2[s], h2[s])
        _activate(h2[s], b2[s], relu)
    np.dot(h2[0], wa, scores)
    scores += ba
    np.dot(h2[1], wc, value)
    value += bc[0]
    numbers[:] = 0.0
    rows = (taken, moves, open_, parts[0][:n], parts[1][:n], parts[2][:n], parts[3][:n])
    _losses(scores, value, to_scores, to_value, to_log_std, log_std, rows, count, coefs, numbers)
    np.dot(h2[0].T, to_scores, to_wa)
    np.dot(to_value, h2[1], to_wc)
    np.dot(to_scores, wa.T, d2[0])
    to_ba[:] = 0.0
    to_bc[0] = 0.0
    for i in range(n):
        g = to_value[i]
        to_bc[0] += g
        for k in range(to_ba.shape[0]):
            to_ba[k] += to_scores[i, k]
        for j in range(wc.shape[0]):
            d2[1][i, j] = g * wc[j]
    for s in range(2):
        _through(d2[s], h2[s], to_b2[s], relu)
        np.dot(h1[s].T, d2[s], to_w2[s])
        np.dot(d2[s], w2[s].T, d1[s])
        _through(d1[s], h1[s], to_b1[s], relu)
        np.dot(x.T, d1[s], to_w1[s])


@jit
def _descend(vector, grad, moments, adam_numbers):
    """Adam along the gradient, clipped to the largest norm; returns the norm before."""
    norm = np.float32(0.0)
    for i in range(grad.shape[0]):
        norm += grad[i] * grad[i]
    norm = np.sqrt(norm)
    rate, beta1, beta2, eps, count, max_norm = adam_numbers
    adam(vector, grad, moments[0], moments[1], min(1.0, max_norm / (norm + 1e-6)), rate, beta1, beta2, eps, count)
    return norm


# ------------------------------------------------------------------------------------------------------------ Q-learning
@jit
def split_q(vector, sizes):
    """Weights and biases of one network in a vector; `sizes` are I, H1, H2, A."""
    ni, h1, h2, a = sizes
    at = ni * h1
    w1 = vector[:at].reshape(ni, h1)
    w2 = vector[at : at + h1 * h2].reshape(h1, h2)
    at += h1 * h2
    w3 = vector[at : at + h2 * a].reshape(h2, a)
    at += h2 * a
    return w1, w2, w3, vector[at : at + h1], vector[at + h1 : at + h1 + h2], vector[at + h1 + h2 :]


@jit
def best_actions(vector, sizes, relu, x, mask, action, h1, h2, scores):
    """The best action of each row `[B, I]` of those that `mask` allows."""
    w1, w2, w3, b1, b2, b3 = split_q(vector, sizes)
    for n in range(x.shape[0]):
        score_row(x[n], w1, w2, w3, b1, b2, b3, h1, h2, scores, relu)
        action[n] = _best(scores, mask, n)


@jit
def _best(scores, mask, n):
    at = -1
    for k in range(scores.shape[0]):
        if (mask.shape[0] == 0 or mask[n, k]) and (at < 0 or scores[k] > scores[at]):
            at = k
    return at


@jit
def _all_scores(vector, sizes, relu, x, h1, h2, out):
    w1, w2, w3, b1, b2, b3 = split_q(vector, sizes)
    np.dot(x, w1, h1)
    _activate(h1, b1, relu)
    np.dot(h1, w2, h2)
    _activate(h2, b2, relu)
    np.dot(h2, w3, out)
    out += b3


@jit
def q_step(vector, target, grad, moments, sizes, relu, double, delta, columns, adam_numbers, memory, error, numbers):
    """One optimiser step of Q-learning; loss, mean error, mean Q and the gradient's norm go into `numbers` `[4]`.

    If the loss is not finite, nothing changes.
    """
    x, following, action, reward, discount, weight, mask = columns
    h1, h2, d1, d2, scores, after, chooser, to_scores = memory
    n, num_actions = scores.shape
    _all_scores(target, sizes, relu, following, h1, h2, after)
    if double:
        _all_scores(vector, sizes, relu, following, h1, h2, chooser)
    _all_scores(vector, sizes, relu, x, h1, h2, scores)
    numbers[:] = 0.0
    scale = np.float32(1.0) / np.float32(n)
    to_scores[:] = 0.0
    for i in range(n):
        best = _best(chooser[i] if double else after[i], mask, i)
        q = scores[i, action[i]]
        e = q - (reward[i] + discount[i] * after[i, best])
        c = min(max(e, -delta), delta)
        slope = c * weight[i] * scale
        to_scores[i, action[i]] = slope
        error[i] = abs(e)
        numbers[0] += slope * (e - np.float32(0.5) * c)  # Huber's loss, with the error e clipped to c: c e - c^2 / 2
        numbers[1] += error[i] * scale
        numbers[2] += q * scale
    if not np.isfinite(numbers[0]):
        return
    _, w2, w3, _, _, _ = split_q(vector, sizes)
    to_w1, to_w2, to_w3, to_b1, to_b2, to_b3 = split_q(grad, sizes)
    np.dot(h2.T, to_scores, to_w3)
    np.dot(to_scores, w3.T, d2)
    to_b3[:] = 0.0
    for i in range(n):
        for k in range(num_actions):
            to_b3[k] += to_scores[i, k]
    _through(d2, h2, to_b2, relu)
    np.dot(h1.T, d2, to_w2)
    np.dot(d2, w2.T, d1)
    _through(d1, h1, to_b1, relu)
    np.dot(x.T, d1, to_w1)
    numbers[3] = _descend(vector, grad, moments, adam_numbers)
