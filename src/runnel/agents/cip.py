"""CIP: SAC that finds out which parts of a state and of an action its reward comes from (Cao et al. 2025, arXiv:2502.10097).

Each `fit_every` updates it estimates, from transitions of the replay memory, what causes what (`ops/causes.py`). Two things
follow from that:

    augmentation  in a share `swap` of the rows, the dimensions of s and s' that nothing needs are those of another row of the
                  batch; the action, the reward and the needed dimensions stay. So the critics see that they do not count.
    empowerment   L_actor = L_SAC - eta sum_i w_i (log q(a_i | s, f(s, a)) - log pi(a_i | s)),  a ~ pi
                  w_i: what a_i has to do with the reward, of mean 1; q tells the action from s and the state after it

From the paper are: graphs state -> reward and action -> reward that are estimated anew from replay data, the exchange of
dimensions that do not matter, and an empowerment of the actions, weighted by the second graph, beside the loss of SAC.

Choices made here. The paper finds the graph by DirectLiNGAM; here the order (state and action before reward and next state) is
given, which leaves a regression, with squares. What leads to the reward by way of other dimensions, or to an episode's end, is
needed too: else a speed would be taken from other rows wherever only the place is rewarded, and dynamics would be wrong. In
the published code the weights are a softmax of the coefficients, the one smallest dimension is exchanged, and the next state is
that of the memory; here they are shares, all dimensions that nothing needs are exchanged, and a model f of the next state
carries the gradient to the action. The paper's resets of networks and its images are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from runnel.agents.sac import SACConfig, SACLearner
from runnel.core import schedule
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.losses.actor import soft_actor_loss
from runnel.losses.base import Loss
from runnel.nets.continuous import LOG_STD_BOUNDS, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import MLP, NetConfig
from runnel.nets.optim import Adam
from runnel.ops.causes import cause_shares, exchange, find_needed
from runnel.ops.empowerment import gaussian_logprobs, squashed_logprobs, weighted_information

TOLD_STD_BOUNDS = (-1.0, 1.0)
"""Of log q. With a sharper q, small errors of f say that an action is far from the one that can be told: that misled actors."""
ROOTS = 2
"""The reward, and the discount, which is 0 where an episode ends."""


@dataclass(frozen=True)
class CIPConfig(SACConfig):
    """Hyperparameters of SAC, and of causes, augmentation and empowerment."""

    on_resume: ClassVar[OnResume] = may_change("fit_every", "cause_threshold", "swap", "empowerment") | stays(
        "fit_rows", why="so many transitions are kept for the estimate"
    )

    fit_rows: int = bounded(5_000, at_least=16)
    """Transitions from which causes are estimated: the newest that were drawn from replay. The paper's code takes 10,000."""
    fit_every: int = bounded(500, at_least=1)
    """Updates from one estimate of causes to the next. The paper's code takes 10,000."""
    cause_threshold: float = bounded(0.2, above=0, at_most=1)
    """A cause counts if its share in an effect is at least this part of the largest share in it."""
    swap: float = bounded(0.5, at_least=0, at_most=1)
    """Share of a batch's rows in which dimensions that do not count are those of another row; 0 augments nothing."""
    empowerment: float = bounded(0.01, at_least=0, finite=True)
    """Weight of the empowerment in the loss of the actor (eta); 0 leaves the actor of SAC."""


