"""GiGPO: groups of whole trajectories, and within them groups of turns that began in the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import Aggregation, ClipConfig, ClippedAlgorithm
from runnel.llm.algorithms.turns import Turns
from runnel.ops.credit import group_advantage
from runnel.ops.turns import spread_turns, step_group_size, step_groups, turn_returns


@dataclass(frozen=True)
class GiGPOConfig(ClipConfig):
    """Group-in-group policy optimisation."""

    on_resume: ClassVar[OnResume] = live("step_coef") | may_change("gamma", "scale")
    of_turns: ClassVar[tuple[str, ...]] = (*ClipConfig.of_turns, "gamma")

    step_coef: float = bounded(1.0, at_least=0)
    """Weight of what a turn is worth among the turns of its group that saw the same; the trajectory's own weight is 1."""
    gamma: float = bounded(0.95, at_least=0, at_most=1)
    """Discount by turn of what follows a turn."""
    scale: Literal["std", "none"] = "std"
    """What both comparisons are divided by: the standard deviation of what is compared, or nothing."""


class GiGPO(ClippedAlgorithm):
    """Group-in-group policy optimisation (Feng et al. 2025, arXiv:2505.10978, sec. 4; eq. 8 joins the two).

        A^E_i  = (R_i - mean(R)) / F(R)                       over the trajectories of a group; R_i is the sum of i's rewards
        R_iu   = sum_{k >= u} gamma^(k - u) r_ik              what follows from turn u on
        A^S_iu = (R_iu - mean(R)) / F(R)                      over the turns of the group with the key of (i, u)
        A_iu   = A^E_i + step_coef A^S_iu                     for all tokens of the turn; F is the deviation, or 1

    The loss is GRPO's: with `step_coef` 0, and where no two turns saw the same, this is GRPO (`step_groups/alone` tells). A
    turn that is alone in its step group gets no A^S. A completion without turns is one turn, and has seen its prompt: A is
    1 + step_coef times that of GRPO. The paper groups equal observations; here `turn_key` decides, which an environment may
    set. Like GRPO, and unlike the authors' code, means are over trajectories, so a long one counts no more than a short one.
    """

    config: GiGPOConfig
    aggregation: Aggregation = "sequence"

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        turns, scale = Turns.of(rows), self.config.scale == "std"
        earned = self.turn_rewards(rows, turns)
        returns = turn_returns(earned, turns.owner, num_trajectories=turns.num_trajectories, gamma=self.config.gamma)
        of_step = step_groups(turns.key, rows["group"][turns.owner])
        episode = group_advantage(rewards, rows["group"], scale=scale)[turns.owner]
        advantage = episode + self.config.step_coef * group_advantage(returns, of_step, scale=scale)
        size = step_group_size(of_step)
        return Batch(
            {
                "advantage": spread_turns(advantage, turns.token),
                # a mean over step groups: each of its turns stands for 1 / size of one
                "stats/step_groups/size": len(size) / (1.0 / size).sum(),
                "stats/step_groups/alone": (size == 1).float().mean(),
            }
        )
