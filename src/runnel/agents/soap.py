"""SOAP: options that are found by policy gradient, as a memory (Ishida & Henriques 2024, arXiv:2407.18913; Ishida's thesis).

A policy has a few sub-policies `pi(a | s, z)` and a policy `psi(z' | s, z)` that chooses the next option. Options are never
sampled into the history: the belief `zeta_t(z)`, given what was seen and done, is the memory (`nets/options.py`). With

    P_t(z, z') = pi(a_t | s_t, z) psi(z' | s_t, z),      alpha_t = sum_{z, z'} zeta_t(z) P_t(z, z')

the update of PPO becomes: values and advantages for each option, by generalised advantage estimation along all of them,

    A_t(z) = sum_z' psi(z' | s_t, z) (r_t + gamma V(s_{t+1}, z') + gamma lambda A_{t+1}(z') - V(s_t, z))

the advantage of being in option z' afterwards, which travels backwards through the beliefs that depend on it,

    G_t(z') = sum_z zeta_t(z) A_t(z) + U_{t+1}(z'),      u_t(z) = sum_z' G_t(z') P_t(z, z') / alpha_t,
    U_t(z) = u_t(z) - sum_y zeta_t(y) u_t(y)                                    (0 behind the end of an episode or of the data)

and the clipped loss `-sum_{z, z'} zeta_t(z) / alpha_t min(G P, G clip(P, (1 - eps) P_old, (1 + eps) P_old))`. The sum backwards
is what backpropagation through the beliefs would give, so no gradient passes through time. The paper's option policy may also
read the action; here it reads the observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from runnel.agents.deciding import refuse_idle_rows
from runnel.agents.ppo import Numbers, PPOLearner
from runnel.core.records import Batch
from runnel.core.trajectories import CARRIED
from runnel.losses.on_policy import approximate_kl
from runnel.nets.options import OptionNet
from runnel.ops.returns import standardise


class OptionCredit(NamedTuple):
    """Of each step: advantages by option `A`, and of ending in an option `G`. `[T, B, Z]` each"""

    advantage: Tensor
    ending: Tensor


def option_credit(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    belief: Tensor,
    lift: Tensor,
    next_probs: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> OptionCredit:
    """The equations of this page. Rewards and ends `[T, B]`; values, belief `[T, B, Z]`; `lift` is `pi(a | s, z) / alpha`;
    `next_probs` is psi, `[T, B, Z, Z']`."""
    over = (terminated | truncated).unsqueeze(-1)
    ahead = torch.where(terminated.unsqueeze(-1), 0.0, next_values)
    advantage = later = torch.zeros_like(values[0])
    found_advantage, found_ending = [], []
    for t in reversed(range(len(rewards))):
        known = rewards[t].unsqueeze(-1) + gamma * ahead[t] + gamma * lam * torch.where(over[t], 0.0, advantage)
        advantage = (next_probs[t] @ known.unsqueeze(-1)).squeeze(-1) - values[t]
        ending = (belief[t] * advantage).sum(-1, keepdim=True) + torch.where(over[t], 0.0, later)
        utility = lift[t] * (next_probs[t] @ ending.unsqueeze(-1)).squeeze(-1)
        later = utility - (belief[t] * utility).sum(-1, keepdim=True)
        found_advantage.append(advantage)
        found_ending.append(ending)
    return OptionCredit(torch.stack(found_advantage[::-1]), torch.stack(found_ending[::-1]))


class SOAPLearner(PPOLearner):
    """Consumes `[T, B]` segments, one batch a version; a row of the batch is one step, with the belief that it was made in."""

    net: OptionNet

    def _batch_rows(self, num_steps: int, num_envs: int) -> int:
        return num_steps * num_envs  # rows are steps, although the policy has a memory

    def make_batch(self, data: Batch) -> Batch:
        """Beliefs, values and credit for every step, and rows to shuffle."""
        refuse_idle_rows(data, self)
        rewards, over = data["rewards/env"], data["terminated"] | data["truncated"]
        if self._reward_scale is not None:
            rewards = self._reward_scale(rewards, over, data[CARRIED], self.collective)
        seen = self._seen(data)
        out = self.net.outputs(seen)
        logprob, _ = self.net.logprobs(out.scores, data["action"], seen.get("action_mask"))
        beliefs, log_alphas = [], []
        belief = self.net.start(data["state/belief"])
        for t in range(len(rewards)):
            beliefs.append(belief)
            belief, log_alpha = self.net.move(belief, logprob[t], out.log_next[t])
            belief = self.net.start(torch.where(over[t].unsqueeze(-1), 0.0, belief))
            log_alphas.append(log_alpha)
        belief, log_alpha = torch.stack(beliefs), torch.stack(log_alphas)
        lift, gamma, lam = (logprob - log_alpha.unsqueeze(-1)).exp(), self.config.gamma, self.config.gae_lambda
        ends = data["terminated"], data["truncated"]
        found = option_credit(
            rewards, out.value, self._next_values(data), belief, lift, out.log_next.exp(), *ends, gamma=gamma, lam=lam
        )
        ending = standardise(found.ending, self.collective) if self.config.normalise_advantage else found.ending
        returns = found.advantage + out.value
        columns = seen | {
            "belief": belief,
            "log_alpha": log_alpha,
            "old": _joint(logprob - log_alpha.unsqueeze(-1), out.log_next),
        }
        columns |= {"advantage": ending, "option_return": returns, "option_value": out.value}
        columns |= {"value": (belief * out.value).sum(-1), "return": (belief * returns).sum(-1)}
        return Batch({k: x.flatten(0, 1) for k, x in columns.items()})

    def _next_values(self, data: Batch) -> Tensor:
        """Values by option of what followed each step. `[T, B, Z]`"""
        after = self.net.outputs({k: data[k][1:] for k in self.net.env_spec.obs}).value
        final = self.net.outputs({k: data["final_" + k] for k in self.net.env_spec.obs}).value
        return after.flatten(0, 1).index_copy(0, data["final_index"], final).view_as(after)

    def loss(self, rows: Mapping[str, Tensor]) -> Numbers:
        """As PPO's, summed over pairs of options by the belief that the step was made in."""
        config, count, belief = self.config, self._count(rows), rows["belief"]
        out = self.net.outputs(rows)
        logprob, entropy = self.net.logprobs(out.scores, rows["action"], rows.get("action_mask"))
        new, old = _joint(logprob - rows["log_alpha"].unsqueeze(-1), out.log_next), rows["old"]
        clipped = torch.minimum(torch.maximum(new, (1.0 - config.clip_range) * old), (1.0 + config.clip_range) * old)
        ending, weight = rows["advantage"].unsqueeze(-2), belief.unsqueeze(-1)
        policy = -(weight * torch.minimum(ending * new, ending * clipped)).sum() / count
        value = 0.5 * (belief * (out.value - rows["option_return"]).square()).sum() / count
        bonus = (belief * entropy).sum() / count
        total = policy + config.value_coef * value - config.entropy_coef * bonus
        with torch.no_grad():
            _, log_alpha = self.net.move(belief, logprob, out.log_next)
            kl = approximate_kl(log_alpha, rows["log_alpha"], denominator=count)
            far = (weight * old * (new != clipped)).sum() / count
        parts = {"loss/total": total, "loss/policy": policy, "loss/value": value, "entropy": bonus}
        return {**parts, "kl": kl, "clip_fraction": far}

    def _count(self, rows: Mapping[str, Tensor]) -> float:
        """Steps of all ranks in the minibatch."""
        return len(rows["log_alpha"]) * self.collective.world_size

    def _flat_obs(self, batch: Batch) -> Mapping[str, Tensor]:
        return batch


def _joint(lift: Tensor, log_next: Tensor) -> Tensor:
    """`P(z, z') / alpha` from the logarithms of its factors. `[..., Z], [..., Z, Z'] -> [..., Z, Z']`"""
    return (lift.unsqueeze(-1) + log_next).exp()
