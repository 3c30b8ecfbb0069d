"""Running statistics that belong to the learner and travel with its parameters.

Mean and variance are buffers, so they are published, checkpointed and restored like weights, and acting uses exactly the
statistics that the learner had at that version.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.ops.returns import discounted_suffix_sum


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


def returns_so_far(rewards: Tensor, ended: Tensor, carried: Tensor, *, gamma: float) -> Tensor:
    """The discounted return of an episode up to each step. `[T, B], [T, B] bool, [B] -> [T, B]`

        G_t = gamma G_{t-1} (1 - ended_{t-1}) + r_t

    `carried` is G before the first step: of an episode that goes on, or 0 for one that begins.
    """
    first = rewards[:1] + gamma * carried
    decay = gamma * (~ended[:-1]).to(rewards.dtype)
    before = torch.cat([torch.zeros_like(first), decay])
    return discounted_suffix_sum(torch.cat([first, rewards[1:]]).flip(0), before.flip(0)).flip(0)


class ReturnScale(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return, so that values stay near 1.

        G_t = gamma G_{t-1} (1 - ended_{t-1}) + r_t,  r'_t = clip(r_t / sqrt(Var G))

    As Gymnasium's vector wrapper NormalizeReward and Stable-Baselines3's VecNormalize. The mean is not taken away: that would
    change what is best. An episode goes on over segments, so a segment comes with the return that it begins in the middle of.
    """

    def __init__(self, *, gamma: float, clip: float = 10.0) -> None:
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.statistics = RunningMeanStd(())

    def forward(self, rewards: Tensor, ended: Tensor, carried: Tensor, collective: Collective) -> Tensor:
        """Take the rewards of a segment in, and scale them. `[T, B], [T, B] bool, [B] -> [T, B]`"""
        returns = returns_so_far(rewards, ended, carried, gamma=self.gamma)
        self.statistics.update(returns.flatten(), collective)
        scale = (self.statistics.var + self.statistics.epsilon).rsqrt().to(rewards.dtype)
        return (rewards * scale).clamp(-self.clip, self.clip)


def standardise(x: Tensor, collective: Collective) -> Tensor:
    """Mean 0 and standard deviation 1 over the entries of all ranks: the same however they are split. `[...] -> [...]`"""
    local = x.double()
    moments = torch.stack([local.sum(), local.square().sum(), torch.full_like(local.sum(), x.numel())])
    total, square, count = collective.all_reduce(moments)
    mean = total / count
    std = (square / count - mean.square()).clamp(min=0.0).sqrt()
    scaled: Tensor = (x - mean.to(x.dtype)) / (std.to(x.dtype) + 1e-8)
    return scaled


def explained_variance(values: Tensor, targets: Tensor, collective: Collective) -> Tensor:
    """`1 - Var(targets - values) / Var(targets)` over the entries of all ranks: 1 for a perfect critic, 0 for one that knows
    the mean, and 0 where targets do not differ. `[...], [...] -> []`

    From sums, because a mean over ranks of such shares is not the share of the whole batch.
    """
    x = torch.stack([(targets - values).flatten(), targets.flatten()]).double()
    count = torch.full((2,), float(x.shape[1]), dtype=x.dtype, device=x.device)
    count, total, square = collective.all_reduce(torch.stack([count, x.sum(1), x.square().sum(1)]))
    mean = total / count
    residual, spread = (square / count - mean.square()).clamp(min=0.0)
    least = 1e-12 * (1.0 + mean[1].square())  # below this, the difference of the two is rounding
    share: Tensor = torch.where(spread > least, 1.0 - residual / torch.maximum(spread, least), 0.0)
    return share.to(values.dtype)
