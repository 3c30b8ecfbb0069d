"""Multi-agent soft actor-critic: SAC for a team whose agents act by what each of them sees, with critics that see all of it.

Central critics and actors of their own are those of MADDPG (Lowe et al. 2017, arXiv:1706.02275, sec. 4), the losses those of
SAC (Haarnoja et al. 2018, arXiv:1812.05905). A critic values what all agents see and do, so to it no agent's deed is chance:

    critics: Q(o_1 ... o_A, a_1 ... a_A)  ->  r + discount (min_i Q_target(o', a') - temperature sum_j log pi_j(a_j' | o_j'))
    actors:  temperature sum_j log pi_j(a_j | o_j) - min_i Q(o, a), every a_j drawn anew

So the team is one agent whose policy has independent parts, and the update is that of `agents/sac.py`. (MADDPG draws one
agent's action anew and takes those of the others from the data.) Who does not decide, as it has left or waits, does 0 in the
eyes of the critics, which also read that it does not decide, and has no entropy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, stays
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.nets.agent_nets import Sharing
from runnel.nets.continuous import QEnsemble, TeamGaussianActor
from runnel.nets.layers import NetConfig


@dataclass(frozen=True)
class MASACConfig(SACConfig):
    """Hyperparameters of MASAC: those of SAC, and how agents share."""

    on_resume: ClassVar[OnResume] = stays("share", "agent_id", why="what was learned is of that network")

    share: Sharing = "all"
    """all: one actor serves every agent. none: each has its own. The critics are of the team."""
    agent_id: bool = True
    """An actor that serves several agents reads which one it is. Without, agents that see the same do alike."""
    target_entropy: float | None = bounded(None, finite=True)
    """Entropy that each agent is to hold, in nats. None: minus the number of its action's coordinates."""

    def network(
        self, env_spec: EnvSpec, agent_spec: EnvSpec, net: NetConfig, *, num_agents: int, seed: int
    ) -> TeamGaussianActor:
        """The actors that fit these settings, for a team of `env_spec` whose agents have `agent_spec` each."""
        return TeamGaussianActor(
            env_spec, agent_spec, net, num_agents=num_agents, share=self.share, agent_id=self.agent_id, seed=seed
        )

    def entropy_for(self, action: ActionSpec) -> float:
        """The entropy that each of the agents of `action` `[A, ...]` is to hold."""
        return -float(action.size // action.shape[0]) if self.target_entropy is None else self.target_entropy

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "masac.")


class MASACLearner(SACLearner):
    """Consumes sampled transitions of the team `[B]`, one batch a version."""

    config: MASACConfig
    actor: TeamGaussianActor

    def __init__(
        self,
        config: MASACConfig,
        actor: TeamGaussianActor,
        critic: QEnsemble,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, actor, critic, seed=seed, collective=collective, device=device)

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All transitions in one batch `[B]`; whoever did not decide did what critics read as 0."""
        batch = super().prepare(segments, progress=progress)
        action, centre = batch["action"], self.actor.box.centre.view(batch["action"].shape[1:])
        idle = ~batch[TEAM_ACTIVE].view(*batch[TEAM_ACTIVE].shape, *[1] * (action.dim() - 2))
        return Batch({**batch, "action": torch.where(idle, centre, action)})

    def _wanted_entropy(self, batch: Batch) -> Tensor | float:
        """The target entropy of those that decide, as a mean over this rank's part of the batch, divided by the ranks."""
        return self.target_entropy * batch[TEAM_ACTIVE].sum(-1).float().mean() / self.collective.world_size
