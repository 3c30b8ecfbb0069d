"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): its configuration and its update, written out.

`prepare` turns `[T, B]` segments (`core/trajectories.py`) into one flat batch with advantages; `update` walks over it in
shuffled minibatches. Losses are in `losses/`, returns in `ops/returns.py`, the network in `nets/actor_critic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import Shuffle, merge_segments, of_whole_batch
from runnel.agents.deciding import DECIDES, part_burn_in, sequences, single_steps
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment, StreamSpec
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.state import Metrics, State
from runnel.core.trajectories import ACTIVE, CARRIED
from runnel.losses.base import Loss, masked_mean
from runnel.losses.on_policy import approximate_kl, clipped_policy_loss, value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.layers import ReturnScale
from runnel.nets.optim import Adam
from runnel.ops.decisions import decisions, gae_of_decisions, with_outcome
from runnel.ops.returns import explained_variance, gae, standardise

SUMS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction")
"""Metrics that were divided by the count of the whole batch."""
Numbers = Mapping[str, Tensor]
Critic = Callable[[Mapping[str, Tensor]], Tensor]
"""From obs leaves `[N, *shape]` to values `[N]`."""


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO. The defaults reach 500 on CartPole-v1 in 100,000 steps on seeds 1 to 3 (recipe `ppo`)."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "gae_lambda", "clip_range", "value_clip", "num_epochs", "entropy_coef", "value_coef", "max_grad_norm")
        | live("dual_clip")
        | may_change("gamma", "num_minibatches", "normalise_advantage", "target_kl")
        | stays("normalise_obs", "normalise_reward", why="what was learned is on that scale")
    )

    lr: float | str = scheduled("linear(1e-3, 1e-4)")
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards."""
    gae_lambda: float = bounded(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the observed returns."""
    clip_range: float = bounded(0.2, above=0)
    """Half width of the interval around 1 in which the probability ratio earns gradient."""
    num_epochs: int = bounded(8, at_least=1)
    """Passes over each batch."""
    num_minibatches: int = bounded(4, at_least=1)
    """Optimiser steps per pass; must divide the batch."""
    entropy_coef: float = bounded(0.0, finite=True)
    """Weight of the entropy bonus."""
    value_coef: float = bounded(0.5, finite=True)
    """Weight of the critic's loss."""
    value_clip: float | None = bounded(None, above=0)
    """Keep the critic within this distance of its value before the update; None does not clip."""
    max_grad_norm: float = bounded(0.5, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_advantage: bool = True
    """Shift and scale advantages to mean 0 and standard deviation 1 over the batch."""
    normalise_obs: bool = False
    """Normalise observations by running statistics that are published with the parameters."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which goes on over segments."""
    dual_clip: float | None = bounded(None, above=1)
    """Bound the ratio at entries of negative advantage by this (above 1); None does not."""
    target_kl: float | None = bounded(None, above=0)
    """End the update early once a minibatch's KL exceeds this; None never does."""

    def unused(self, group: str, *, fresh: bool) -> dict[str, str]:
        """Settings of `group` that one optimiser step a batch does not read: nothing comes after it, and where the policy
        itself has sampled (`fresh`) its ratio is 1."""
        if self.num_epochs * self.num_minibatches > 1:
            return {}
        names = ("value_clip", "target_kl", *(("clip_range", "dual_clip") if fresh else ()))
        return {f"{group}.{name}": f"one optimiser step a batch never gets there; set {group}.num_epochs" for name in names}

    def check(self, batch_size: int) -> None:
        """Raise a `ConfigError` for settings that cannot train on `batch_size` rows (steps; environments if recurrent)."""
        check_bounds(self, "ppo.")
        self.check_batch(batch_size)

    def check_batch(self, batch_size: int) -> None:
        if batch_size % self.num_minibatches:
            divisors = [n for n in range(1, min(batch_size, 64) + 1) if batch_size % n == 0]
            near = min(divisors, key=lambda n: abs(n - self.num_minibatches))
            raise ConfigError("ppo.num_minibatches", self.num_minibatches, f"must divide the batch of {batch_size}; use {near}")

    @property
    def return_gamma(self) -> float | None:
        """The discount of the returns that segments must carry; None where rewards are not scaled."""
        return self.gamma if self.normalise_reward else None


class PPOLearner(LiveConfig):
    """Consumes `[T, B]` segments, one batch a version; owns the network and its optimiser.

    A row of the batch is one step; with a recurrent network it is one environment's whole segment, so that time is never cut.
    Of several ranks each shuffles its own rows, and a minibatch is one of each rank.
    """

    own_state: tuple[str, ...] = ("shuffle",)

    config: PPOConfig

    def __init__(
        self, config: PPOConfig, net: ActorCritic, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        check_bounds(config, "ppo.")
        self.config, self.net, self.device = config, net.to(device), torch.empty(0, device=device).device
        self.collective: Collective = collective or SingleProcess()
        self.version, self._seed = 0, seed
        # eps as in the code of the paper's authors (Huang et al. 2022, "The 37 implementation details of PPO", no. 3): with
        # torch's 1e-8, a weight whose gradients are almost 0 would move as far as any other
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0), eps=1e-5)
        self.shuffle = Shuffle(make_seed(seed, "ppo", self.collective.rank), device=device)
        self._reward_scale = ReturnScale(gamma=config.gamma).to(device) if config.normalise_reward else None
        self._params = dict(net.state_dict())

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Rows of all readers side by side, with value, advantage and return by this learner's critic.

        `{...: [T * B, ...]}`, or `[B, T, ...]` for a recurrent network. Leaves may be views of the segments' memory: release
        those after `update`.
        """
        whole = [s for group in segments.values() for s in group]
        data = merge_segments(whole).to(self.device)
        self.config.check_batch(self._batch_rows(*data["action"].shape[:2]))
        if self._reward_scale is not None and CARRIED not in data:
            fix = "segments must carry the return of their episodes: give return_gamma to on_policy_graph"
            raise ConfigError("normalise_reward", True, fix)
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        self.net.eval()  # values are judged as actions were chosen: without dropout, by the statistics of training
        return self.make_batch_of_decisions(data, whole[0].spec) if ACTIVE in data else self.make_batch(data)

    def _batch_rows(self, num_steps: int, num_envs: int) -> int:
        """Rows of the batch that segments `[num_steps, num_envs]` make."""
        return num_envs if self.net.state_spec else num_steps * num_envs

    def make_batch(self, data: Batch) -> Batch:
        """Credit for every step, and rows to shuffle: what `prepare` does on the device."""
        rewards, over = data["rewards/env"], data["terminated"] | data["truncated"]
        if self._reward_scale is not None:
            rewards = self._reward_scale(rewards, over, data[CARRIED], self.collective)
        values, advantages, returns = self.credit(data, rewards)
        if self.config.normalise_advantage:
            # over the whole batch and all ranks: in a minibatch, an advantage would depend on the rows beside it
            advantages = standardise(advantages, self.collective)
        columns = self._seen(data) | {"value": values, "advantage": advantages, "return": returns}
        if not self.net.state_spec:
            return Batch({k: x.flatten(0, 1) for k, x in columns.items()})
        columns["resets"] = torch.cat([torch.zeros_like(over[:1]), over[:-1]])
        return Batch({k: x.transpose(0, 1) for k, x in columns.items()} | {k: data[k] for k in self.net.state_spec})

    def make_batch_of_decisions(self, data: Batch, spec: StreamSpec) -> Batch:
        """`make_batch` where rows do not decide at every step: only decisions are trained on (`agents/deciding.py`).

        `spec` says how many steps at the beginning only bring a recurrent state up to date.
        """
        before, data = part_burn_in(data, spec)
        if before:
            data = Batch(data | self.net.warm_up(before, before["resets"], before[ACTIVE]))
        rewards, over = data["rewards/env"], data["terminated"] | data["truncated"]
        if self._reward_scale is not None:
            rewards = self._reward_scale(rewards, over, data[CARRIED], self.collective, counts=data[ACTIVE][:-1])
        values, advantages, returns = self.credit(data, rewards)
        counts = with_outcome(over, data[ACTIVE])
        if self.config.normalise_advantage:
            scaled = standardise(advantages[counts], self.collective)
            advantages = torch.zeros_like(advantages).masked_scatter(counts, scaled)
        columns = self._seen(data) | {"value": values, "advantage": advantages, "return": returns}
        if self.net.state_spec:
            return sequences(columns, data, before, counts, obs=self.net.env_spec.obs)
        # minibatches have equal sizes, so the few rows that are left of an order wait for the next pass
        return single_steps(columns, counts, at_least=self.config.num_minibatches)

    def _seen(self, data: Batch) -> dict[str, Tensor]:
        """What the policy saw and did at each step. `[T, B, ...]`"""
        keys = [*self.net.env_spec.obs, "action", "logprob", *(["action_mask"] if "action_mask" in data else [])]
        return {k: data[k][: len(data["action"])] for k in keys}

    def credit(self, data: Batch, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values by this learner's critic, advantages, and the critic's targets. `[T, B]` each"""
        values, next_values = self._values(data)
        gamma, lam = self.config.gamma, self.config.gae_lambda
        if ACTIVE in data:
            found = decisions(rewards, next_values, data["terminated"], data["truncated"], data[ACTIVE])
            return values, *gae_of_decisions(found, values, data[ACTIVE], gamma=gamma, lam=lam)
        return values, *gae(rewards, values, next_values, data["terminated"], data["truncated"], gamma=gamma, lam=lam)

    def _values(self, data: Batch, value: Critic | None = None) -> tuple[Tensor, Tensor]:
        """V(s_t), and the value of what followed step t: V(s_{t+1}), or of the final observation of an episode that ended. By
        this learner's critic, or another feedforward one."""
        if self.net.state_spec:
            return self.net.unroll(data)[1:]
        num_steps, num_envs = data["action"].shape[:2]
        obs = {k: torch.cat([data[k].flatten(0, 1), data["final_" + k]]) for k in self.net.env_spec.obs}
        values = (value or self.value)(obs)  # all of them in one pass
        # What followed step t is obs[t + 1] of the same environment, num_envs rows on. But where an episode ended there, that
        # is the next one's first observation, and the final one takes its place; `gae` leaves it out if the task terminated.
        at_steps, at_ends = values[: (num_steps + 1) * num_envs], values[(num_steps + 1) * num_envs :]
        next_values = at_steps[num_envs:].index_copy(0, data["final_index"], at_ends)
        return at_steps[: num_steps * num_envs].view(num_steps, num_envs), next_values.view(num_steps, num_envs)

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """V of obs leaves `[N, *shape] -> [N]`; without gradient."""
        return self.net.value(obs)

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """`num_epochs` passes in shuffled minibatches; one version."""
        self.net.train()
        with self.net.drawing(self._seed, "network", self.collective.rank, self.version):
            history, means = self.learn(batch)
        metrics = self._metrics(batch, history, means)
        self.version += 1
        return Update(metrics)

    def learn(self, batch: Batch) -> tuple[Numbers, Tensor]:
        """The whole update on the device: metrics of each optimiser step, by name `[steps]`; their means, and the critic's
        explained variance behind them, in one tensor, so that the host waits once. `[n + 1]`"""
        history = self.epochs(batch)
        # The batch was made by the statistics that were published with its version. They change only now, so that ratios
        # start at 1 and every minibatch sees one and the same normalisation; the next publication carries the new ones.
        trained = self._trained_on(batch)
        self.net.update_statistics(self._flat_obs(trained), self.collective)
        explained = explained_variance(trained["value"], trained["return"], self.collective)
        return history, torch.stack([*(x.mean() for x in history.values()), explained])

    def epochs(self, batch: Batch) -> Numbers:
        """`num_epochs` passes over the rows, each in an order of its own; metrics of each optimiser step, by name. `[steps]`"""
        num_rows = len(batch["advantage"])
        size = num_rows // self.config.num_minibatches
        history: list[Numbers] = []
        for _ in range(self.config.num_epochs):
            order = self.shuffle.order(num_rows)
            # rows are put in order once and then cut: as many copies as leaves, and not as many as minibatches
            leaves = {k: torch.split(v.index_select(0, order), size) for k, v in batch.items()}
            for i in range(self.config.num_minibatches):
                history.append(self.step({k: parts[i] for k, parts in leaves.items()}))
                if self._far(history[-1]):  # too far from the policy that acted: its data say little about this one
                    return _columns(history)
        return _columns(history)

    def step(self, rows: Mapping[str, Tensor]) -> Numbers:
        """One optimiser step on one minibatch: metrics by name `[]`."""
        numbers = self.loss(rows)
        self._check(rows, numbers)
        # the gradient of all weights is cut to one norm (detail no. 11): a minibatch of outliers must not move the policy far
        norm = self.optimiser.step(numbers["loss/total"], max_norm=self.config.max_grad_norm, collective=self.collective)
        return {name: x.detach() for name, x in numbers.items()} | {"grad_norm": norm}

    # ----------------------------------------------------------------------------------------------------------- losses
    def loss(self, rows: Mapping[str, Tensor]) -> Numbers:
        """`policy + value_coef value - entropy_coef entropy` (eq. 9) as "loss/total", which is differentiated; its parts beside
        it. Every sum is divided by the rows of all ranks, so that the sum of their gradients is that of the whole batch."""
        config, count = self.config, self._count(rows)
        scores, values, rows = self._forward(rows)
        mask = rows.get(ACTIVE)
        logprob, entropy = self.net.evaluate_scores(scores, rows["action"], rows.get("action_mask"))
        policy = self.policy_loss(logprob, rows, count)
        value = self.value_loss(values, rows, count)
        # it keeps the policy from settling on one action before it has seen the others
        bonus = masked_mean(entropy, mask, denominator=count)
        total = policy.value + config.value_coef * value.value - config.entropy_coef * bonus
        parts = {"loss/total": total, "loss/policy": policy.value, "loss/value": value.value, "entropy": bonus}
        if "kl" not in policy.metrics:  # a user's own policy loss may leave it out
            parts["kl"] = approximate_kl(logprob, rows["logprob"], denominator=count, mask=mask)
        return {**parts, **policy.metrics, **value.metrics}

    def _count(self, rows: Mapping[str, Tensor]) -> Tensor | float:
        """Rows of all ranks that a mean over the minibatch is of."""
        if ACTIVE not in rows:
            return rows["advantage"].numel() * self.collective.world_size
        return self.collective.all_reduce(rows[ACTIVE].sum().double()).clamp(min=1.0)  # ranks may have unequal numbers

    def policy_loss(self, logprob: Tensor, rows: Mapping[str, Tensor], count: Tensor | float) -> Loss:
        """The clipped surrogate (eq. 7) of the policy's log-probabilities, against those with which it acted."""
        behaviour, advantage = rows["logprob"], rows["advantage"]
        c, mask = self.config, rows.get(ACTIVE)
        return clipped_policy_loss(
            logprob, behaviour, advantage, clip=c.clip_range, dual_clip=c.dual_clip, denominator=count, mask=mask
        )

    def value_loss(self, values: Tensor, rows: Mapping[str, Tensor], count: Tensor | float) -> Loss:
        """Half the squared error to the returns; with `value_clip` it is held near the critic's value before the update."""
        behaviour, clip, mask = rows["value"], self.config.value_clip, rows.get(ACTIVE)
        return value_loss(values, rows["return"], denominator=count, behaviour_value=behaviour, clip=clip, mask=mask)

    def _check(self, rows: Mapping[str, Tensor], numbers: Numbers) -> None:
        """Refuse a loss that is not finite before the step. On a device that would wait; there the update checks at its end."""
        total = numbers["loss/total"]
        if not total.is_cuda and not math.isfinite(total.item()):
            raise NonFiniteError(self._culprit(rows, numbers["loss/policy"], numbers["loss/value"]), self.version)

    def _forward(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Scores, values, and the columns laid out like them: `[N]`, or `[T, B]` for a recurrent network."""
        if not self.net.state_spec:
            return *self.net.both(rows), rows
        columns = {k: x if k in self.net.state_spec else x.transpose(0, 1) for k, x in rows.items()}
        burn_in = len(columns["resets"]) - len(columns["action"])
        return *self.net.sequence(columns, columns["resets"], active=columns.get(DECIDES), burn_in=burn_in), columns

    def _far(self, numbers: Numbers) -> bool:
        if self.config.target_kl is None:
            return False
        return self.collective.all_reduce(numbers["kl"].clone()).item() > self.config.target_kl

    def _metrics(self, batch: Batch, history: Numbers, means: Tensor) -> Metrics:
        names = [*history, "explained_variance"]
        metrics = of_whole_batch(means, names, self.collective, means=[name for name in names if name not in SUMS])
        if not math.isfinite(metrics["loss/total"]):
            first = int((~history["loss/total"].isfinite()).nonzero()[0])
            policy, value = (history[name][first] for name in ("loss/policy", "loss/value"))
            raise NonFiniteError(self._culprit(batch, policy, value), self.version)
        return metrics | {"lr": self.optimiser.lr, "optimiser_steps": len(history["loss/total"])}

    def _culprit(self, rows: Mapping[str, Tensor], policy: Tensor, value: Tensor) -> str:
        """What to name when a loss is not finite: data if it is bad, else the loss itself."""
        names = {**{k: k for k in self.net.env_spec.obs}, "value": "value", "advantage": "rewards/env", "logprob": "logprob"}
        for key, name in names.items():
            if rows[key].is_floating_point() and not rows[key].isfinite().all():
                return name
        if not policy.isfinite():
            return "loss/policy"
        return "loss/value" if not value.isfinite() else "loss/total"

    def _trained_on(self, batch: Batch) -> Batch:
        """The rows of the batch that count: all, where every row decides at every step."""
        if ACTIVE not in batch:
            return batch
        if not self.net.state_spec and bool(batch[ACTIVE].all()):
            return batch
        if not self.net.state_spec:
            return batch.map(lambda x: x[batch[ACTIVE]])
        counts, names = batch[ACTIVE], (*self.net.env_spec.obs, "value", "return")
        return Batch({k: batch[k][:, -counts.shape[1] :][counts].unsqueeze(0) for k in names})

    def _flat_obs(self, batch: Batch) -> Mapping[str, Tensor]:
        return {k: batch[k].flatten(0, 1) for k in self.net.env_spec.obs} if self.net.state_spec else batch

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generators on the device that an update draws from."""
        return self.shuffle.generators

    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics: the same tensors at every call, updated in place."""
        return self._params

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` shuffles in orders of its own."""
        seed = make_seed(self._seed, "ppo", self.collective.rank, version)
        self.shuffle.load_state_dict(Shuffle(seed, device=str(self.device)).state_dict())

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "optimiser": self.optimiser.state_dict(),
            "shuffle": self.shuffle.state_dict(),
            "reward_scale": None if self._reward_scale is None else dict(self._reward_scale.state_dict()),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.shuffle.load_state_dict(state["shuffle"])
        if self._reward_scale is not None:
            self._reward_scale.load_state_dict(state["reward_scale"])
        self.version = state["version"]


def _columns(history: Sequence[Numbers]) -> Numbers:
    """Metrics of each step, by name. `[steps]`"""
    return {name: torch.stack([numbers[name] for numbers in history]) for name in history[0]}
