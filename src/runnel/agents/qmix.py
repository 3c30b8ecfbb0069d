"""Q-learning for a team that is paid together: QMIX, VDN, and independent Q as the baseline of both.

Each agent values its own actions by what it sees. What the team gets is to be explained by all of them:

- `qmix` (Rashid et al. 2018, arXiv:1803.11485, eq. 6): Q_tot = f(Q_1 ... Q_A; s), a network that rises with each Q and is made
  from the global state s (`nets/mixing.MonotoneMixer`). The loss is the squared error of Q_tot to
  `r + discount f_target(Q_1(o_1', a_1') ... Q_A(o_A', a_A'); s')`, each a' the best of its agent.
- `vdn` (Sunehag et al. 2017, arXiv:1706.05296, eq. 5): the same with Q_tot = Q_1 + ... + Q_A, which needs no state.
- `none`: each agent has an error of its own, to what it is paid itself (Tan 1993). The others are part of its environment.

Who does not decide (it has left, or waits) is worth 0 in both sums, in the mixer and in errors, and gets no gradient.
Rows are environments (`envs/team/joint.py`); batches are drawn by `data/replay.py`, or, for agents with a memory, by
`data/sequences.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

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
from runnel.nets.agent_nets import Sharing
from runnel.nets.layers import NetConfig
from runnel.nets.mixing import MonotoneMixer, TeamQNet
from runnel.nets.q_nets import followed
from runnel.ops.distributions import mask_logits


@dataclass(frozen=True)
class QMIXConfig:
    """Hyperparameters of QMIX, VDN and independent Q."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "epsilon", "target_every", "target_tau", "max_grad_norm")
        | may_change("double", "burn_in")
        | stays("eta", why="the priorities in the replay memory were made with it")
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
    """Transitions of the team in one update; with a memory (net.core), sequences of `num_steps` steps."""
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
    burn_in: int = bounded(0, at_least=0)
    """With a memory: first steps of a sequence that only bring the state up to date, and are not learned from."""
    eta: float = bounded(0.9, at_least=0, at_most=1)
    """With a memory: a sequence's priority is eta times the largest error of its steps plus 1 - eta times their mean."""
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
        return TeamQNet(
            env_spec,
            agent_spec,
            net,
            num_agents=num_agents,
            share=self.share,
            agent_id=self.agent_id,
            dueling=self.dueling,
            mixer=mixer,
            seed=seed,
        )

    def unused(self, group: str) -> dict[str, str]:
        """The settings that these settings leave unused, each with the reason."""
        found = {} if self.share == "all" else {f"{group}.agent_id": "each agent has a network of its own"}
        if self.mixer != "qmix":
            found |= dict.fromkeys((f"{group}.mixer_width", f"{group}.hypernet"), f"is of a mixer; set {group}.mixer qmix")
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "qmix.")


class Outputs(NamedTuple):
    """What networks say of a batch: values at s, of the target network at s', and of the one that chooses a', `[..., A, n]`;
    open actions at s'; the global state, and who decides, at s and at s'."""

    values: Tensor
    following: Tensor
    chooser: Tensor
    mask: Tensor | None
    state: Mapping[str, Tensor]
    next_state: Mapping[str, Tensor]


class QMIXLearner(QLearner):
    """Consumes one batch of the team a version: transitions `[B]`, or sequences `[T, B]`."""

    config: QMIXConfig
    net: TeamQNet
    target_net: TeamQNet

    def __init__(self, config: QMIXConfig, net: TeamQNet, *, collective: Collective | None = None, device: str = "cpu") -> None:
        config.check()
        super().__init__(config, net, collective=collective, device=device)

    def loss(self, batch: Batch) -> Loss:
        """Half the squared error of the team's value, or of each agent's, to its target, over `[B]` or `[T - burn_in, B]`."""
        at = self._sequences(batch) if self.net.state_spec else self._transitions(batch)
        rows = Batch(
            {key: x[-len(at.values) :] for key, x in batch.items() if key.startswith(("rewards/", "discount", "action"))}
        )
        q = self._chosen(at.values, rows["action"], at.state[TEAM_ACTIVE])
        with torch.no_grad():
            # double Q-learning: the online network chooses a' and the target network values it
            best = mask_logits(at.chooser, at.mask).argmax(-1)
            after = self._chosen(at.following, best, at.next_state[TEAM_ACTIVE])
        rows["weight"] = batch["weight"].expand_as(rows["discount"])
        loss = self._own_loss(q, after, rows, at) if self.config.mixer == "none" else self._team_loss(q, after, rows, at)
        loss.metrics |= {"td_error": loss.error.mean(), "q": q.detach().mean()}
        return loss

    def _team_loss(self, q: Tensor, after: Tensor, rows: Batch, at: Outputs) -> Loss:
        """One error for the whole team, of its values `q` at (s, a) and `after` at (s', a'), `[..., A]`."""
        with torch.no_grad():
            worth = self.target_net.total(after, at.next_state)
            target = torch.addcmul(rows["rewards/env"], rows["discount"], worth)
        total, count = self.net.total(q, at.state), target.numel() * self.collective.world_size
        return huber_td_loss(total, target, weight=rows["weight"], denominator=count, delta=math.inf)

    def _own_loss(self, q: Tensor, after: Tensor, rows: Batch, at: Outputs) -> Loss:
        """An error for each agent that decided, of its value and what it was paid itself."""
        active = at.state[TEAM_ACTIVE]
        reward = torch.stack([rows[own_reward(i)] for i in range(q.shape[-1])], -1)
        target = torch.addcmul(reward, rows["discount"].unsqueeze(-1), after).masked_fill(~active, 0.0)
        # ranks may have unequal numbers of agents that decided
        count = self.collective.all_reduce(active.sum().double()).clamp(min=1.0).item()
        weight = rows["weight"].unsqueeze(-1).expand_as(q)
        loss = huber_td_loss(q, target, weight=weight, denominator=count, delta=math.inf)
        loss.per_row = loss.error.sum(-1) / active.sum(-1).clamp(min=1)
        return loss

    def _transitions(self, batch: Batch) -> Outputs:
        following = {key: batch["next_" + key] for key in self.net.env_spec.obs}
        with torch.no_grad():
            after = self.target_net.q(following)
            chooser = self.net.q(following) if self.config.double else after
        mask = batch.get("next_action_mask")
        return Outputs(self.net.q(batch), after, chooser, None if mask is None else mask.view_as(after), batch, following)

    def _sequences(self, batch: Batch) -> Outputs:
        """The same for sequences, each network with states of its own."""
        burn = self.config.burn_in
        q, ours = self.net.unroll_batch(batch, burn_in=burn)
        with torch.no_grad():
            _, after = self.target_net.unroll_batch(batch, burn_in=burn)
        shared = [key for key in self.net.env_spec.obs if key.startswith(SHARED)]
        now = {key: batch[key][burn:-1] for key in shared}
        then = {key: followed(batch[key][1:], batch["final_" + key], batch)[burn:] for key in shared}
        mask = None
        if "action_mask" in batch:
            mask = followed(batch["action_mask"][1:], batch["final_action_mask"], batch)[burn:].view_as(after)
        return Outputs(q, after, ours if self.config.double else after, mask, now, then)

    @staticmethod
    def _chosen(values: Tensor, action: Tensor, active: Tensor) -> Tensor:
        """Each agent's value of its action; 0, without a gradient, of one that does not decide. `[..., A, n] -> [..., A]`"""
        return values.gather(-1, action.unsqueeze(-1)).squeeze(-1).masked_fill(~active, 0.0)