class CIPLearner(SACLearner):
    """Consumes sampled transitions `[B]`, as SAC does; owns the causes that it found, and models of states and actions."""

    seed_name, own_state = "cip", ("generator", "sample", "num_seen")
    config: CIPConfig
    actor: SquashedGaussianActor

    def __init__(self, config: CIPConfig, actor: SquashedGaussianActor, critic: QEnsemble, *, seed: int, **rest: Any) -> None:
        super().__init__(config, actor, critic, seed=seed, **rest)
        self._leaves = _vectors(actor)
        num, size = sum(self._leaves.values()), actor.env_spec.action.size
        if config.fit_rows < 4 * (num + size):  # fewer leave the regression nothing to tell chance from cause
            fix = f"there are {num + size} dimensions of state and action; use at least {4 * (num + size)}"
            raise ConfigError("sac.fit_rows", config.fit_rows, fix)
        net = NetConfig(hidden=tuple(w.shape[-1] for w in list(actor.head.weight)[:-1]), activation=actor.head.activation)
        self.following = MLP(num + size, num, config=net, head_gain=1.0, seed=make_seed(seed, "following")).to(self.device)
        self.teller = MLP(2 * num, 2 * size, config=net, head_gain=1.0, seed=make_seed(seed, "teller")).to(self.device)
        weights = [*self.following.parameters(), *self.teller.parameters()]
        self._model_adam = Adam(weights, lr=schedule.at(config.critic_lr, 0.0))
        self._nets |= {"following": self.following, "teller": self.teller}
        self._adams["models"] = self._model_adam
        # states, their changes, action, reward, discount: the rows of an estimate
        self._sample = torch.zeros(config.fit_rows, 2 * num + size + ROOTS, device=self.device)
        self._num_seen, self._sizes_of = 0, [num, size, ROOTS, num]
        self.know(torch.zeros(ROOTS + num, num + size, dtype=torch.float64, device=self.device))

    # ----------------------------------------------------------------------------------------------------------- update
    def step(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        """The causes and the augmentation first, then the models, then the update of SAC."""
        self.remember(batch)
        if (self.version + 1) % self.config.fit_every == 0:
            self.fit()
        batch = self.counterfactual(batch)
        more = {"needed": self.needed.to(torch.float32).mean()}
        if self.config.empowerment:
            self._model_adam.lr = self._critic_adam.lr
            loss = self.model_loss(batch)
            self._model_adam.step(loss, max_norm=None, collective=self.collective)
            more["loss/models"] = loss.detach() * self.collective.world_size  # shown as a mean over ranks
        numbers, errors = super().step(batch)
        return {**numbers, **more}, errors

    def state_of(self, batch: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        """All dimensions of the observation. `[B, S]`"""
        return torch.cat([batch[prefix + key] for key in self._leaves], -1)

    # ----------------------------------------------------------------------------------------------------------- causes
    @torch.no_grad()
    def remember(self, batch: Batch) -> None:
        """Put the rows of a batch into the sample, over the oldest ones."""
        state, action = self.state_of(batch), self.actor.box.normalise(batch["action"])
        roots = torch.stack([batch["rewards/env"], batch["discount"]], -1)
        rows = torch.cat([state, action, roots, self.state_of(batch, "next_") - state], -1)[-len(self._sample) :]
        at = (self._num_seen + torch.arange(len(rows), device=self.device)) % len(self._sample)
        self._sample[at] = rows
        self._num_seen += len(rows)

    @torch.no_grad()
    def fit(self) -> None:
        """Estimate the causes from a full sample; the mean over ranks, each of which has a sample of its own."""
        full = float(self._num_seen >= len(self._sample))
        state, action, roots, change = torch.split(self._sample, self._sizes_of, -1)
        # the change of a dimension, and not its next value: that comes mostly from itself, and would hide what moves it
        shares = cause_shares(torch.cat([state, action], -1), torch.cat([roots, change], -1)) * full
        if self.collective.all_reduce(torch.tensor(full, device=self.device)).item() == self.collective.world_size:
            self.know(self.collective.all_reduce(shares) / self.collective.world_size)

    def know(self, shares: Tensor) -> None:
        """Take over shares of causes: which dimensions are needed, and the weights of actions. `[2 + S, S + A]`"""
        self._shares = shares
        self.needed, score = find_needed(shares, num_roots=ROOTS, threshold=self.config.cause_threshold)
        if not self.needed.any():  # nothing is known yet, or the reward never changed: everything may count
            self.needed = torch.ones_like(self.needed)
        total = score.sum()
        self.action_weight = (score * len(score) / total if total > 0.0 else torch.ones_like(score)).to(torch.float32)

    @torch.no_grad()
    def counterfactual(self, batch: Batch) -> Batch:
        """The batch with what is not needed exchanged between rows, in s and s' alike; all else is as it was."""
        if not self.config.swap or self.needed.all():
            return batch
        num = len(batch["discount"])
        order = torch.randperm(num, generator=self._generator, device=self.device)
        rows = torch.rand(num, 1, generator=self._generator, device=self.device) < self.config.swap
        found = Batch(batch)  # new tensors: the batch may be the stream's own memory
        for prefix in ("", "next_"):
            mixed = exchange(self.state_of(batch, prefix), order=order, take=rows & ~self.needed)
            parts = torch.split(mixed, list(self._leaves.values()), -1)
            found |= {prefix + key: part.contiguous() for key, part in zip(self._leaves, parts, strict=True)}
        return Batch(found)

    # ------------------------------------------------------------------------------------------------------ empowerment
    def model_loss(self, batch: Batch) -> Tensor:
        """Half the squared error of f, and the negative log-likelihood of the action under q. `[]`"""
        state, after = self.state_of(batch), self.state_of(batch, "next_")
        action = self.actor.box.normalise(batch["action"])
        error: Tensor = self.following(torch.cat([state, action], -1)) - (after - state)
        return (0.5 * error.square().sum() - self.told(state, after, action).sum()) / self._count(batch)

    def told(self, state: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """log q(a_i | s, s') of each coordinate of the action. `[B, A]`"""
        mean, log_std = self.teller(torch.cat([state, after], -1)).chunk(2, -1)
        return gaussian_logprobs(action, mean, log_std.clamp(*TOLD_STD_BOUNDS))

    def actor_loss(self, batch: Batch, temperature: Tensor) -> Loss:
        """The loss of SAC, less `empowerment` times the weighted information of the action in the state that f expects."""
        if not self.config.empowerment:
            return super().actor_loss(batch, temperature)
        mean, log_std = self.actor.scores(batch).chunk(2, -1)
        action, logprobs = squashed_logprobs(mean, log_std.clamp(*LOG_STD_BOUNDS), self.draw(len(mean)))
        count = self._count(batch)
        loss = soft_actor_loss(
            self.critic.q(batch, action), logprob=logprobs.sum(-1), temperature=temperature, denominator=count
        )
        state = self.state_of(batch)
        after = state + self.following(torch.cat([state, action], -1))
        gain = weighted_information(self.told(state, after, action), logprobs, weight=self.action_weight)
        value = loss.value - self.config.empowerment * gain.sum() / count
        return replace(loss, value=value, metrics={**loss.metrics, "empowerment": gain.detach().mean()})

    # ------------------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> State:
        own = {"sample": self._sample.clone(), "num_seen": self._num_seen, "shares": self._shares.clone()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._sample.copy_(state["sample"])
        self._num_seen = state["num_seen"]
        self.know(state["shares"].to(self.device))


def _vectors(actor: SquashedGaussianActor) -> dict[str, int]:
    """The sizes of the observation's parts, which must all be vectors of numbers."""
    if not isinstance(actor, SquashedGaussianActor):
        raise ConfigError("env", "discrete actions", "CIP weighs the coordinates of a box of actions; use sac or dqn")
    for key, leaf in sorted(actor.env_spec.obs.items()):
        if len(leaf.shape) != 1 or not leaf.dtype.is_floating_point:
            fix = "CIP exchanges single numbers of an observation, so each part must be a vector of real numbers; use sac"
            raise ConfigError("env", f"{key} {leaf.shape} {leaf.dtype}", fix)
    return {key: leaf.shape[0] for key, leaf in sorted(actor.env_spec.obs.items())}
