"""MAT (Wen et al. 2022, "Multi-agent reinforcement learning is a sequence modeling problem", arXiv:2205.14953).

PPO for a team that is paid together, with one network for all its agents (`nets/mat.py`): agent a chooses knowing what those
before it have chosen. By the decomposition of the team's advantage (sec. 2.2, theorem 1), it is then enough that each improves
on what those before it do. All agents have the advantage of the team, and a ratio of their own (eq. 5):

    L = -mean over agents a of min(r_a A, clip(r_a, 1 - clip, 1 + clip) A)
        - entropy_coef mean H_a + value_coef mean (V_a - R)^2 / 2
    r_a = pi(u_a | o, u_1 ... u_{a-1}) / pi_old(the same)
    A: generalised advantages of the team's reward, by V = mean V_a over agents that decide;  R = A + V

The value of each agent learns the return of the team (eq. 4 with R for its target). Who does not decide is in no mean.

Segments have the log-probability of the whole team; those of single agents are computed again before the passes, by the
parameters that acted. So batches must be of the current version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, stays
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import ACTIVE, TEAM_ACTIVE
from runnel.nets.layers import NetConfig
from runnel.nets.mat import TeamTransformer

VALUES = "values"
"""Column of a batch: what the critic said of each agent before the update. `[N, A]`"""


@dataclass(frozen=True)
class MATConfig(PPOConfig):
    """Hyperparameters of MAT: those of PPO, and the sizes of the transformer."""

    on_resume: ClassVar[OnResume] = stays("width", "heads", "blocks", why="what was learned is of that network")

    lr: float | str = scheduled(5e-4)
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    num_epochs: int = bounded(10, at_least=1)
    """Passes over each batch."""
    num_minibatches: int = bounded(1, at_least=1)
    """Optimiser steps per pass; must divide the batch, whose rows are steps of environments."""
    entropy_coef: float = bounded(0.01, finite=True)
    """Weight of the entropy bonus."""
    value_coef: float = bounded(1.0, finite=True)
    """Weight of the critic's loss."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_obs: bool = True
    """Normalise observations by running statistics that are published with the parameters."""
    normalise_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, which goes on over segments."""
    width: int = bounded(64, at_least=1)
    """Numbers that represent an agent in encoder and decoder."""
    heads: int = bounded(1, at_least=1)
    """Heads of attention; must divide the width."""
    blocks: int = bounded(1, at_least=1)
    """Blocks of the encoder, and of the decoder."""

    def check_batch(self, batch_size: int) -> None:
        super().check_batch(batch_size)
        if self.width % self.heads:
            raise ConfigError("ppo.heads", self.heads, f"use a divisor of ppo.width ({self.width})")

    def network(self, env_spec: EnvSpec, agent_spec: EnvSpec, config: NetConfig, *, seed: int) -> TeamTransformer:
        """The network of a team `env_spec` whose agents have `agent_spec` each."""
        check_bounds(self, "ppo.")
        sizes = {"width": self.width, "heads": self.heads, "blocks": self.blocks}
        return TeamTransformer(env_spec, agent_spec, config, **sizes, normalise_obs=self.normalise_obs, seed=seed)


class MATLearner(PPOLearner):
    """Consumes `[T, B]` segments whose rows are teams, one batch a version; owns the network and its optimiser."""

    config: MATConfig
    net: TeamTransformer

    def __init__(
        self, config: MATConfig, net: TeamTransformer, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(config, net, seed=seed, collective=collective, device=device)

    def make_batch(self, data: Batch) -> Batch:
        """As for PPO, with the log-probability and the value of each agent. `[T * B, A]`"""
        batch = super().make_batch(data)
        scores, values = self.net.following(batch, batch["action"])
        logprob, _ = self.net.evaluate_scores(scores, batch["action"], batch.get("action_mask"))
        return Batch(batch | {"logprob": logprob, VALUES: values})

    def _count(self, rows: Mapping[str, Tensor]) -> Tensor | float:
        """Decisions of all ranks that a mean over the minibatch is of."""
        return self.collective.all_reduce(rows[TEAM_ACTIVE].sum().double()).clamp(min=1.0)

    def _forward(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Scores and values of all agents, and columns as wide as these: the team's advantage and return are everybody's."""
        scores, values = self.net.following(rows, rows["action"])
        team = {name: rows[name].unsqueeze(-1).expand_as(values) for name in ("advantage", "return")}
        return scores, values, {**rows, **team, "value": rows[VALUES], ACTIVE: rows[TEAM_ACTIVE]}
