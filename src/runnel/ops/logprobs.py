"""Token log-probabilities and entropies from hidden states, in chunks: the logits of a whole batch never exist at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def logprobs_from_logits(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """`log softmax(logits / temperature)[target]` and the entropy of that distribution. `[M, V], [M] -> [M], [M]`"""
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(dim=-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def token_logprobs(
    hidden: Tensor,
    targets: Tensor,
    *,
    head: Callable[[Tensor], Tensor],
    temperature: float = 1.0,
    chunk_size: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution. `[M, D], [M] -> [M], [M]`

    `head` maps hidden states to logits. Past `chunk_size` rows, the logits of one chunk are alive at a time: the backward
    pass computes them again.
    """

    def part(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(h), t, temperature=temperature)

    if hidden.shape[0] <= chunk_size:
        return part(hidden, targets)
    pieces = [
        checkpoint(part, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True)
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
