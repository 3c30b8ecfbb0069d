"""Returns and advantages from rewards and values, with `terminated` and `truncated` kept apart."""

from __future__ import annotations

from torch import Tensor


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
