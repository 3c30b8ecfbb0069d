# mypy: ignore-errors
"""What `triton/sampling_kernels.py` and `triton/logprob_kernels.py` do on CUDA, as compiled loops for float32 on the CPU."""

from __future__ import annotations

import math

import numpy as np
import torch

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import loop_maths
from runnel.kernels.lm.numba.loop_maths import doubles, exp, floats, integers, jit, number, pieces
from runnel.kernels.lm.numba.loops import Loop

forget_older(__file__, loop_maths.__file__)

BLOCK = 256
LARGEST = np.float32(np.finfo(np.float32).max)


# ------------------------------------------------------------------------------------------------------------- drawing
@jit
def _choose(logits, at, size, heat, uniform, shares, sums, block_at, blocks):
    """A token of the row at `logits[at]` and its log-probability (NaN: the logits are broken). Exponentials go to `shares`,
    their sums over blocks to `sums`."""
    sane, top, best = True, np.float32(-np.inf), 0
    for j in range(size):
        x = logits[at + j]
        top = max(top, x)
        sane &= x <= LARGEST
    if not sane or top < -LARGEST:
        return 0, np.float32(np.nan)
    warm = heat > np.float32(0.0)
    by = heat if warm else np.float32(1.0)
    total = 0.0
    for block in range(blocks):
        part = 0.0
        for j in range(at + block * BLOCK, at + min(size, (block + 1) * BLOCK)):
            share = exp((logits[j] - top) / by)
            shares[j] = share
            part += share
        sums[block_at + block] = part
        total += part
    if warm:
        goal, block = uniform * total, 0
        while block < blocks - 1 and goal >= sums[block_at + block]:
            goal -= sums[block_at + block]
            block += 1
        best, last = block * BLOCK, min(size, (block + 1) * BLOCK) - 1
        reached = np.float64(shares[at + best])
        while reached <= goal and best < last:
            best += 1
            reached += shares[at + best]
        while shares[at + best] == np.float32(0.0):  # rounding may lead behind the end: never to a token of probability 0
            best -= 1
    else:
        while logits[at + best] < top:
            best += 1
    return best, np.float32((logits[at + best] - top) / by - math.log(total))


@jit
def _append(row, new, logprob, numbers, every, stops, num_stops, to_tokens, to_logprobs, columns):
    """Append token `new` to row `row`, which is active. The place where it went."""
    made, left = numbers[2 * every + row], numbers[3 * every + row]
    at = row * columns + min(made, columns - 1)
    to_tokens[at], to_logprobs[at] = new, logprob
    going = left > 1
    for k in range(num_stops):
        going &= stops[row * num_stops + k] != new
    numbers[row] = new
    numbers[every + row] += 1
    numbers[2 * every + row], numbers[3 * every + row] = made + 1, left - 1
    if not going:
        numbers[4 * every + row] = 0
    if not abs(logprob) <= LARGEST:
        numbers[5 * every + row] = 0
    return at


@Loop
def _record(words):
    """Words: count, rows, token, logprob, drawn (0: none); numbers of all rows, how many rows there are; stops, how many a
    row; tokens, logprobs, drawn, how many columns. One piece."""
    count, rows, token, logprob, drawn = words[3], integers(words[4]), integers(words[5]), floats(words[6]), floats(words[7])
    numbers, every, stops, num_stops = integers(words[8]), words[9], integers(words[10]), words[11]
    to_tokens, to_logprobs, to_drawn, columns = integers(words[12]), floats(words[13]), floats(words[14]), words[15]
    for i in range(count):
        row = rows[i]
        if numbers[4 * every + row] != 0:
            at = _append(row, token[i], logprob[i], numbers, every, stops, num_stops, to_tokens, to_logprobs, columns)
            if words[7] != 0:
                to_drawn[at] = drawn[i]


def record(rows, token, logprob, drawn, numbers, stops, made):
    """Append a token to each of `rows` that is active, and end those that are through: `Rows.record` of an engine.

    `numbers [7, R]` are last, position, count, left, active, sane, top_k; `made` is where tokens, log-probabilities and those
    of what was drawn from go `[R, T]`.
    """
    given = (rows.contiguous(), token.contiguous(), logprob.contiguous(), 0 if drawn is None else drawn.contiguous())
    _record(1, len(rows), *given, numbers, numbers.shape[1], stops, stops.shape[1], *made, made[0].shape[1])


