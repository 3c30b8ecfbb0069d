# mypy: ignore-errors
"""Triton kernels behind `llm/model/logprobs.py: draw`: logits are read once, block by block, and one block a second time."""

import torch

from runnel.kernels.lm.triton import tl, triton

BLOCK = 4096


@triton.jit
def _masses(LOGITS, HEAT, TOP, MASS, BEST, size, num_blocks, BLOCK: tl.constexpr):
    """Of one block of one row: the largest scaled logit and its place, and the sum of exponentials below it."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(HEAT + row)
    scale = tl.where(heat > 0, 1.0 / heat, 1.0)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(LOGITS + row * size + cols, mask=cols < size, other=-float("inf")) * scale
    top = tl.max(x, 0)
    tl.store(TOP + row * num_blocks + block, top)
    tl.store(MASS + row * num_blocks + block, tl.sum(tl.exp(x - top), 0))
    tl.store(BEST + row * num_blocks + block, block * BLOCK + tl.argmax(x, 0))


@triton.jit
def _pick(LOGITS, HEAT, UNIFORM, TOP, MASS, BEST, TOKEN, LOGPROB, size, num_blocks, BLOCK: tl.constexpr, NB: tl.constexpr):
    """Of one row: the block in which the uniform number falls, then the token inside it."""
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(HEAT + row)
    scale = tl.where(heat > 0, 1.0 / heat, 1.0)
    index = tl.arange(0, NB)
    held = index < num_blocks
    tops = tl.load(TOP + row * num_blocks + index, mask=held, other=-float("inf"))
    top = tl.max(tops, 0)
    mass = tl.load(MASS + row * num_blocks + index, mask=held, other=0.0) * tl.exp(tops - top)
    total = tl.sum(mass, 0)
    target = tl.load(UNIFORM + row).to(tl.float32) * total
    edges = tl.cumsum(mass, 0)
    block = tl.minimum(tl.sum((edges <= target).to(tl.int32), 0), num_blocks - 1)
    before = tl.sum(tl.where(index < block, mass, 0.0), 0)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(LOGITS + row * size + cols, mask=cols < size, other=-float("inf")) * scale
    inner = tl.cumsum(tl.exp(x - top), 0)
    place = tl.sum((inner <= target - before).to(tl.int32), 0)
    last = tl.max(tl.where(x > -float("inf"), tl.arange(0, BLOCK), 0), 0)
    token = block * BLOCK + tl.minimum(place, last)
    winner = tl.load(BEST + row * num_blocks + tl.argmax(tops, 0))
    token = tl.where(heat > 0, token, winner)
    chosen = tl.load(LOGITS + row * size + token) * scale
    tl.store(TOKEN + row, token.to(tl.int64))
    tl.store(LOGPROB + row, chosen - top - tl.log(total))


def draw(logits, heat, uniform):
    """A token a row and its log-probability."""
    rows, size = logits.shape
    num_blocks = triton.cdiv(size, BLOCK)
    top, mass = (torch.empty((rows, num_blocks), dtype=torch.float32, device=logits.device) for _ in range(2))
    best = torch.empty((rows, num_blocks), dtype=torch.int32, device=logits.device)
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    heat, uniform = heat.contiguous(), uniform.contiguous()
    _masses[(rows, num_blocks)](logits, heat, top, mass, best, size, num_blocks, BLOCK=BLOCK, num_warps=8)
    blocks = triton.next_power_of_2(num_blocks)
    _pick[(rows,)](
        logits, heat, uniform, top, mass, best, token, logprob, size, num_blocks, BLOCK=BLOCK, NB=blocks, num_warps=8
    )
    return token, logprob
