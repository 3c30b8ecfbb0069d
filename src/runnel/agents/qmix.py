"""Q-learning for a team that is paid together: QMIX, VDN, and independent Q as the baseline of both.

Each agent values its own actions by what it sees. What the team gets is to be explained by all of them:

- `qmix` (Rashid et al. 2018, arXiv:1803.11485, eq. 6): Q_tot = f(Q_1 ... Q_A; s), a network that rises with each Q and is made
  from the global state s (`nets/mixing.MonotoneMixer`). The loss is the squared error of Q_tot to
  `r + discount f_target(Q_1(o_1', a_1') ... Q_A(o_A', a_A'); s')`, each a' the best of its agent.
- `vdn` (Sunehag et al. 2017, arXiv:1706.05296, eq. 5): the same with Q_tot = Q_1 + ... + Q_A, which needs no state.
- `none`: each agent has an error of its own, to what it is paid itself (Tan 1993). The others are part of its environment.

Who does not decide (it has left, or waits) is worth 0 in both sums, in the mixer and in errors, and gets no gradient.
Rows are environments (`envs/team/joint.py`); batches are drawn by `data/replay.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.agents.q_learning import QLearner
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import SHARED, TEAM_ACTIVE, own_reward
from runnel.losses.base import Loss
from runnel.losses.td import huber_td_loss
from runnel.nets.layers import NetConfig
from runnel.nets.mixing import MonotoneMixer, Sharing, TeamQNet
from runnel.ops.distributions import mask_logits


@dataclass(frozen=True)
class QMIXConfig:
    """Hyperparameters of QMIX, VDN and independent Q."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "epsilon", "target_every", "target_tau", "max_grad_norm")
        | may_change("double", then="counts from the next update on")
        | stays("gamma", why=DISCOUNTED)
        | stays("batch_size", why="batches of that size are on their way")
        | stays("mixer", "share", "agent_id", "dueling", "mixer_width", "hypernet", why="what was learned is of that network")
    )

    mixer: Literal["qmix", "vdn", "none"] = "qmix"
    """How the values of agents make that of the team. qmix: a network that rises with each. vdn: their sum. none: not at all,
    each agent learns by itself from what it is paid (independent Q)."""
    lr: float | str = scheduled(5e-4)
    """Learning rate of Adam: a number, or a schedule such as "linear(5e-3, 0)"."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards."""
    batch_size: int = bounded(256, at_least=1)
    """Transitions of the team in one update."""
    epsilon: float | str = scheduled("linear(1, 0.05, 0.1)")
    """Share of random actions of each agent: a number, or a schedule over the run."""
    double: bool = True
    """Choose the target's actions by the online network (double Q-learning), not by the target network."""
    dueling: bool = False
    """Two networks, for the value of what an agent sees and for the advantages of its actions."""
    share: Sharing = "all"
    """all: one network serves every agent. none: each has its own."""
    agent_id: bool = True
    """A network that serves several agents reads which one it is. Without, agents that see the same do the same."""
    mixer_width: int = bounded(32, at_least=1)
    """qmix: hidden units of the mixer."""
    hypernet: int = bounded(64, at_least=0)
    """qmix: hidden units of the perceptrons that make its weights from the global state; 0: linear, as in the paper."""
    target_every: int = bounded(200, at_least=1)
    """Move the target network each this many updates."""
    target_tau: float = bounded(1.0, above=0, at_most=1)
    """How far the target network then moves to the online one: 1 copies it."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""

    def network(self, env_spec: EnvSpec, agent_spec: EnvSpec, net: NetConfig, *, num_agents: int, seed: int) -> TeamQNet:
        """The network that fits these settings, for a team of `env_spec` whose agents have `agent_spec` each."""
        mixer = None
        if self.mixer == "qmix":
            state = {key: x for key, x in env_spec.obs.items() if key.startswith(SHARED) and key != TEAM_ACTIVE}
            mixer = MonotoneMixer(state, num_agents, width=self.mixer_width, hypernet=self.hypernet, seed=seed)
        form = {"share": self.share, "agent_id": self.agent_id, "dueling": self.dueling}
        return TeamQNet(env_spec, agent_spec, net, num_agents=num_agents, mixer=mixer, seed=seed, **form)

    def unused(self, group: str) -> dict[str, str]:
        """The settings that these settings leave unused, each with the reason."""
        found = {} if self.share == "all" else {f"{group}.agent_id": "each agent has a network of its own"}
        if self.mixer != "qmix":
            found |= dict.fromkeys((f"{group}.mixer_width", f"{group}.hypernet"), f"is of a mixer; set {group}.mixer qmix")
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "qmix.")


class QMIXLearner(QLearner):
    """Consumes one batch of the team's transitions `[B]` a version."""

    config: QMIXConfig
    net: TeamQNet
    target_net: TeamQNet

    def __init__(
        self, config: QMIXConfig, net: TeamQNet, *, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        config.check()
        super().__init__(config, net, collective=collective, device=device)

    def loss(self, batch: Batch) -> Loss:
        """Half the squared error of the team's value, or of each agent's, to its target. Rows `[B]`."""
        following = Batch({key: batch["next_" + key] for key in self.net.env_spec.obs})
        q = self._chosen(self.net.q(batch), batch["action"], batch[TEAM_ACTIVE])
        with torch.no_grad():
            values = self.target_net.q(following)
            chooser = self.net.q(following) if self.config.double else values
            best = mask_logits(chooser, self._mask(batch, chooser)).argmax(-1)
            after = self._chosen(values, best, following[TEAM_ACTIVE])
        mine = batch[TEAM_ACTIVE]
        loss = self._own_loss(q, after, batch) if self.config.mixer == "none" else self._team_loss(q, after, batch, following)
        loss.metrics |= {"td_error": loss.error.mean(), "q": q.detach().sum() / mine.sum().clamp(min=1)}
        return loss

    def _team_loss(self, q: Tensor, after: Tensor, batch: Batch, following: Batch) -> Loss:
        """One error for the whole team, of its values `q` at (s, a) and `after` at (s', a'), `[B, A]`."""
        reward, count = batch["rewards/env"], batch["rewards/env"].numel() * self.collective.world_size
        with torch.no_grad():
            target = torch.addcmul(reward, batch["discount"], self.target_net.total(after, following))
        total = self.net.total(q, batch)
        return huber_td_loss(total, target, weight=batch["weight"], denominator=count, delta=math.inf)

    def _own_loss(self, q: Tensor, after: Tensor, batch: Batch) -> Loss:
        """An error for each agent that decided, of its value and what it was paid itself."""
        active = batch[TEAM_ACTIVE]
        reward = torch.stack([batch[own_reward(i)] for i in range(q.shape[-1])], -1)
        target = torch.addcmul(reward, batch["discount"].unsqueeze(-1), after).masked_fill(~active, 0.0)
        # ranks may have unequal numbers of agents that decided
        count = self.collective.all_reduce(active.sum().double()).clamp(min=1.0).item()
        weight = batch["weight"].unsqueeze(-1).expand_as(q)
        loss = huber_td_loss(q, target, weight=weight, denominator=count, delta=math.inf)
        loss.per_row = loss.error.sum(-1) / active.sum(-1).clamp(min=1)
        return loss

    def _mask(self, batch: Batch, values: Tensor) -> Tensor | None:
        """Open actions at s', `[B, A, n]`."""
        mask = batch.get("next_action_mask")
        return None if mask is None else mask.view_as(values)

    @staticmethod
    def _chosen(values: Tensor, action: Tensor, active: Tensor) -> Tensor:
        """Each agent's value of its action; 0, without a gradient, of one that does not decide. `[B, A, n], [B, A] -> [B, A]`"""
        return values.gather(-1, action.unsqueeze(-1)).squeeze(-1).masked_fill(~active, 0.0)
