"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): its configuration and its update, written out.

`prepare` turns `[T, B]` segments (`core/trajectories.py`) into one flat batch with advantages; `update` walks over it in
shuffled minibatches. Losses are in `losses/`, returns in `ops/returns.py`, the network in `nets/actor_critic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from runnel.agents.whole_batch import of_whole_batch
from runnel.core import schedule
from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Collective, Metrics, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.trajectories import CARRIED, merge_segments
from runnel.kernels.graphs import Captured
from runnel.losses.actor_critic import ppo_gradient
from runnel.losses.policy import clipped_policy_loss
from runnel.losses.value import value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.compiled import Compiled
from runnel.nets.fused import Fused
from runnel.ops.normalise import ReturnScale, explained_variance, standardise
from runnel.ops.optimise import Adam
from runnel.ops.returns import gae
from runnel.ops.shuffle import Shuffle

METRICS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "grad_norm")


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO. The defaults reach 500 on CartPole-v1 in 100,000 steps on seeds 1 to 3 (recipe `ppo`)."""

    on_resume: ClassVar[OnResume] = may_change(
        *("lr", "gamma", "lam", "clip", "num_epochs", "num_minibatches", "entropy_coef", "value_coef", "value_clip"),
        *("max_grad_norm", "normalise_advantage", "dual_clip", "target_kl"),
    ) | stays("normalise_obs", "normalise_reward", why="what was learned is on that scale")

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
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which goes on over segments."""
    dual_clip: float | None = None
    """Bound the ratio at entries of negative advantage by this (above 1); None does not."""
    target_kl: float | None = None
    """End the update early once a minibatch's KL exceeds this; None never does."""

    def unused(self, group: str, *, fresh: bool) -> dict[str, str]:
        """Settings of `group` that one optimiser step a batch does not read: nothing comes after it, and where the policy
        itself has sampled (`fresh`) its ratio is 1."""
        if self.num_epochs * self.num_minibatches > 1:
            return {}
        names = ("value_clip", "target_kl", *(("clip", "dual_clip") if fresh else ()))
        return {f"{group}.{name}": f"one optimiser step a batch never gets there; set {group}.num_epochs" for name in names}

    def check(self, batch_size: int) -> None:
        """Raise a `ConfigError` for settings that cannot train on `batch_size` rows (steps; environments if recurrent)."""
        schedule.parse(self.lr, "ppo.lr")
        for name in ("num_epochs", "num_minibatches"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"ppo.{name}", value, "must be at least 1")
        for name in ("gamma", "lam"):
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                raise ConfigError(f"ppo.{name}", value, "must be in [0, 1]")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ConfigError("ppo.dual_clip", self.dual_clip, "must be above 1, or None")
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

    @property
    def return_gamma(self) -> float | None:
        """The discount of the returns that segments must carry; None where rewards are not scaled."""
        return self.gamma if self.normalise_reward else None


class PPOLearner:
    """Consumes `[T, B]` segments, one batch a version; owns the network and its optimiser.

    A row of the batch is one step; with a recurrent network it is one environment's whole segment, so that time is never cut.
    Of several ranks each shuffles its own rows, and a minibatch is one of each rank.
    """

    own_state: tuple[str, ...] = ("shuffle",)

    def __init__(
        self, config: PPOConfig, net: ActorCritic, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        self.config, self.net, self.device = config, net.to(device), torch.empty(0, device=device).device
        self.collective: Collective = collective or OneProcess()
        self.version, self._seed = 0, seed
        self._optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self._shuffle = Shuffle(make_seed(seed, "ppo", self.collective.rank), device=device)
        self._reward_scale = ReturnScale(gamma=config.gamma).to(device) if config.normalise_reward else None
        self._params = dict(net.state_dict())
        self._loss: dict[str, Any] = {
            k: getattr(config, k) for k in ("clip", "dual_clip", "value_clip", "value_coef", "entropy_coef")
        }
        # on a CUDA device both are recorded once and replayed; elsewhere they are plain calls
        self._make_batch = Captured(self._batch, name="PPO's batch")
        self._train = Captured(self._learn, generators=self._shuffle.generators, name="PPO's update")

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Rows of all readers side by side, with value, advantage and return by this learner's critic.

        `{...: [T * B, ...]}`, or `[B, T, ...]` for a recurrent network. Leaves may be views of the segments' memory: release
        those after `update`.
        """
        data = merge_segments([s for group in segments.values() for s in group]).to(self.device)
        num_steps, num_envs = data["action"].shape[:2]
        self.config.check(num_envs if self.net.state_spec else num_steps * num_envs)
        if self._reward_scale is not None and CARRIED not in data:
            fix = "segments must carry the return of their episodes: give return_gamma to on_policy_graph"
            raise ConfigError("normalise_reward", True, fix)
        self._optimiser.lr = schedule.at(self.config.lr, progress)
        self.net.eval()  # values are judged as actions were chosen: without dropout, by the statistics of training
        return self._make_batch(data) if self.collective.world_size == 1 else self._batch(data)

    def _batch(self, data: Batch) -> Batch:
        rewards, over = data["rewards/env"], data["terminated"] | data["truncated"]
        if self._reward_scale is not None:
            rewards = self._reward_scale(rewards, over, data[CARRIED], self.collective)
        values, advantages, returns = self._credit(data, rewards)
        if self.config.normalise_advantage:
            advantages = standardise(advantages, self.collective)
        keys = [*self.net.env_spec.obs, "action", "logprob", *(["action_mask"] if "action_mask" in data else [])]
        columns = {k: data[k][: len(over)] for k in keys} | {"value": values, "advantage": advantages, "return": returns}
        if not self.net.state_spec:
            return Batch({k: x.flatten(0, 1) for k, x in columns.items()})
        columns["resets"] = torch.cat([torch.zeros_like(over[:1]), over[:-1]])
        return Batch({k: x.transpose(0, 1) for k, x in columns.items()} | {k: data[k] for k in self.net.state_spec})

    def _credit(self, data: Batch, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values by this learner's critic, advantages, and what the critic should have said. `[T, B]` each"""
        values, next_values = self._values(data)
        gamma, lam = self.config.gamma, self.config.lam
        return values, *gae(rewards, values, next_values, data["terminated"], data["truncated"], gamma=gamma, lam=lam)

    def _values(self, data: Batch) -> tuple[Tensor, Tensor]:
        """V(s_t), and the value of what followed step t: V(s_{t+1}), or of the final observation of an episode that ended."""
        if self.net.state_spec:
            return self.net.unroll(data)[1:]
        num_steps, num_envs = data["action"].shape[:2]
        obs = {k: torch.cat([data[k].flatten(0, 1), data["final_" + k]]) for k in self.net.env_spec.obs}
        values = self.net.value(obs)
        at_steps, at_ends = values[: (num_steps + 1) * num_envs], values[(num_steps + 1) * num_envs :]
        next_values = at_steps[num_envs:].index_copy(0, data["final_index"], at_ends)
        return at_steps[: num_steps * num_envs].view(num_steps, num_envs), next_values.view(num_steps, num_envs)

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """`num_epochs` passes in shuffled minibatches; one version."""
        plain = self.config.target_kl is not None or self.collective.world_size > 1  # a graph cannot wait for other ranks
        self.net.train()
        with self.net.drawing(self._seed, "network", self.collective.rank, self.version):
            history, numbers = self._learn(batch) if plain else self._train(batch)
        metrics = self._metrics(batch, history, numbers)
        self.version += 1
        return Update(metrics)

    def _learn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The numbers of `METRICS` for each optimiser step `[steps, 7]`; their means, and the explained variance `[8]`."""
        kernels = self.net.kernels() if self.config.target_kl is None and self.collective.world_size == 1 else None
        history = self._passes(batch) if kernels is None else self._fused_passes(kernels, batch)
        # The batch was made by the statistics that were published with its version. They change only now, so that ratios
        # start at 1 and every minibatch sees one and the same normalisation; the next publication carries the new ones.
        self.net.update_statistics(self._flat_obs(batch), self.collective)
        explained = explained_variance(batch["value"], batch["return"], self.collective)
        return history, torch.cat([history.mean(0), explained.reshape(1)])

    def _passes(self, batch: Batch) -> Tensor:
        """The numbers of `METRICS` for each optimiser step. `-> [steps, 7]`"""
        num_rows = len(batch["advantage"])
        size = num_rows // self.config.num_minibatches
        history: list[Tensor] = []
        for _ in range(self.config.num_epochs):
            order = self._shuffle.order(num_rows)
            leaves = {k: torch.split(v.index_select(0, order), size) for k, v in batch.items()}
            for i in range(self.config.num_minibatches):
                history.append(self._step({k: parts[i] for k, parts in leaves.items()}))
                if self._far(history[-1]):
                    break
            else:
                continue
            break
        return torch.stack(history)

    def _fused_passes(self, kernels: Fused | Compiled, batch: Batch) -> Tensor:
        """`_passes` of a small network by kernels (`nets/fused.py`, `nets/compiled.py`), which pick their rows themselves."""
        config, num_rows = self.config, len(batch["advantage"])
        settings = {"optimiser": self._optimiser, "max_norm": config.max_grad_norm, **self._loss}
        orders = self._shuffle.orders(config.num_epochs, num_rows)
        return kernels.passes(batch, orders, size=num_rows // config.num_minibatches, **settings)

    def _step(self, rows: Mapping[str, Tensor]) -> Tensor:
        """One optimiser step on one minibatch; returns the numbers of `METRICS`. `[7]`"""
        count = rows["advantage"].numel() * self.collective.world_size
        if self.net.taped:
            return self._step_by_hand(rows, count)
        config = self.config
        scores, values, rows = self._forward(rows)
        logprob, entropy = self.net.evaluate_scores(scores, rows["action"], rows.get("action_mask"))
        clips: dict[str, Any] = {"clip": config.clip, "dual_clip": config.dual_clip}
        policy = clipped_policy_loss(logprob, rows["logprob"], rows["advantage"], denominator=count, **clips)
        value = value_loss(values, rows["return"], denominator=count, behaviour_value=rows["value"], clip=config.value_clip)
        bonus = entropy.sum() / count
        total = policy.value + config.value_coef * value.value - config.entropy_coef * bonus
        self._check(total, rows, policy.value, value.value)
        norm = self._optimiser.step(total, max_norm=config.max_grad_norm, collective=self.collective)
        parts = [total, policy.value, value.value, bonus, policy.metrics["kl"], policy.metrics["clip_fraction"], norm]
        return torch.stack(parts).detach()

    @torch.no_grad()
    def _step_by_hand(self, rows: Mapping[str, Tensor], count: int) -> Tensor:
        """`_step` with the gradient of losses and layers written out: the same numbers in a third of the time."""
        scores, values, tape = self.net.tape(rows)
        slope = ppo_gradient(scores, values, self.net.log_std, rows=rows, denominator=count, **self._loss)
        numbers = slope.numbers
        self._check(numbers[0], rows, numbers[1], numbers[2])
        grads = self.net.backward(tape, slope.to_scores, slope.to_values, slope.to_log_std)
        norm = self._optimiser.apply(grads, self.config.max_grad_norm, collective=self.collective)
        return torch.cat((numbers, norm.reshape(1)))

    def _check(self, total: Tensor, rows: Mapping[str, Tensor], policy: Tensor, value: Tensor) -> None:
        """Never step on a bad loss. A device is asked once, at the end of the update."""
        if not total.is_cuda and not math.isfinite(total.item()):
            raise NonFiniteError(self._culprit(rows, policy, value), self.version)

    def _forward(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Scores, values, and the columns laid out like them: `[N]`, or `[T, B]` for a recurrent network."""
        if not self.net.state_spec:
            return *self.net.both(rows), rows
        columns = {k: x if k in self.net.state_spec else x.transpose(0, 1) for k, x in rows.items()}
        return *self.net.sequence(columns, columns["resets"]), columns

    def _far(self, numbers: Tensor) -> bool:
        if self.config.target_kl is None:
            return False
        return self.collective.all_reduce(numbers[METRICS.index("kl")].clone()).item() > self.config.target_kl

    def _metrics(self, batch: Batch, history: Tensor, numbers: Tensor) -> Metrics:
        names = (*METRICS, "explained_variance")
        numbers = of_whole_batch(numbers, names, self.collective, means=("grad_norm", "explained_variance"))
        metrics = dict(zip(names, numbers.tolist(), strict=True))
        if not math.isfinite(metrics["loss/total"]):
            first = int((~history[:, 0].isfinite()).nonzero()[0])
            raise NonFiniteError(self._culprit(batch, *history[first][1:3].unbind()), self.version)
        return metrics | {"lr": self._optimiser.lr, "optimiser_steps": len(history)}

    def _culprit(self, rows: Mapping[str, Tensor], policy: Tensor, value: Tensor) -> str:
        """What to name when a loss is not finite: data if it is bad, else the loss itself."""
        names = {**{k: k for k in self.net.env_spec.obs}, "value": "value", "advantage": "rewards/env", "logprob": "logprob"}
        for key, name in names.items():
            if rows[key].is_floating_point() and not rows[key].isfinite().all():
                return name
        if not policy.isfinite():
            return "loss/policy"
        return "loss/value" if not value.isfinite() else "loss/total"

    def _flat_obs(self, batch: Batch) -> Mapping[str, Tensor]:
        return {k: batch[k].flatten(0, 1) for k in self.net.env_spec.obs} if self.net.state_spec else batch

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics: the same tensors at every call, updated in place."""
        return self._params

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` shuffles in orders of its own."""
        seed = make_seed(self._seed, "ppo", self.collective.rank, version)
        self._shuffle.load_state_dict(Shuffle(seed, device=str(self.device)).state_dict())

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "optimiser": self._optimiser.state_dict(),
            "shuffle": self._shuffle.state_dict(),
            "reward_scale": None if self._reward_scale is None else dict(self._reward_scale.state_dict()),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._shuffle.load_state_dict(state["shuffle"])
        if self._reward_scale is not None:
            self._reward_scale.load_state_dict(state["reward_scale"])
        self.version = state["version"]
