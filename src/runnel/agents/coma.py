"""COMA (Foerster et al. 2018, "Counterfactual multi-agent policy gradients", arXiv:1705.08926).

A team that is paid together learns by policy gradient, and each agent is credited with what its own action changed. A central
critic knows the state s and what all agents do, u. Of agent a it says the value of each action that a might have taken, while
the others do what they did; their mean under a's own policy is what its action is compared with (eq. 4):

    A_a = Q(s, u) - sum_u' pi_a(u' | o_a) Q(s, (u_-a, u'))
    L   = -mean log pi_a(u_a | o_a) A_a - entropy_coef H

One network reads s, the actions of all but a, and which agent a is, and gives Q for all actions of a (fig. 1c). It learns
TD(lambda) returns by a target network (sec. 4), with the mean reward of all agents (`agents/joint.py`):

    y_t = r_t + gamma ((1 - lambda) Q_t+1 + lambda y_t+1)

Here Q_t is the mean of what the target network says of each agent that decides at t: all of them estimate the same. What would
follow the last moment of a segment, or of an episode that was cut, are actions that nobody took; so nothing is learned from
that moment, and the moments before bootstrap from its Q. A bonus for entropy explores where the paper mixes in random actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.agents.base import read_metrics
from runnel.agents.central import Numbers, count_of, refuse_non_finite
from runnel.agents.deciding import single_steps
from runnel.agents.joint import Joint, join
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.losses.base import masked_mean
from runnel.losses.on_policy import policy_gradient_loss, value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import StateCritic
from runnel.nets.optim import Adam
from runnel.ops.decisions import decisions, gae_of_decisions
from runnel.ops.distributions import mask_logits

EXTRA, TARGET, TAKEN = "extra", "target", "action"
"""Columns of a policy's rows: what its critic reads beside the state, TD(lambda) targets, the actions taken."""
SUMS = ("loss/q", "loss/policy", "entropy")
"""Metrics that were divided by the count of the whole batch."""


