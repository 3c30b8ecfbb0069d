"""The distribution over next tokens: log-probabilities and entropies from hidden states, and drawing.

Log-probabilities are computed in chunks: the logits of a whole batch never exist at once. A token is drawn with one uniform
number, by the inverse of the cumulative distribution. So a row's token depends on its own logits and its own number alone,
never on its neighbours, and can be drawn again from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import logprob_kernels, sampling_kernels
from runnel.llm.model.blocks import run
from runnel.llm.model.weights import Weight

WHOLE = 1 << 24
"""Up to so many logits on the host are kept for the backward pass."""
CHUNK = 1 << 28
"""Logits of one chunk, above that."""


def logprobs_from_logits(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """`log softmax(logits / temperature)[target]` and the entropy of that distribution. `[M, V], [M] -> [M], [M]`"""
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(dim=-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def token_logprobs(
    hidden: Tensor, targets: Tensor, weight: Weight, *, temperature: float = 1.0, chunk_size: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution. `[M, D], [M], [V, D] -> [M], [M]`

    `weight` is the output embedding. Where logits are many, only those of one chunk (`chunk_size` rows; 0 chooses) are alive
    at a time, in the backward pass too, which computes them again.
    """
    size = chunk_size or max(1, CHUNK // weight.value.shape[0] // 512) * 512
    return cast(tuple[Tensor, Tensor], run(_TokenLogprobs, hidden, targets, weight.value, weight, temperature, size))


def head_logprobs(
    hidden: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], *, temperature: float = 1.0, chunk_size: int = 2048
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` under any `head` from hidden states to logits. `[M, D], [M] -> [M], [M]`"""

    def part(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(h), t, temperature=temperature)

    if hidden.shape[0] <= chunk_size:
        return part(hidden, targets)
    pieces = [
        checkpoint(part, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True)
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


class _TokenLogprobs(torch.autograd.Function):
    """Forward: one pass over the logits of each chunk. Backward: with `p = softmax(z)`, `z = logits / T`,

    dL/dz = g_logprob (onehot - p) - g_entropy p (log p + H)
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Tensor, value: Tensor, weight: Weight, temperature: float, size: int
    ) -> tuple[Tensor, Tensor]:
        logprob = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropy, total = torch.empty_like(logprob), torch.empty_like(logprob)
        whole = hidden.shape[0] <= size and hidden.shape[0] * value.shape[0] <= WHOLE and not hidden.is_cuda
        kept = None
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = weight.scores(hidden[part])
            logprob[part], entropy[part], total[part] = _summarise(logits, targets[part], temperature)
            kept = logits if whole else None
        ctx.save_for_backward(hidden, targets, value, entropy, total, kept)
        ctx.numbers, ctx.weight = (temperature, size), weight
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, dlogprob: Tensor, dentropy: Tensor) -> tuple[Any, ...]:
        hidden, targets, value, entropy, total, kept = ctx.saved_tensors
        temperature, size = ctx.numbers
        asked = ctx.weight.sink is None and ctx.needs_input_grad[2]
        own = Weight(value, torch.zeros_like(value)) if asked else ctx.weight
        dhidden = torch.empty_like(hidden)
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = own.scores(hidden[part]) if kept is None else kept
            grads = (dlogprob[part], dentropy[part], entropy[part], total[part])
            dlogits = _differentiate(logits, targets[part], grads, temperature, hidden.dtype)
            pulled = own.pulled(dlogits)
            own.pull(dlogits, pulled, out=dhidden[part])
            own.learn(dlogits, pulled, hidden[part])
        return dhidden, None, own.sink if asked else None, None, None, None


def _summarise(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy, and the log of the sum of exponentials. `[C, V], [C] -> 3 x [C]`"""
    if logits.is_cuda:
        return logprob_kernels.summarise(logits, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]
    if loops(logits):
        from runnel.kernels.lm.numba import token_loops

        return token_loops.summarise(logits, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]
    z = logits / temperature
    total = torch.logsumexp(z, dim=-1)
    mean = (torch.exp(z - total[:, None]) * z).sum(dim=-1)
    return z.gather(1, targets[:, None]).squeeze(1) - total, total - mean, total


def _differentiate(
    logits: Tensor, targets: Tensor, grads: tuple[Tensor, Tensor, Tensor, Tensor], temperature: float, dtype: torch.dtype
) -> Tensor:
    """The gradient of the logits. `[C, V]`"""
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


def draw(logits: Tensor, *, heat: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A token a row and its log-probability at temperature `heat` (0: the likeliest token, at 1). `[n, V], 2 x [n] -> 2 x [n]`

    The token is the first whose cumulative probability exceeds `uniform`. Probabilities are summed in blocks, so that the
    long sum is over blocks alone.
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
    """`draw` from what `allowed` (logits after hooks), top-k, top-p and min-p leave. Token, its log-probability in the whole
    distribution of `logits`, and in the one that it was drawn from. `-> 3 x [n]`"""
    whole = torch.log_softmax(scaled(logits, heat), dim=-1)
    kept = torch.log_softmax(limited(scaled(allowed, heat), top_k=top_k, top_p=top_p, min_p=min_p), dim=-1)
    token = torch.where(heat > 0, _inverse(kept.exp(), uniform), kept.argmax(dim=-1))
    drawn = torch.where(heat > 0, kept.gather(1, token[:, None]).squeeze(1), torch.zeros_like(heat))
    return token, whole.gather(1, token[:, None]).squeeze(1), drawn


def scaled(logits: Tensor, heat: Tensor) -> Tensor:
    """Logits over temperature, where that is above 0. `[n, V], [n] -> [n, V]`"""
    return logits.float() / torch.where(heat > 0, heat, torch.ones_like(heat))[:, None]


def limited(x: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits with everything outside of top-k (0: all), then top-p (1: all), then min-p (0: all) at minus infinity. `[n, V]`

    The likeliest token always stays; top-p keeps the tokens up to and including the one that reaches the probability
    (Holtzman et al. 2020, arXiv:1904.09751), min-p those at least `min_p` as likely as the likeliest (arXiv:2407.01082).
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
