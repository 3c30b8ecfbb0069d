"""PPO with a critic on tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.llm.algorithms.base import (
    ClipConfig,
    ClippedAlgorithm,
    Component,
    Part,
    PolicyAlgorithm,
    aggregate,
    trajectory_reward,
)
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import token_value_loss
from runnel.ops.credit import last_of_row, token_gae
from runnel.ops.returns import explained_variance


@dataclass(frozen=True)
class TokenPPOConfig(ClipConfig):
    """PPO on tokens, with a critic that starts as a copy of the policy."""

    on_resume: ClassVar[OnResume] = (
        live("gamma", "gae_lambda", "value_clip")
        | may_change("normalise")
        | stays("critic_warmup", why="it is how the run started")
    )

    gamma: float = bounded(1.0, at_least=0, at_most=1)
    """Discount by token."""
    gae_lambda: float = bounded(0.95, at_least=0, at_most=1)
    """GAE's lambda, by token; 1 trusts the rewards alone."""
    value_clip: float | None = bounded(0.2, above=0)
    """The critic's loss stops falling once a value has moved so far; None does not clip."""
    critic_warmup: int = bounded(0, at_least=0)
    """First updates on rollouts that train the critic alone."""
    normalise: bool = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""


class TokenPPO(ClippedAlgorithm):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with a value for every token (Ouyang et al. 2022,
    arXiv:2203.02155).

        r_t = [t is the last token] R - [kl_in = reward] kl_coef (log mu - log pi_ref)(y_t)      and rewards given by token
        A_t = GAE(r, V; gamma, lam),   returns_t = A_t + V_t
        L   = -1/N sum_t min(rho_t A_t, clip(rho_t) A_t)  +  1/(2N) sum_t max((V_t - returns_t)^2, clipped)

    The critic has an optimiser of its own (`learner.critic_lr`).
    """

    config: TokenPPOConfig

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"value"}

    @property
    def components(self) -> Mapping[str, Component]:
        """Those of every policy algorithm, after the critic's warm-up, and the critic's own."""
        start = self.config.critic_warmup
        policy = {name: replace(component, start=start) for name, component in super().components.items()}
        shown = ("value/mean", "value/return")
        return policy | {"value": Component(self._value_loss, uses="value", metrics=shown, by_denominator=True)}

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        mask, length, owner = rows["loss_mask"], rows["row_length"], rows["row_owner"]
        advantage, returns = self.advantages(self.earned(rows, collective), rows)
        stats = explained_variance(rows["value"][mask], returns[mask], collective)
        if self.config.normalise:
            advantage = normalised(advantage, mask, collective)
        out = {"advantage": advantage, "return": returns, "denominator/value": aggregate(mask, length, owner, "token")[1]}
        return Batch(out | {"stats/value/explained_variance": stats})

    def earned(self, rows: Batch, collective: Collective) -> Tensor:
        """What each token earns. `[N]`"""
        return token_rewards(self, rows)

    def advantages(self, earned: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """The advantages of tokens, and the returns that the critic learns. `[N] -> [N], [N]`"""
        c, num = self.config, len(rows["group"])
        mask, owner = rows["loss_mask"], token_owner(rows)
        return token_gae(earned, rows["value"], mask, owner, num_rows=num, gamma=c.gamma, lam=c.gae_lambda)

    def _value_loss(self, part: Part, denominator: float) -> Loss:
        fields = part.fields
        return token_value_loss(
            part.outputs["value"], fields["value"], fields["return"], clip=self.config.value_clip, denominator=denominator
        )


def normalised(advantage: Tensor, mask: Tensor, collective: Collective) -> Tensor:
    """`(A - mean) / std` over the masked tokens of all ranks. `[N] -> [N]`"""
    kept = advantage[mask].double()
    sums = torch.stack([torch.tensor(float(len(kept)), dtype=torch.float64), kept.sum(), (kept * kept).sum()])
    count, total, squares = (float(x) for x in collective.all_reduce(sums))
    mean = total / max(count, 1.0)
    deviation: float = max(squares / max(count, 1.0) - mean * mean, 0.0) ** 0.5
    return (advantage - mean) / (deviation + 1e-8) * mask


def token_rewards(algorithm: PolicyAlgorithm, rows: Batch, baseline: Tensor | None = None) -> Tensor:
    """What each token earns: rewards of its trajectory at the last one (minus `baseline` `[B]`), those of tokens and turns
    where they are; with `kl_in` "reward" minus `kl_coef` times its log-ratio to the reference. `[N]`"""
    c, num = algorithm.config, len(rows["group"])
    out = torch.zeros(len(rows["tokens"]))
    last = last_of_row(rows["loss_mask"], token_owner(rows), num)
    if baseline is not None:
        out[last[last >= 0]] -= baseline[last >= 0]
    for channel, weight in algorithm.channels.items():
        if (by_token := rows.get(f"token_rewards/{channel}")) is not None:
            out += weight * by_token.nan_to_num(0.0)
        else:
            found = weight * trajectory_reward(rows, channel).nan_to_num(0.0)
            out[last[last >= 0]] += found[last >= 0]
    if c.kl_coef and c.kl_in == "reward":
        out = out - c.kl_coef * (rows["logprob"] - rows["reference_logprob"])
    return out * rows["loss_mask"]