@dataclass(frozen=True)
class COMAConfig:
    """Hyperparameters of COMA."""

    on_resume: ClassVar[OnResume] = live(
        *("lr", "critic_lr", "td_lambda", "entropy_coef", "critic_steps", "target_every", "max_grad_norm")
    ) | (may_change("gamma") | stays("normalise_obs", why="what was learned is on that scale"))

    lr: float | str = scheduled(1e-3)
    """Learning rate of the policies: a number, or a schedule such as "linear(1e-3, 0)"."""
    critic_lr: float | str = scheduled(2e-3)
    """Learning rate of the critic."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards, from one step at which any agent of the team decides to the next one."""
    td_lambda: float = bounded(0.8, at_least=0, at_most=1)
    """Lambda of the critic's targets: 0 trusts the next value, 1 the observed returns."""
    entropy_coef: float = bounded(0.01, finite=True)
    """Weight of the entropy bonus."""
    critic_steps: int = bounded(8, at_least=1)
    """Gradient steps of the critic on each batch, before the policies take theirs."""
    target_every: int = bounded(10, at_least=1)
    """Updates after which the target network becomes the critic."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_obs: bool = True
    """Normalise observations, and the global state, by running statistics."""


class Places(NamedTuple):
    """The agents of a policy in what the critic reads: which of all agents they are, and where their actions stand."""

    agents: Sequence[int]
    actions: Sequence[slice]


class COMALearner(LiveConfig):
    """Consumes one round of all streams, one batch a version; owns the policies, the critic and their optimisers.

    `nets` are the policies by name, which is also that of their stream, `agents` how many agents follow each. The critic reads
    `extra_size(nets, agents)` numbers beside the state, and gives as many as the largest number of actions.
    """

    config: COMAConfig

    def __init__(
        self,
        config: COMAConfig,
        nets: Mapping[str, ActorCritic],
        critic: StateCritic,
        *,
        agents: Mapping[str, int],
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        check_bounds(config, "coma.")
        self.config, self.device = config, torch.empty(0, device=device).device
        self.collective: Collective = collective or SingleProcess()
        self.version = 0
        self.nets = {policy: net.to(device) for policy, net in nets.items()}
        self.critic = critic.to(device)
        self.target = deepcopy(critic).requires_grad_(False)
        self._places = places_of(nets, agents)
        self.critic_optimiser = Adam(critic.parameters(), lr=schedule.at(config.critic_lr, 0.0), eps=1e-5)
        weights = [x for net in nets.values() for x in net.parameters()]
        self.optimiser = Adam(weights, lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self._params = {f"{policy}/{key}": x for policy, net in self.nets.items() for key, x in net.state_dict().items()}

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The decisions of each policy, with all that the critic reads and learns of them: `policy/... [N, ...]`."""
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        self.critic_optimiser.lr = schedule.at(self.config.critic_lr, progress)
        joint = join({policy: segments[policy] for policy in self.nets}, device=self.device)
        extra = {policy: self._extra(joint, policy) for policy in self.nets}
        targets, counts = self._targets(joint, extra)
        batch = Batch()
        for policy, net in self.nets.items():
            data = joint.members[policy]
            num = len(targets)
            keys = [*net.env_spec.obs, TAKEN, *(["action_mask"] if "action_mask" in data else [])]
            columns = {key: data[key][:num] for key in keys}
            columns |= {key: data[key][:num] for key in self.critic.obs}
            columns |= {EXTRA: extra[policy], TARGET: joint.for_rows(policy, targets)}
            mine = joint.for_rows(policy, counts) & data[ACTIVE][:num]
            batch |= {f"{policy}/{key}": x for key, x in single_steps(columns, mine, at_least=1).items()}
        return batch

    def _extra(self, joint: Joint, policy: str) -> Tensor:
        """What the critic reads of each row beside the state: actions of all others, one-hot, and which agent it is."""
        data = joint.members[policy]
        whole = torch.cat([self._one_hot(joint, name) for name in self.nets], dim=-1)  # [T, E, sum of actions]
        rows = []
        for agent, own in zip(self._places[policy].agents, self._places[policy].actions, strict=True):
            others = whole.clone()
            others[..., own] = 0.0
            which = torch.zeros(self._num_agents, device=self.device)
            which[agent] = 1.0
            rows.append(torch.cat([others, which.expand(*others.shape[:2], -1)], dim=-1))
        return torch.stack(rows, dim=2).flatten(1, 2)[: len(data[TAKEN])]

    def _one_hot(self, joint: Joint, policy: str) -> Tensor:
        """What the agents of a policy did, zeros where they did not decide. `[T, E, A * n]`"""
        data, num = joint.members[policy], self.nets[policy].env_spec.action.num_actions
        hot = F.one_hot(data[TAKEN].long(), num).to(torch.float32)
        hot = hot.masked_fill(~data[ACTIVE][: len(hot)].unsqueeze(-1), 0.0)
        return joint.of_team(policy, hot).flatten(2)

    @property
    def _num_agents(self) -> int:
        return sum(len(places.agents) for places in self._places.values())

    def _targets(self, joint: Joint, extra: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """TD(lambda) returns of the team, and the moments from which something is learned. `[T, E]` twice"""
        total, number = torch.zeros_like(joint.rewards), torch.zeros_like(joint.rewards)
        for policy in self.nets:
            data = joint.members[policy]
            taken = self._taken(self.target, self._seen(data, extra[policy]), data[TAKEN])
            there = joint.of_team(policy, data[ACTIVE][:-1])
            total += joint.of_team(policy, taken).masked_fill(~there, 0.0).sum(-1)
            number += there.sum(-1)
        values = total / number.clamp(min=1.0)
        active = joint.active.clone()
        active[-1] = False  # there is no action yet: what comes before bootstraps from the last moment with one
        following = torch.cat([values[1:], torch.zeros_like(values[:1])])
        found = decisions(joint.rewards, following, joint.terminated, joint.truncated, active)
        found = found._replace(counts=found.counts & ~found.truncated)
        _, returns = gae_of_decisions(found, values, active, gamma=self.config.gamma, lam=self.config.td_lambda)
        return returns, found.counts

    def _seen(self, data: Batch, extra: Tensor) -> dict[str, Tensor]:
        return {key: data[key][: len(extra)] for key in self.critic.obs} | {EXTRA: extra}

    def _taken(self, critic: StateCritic, seen: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Q of the actions taken, of rows with any leading dimensions. `[...]`"""
        found: Tensor = critic(seen, seen[EXTRA]).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        return found

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """The critic's steps, then one of all policies together; one version."""
        parts = {policy: _under(f"{policy}/", batch) for policy in self.nets}
        numbers = self._learn_values(parts)
        numbers |= self._improve(parts)
        for policy, net in self.nets.items():
            rows = parts[policy]
            net.update_statistics({key: rows[key][rows[ACTIVE]] for key in net.env_spec.obs}, self.collective)
        state = {key: torch.cat([rows[key][rows[ACTIVE]] for rows in parts.values()]) for key in self.critic.obs}
        self.critic.update_statistics(state, self.collective)
        metrics = read_metrics(numbers, self.collective, sums=[n for n in numbers if n.endswith(SUMS)], version=self.version)
        self.version += 1
        if self.version % self.config.target_every == 0:
            self.target.load_state_dict(self.critic.state_dict())
        return Update(metrics | {"lr": self.optimiser.lr})

    def _learn_values(self, parts: Mapping[str, Batch]) -> Numbers:
        """`critic_steps` steps on all rows."""
        count = torch.stack([count_of(rows, self.collective) for rows in parts.values()]).sum()
        history = []
        for _ in range(self.config.critic_steps):
            losses = [
                value_loss(
                    self._taken(self.critic, rows, rows[TAKEN]), rows[TARGET], denominator=count, mask=rows[ACTIVE]
                ).value
                for rows in parts.values()
            ]
            loss = torch.stack(losses).sum()
            refuse_non_finite("loss/q", loss, self.version)
            self.critic_optimiser.step(loss, max_norm=self.config.max_grad_norm, collective=self.collective)
            history.append(loss.detach())
        return {"loss/q": torch.stack(history).mean()}

    def _improve(self, parts: Mapping[str, Batch]) -> Numbers:
        """One step of all policies."""
        numbers: Numbers = {}
        total = torch.zeros((), device=self.device)
        for policy, rows in parts.items():
            net, count, mask = self.nets[policy], count_of(rows, self.collective), rows[ACTIVE]
            logits = mask_logits(net.scores(rows), rows.get("action_mask"))
            logprob = logits.log_softmax(-1)
            chosen = logprob.gather(-1, rows[TAKEN].long().unsqueeze(-1)).squeeze(-1)
            advantage = self.advantages(rows, logprob.detach().exp())
            loss = policy_gradient_loss(chosen, advantage, denominator=count, mask=mask).value
            _, entropy = net.evaluate_scores(logits, rows[TAKEN])
            bonus = masked_mean(entropy, mask, denominator=count)
            refuse_non_finite(f"{policy}/loss/policy", loss, self.version)
            total = total + loss - self.config.entropy_coef * bonus
            numbers |= {f"{policy}/loss/policy": loss.detach(), f"{policy}/entropy": bonus.detach()}
        norm = self.optimiser.step(total, max_norm=self.config.max_grad_norm, collective=self.collective)
        return numbers | {"grad_norm": norm}

    @torch.no_grad()
    def advantages(self, rows: Mapping[str, Tensor], probs: Tensor) -> Tensor:
        """What the action of each row is worth beside the mean over the agent's own policy `probs` `[N, n]`. `[N]`"""
        values = self.critic(rows, rows[EXTRA])[..., : probs.shape[-1]]
        taken = values.gather(-1, rows[TAKEN].long().unsqueeze(-1)).squeeze(-1)
        advantage: Tensor = taken - (probs * values).sum(-1)
        return advantage

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics of the policies: the same tensors at every call, updated in place."""
        return self._params

    def not_taken(self) -> Sequence[str]:
        """What a run that starts from this one's parameters does not get."""
        return ["the critic of the team"]

    def state_dict(self) -> State:
        modules = {**self.nets, "_critic": self.critic, "_target": self.target}
        return {
            "nets": {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in modules.items()},
            "optimiser": self.optimiser.state_dict(),
            "critic_optimiser": self.critic_optimiser.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        for name, net in {**self.nets, "_critic": self.critic, "_target": self.target}.items():
            net.load_state_dict(state["nets"][name])
        self.optimiser.load_state_dict(state["optimiser"])
        self.critic_optimiser.load_state_dict(state["critic_optimiser"])
        self.version = state["version"]


def places_of(nets: Mapping[str, ActorCritic], agents: Mapping[str, int]) -> dict[str, Places]:
    """Where the agents of each policy stand. Refuses actions that are not one choice."""
    found, agent, place = dict[str, Places](), 0, 0
    for policy, net in nets.items():
        action = net.env_spec.action
        if action.kind != "discrete":
            fix = f"its critic gives a value for each of a few actions, and policy {policy!r} has others; use mappo or happo"
            raise ConfigError("env", action.kind, fix)
        own = [slice(place + i * action.num_actions, place + (i + 1) * action.num_actions) for i in range(agents[policy])]
        found[policy] = Places(range(agent, agent + agents[policy]), own)
        agent, place = agent + agents[policy], place + agents[policy] * action.num_actions
    return found


def extra_size(nets: Mapping[str, ActorCritic], agents: Mapping[str, int]) -> int:
    """How many numbers the critic of COMA reads of a row beside the state: everybody's actions, and which agent it is."""
    return sum(agents[policy] * (net.env_spec.action.num_actions + 1) for policy, net in nets.items())


def _under(start: str, batch: Mapping[str, Tensor]) -> Batch:
    return Batch({key.removeprefix(start): x for key, x in batch.items() if key.startswith(start)})
