"""Returns and advantages from rewards and values, with `terminated` and `truncated` kept apart."""

from __future__ import annotations

from typing import NamedTuple

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


class VTrace(NamedTuple):
    """What `vtrace` gives, all `[T, B]`: targets of the critic, advantages of the policy, truncated importance weights."""

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
    lam = 1, and A_t is that of `gae` for every lam. As there, truncation bootstraps from `next_values` (the value of the final
    observation), termination does not, and both cut the recursion. `rho_bar` decides which policy's values are learned,
    `c_bar` how quickly. No gradient flows through any of it if the arguments carry none.
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
