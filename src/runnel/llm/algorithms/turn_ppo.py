"""PPO whose steps are turns: a critic values the state before each one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.llm.algorithms.base import ClipConfig, Part
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig, normalised
from runnel.llm.algorithms.turns import Turns
from runnel.losses.base import Loss
from runnel.losses.token import token_value_loss
from runnel.ops.credit import row_index, row_sum
from runnel.ops.returns import explained_variance
from runnel.ops.turns import spread_turns, turn_gae


@dataclass(frozen=True)
class TurnPPOConfig(TokenPPOConfig):
    """PPO on turns, with a critic that starts as a copy of the policy."""

    on_resume: ClassVar[OnResume] = may_change("gamma", "gae_lambda")
    of_turns: ClassVar[tuple[str, ...]] = (*ClipConfig.of_turns, "gamma", "gae_lambda")

    gamma: float = bounded(1.0, at_least=0, at_most=1)
    """Discount by turn."""
    gae_lambda: float = bounded(0.95, at_least=0, at_most=1)
    """GAE's lambda, by turn; 1 trusts the rewards alone."""
    normalise: bool = True
    """Shift and scale the advantages of a batch's turns to mean 0 and deviation 1."""


class TurnPPO(TokenPPO):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) in which an action is a whole turn, with
    generalised advantages over turns (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        V_u = V(all before turn u),   r_u: rewards of turn u, at the last turn also those of the trajectory
        A_u = GAE(r, V; gamma, lam) over the turns of a trajectory,   returns_u = A_u + V_u
        L   = -1/N sum_u sum_{t in u} min(rho_t A_u, clip(rho_t) A_u)  +  1/(2U) sum_u max((V_u - returns_u)^2, clipped)

    V_u is the critic's score at the last token before the turn, so that nothing of the action is known to it; it is trained
    there and nowhere else. Ratios are by token, N tokens and U turns are in the global batch. A conversation that a limit cut
    (turns, context, time) ends there, as one that ended itself: what would have followed has no recorded value to
    bootstrap from, and the limit is part of the task. A completion without turns is one turn: A = R - V(prompt).
    """

    config: TurnPPOConfig

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        mask, length, turns = rows["loss_mask"], rows["row_length"], Turns.of(rows)
        # the field at a token is the score at the token before it
        value, trained = rows["value"][turns.first], turns.trained(mask)
        advantage, returns = turn_gae(
            self.turn_rewards(rows, turns),
            value,
            turns.owner,
            num_trajectories=turns.num_trajectories,
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        )
        stats = explained_variance(value[trained], returns[trained], collective)
        if self.config.normalise:
            advantage = normalised(advantage, trained, collective)
        first = torch.zeros(len(mask))
        first[turns.first[trained]] = 1.0
        return Batch(
            {
                "advantage": spread_turns(advantage, turns.token),
                "return": spread_turns(returns, turns.token),
                "value_weight": first,
                "denominator/value": row_sum(first, row_index(length), len(length)),
                "stats/value/explained_variance": stats,
            }
        )

    def _value_loss(self, part: Part, denominator: float) -> Loss:
        fields = part.fields
        return token_value_loss(
            part.outputs["value"],
            fields["value"],
            fields["return"],
            clip=self.config.value_clip,
            denominator=denominator,
            weight=fields["value_weight"],
        )
