"""PPO that holds costs under limits (PPO-Lagrangian, Ray, Achiam & Amodei 2019, "Benchmarking safe exploration in deep
reinforcement learning"): what it adds to `agents/ppo.py`, written out.

Each cost i has a critic and a multiplier m_i. The policy climbs `(A_r - sum_i m_i A_i) / (1 + sum_i m_i)`, where A_i
is the advantage of cost i. After each update multipliers follow what the episodes of the batch cost above the limits, by their
sum over updates and by the last one (Stooke et al. 2020, arXiv:2007.03964). The maths is in `ops/constraints.py`, the critics
are in `nets/cost_critics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.ppo import Numbers, PPOConfig, PPOLearner
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.spaces import Channels
from runnel.core.state import State
from runnel.core.trajectories import carried_field
from runnel.losses.on_policy import value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.cost_critics import CostCritics
from runnel.nets.optim import Adam
from runnel.ops.constraints import lagrangian_advantage, next_multipliers
from runnel.ops.returns import gae, returns_so_far


@dataclass(frozen=True)
class LagrangianConfig:
    """Which costs have a limit, and how fast their multipliers move."""

    on_resume: ClassVar[OnResume] = may_change("multiplier_lr", "proportional") | stays(
        "limits", "initial_multiplier", why="the checkpoint has a critic and a multiplier of each of these costs"
    )

    limits: dict[str, float] = field(default_factory=dict)
    """What an episode may cost at most, on average, by cost: '{"hazard": 2}'. Each is a cost of the environment."""
    multiplier_lr: float = bounded(0.002, above=0, finite=True)
    """How much a multiplier moves in an update for each 1 that the mean episode costs above its limit."""
    proportional: float = bounded(0.01, at_least=0, finite=True)
    """How much a multiplier is larger, until the next update, for each 1 that the mean episode costs above its limit. It
    damps the swing of costs about their limits; 0: none."""
    initial_multiplier: float = bounded(0.0, at_least=0, finite=True)
    """The multipliers before the first update."""

    def check(self, channels: Channels, weights: Mapping[str, float]) -> None:
        """Raise a `ConfigError` for limits that cannot be held. `channels` are those of the environment, `weights` what its
        reward is made of."""
        check_bounds(self, "lagrangian.")
        if not self.limits:
            costs = ", ".join(channels.costs) or "none yet: --channels.costs NAME reads one from info"
            raise ConfigError("lagrangian.limits", self.limits, f'give a cost its limit, {{"NAME": 2}}; there are {costs}')
        for name, limit in self.limits.items():
            if name not in channels.costs:
                known = ", ".join(channels.costs) or "no costs at all"
                fix = f"there is no cost {name!r} but {known}; --channels.costs {name} reads it from info"
                raise ConfigError("lagrangian.limits", self.limits, fix)
            if not isinstance(limit, int | float) or not math.isfinite(limit):
                raise ConfigError("lagrangian.limits", self.limits, f"the limit of {name!r} must be a finite number")
            if f"costs/{name}" in weights:
                fix = f"{name!r} has a limit, and its multiplier is its weight; leave it out"
                raise ConfigError("channels.weights", dict(weights), fix)


class PPOLagrangianLearner(PPOLearner):
    """PPO with a critic and a multiplier for each cost that has a limit.

    Its segments hold each cost, and what their episodes had cost before (`carried_field`).
    """

    def __init__(
        self,
        config: PPOConfig,
        lagrangian: LagrangianConfig,
        net: ActorCritic,
        critics: CostCritics,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        if net.state_spec:
            raise ConfigError("net.core", "recurrent", "the critics of costs have no memory; use none")
        super().__init__(config, net, seed=seed, collective=collective, device=device)
        self.lagrangian, self.critics = lagrangian, critics.to(device)
        self.limits = torch.tensor([float(lagrangian.limits[name]) for name in critics.costs], device=device)
        self.integral = torch.full_like(self.limits, lagrangian.initial_multiplier)
        self.multipliers = self.integral.clone()
        self._critic_adam = Adam(critics.parameters(), lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self._ended = torch.zeros(0)

    # ------------------------------------------------------------------------------------------------------------ batch
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        self._critic_adam.lr = schedule.at(self.config.lr, progress)
        ended = [self.ended_costs(s.arrays) for group in segments.values() for s in group]
        self._ended = torch.stack(ended).sum(dim=0).to(self.device)
        return super().prepare(segments, progress=progress)

    def make_batch(self, data: Batch) -> Batch:
        return super().make_batch(Batch({**data, **self.cost_credit(data)}))

    def ended_costs(self, data: Batch) -> Tensor:
        """What the episodes that ended in a segment cost in all, by cost, and behind it their number. `[C + 1]`"""
        over = data["terminated"] | data["truncated"]
        sums = []
        for name in self.critics.costs:
            cost = data[f"costs/{name}"]
            so_far = returns_so_far(cost, over, data[carried_field(f"costs/{name}")], gamma=1.0)
            sums.append((so_far * over).sum(dtype=torch.float64))
        return torch.stack([*sums, over.sum().double()])

    def cost_credit(self, data: Batch) -> dict[str, Tensor]:
        """Advantages of each cost, and the targets of its critic, by generalised advantage estimation like those of the reward.
        `[T, B]` each"""
        found: dict[str, Tensor] = {}
        for i, name in enumerate(self.critics.costs):
            values, following = self._values(data, partial(self._cost_value, i))
            ends = (data["terminated"], data["truncated"])
            advantage, target = gae(
                data[f"costs/{name}"], values, following, *ends, gamma=self.config.gamma, lam=self.config.gae_lambda
            )
            found |= {f"cost_advantage/{name}": advantage, f"cost_return/{name}": target}
        return found

    def _cost_value(self, index: int, obs: Mapping[str, Tensor]) -> Tensor:
        return self.critics.value(self.net.observe(obs), index)

    def credit(self, data: Batch, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As in PPO, with the advantage of the Lagrangian in place of that of the reward."""
        values, advantages, returns = super().credit(data, rewards)
        costs = torch.stack([data[f"cost_advantage/{name}"] for name in self.critics.costs])
        return values, lagrangian_advantage(advantages, costs, self.multipliers), returns

    def _seen(self, data: Batch) -> dict[str, Tensor]:
        return super()._seen(data) | {f"cost_return/{name}": data[f"cost_return/{name}"] for name in self.critics.costs}

    # ----------------------------------------------------------------------------------------------------------- update
    def step(self, rows: Mapping[str, Tensor]) -> Numbers:
        """A step of PPO, and one of the critics of costs: half the squared error to their returns, summed over costs."""
        numbers = super().step(rows)
        values = self.critics(self.net.observe(rows))
        targets = torch.stack([rows[f"cost_return/{name}"] for name in self.critics.costs])
        loss = value_loss(values, targets, denominator=self._count(rows)).value
        if not loss.is_cuda and not math.isfinite(loss.item()):
            raise NonFiniteError("loss/cost_value", self.version)
        self._critic_adam.step(loss, max_norm=self.config.max_grad_norm, collective=self.collective)
        return {**numbers, "loss/cost_value": loss.detach() * self.collective.world_size}

    def update(self, batch: Batch) -> Update:
        """As in PPO, and a step of the multipliers by what the episodes that ended in the batch cost; one version."""
        found = super().update(batch)
        *sums, count = self.collective.all_reduce(self._ended).tolist()
        metrics = {f"multiplier/{name}": x for name, x in zip(self.critics.costs, self.multipliers.tolist(), strict=True)}
        if count:  # without an episode that ended nothing is known, and multipliers stay
            costs = torch.tensor([total / count for total in sums]).to(self.limits)
            metrics |= {f"cost_in_batch/{name}": x for name, x in zip(self.critics.costs, costs.tolist(), strict=True)}
            c, excess = self.lagrangian, costs - self.limits
            moved = next_multipliers(self.integral, excess, lr=c.multiplier_lr, proportional=c.proportional)
            for now, after in zip((self.integral, self.multipliers), moved, strict=True):
                now.copy_(after)
        return replace(found, metrics={**found.metrics, **metrics})

    # ------------------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> State:
        critics = {k: v.clone() for k, v in self.critics.state_dict().items()}
        moved = {"integral": self.integral.clone(), "multipliers": self.multipliers.clone()}
        return {**super().state_dict(), "costs": {"critics": critics, "adam": self._critic_adam.state_dict(), **moved}}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.critics.load_state_dict(state["costs"]["critics"])
        self._critic_adam.load_state_dict(state["costs"]["adam"])
        self.integral.copy_(torch.as_tensor(state["costs"]["integral"]))
        self.multipliers.copy_(torch.as_tensor(state["costs"]["multipliers"]))
