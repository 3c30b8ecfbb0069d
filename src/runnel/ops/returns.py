"""Returns and advantages from rewards and values, with `terminated` and `truncated` kept apart; their scale over all ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16). All `[T, B]`; gives `[T, B]` twice.

        delta_t = r_t + gamma * (1 - terminated_t) * next_values_t - values_t
        A_t     = delta_t + gamma * lam * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}
        R_t     = A_t + values_t

    `next_values[t]` is the value of the state that followed step t; where an episode ended there, that of its final
    observation. Truncation bootstraps from it, termination does not, and both cut the recursion.
    """
    alive = (~terminated).to(values.dtype)
    delta = rewards + gamma * alive * next_values - values
    advantages = discounted_suffix_sum(delta, (gamma * lam) * alive.masked_fill(truncated, 0.0))
    return advantages, advantages + values


class VTrace(NamedTuple):
    """The result of `vtrace`, all `[T, B]`: targets of the critic, advantages of the policy, truncated importance weights."""

    targets: Tensor
    advantages: Tensor
    rhos: Tensor


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """V-trace: values of the learner's policy from the data of an older one (Espeholt et al. 2018, arXiv:1802.01561, eq. 1
    and sec. 4.2). All `[T, B]`; `log_ratio` is log(policy / behaviour) of the actions taken.

        rho_t   = min(rho_bar, exp(log_ratio_t)),  c_t = lam * min(c_bar, exp(log_ratio_t))
        delta_t = rho_t (r_t + gamma (1 - terminated_t) next_values_t - values_t)
        e_t     = delta_t + gamma c_t (1 - terminated_t) (1 - truncated_t) e_{t+1}
        v_t     = values_t + e_t
        A_t     = r_t + gamma (1 - terminated_t) (next_values_t + lam (1 - truncated_t) e_{t+1}) - values_t

    The bracket in A_t is v_{t+1} while the episode goes on (lam = 1; for a smaller one it is mixed with the critic, as in
    rlax), so the policy gradient of the paper is `rhos * advantages`. On the learner's own data v_t is the n-step return for
    lam = 1, and A_t is that of `gae` for every lam. As in `gae`, truncation bootstraps from `next_values` (the value of the
    final observation), termination does not, and both cut the recursion. `rho_bar` decides which policy's values are learned,
    `c_bar` how quickly.
    """
    alive = (~terminated).to(values.dtype)
    going = alive.masked_fill(truncated, 0.0)
    ratio = log_ratio.exp()
    rhos = ratio.clamp(max=rho_bar)
    delta = rewards + gamma * alive * next_values - values
    errors = discounted_suffix_sum(rhos * delta, (gamma * lam) * ratio.clamp(max=c_bar) * going)
    advantages = delta.clone()
    advantages[:-1] += (gamma * lam) * going[:-1] * errors[1:]
    return VTrace(values + errors, advantages, rhos)


def discounted_suffix_sum(x: Tensor, decay: Tensor) -> Tensor:
    """`y_t = x_t + decay_t * y_{t+1}` along dim 0, with `y_T = 0`. `[T, ...] -> [T, ...]`

    The map `y -> x + decay * y` composes associatively, so log2(T) doubling steps replace T sequential ones (Blelloch 1990):
    after the step with span k, `x_t` covers 2k terms and `decay_t` is the product of their decays. This is some 40 tensor
    operations at T = 128, on any device.
    """
    x, decay = x.clone(), decay.clone()
    num_steps, span = x.shape[0], 1
    while span < num_steps:
        head, ahead = decay[:-span], decay[span:]
        x[:-span] += head * x[span:]
        decay[:-span] = head * ahead
        span *= 2
    return x


def returns_so_far(rewards: Tensor, ended: Tensor, carried: Tensor, *, gamma: float) -> Tensor:
    """The discounted return of an episode up to each step. `[T, B], [T, B] bool, [B] -> [T, B]`

        G_t = gamma G_{t-1} (1 - ended_{t-1}) + r_t

    `carried` is G before the first step: 0 where an episode begins there.
    """
    first = rewards[:1] + gamma * carried
    decay = gamma * (~ended[:-1]).to(rewards.dtype)
    before = torch.cat([torch.zeros_like(first), decay])
    return discounted_suffix_sum(torch.cat([first, rewards[1:]]).flip(0), before.flip(0)).flip(0)


def standardise(x: Tensor, collective: Collective) -> Tensor:
    """Mean 0 and standard deviation 1 over the entries of all ranks, however they are split. `[...] -> [...]`"""
    local = x.double()  # `square / count - mean^2` loses its digits in float32
    moments = torch.stack([local.sum(), local.square().sum(), torch.full_like(local.sum(), x.numel())])
    total, square, count = collective.all_reduce(moments)
    mean = total / count
    std = (square / count - mean.square()).clamp(min=0.0).sqrt()
    scaled: Tensor = (x - mean.to(x.dtype)) / (std.to(x.dtype) + 1e-8)
    return scaled


def explained_variance(values: Tensor, targets: Tensor, collective: Collective) -> Tensor:
    """`1 - Var(targets - values) / Var(targets)` over the entries of all ranks: 1 for a perfect critic, 0 for one that knows
    the mean, and 0 where targets do not differ. `[...], [...] -> []`

    It is computed from sums, because the mean of the ranks' results is not the result of the whole batch.
    """
    x = torch.stack([(targets - values).flatten(), targets.flatten()]).double()
    count = torch.full((2,), float(x.shape[1]), dtype=x.dtype, device=x.device)
    count, total, square = collective.all_reduce(torch.stack([count, x.sum(1), x.square().sum(1)]))
    mean = total / count
    residual, spread = (square / count - mean.square()).clamp(min=0.0)
    least = 1e-12 * (1.0 + mean[1].square())  # below this, the difference of the two is rounding
    share: Tensor = torch.where(spread > least, 1.0 - residual / torch.maximum(spread, least), 0.0)
    return share.to(values.dtype)
