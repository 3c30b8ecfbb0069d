"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): its configuration and its update, written out.

`prepare` turns `[T, B]` segments (`core/trajectories.py`) into one flat batch with advantages; `update` walks over it in
shuffled minibatches. Losses are in `losses/`, returns in `ops/returns.py`, the network in `nets/actor_critic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core import schedule
from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Collective, Metrics, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.losses.policy import clipped_policy_loss
from runnel.losses.value import value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.ops.optimise import Adam
from runnel.ops.returns import gae

METRICS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "grad_norm")


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO. The defaults reach 500 on CartPole-v1 in 100,000 steps on seeds 1 to 3 (recipe `ppo`)."""

    lr: float | str = "linear(1e-3, 1e-4)"
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = 0.99
    """Discount of future rewards."""
    lam: float = 0.95
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the observed returns."""
    clip: float = 0.2
    """Half width of the interval around 1 in which the probability ratio earns gradient."""
    num_epochs: int = 8
    """Passes over each batch."""
    num_minibatches: int = 4
    """Optimiser steps per pass; must divide the batch."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the critic's loss."""
    value_clip: float | None = None
    """Keep the critic within this distance of its value before the update; None does not clip."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    normalise_advantage: bool = True
    """Shift and scale advantages to mean 0 and standard deviation 1 over the batch."""
    normalise_obs: bool = False
    """Normalise observations by running statistics that are published with the parameters."""
    target_kl: float | None = None
    """End the update early once a minibatch's KL exceeds this; None never does."""

    def check(self, batch_size: int) -> None:
        """Raise a `ConfigError` for settings that cannot train on `batch_size` steps an update."""
        schedule.parse(self.lr, "ppo.lr")
        for name in ("num_epochs", "num_minibatches"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"ppo.{name}", value, "must be at least 1")
        for name in ("gamma", "lam"):
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                raise ConfigError(f"ppo.{name}", value, "must be in [0, 1]")
        for name in ("clip", "max_grad_norm", "value_clip", "target_kl"):
            if (value := getattr(self, name)) is not None and not value > 0.0:
                raise ConfigError(f"ppo.{name}", value, "must be above 0")
        for name in ("entropy_coef", "value_coef"):
            if not math.isfinite(value := getattr(self, name)):
                raise ConfigError(f"ppo.{name}", value, "must be a finite number")
        if batch_size % self.num_minibatches:
            divisors = [n for n in range(1, min(batch_size, 64) + 1) if batch_size % n == 0]
            near = min(divisors, key=lambda n: abs(n - self.num_minibatches))
            raise ConfigError("ppo.num_minibatches", self.num_minibatches, f"must divide the batch of {batch_size}; use {near}")


class PPOLearner:
    """Consumes `[T, B]` segments, one batch a version; owns the network and its optimiser."""

    def __init__(
        self, config: PPOConfig, net: ActorCritic, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or OneProcess()
        self.version = 0
        self._optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self._rng = make_rng(seed, "ppo", self.collective.rank)
        self._params = dict(net.state_dict())

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Rows of all readers side by side, with value, advantage and return by this learner's critic. `{...: [T * B, ...]}`

        Leaves may be views of the segments' memory: release those after `update`.
        """
        data = merge_segments([s for group in segments.values() for s in group]).to(self.device)
        self._check_finite(data)
        num_steps, num_envs = data["action"].shape[:2]
        self.config.check(num_steps * num_envs)
        self._optimiser.lr = schedule.at(self.config.lr, progress)
        values, next_values = self._values(data)
        advantages, returns = gae(
            data["rewards/env"],
            values,
            next_values,
            data["terminated"],
            data["truncated"],
            gamma=self.config.gamma,
            lam=self.config.lam,
        )
        if self.config.normalise_advantage:
            advantages = self._standardise(advantages)
        keys = [*self.net.env_spec.obs, "action", "logprob", *(["action_mask"] if "action_mask" in data else [])]
        batch = Batch({k: data[k][:num_steps].flatten(0, 1) for k in keys})
        batch["value"], batch["advantage"], batch["return"] = values.flatten(), advantages.flatten(), returns.flatten()
        return batch

    def _values(self, data: Batch) -> tuple[Tensor, Tensor]:
        """V(s_t), and the value of what followed step t: V(s_{t+1}), or of the final observation of an episode that ended."""
        num_steps, num_envs = data["action"].shape[:2]
        obs = {k: torch.cat([data[k].flatten(0, 1), data["final_" + k]]) for k in self.net.env_spec.obs}
        values = self.net.value(obs)
        at_steps, at_ends = values[: (num_steps + 1) * num_envs], values[(num_steps + 1) * num_envs :]
        next_values = at_steps[num_envs:].index_copy(0, data["final_index"], at_ends)
        return at_steps[: num_steps * num_envs].view(num_steps, num_envs), next_values.view(num_steps, num_envs)

    def _standardise(self, x: Tensor) -> Tensor:
        """Mean 0 and standard deviation 1 over the batch of all ranks: the same however the batch is split. `[T, B]`"""
        local = x.double()
        moments = torch.stack([local.sum(), local.square().sum(), torch.full_like(local[0, 0], x.numel())])
        total, square, count = self.collective.all_reduce(moments)
        mean = total / count
        std = (square / count - mean.square()).clamp(min=0.0).sqrt()
        scaled: Tensor = (x - mean.to(x.dtype)) / (std.to(x.dtype) + 1e-8)
        return scaled

    def _check_finite(self, data: Batch) -> None:
        for key in (*self.net.env_spec.obs, "rewards/env"):
            if data[key].is_floating_point() and not data[key].isfinite().all():
                raise NonFiniteError(key, self.version)

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """`num_epochs` passes in shuffled minibatches; one version."""
        num_rows = len(batch["advantage"])
        size = num_rows // self.config.num_minibatches
        history: list[Tensor] = []
        for _ in range(self.config.num_epochs):
            order = torch.from_numpy(self._rng.permutation(num_rows)).to(self.device)
            leaves = {k: torch.split(v.index_select(0, order), size) for k, v in batch.items()}
            for i in range(self.config.num_minibatches):
                history.append(self._step({k: parts[i] for k, parts in leaves.items()}))
                if self._far(history[-1]):
                    break
            else:
                continue
            break
        # The batch was made by the statistics that were published with its version. They change only now, so that ratios
        # start at 1 and every minibatch sees one and the same normalisation; the next publication carries the new ones.
        self.net.update_statistics(batch, self.collective)
        self.version += 1
        return Update(self._metrics(batch, history))

    def _step(self, rows: Mapping[str, Tensor]) -> Tensor:
        """One optimiser step on one minibatch; returns the numbers of `METRICS`. `[7]`"""
        config, count = self.config, len(rows["advantage"]) * self.collective.world_size
        logprob, entropy = self.net.evaluate(rows, rows["action"], rows.get("action_mask"))
        policy = clipped_policy_loss(logprob, rows["logprob"], rows["advantage"], clip=config.clip, denominator=count)
        value = value_loss(
            self.net.value(rows), rows["return"], denominator=count, behaviour_value=rows["value"], clip=config.value_clip
        )
        bonus = entropy.sum() / count
        total = torch.add(policy.value, value.value, alpha=config.value_coef)
        if config.entropy_coef:
            total = torch.sub(total, bonus, alpha=config.entropy_coef)
        if not math.isfinite(total.item()):
            raise NonFiniteError(_culprit(policy.value, value.value), self.version)
        norm = self._optimiser.step(total, max_norm=config.max_grad_norm, collective=self.collective)
        parts = [total, policy.value, value.value, bonus, policy.metrics["kl"], policy.metrics["clip_fraction"], norm]
        return torch.stack(parts).detach()

    def _far(self, numbers: Tensor) -> bool:
        if self.config.target_kl is None:
            return False
        return self.collective.all_reduce(numbers[METRICS.index("kl")]).item() > self.config.target_kl

    def _metrics(self, batch: Batch, history: list[Tensor]) -> Metrics:
        means = torch.stack(history).mean(0).tolist()
        residual, spread = (batch["return"] - batch["value"]).var(), batch["return"].var()
        metrics = dict(zip(METRICS, means, strict=True))
        metrics["explained_variance"] = (1.0 - residual / spread.clamp(min=1e-12)).item()
        metrics["lr"] = self._optimiser.lr
        metrics["optimiser_steps"] = len(history)
        return metrics

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics: the same tensors at every call, updated in place."""
        return self._params

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "optimiser": self._optimiser.state_dict(),
            "rng": rng_state(self._rng),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self._optimiser.load_state_dict(state["optimiser"])
        set_rng_state(self._rng, state["rng"])
        self.version = state["version"]


def merge_segments(segments: Sequence[Segment]) -> Batch:
    """Segments side by side along their rows; `final_index` counts in the merged `[T, B]`. One segment is not copied."""
    if len(segments) == 1:
        return segments[0].arrays
    spec, width = segments[0].spec, sum(s.num_rows for s in segments)
    arrays, left = [], 0
    for segment in segments:
        step = segment.arrays["final_index"].div(segment.num_rows, rounding_mode="floor")
        row = segment.arrays["final_index"].remainder(segment.num_rows)
        arrays.append({**segment.arrays, "final_index": step * width + left + row})
        left += segment.num_rows
    axes = {k: f.dims.index(spec.rows) if spec.rows in f.dims else 0 for k, f in spec.fields.items()}
    return Batch({k: torch.cat([a[k] for a in arrays], dim=axis) for k, axis in axes.items()})


def _culprit(policy: Tensor, value: Tensor) -> str:
    if not policy.isfinite():
        return "loss/policy"
    return "loss/value" if not value.isfinite() else "loss/total"
