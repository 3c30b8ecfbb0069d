"""PPO without a critic: an agent is judged beside those who follow the same policy at the same moment.

Agents of one kind are a group, as the completions of one prompt are for a language model (GRPO: Shao et al. 2024,
arXiv:2402.03300); their mean takes the place of the critic (for fleets of vehicles: "One step is enough",
arXiv:2507.15351). Of the agents i that decide at moment t of an environment:

    G_i = r_i,t + gamma r_i,t+1 + ...    to the end of the agent's episode, or of the segment
    A_i = (G_i - mean_j G_j) / (std_j G_j + eps)

With gamma 0 only the reward of the decision itself counts, which is the one-step form of that paper. A moment at which fewer
than two agents decide, or all get the same, teaches nothing. Agents must be paid apart: where everybody gets one reward, no
agent is better than another.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from runnel.agents.ppo import Numbers, PPOConfig, PPOLearner
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.state import Metrics
from runnel.core.trajectories import ACTIVE
from runnel.nets.actor_critic import ActorCritic
from runnel.ops.credit import group_advantage
from runnel.ops.decisions import decisions, gae_of_decisions


class GroupPPOLearner(PPOLearner):
    """`PPOLearner` with credit from groups. Consumes segments of a team, in which the `num_agents` rows of one environment lie
    side by side; `net` needs no critic (`nets.lone_actor`)."""

    def __init__(
        self,
        config: PPOConfig,
        net: ActorCritic,
        *,
        num_agents: int,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        if num_agents < 2:
            fix = "a group needs agents to compare; let at least two of them share a policy, or use credit critic"
            raise ConfigError("credit", "group", fix)
        # the group is the scale: what stands here for other learners would change it once more
        settled = replace(config, normalise_advantage=False, normalise_reward=False)
        super().__init__(settled, net, seed=seed, collective=collective, device=device)
        self._num_agents = num_agents

    def credit(self, data: Batch, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """No values, the advantages of the agents within their groups, and no targets. `[T, B]` each"""
        nothing = torch.zeros_like(rewards)
        found = decisions(rewards, nothing, data["terminated"], data["truncated"], data[ACTIVE])
        to_go, _ = gae_of_decisions(found, nothing, data[ACTIVE], gamma=self.config.gamma, lam=1.0)
        moments = torch.arange(rewards.numel(), device=rewards.device).view_as(rewards) // self._num_agents
        counts = found.counts
        advantages = nothing.masked_scatter(counts, group_advantage(to_go[counts], moments[counts], scale=True))
        return nothing, advantages, nothing

    def _metrics(self, batch: Batch, history: Numbers, means: Tensor) -> Metrics:
        metrics = super()._metrics(batch, history, means)
        return {name: x for name, x in metrics.items() if name not in ("loss/value", "explained_variance")}
