"""SPA: a learned estimator shares the final reward out among the turns of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, stays
from runnel.llm.algorithms.base import Aggregation, ClipConfig, ClippedAlgorithm, Component, Part
from runnel.llm.algorithms.turns import Turns
from runnel.losses.base import Loss
from runnel.ops.credit import group_advantage, row_index, row_sum
from runnel.ops.returns import explained_variance
from runnel.ops.turns import spread_turns, turn_returns


@dataclass(frozen=True)
class SPAConfig(ClipConfig):
    """Stepwise progress attribution, with an estimator that starts as a copy of the policy."""

    on_resume: ClassVar[OnResume] = stays("critic_warmup", why="it is how the run started")

    critic_warmup: int = bounded(0, at_least=0)
    """First updates on rollouts that train the estimator alone."""


class SPA(ClippedAlgorithm):
    """Stepwise progress attribution (Wang et al. 2025, arXiv:2505.20732, sec. 3), with the credit of GRPO's process supervision
    (Shao et al. 2024, arXiv:2402.03300, sec. 4.1.3).

        c_u   = the estimator's score of the conversation up to the end of turn u
        L_est = 1/(2B) sum_i (sum_u c_iu - R_i)^2                         R_i: rewards of the trajectory, not those of turns
        r_u   = c_u + (R - sum_k c_k) / U + rewards of turn u             over the U turns of the trajectory
        A_u   = sum_{k >= u} (r_k - mean(r)) / std(r)                     over all turns of the group
        L     = GRPO's, with A_u at the tokens of turn u

    Differences from the paper. There the estimator is trained once, before, on many rollouts; here it learns with the policy.
    There contributions are used as they are; here what the estimator misses of R is shared out evenly, so that they always add
    up to R. There PPO with a critic follows; here the estimator is the only other model. The paper's grounding signal (did the
    environment take the action?) is a reward by turn, given as a channel. c_u is read before the turn's last token, which in a
    chat template ends the turn and says nothing; of a turn of one token the estimator sees nothing. A completion without turns
    gets R whole: this is GRPO, with an estimator that nobody asks.
    """

    config: SPAConfig
    aggregation: Aggregation = "sequence"

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"value"}

    @property
    def components(self) -> Mapping[str, Component]:
        """Those of every policy algorithm, after the estimator's warm-up, and the estimator's own."""
        policy = {name: replace(one, start=self.config.critic_warmup) for name, one in super().components.items()}
        own = Component(self._progress_loss, uses="value", metrics=("progress/error",), by_denominator=True)
        return policy | {"progress": own}

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        turns, mask = Turns.of(rows), rows["loss_mask"]
        owner, ends, trained = turns.owner, turns.ends(mask), turns.trained(mask).float()
        by_turn = turns.rewards(rows, {c: w for c, w in self.channels.items() if f"turn_rewards/{c}" in rows})
        final = rewards - row_sum(by_turn, owner, len(rewards))
        part = trained / row_sum(trained, owner, len(rewards)).clamp(min=1.0)[owner]
        contribution = rows["value"][ends] * trained
        found = row_sum(contribution, owner, len(rewards))
        earned = contribution + (final - found)[owner] * part + by_turn
        scaled = group_advantage(earned, rows["group"][owner], scale=True)
        credit = turn_returns(scaled, owner, num_trajectories=len(rewards), gamma=1.0)
        # of a trajectory's turns each has a part of its one term in the loss
        at_end, places = torch.zeros(3, len(mask)), ends[trained > 0]
        at_end[:, places] = torch.stack([trained, final[owner] * part, part])[:, trained > 0]
        played = row_sum(trained, owner, len(rewards)) > 0
        return Batch(
            {
                "advantage": spread_turns(credit, turns.token),
                "at_end": at_end[0],
                "target": at_end[1],
                "unit": rows["row_owner"],
                "denominator/progress": row_sum(at_end[2], row_index(rows["row_length"]), len(rows["row_length"])),
                "stats/progress/explained_variance": explained_variance(found[played], final[played], collective),
            }
        )

    def _progress_loss(self, part: Part, denominator: float) -> Loss:
        """Half the squared error of each trajectory's sum. Its rows are one unit."""
        gap = part.outputs["value"] * part.fields["at_end"] - part.fields["target"]
        error = row_sum(gap, part.unit, part.num_units)
        return Loss(0.5 * (error**2).sum() / denominator, {"progress/error": (error.detach() ** 2).sum() / denominator})
