"""Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783), synchronous: its configuration and its update, written out.

One batch of whole `[T, B]` segments (`core/trajectories.py`), one gradient, one step of Adam (the paper's is RMSProp). Losses
are in `losses/`, returns in `ops/returns.py`, the network in `nets/actor_critic.py`. `agents/impala.py` is the same update
with another credit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import merge_segments, of_whole_batch
from runnel.agents.deciding import refuse_idle_rows
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.core.state import State
from runnel.core.trajectories import CARRIED
from runnel.losses.on_policy import approximate_kl, policy_gradient_loss, value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.layers import ReturnScale
from runnel.nets.optim import Adam
from runnel.ops.returns import explained_variance, gae

MEANS = ("explained_variance", "grad_norm")
"""Metrics that are the same on every rank; all others were divided by the count of the whole batch."""


@dataclass(frozen=True)
class A2CConfig:
    """Hyperparameters of A2C."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "gae_lambda", "entropy_coef", "value_coef", "max_grad_norm")
        | may_change("gamma")
        | stays("normalise_obs", "normalise_reward", why="what was learned is on that scale")
    )

    lr: float | str = scheduled("linear(2e-3, 0)")
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards."""
    gae_lambda: float = bounded(0.95, at_least=0, at_most=1)
    """Lambda of the return: 0 trusts the critic, 1 the observed rewards up to the end of the segment."""
    entropy_coef: float = bounded(0.0, finite=True)
    """Weight of the entropy bonus."""
    value_coef: float = bounded(0.5, finite=True)
    """Weight of the critic's loss."""
    max_grad_norm: float = bounded(0.5, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_obs: bool = False
    """Normalise observations by running statistics that are published with the parameters."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which goes on over segments."""

    @property
    def return_gamma(self) -> float | None:
        """The discount of the returns that segments must carry; None where rewards are not scaled."""
        return self.gamma if self.normalise_reward else None

    def check(self, name: str = "a2c") -> None:
        """Raise a `ConfigError` for settings that cannot train; `name` is the field that holds this config."""
        check_bounds(self, f"{name}.")


class A2CLearner(LiveConfig):
    """Consumes `[T, B]` segments, one batch and one optimiser step a version; owns the network and its optimiser."""

    config: A2CConfig

    def __init__(
        self,
        config: A2CConfig,
        net: ActorCritic,
        *,
        seed: int = 0,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or SingleProcess()
        self.version, self._seed = 0, seed
        # eps as in PPO: with torch's 1e-8, a weight whose gradients are almost 0 would move as far as any other
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self._reward_scale = ReturnScale(gamma=config.gamma).to(device) if config.normalise_reward else None
        self._params = dict(net.state_dict())

    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Segments of all readers side by side, `{...: [T, B, ...]}`. May be views: release their memory after `update`."""
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        data = merge_segments([s for group in segments.values() for s in group]).to(self.device)
        refuse_idle_rows(data, self)
        if self._reward_scale is None:
            return data
        if CARRIED not in data:
            fix = "segments must carry the return of their episodes: give return_gamma to on_policy_graph"
            raise ConfigError("normalise_reward", True, fix)
        over = data["terminated"] | data["truncated"]
        return Batch({**data, "rewards/env": self._reward_scale(data["rewards/env"], over, data[CARRIED], self.collective)})

    def update(self, batch: Batch) -> Update:
        """One optimiser step. The host waits for a device once, at the end, for the numbers."""
        self.net.train()
        with self.net.drawing(self._seed, "network", self.collective.rank, self.version):
            numbers = self.step(batch)
        self.net.update_statistics({k: batch[k][:-1].flatten(0, 1) for k in self.net.env_spec.obs}, self.collective)
        metrics = of_whole_batch(torch.stack(list(numbers.values())), list(numbers), self.collective, means=MEANS)
        if not math.isfinite(metrics["loss/total"]):
            raise NonFiniteError(self._culprit(batch), self.version)
        self.version += 1
        return Update({**metrics, "lr": self.optimiser.lr})

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """The gradient of the whole batch, and the step; metrics by name `[]`."""
        numbers = self.loss(batch)
        total = numbers["loss/total"]
        if not total.is_cuda and not math.isfinite(total.item()):  # on a device this would wait: see `update`
            raise NonFiniteError(self._culprit(batch), self.version)
        norm = self.optimiser.step(total, max_norm=self.config.max_grad_norm, collective=self.collective)
        return {name: x.detach() for name, x in numbers.items()} | {"grad_norm": norm}

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """`-logprob advantage + value_coef value - entropy_coef entropy` as "loss/total", which is differentiated; its parts
        beside it. Every sum is divided by the steps of all ranks."""
        config, mask = self.config, batch.get("action_mask")
        scores, values, next_values = self.net.unroll(batch)
        logprob, entropy = self.net.evaluate_scores(scores, batch["action"], None if mask is None else mask[:-1])
        count = logprob.numel() * self.collective.world_size
        with torch.no_grad():
            log_ratio = logprob - batch["logprob"]
            targets, advantages = self.credit(batch, log_ratio, values.detach(), next_values)
            kl = approximate_kl(logprob, batch["logprob"], denominator=count)
            explained = explained_variance(values, targets, self.collective)
        policy = policy_gradient_loss(logprob, advantages, denominator=count)
        critic = value_loss(values, targets, denominator=count)
        bonus = entropy.sum() / count  # keeps the policy from settling on one action before it has seen the others
        total = policy.value + config.value_coef * critic.value - config.entropy_coef * bonus
        parts = {"loss/policy": policy.value, "loss/value": critic.value, "entropy": bonus}
        return {"loss/total": total, **parts, "kl": kl, "explained_variance": explained}

    def credit(self, batch: Batch, log_ratio: Tensor, values: Tensor, next_values: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of the critic and advantages of the policy. `[T, B]` each"""
        advantages, returns = gae(
            batch["rewards/env"],
            values,
            next_values,
            batch["terminated"],
            batch["truncated"],
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        )
        return returns, advantages

    def _culprit(self, batch: Batch) -> str:
        """What to name when the loss is not finite: data if it is bad, else the loss itself."""
        for key in (*self.net.env_spec.obs, "rewards/env", "logprob"):
            if batch[key].is_floating_point() and not batch[key].isfinite().all():
                return key
        return "loss/total"

    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics: the same tensors at every call, updated in place."""
        return self._params

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "optimiser": self.optimiser.state_dict(),
            "reward_scale": None if self._reward_scale is None else dict(self._reward_scale.state_dict()),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self._reward_scale is not None:
            self._reward_scale.load_state_dict(state["reward_scale"])
        self.version = state["version"]
