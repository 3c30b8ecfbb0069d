"""The distribution over next tokens: log-probabilities and entropies from hidden states, and drawing.

Log-probabilities are computed in chunks: the logits of a whole batch never exist at one time. A token is drawn with one uniform
number, by the inverse of the cumulative distribution. So a row's token depends only on its own logits and its own number,
never on other rows, and can be drawn again from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import logprob_kernels, sampling_kernels
from runnel.llm.model.blocks import Context, run
from runnel.llm.model.weights import Weight

KEPT_LOGITS = 1 << 24
"""On the CPU, the backward pass keeps the logits if they are at most this many."""
CHUNK_LOGITS = 1 << 28
"""The most logits of one chunk."""


def logprobs_from_logits(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """`log softmax(logits / temperature)[target]` and the entropy of that distribution. `[M, V], [M] -> [M], [M]`"""
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(dim=-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def token_logprobs(
    hidden: Tensor, targets: Tensor, weight: Weight, *, temperature: float = 1.0, chunk_size: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution. `[M, D], [M], [V, D] -> [M], [M]`

    `weight` is the output embedding. Only the logits of one chunk of `chunk_size` rows exist at a time (0 chooses the size).
    The backward pass computes them again, chunk by chunk, unless they are few.
    """
    # a multiple of 512 rows: matrix products are fastest in such sizes
    size = chunk_size or max(1, CHUNK_LOGITS // weight.value.shape[0] // 512) * 512
    return cast(tuple[Tensor, Tensor], run(_TokenLogprobs, hidden, targets, weight, temperature, size))


def head_logprobs(
    hidden: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], *, temperature: float = 1.0, chunk_size: int = 2048
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` for any function `head` from hidden states to logits. `[M, D], [M] -> [M], [M]`"""

    def of_chunk(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(h), t, temperature=temperature)

    if hidden.shape[0] <= chunk_size:
        return of_chunk(hidden, targets)
    chunks = [
        checkpoint(of_chunk, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True)
    ]
    return torch.cat([logprob for logprob, _ in chunks]), torch.cat([entropy for _, entropy in chunks])


class _TokenLogprobs(torch.autograd.Function):
    """Forward: one pass over the logits of each chunk. Backward: with `p = softmax(z)`, `z = logits / T`,

    dL/dz = g_logprob (onehot - p) - g_entropy p (log p + H)
    """

    @staticmethod
    def forward(
        ctx: Context, hidden: Tensor, targets: Tensor, weight: Weight, temperature: float, size: int
    ) -> tuple[Tensor, Tensor]:
        logprob = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropy, total = torch.empty_like(logprob), torch.empty_like(logprob)
        keep = hidden.shape[0] <= size and hidden.shape[0] * weight.value.shape[0] <= KEPT_LOGITS and not hidden.is_cuda
        kept = None
        for start in range(0, hidden.shape[0], size):
            rows = slice(start, start + size)
            logits = weight.scores(hidden[rows])
            logprob[rows], entropy[rows], total[rows] = _summarise(logits, targets[rows], temperature)
            kept = logits if keep else None
        ctx.save_for_backward(hidden, targets, entropy, total, kept)
        ctx.settings = weight, temperature, size
        return logprob, entropy

    @staticmethod
    def backward(ctx: Context, dlogprob: Tensor, dentropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, entropy, total, kept = ctx.saved_tensors
        weight, temperature, size = ctx.settings
        dhidden = torch.empty_like(hidden)
        for start in range(0, hidden.shape[0], size):
            rows = slice(start, start + size)
            logits = weight.scores(hidden[rows]) if kept is None else kept
            grads = (dlogprob[rows], dentropy[rows], entropy[rows], total[rows])
            dlogits = _differentiate(logits, targets[rows], grads, temperature, hidden.dtype)
            inner_grad = weight.inner_grad(dlogits)
            weight.input_grad(dlogits, inner_grad, out=dhidden[rows])
            weight.add_grads(dlogits, inner_grad, hidden[rows])
        return dhidden, None, None, None, None


def _summarise(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the target, entropy, and log-sum-exp of each row. `[C, V], [C] -> 3 x [C]`"""
    if logits.is_cuda:
        return logprob_kernels.summarise(logits, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]
    if loops(logits):
        from runnel.kernels.lm.numba import token_loops

        return token_loops.summarise(logits, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]
    z = logits / temperature
    total = torch.logsumexp(z, dim=-1)
    # entropy = total - E[z]: no second tensor of log-probabilities is made
    mean = (torch.exp(z - total[:, None]) * z).sum(dim=-1)
    return z.gather(1, targets[:, None]).squeeze(1) - total, total - mean, total


def _differentiate(
    logits: Tensor, targets: Tensor, grads: tuple[Tensor, Tensor, Tensor, Tensor], temperature: float, dtype: torch.dtype
) -> Tensor:
    """The gradient of the logits; `grads` are those of log-probability and entropy, then entropy and log-sum-exp. `[C, V]`"""
    if logits.is_cuda:
        return logprob_kernels.differentiate(logits, targets, grads, temperature, dtype)  # type: ignore[no-any-return, no-untyped-call]
    if loops(logits):
        from runnel.kernels.lm.numba import token_loops

        return token_loops.differentiate(logits, targets, grads, temperature).to(dtype)  # type: ignore[no-any-return, no-untyped-call]
    dlogprob, dentropy, entropy, total = (g[:, None] for g in grads)
    logp = (logits / temperature).sub_(total)
    p = logp.exp()
    out = p * (-dlogprob - dentropy * (logp + entropy))
    out.scatter_add_(1, targets[:, None], dlogprob)
    return out.div_(temperature).to(dtype)


BLOCK = 256
"""Probabilities that are summed together before blocks are summed."""


def draw(logits: Tensor, *, heat: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability at temperature `heat`. `[n, V], 2 x [n] -> 2 x [n]`

    The token is the first whose cumulative probability exceeds `uniform`. With `heat` 0 it is the likeliest token, with its
    log-probability at temperature 1. Where compiled loops serve, an engine draws with `token_loops.advance` instead.
    """
    if logits.is_cuda:
        return sampling_kernels.draw(logits, heat, uniform)  # type: ignore[no-any-return, no-untyped-call]
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
