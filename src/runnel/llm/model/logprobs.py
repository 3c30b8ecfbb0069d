"""Token log-probabilities and entropies from hidden states, in chunks: the logits of a whole batch never exist at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import logprob_kernels
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
