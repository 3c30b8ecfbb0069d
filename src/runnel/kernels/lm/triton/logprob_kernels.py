# mypy: ignore-errors
"""Triton kernels behind `llm/model/logprobs.py`: one pass over a row of logits, forward and backward."""

import torch

from runnel.kernels.lm.triton import tl, triton

BLOCK = 8192


@triton.jit
def _summarise(LOGITS, TARGETS, LOGPROB, ENTROPY, TOTAL, size, scale, BLOCK: tl.constexpr):
    """Of one row, in one reading: largest scaled logit, sum of exponentials, and their mean logit."""
    row = tl.program_id(0).to(tl.int64)
    peak, total, mean = -float("inf"), 0.0, 0.0
    for start in range(0, size, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        z = tl.load(LOGITS + row * size + cols, mask=cols < size, other=-float("inf")) * scale
        high = tl.maximum(peak, tl.max(z, 0))
        p = tl.exp(z - high)
        shrink = tl.exp(peak - high)
        total = total * shrink + tl.sum(p, 0)
        mean = mean * shrink + tl.sum(tl.where(cols < size, p * z, 0.0), 0)
        peak = high
    log_total = peak + tl.log(total)
    target = tl.load(LOGITS + row * size + tl.load(TARGETS + row)) * scale
    tl.store(LOGPROB + row, target - log_total)
    tl.store(ENTROPY + row, log_total - mean / total)
    tl.store(TOTAL + row, log_total)


@triton.jit
def _differentiate(LOGITS, TARGETS, DLOGPROB, DENTROPY, ENTROPY, TOTAL, OUT, size, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < size
    logp = tl.load(LOGITS + row * size + cols, mask=keep, other=-float("inf")) * scale - tl.load(TOTAL + row)
    dlogprob = tl.load(DLOGPROB + row)
    grad = tl.exp(logp) * (-dlogprob - tl.load(DENTROPY + row) * (logp + tl.load(ENTROPY + row)))
    grad = tl.where(cols == tl.load(TARGETS + row), grad + dlogprob, grad) * scale
    tl.store(OUT + row * size + cols, grad.to(OUT.dtype.element_ty), mask=keep)


def summarise(logits, targets, temperature):
    """Log-probability, entropy, log of the sum of exponentials."""
    rows, size = logits.shape
    out = torch.empty((3, rows), dtype=torch.float32, device=logits.device)
    _summarise[(rows,)](logits, targets, out[0], out[1], out[2], size, 1.0 / temperature, BLOCK=BLOCK, num_warps=16)
    return out[0], out[1], out[2]


def differentiate(logits, targets, grads, temperature, dtype):
    """The gradient of the logits in `dtype`."""
    rows, size = logits.shape
    out = torch.empty((rows, size), dtype=dtype, device=logits.device)
    dlogprob, dentropy, entropy, total = (g.contiguous().float() for g in grads)
    grid = (rows, triton.cdiv(size, BLOCK))
    scale = 1.0 / temperature
    _differentiate[grid](logits, targets, dlogprob, dentropy, entropy, total, out, size, scale, BLOCK=BLOCK, num_warps=8)
    return out
