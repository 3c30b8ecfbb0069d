"""Token log-probabilities and entropies from hidden states, in chunks: the logits of a whole batch never exist at one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import logprob_kernels
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
    return cast(tuple[Tensor, Tensor], run(_TokenLogprobs, hidden, targets, weight.value, weight, temperature, size))


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
        ctx: Context, hidden: Tensor, targets: Tensor, value: Tensor, weight: Weight, temperature: float, size: int
    ) -> tuple[Tensor, Tensor]:
        logprob = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropy, total = torch.empty_like(logprob), torch.empty_like(logprob)
        keep = hidden.shape[0] <= size and hidden.shape[0] * value.shape[0] <= KEPT_LOGITS and not hidden.is_cuda
        kept = None
        for start in range(0, hidden.shape[0], size):
            rows = slice(start, start + size)
            logits = weight.scores(hidden[rows])
            logprob[rows], entropy[rows], total[rows] = _summarise(logits, targets[rows], temperature)
            kept = logits if keep else None
        ctx.save_for_backward(hidden, targets, value, entropy, total, kept)
        ctx.settings, ctx.weight = (temperature, size), weight
        return logprob, entropy

    @staticmethod
    def backward(ctx: Context, dlogprob: Tensor, dentropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, value, entropy, total, kept = ctx.saved_tensors
        temperature, size = ctx.settings
        # `value` is passed beside `weight` so that a weight without a sum of its own gets its gradient from autograd
        by_autograd = ctx.weight.grad_sum is None and ctx.needs_input_grad[2]
        weight = Weight(value, torch.zeros_like(value)) if by_autograd else ctx.weight
        dhidden = torch.empty_like(hidden)
        for start in range(0, hidden.shape[0], size):
            rows = slice(start, start + size)
            logits = weight.scores(hidden[rows]) if kept is None else kept
            grads = (dlogprob[rows], dentropy[rows], entropy[rows], total[rows])
            dlogits = _differentiate(logits, targets[rows], grads, temperature, hidden.dtype)
            inner_grad = weight.inner_grad(dlogits)
            weight.input_grad(dlogits, inner_grad, out=dhidden[rows])
            weight.add_grads(dlogits, inner_grad, hidden[rows])
        return dhidden, None, weight.grad_sum if by_autograd else None, None, None, None


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
