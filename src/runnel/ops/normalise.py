"""Running statistics that belong to the learner and travel with its parameters.

Mean and variance are buffers, so they are published, checkpointed and restored like weights, and acting uses exactly the
statistics that the learner had at that version.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runnel.core.protocols import Collective


class RunningMeanStd(nn.Module):
    """Mean and population variance over all rows seen; `forward` gives `clip((x - mean) / std)`. Before data: identity.

    The merge of two sets (n, m, v) is that of Chan et al. 1983, in float64:
    `m = m_a + d n_b / n`, `v n = v_a n_a + v_b n_b + d^2 n_a n_b / n` with `d = m_b - m_a`.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., *shape] -> [..., *shape]`, in the type of `x`."""
        scale = (self.var + self.epsilon).rsqrt().to(x.dtype)
        return ((x - self.mean.to(x.dtype)) * scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor, collective: Collective) -> None:
        """Take in the rows of `x` of every rank. `[N, *shape]`. In place, so that published tensors keep their address."""
        shift = x.to(torch.float64) - self.mean
        rows = torch.full_like(self.mean, x.shape[0])
        num_new, total, square = collective.all_reduce(torch.stack([rows, shift.sum(0), shift.square().sum(0)]))
        delta = total / num_new
        count = self.count + num_new
        spread = self.var * self.count + (square - total * delta) + delta.square() * self.count * num_new / count
        self.mean.add_(delta * num_new / count)
        self.var.copy_(spread / count)
        self.count.add_(x.shape[0] * collective.world_size)
