"""Draw tokens by the inverse of the cumulative distribution, with one uniform number for each token.

A row's token depends only on its own logits and its own number, never on other rows, and can be drawn again from a seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import sampling_kernels

BLOCK = 256
"""Probabilities that are summed together before blocks are summed."""


def draw(logits: Tensor, *, heat: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability at temperature `heat`. `[n, V], 2 x [n] -> 2 x [n]`

    The token is the first whose cumulative probability exceeds `uniform`. With `heat` 0 it is the likeliest token, with its
    log-probability at temperature 1.
    """
    if logits.is_cuda:
        return sampling_kernels.draw(logits, heat, uniform)  # type: ignore[no-any-return, no-untyped-call]
    if loops(logits):
        from runnel.kernels.lm.numba import token_loops

        return token_loops.draw(logits, heat, uniform)  # type: ignore[no-any-return, no-untyped-call]
    x = scaled(logits, heat)
    logp = torch.log_softmax(x, dim=-1)
    token = _inverse(logp.exp(), uniform)
    if bool((heat <= 0).any()):
        token = torch.where(heat > 0, token, logits.argmax(dim=-1))
    return token, logp.gather(1, token[:, None]).squeeze(1)


def draw_within(
    logits: Tensor, allowed: Tensor, *, heat: Tensor, uniform: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`draw` within top-k, top-p and min-p of `allowed` (the logits after hooks). Returns the token, its log-probability in the
    whole distribution of `logits`, and that in the distribution from which it was drawn. `-> 3 x [n]`"""
    whole = torch.log_softmax(scaled(logits, heat), dim=-1)
    kept = torch.log_softmax(limited(scaled(allowed, heat), top_k=top_k, top_p=top_p, min_p=min_p), dim=-1)
    token = torch.where(heat > 0, _inverse(kept.exp(), uniform), kept.argmax(dim=-1))
    drawn = torch.where(heat > 0, kept.gather(1, token[:, None]).squeeze(1), torch.zeros_like(heat))
    return token, whole.gather(1, token[:, None]).squeeze(1), drawn


def scaled(logits: Tensor, heat: Tensor) -> Tensor:
    """Logits divided by the temperature where it is above 0. `[n, V], [n] -> [n, V]`"""
    return logits.float() / torch.where(heat > 0, heat, torch.ones_like(heat))[:, None]


def limited(x: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits with tokens outside of top-k (0: all), then top-p (1: all), then min-p (0: all) set to minus infinity. `[n, V]`

    The likeliest token always stays. Top-p keeps the likeliest tokens until their sum reaches the probability (Holtzman et al.
    2020, arXiv:1904.09751). Min-p keeps tokens that are at least `min_p` times as likely as the likeliest (arXiv:2407.01082).
    """
    ranked, order = x.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(x.shape[-1], device=x.device)
    keep = (top_k[:, None] <= 0) | (rank < top_k[:, None])
    p = torch.softmax(ranked.masked_fill(~keep, -torch.inf), dim=-1)
    keep &= (p.cumsum(dim=-1) - p < top_p[:, None]) | (top_p[:, None] >= 1)
    keep &= p >= min_p[:, None] * p[:, :1]
    keep[:, 0] = True
    return x.masked_fill(~torch.zeros_like(keep).scatter(1, order, keep), -torch.inf)


def _inverse(p: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative sum of `p` passes `uniform` times its total. `[n, V], [n] -> [n]`"""
    rows, size = p.shape
    # sums in float64 over blocks: over a vocabulary of 100,000, a float32 sum would lose the small probabilities
    pad = -size % BLOCK
    blocks = torch.nn.functional.pad(p, (0, pad)).view(rows, (size + pad) // BLOCK, BLOCK)
    mass = blocks.sum(dim=-1, dtype=torch.float64)
    edges = mass.cumsum(dim=-1)
    target = uniform.double() * edges[:, -1]
    block = torch.searchsorted(edges, target[:, None], right=True).clamp(max=edges.shape[1] - 1)
    rest = target[:, None] - (edges - mass).gather(1, block)
    inner = blocks[torch.arange(rows, device=p.device), block.squeeze(1)].double().cumsum(dim=-1)
    place = torch.searchsorted(inner, rest, right=True).clamp(max=BLOCK - 1)
    return (block * BLOCK + place).squeeze(1).clamp(max=size - 1)