@Loop
def _advance(words):
    """Words: rows, vocabulary, blocks, logits, exponentials, sums of blocks; heat and uniform numbers of all rows; numbers of
    all rows, how many rows there are; stops, how many a row; tokens, logprobs, how many columns. A piece is a row."""
    rows, size, blocks, logits = integers(words[3]), words[4], words[5], floats(words[6])
    shares, sums, heat, uniform = floats(words[7]), doubles(words[8]), floats(words[9]), doubles(words[10])
    numbers, every, stops, num_stops = integers(words[11]), words[12], integers(words[13]), words[14]
    to_tokens, to_logprobs, columns = integers(words[15]), floats(words[16]), words[17]
    for i in pieces(words):
        row = rows[i]
        if numbers[4 * every + row] != 0:
            u = uniform[row * columns + min(numbers[2 * every + row], columns - 1)]
            new, logprob = _choose(logits, i * size, size, heat[row], u, shares, sums, i * blocks, blocks)
            _append(row, new, logprob, numbers, every, stops, num_stops, to_tokens, to_logprobs, columns)


def advance(rows, logits, heat, uniforms, numbers, stops, made):
    """Draw a token, as `logprobs.draw` does, for each of `rows` that is active, and `record` it. `heat [R]` and
    `uniforms [R, T]` are those of all rows; `numbers` and `stops` as in `record`, `made` is where tokens and log-probabilities
    go `[R, T]`."""
    logits = logits.contiguous()
    count, size = logits.shape
    blocks = -(-size // BLOCK)
    shares, sums = torch.empty_like(logits), torch.empty((count, blocks), dtype=torch.float64)
    given = (rows.contiguous(), size, blocks, logits, shares, sums, heat, uniforms)
    _advance(count, *given, numbers, numbers.shape[1], stops, stops.shape[1], *made, made[0].shape[1])


# --------------------------------------------------------------------------------------------------- log-probabilities
@Loop
def _summarise(words):
    """Words: rows, rows of a piece, vocabulary, logits, targets, temperature; logprob, entropy, total."""
    rows, rows_of, size, logits, targets = words[3], words[4], words[5], floats(words[6]), integers(words[7])
    heat, logprob, entropy, total = number(words[8]), floats(words[9]), floats(words[10]), floats(words[11])
    by = np.float32(1.0 / heat)
    for piece in pieces(words):
        for row in range(piece * rows_of, min(rows, (piece + 1) * rows_of)):
            at, top = row * size, np.float32(-np.inf)
            broken = np.float32(0.0)
            for j in range(size):
                x = logits[at + j]
                top = max(top, x)
                broken += np.float32(0.0) if x <= LARGEST else np.float32(1.0)
            mass, weighted = np.float32(0.0), np.float32(0.0)
            for j in range(size):
                z = max((logits[at + j] - top) * by, -LARGEST)
                share = exp(z)
                mass += share
                weighted += share * z
            log_mass = math.log(np.float64(mass))
            if broken > np.float32(0.0) or top < -LARGEST:
                log_mass = np.nan
            total[row] = np.float32(top / heat + log_mass)
            logprob[row] = np.float32((logits[at + targets[row]] - top) / heat - log_mass)
            entropy[row] = np.float32(log_mass - np.float64(weighted) / mass)


def summarise(logits, targets, temperature):
    """Log-probability, entropy, and the log of the sum of exponentials. `[C, V], [C] -> 3 x [C]`"""
    rows, size = logits.shape
    out = logits.new_empty((3, rows))
    _summarise.by_rows(rows, size, size, logits, targets.contiguous(), float(temperature), *out.unbind(0))
    return tuple(out.unbind(0))


@Loop
def _differentiate(words):
    """Words: rows, rows of a piece, vocabulary, logits, targets, temperature; dlogprob, dentropy, entropy, total; out."""
    rows, rows_of, size, logits, targets = words[3], words[4], words[5], floats(words[6]), integers(words[7])
    heat, dlogprob, dentropy = number(words[8]), floats(words[9]), floats(words[10])
    entropy, total, out = floats(words[11]), floats(words[12]), floats(words[13])
    by = np.float32(1.0 / heat)
    for piece in pieces(words):
        for row in range(piece * rows_of, min(rows, (piece + 1) * rows_of)):
            at, gp, ge, h, whole = row * size, dlogprob[row], dentropy[row], entropy[row], total[row]
            for j in range(size):
                logp = max(logits[at + j] * by - whole, -LARGEST)
                out[at + j] = exp(logp) * (-gp - ge * (logp + h)) * by
            out[at + targets[row]] += gp * by


def differentiate(logits, targets, grads, temperature):
    """The gradient of the logits. `[C, V]`"""
    rows, size = logits.shape
    out, grads = torch.empty_like(logits), [g.float().contiguous() for g in grads]
    _differentiate.by_rows(rows, size, size, logits, targets.contiguous(), float(temperature), *grads, out)
    return out
