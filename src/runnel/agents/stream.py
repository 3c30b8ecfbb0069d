"""Stream AC(lambda) and stream Q(lambda) (Elsayed et al. 2024, arXiv:2410.14606): learn from each transition once, as it comes,
with no memory and no batch.

What makes that stable: observations normalised and rewards scaled by running statistics, sparse weights and layer
normalisation (`nets/stream.py`), and an optimiser that bounds how far a step may overshoot its target (`ObGD`). The statistics
include an observation when it is learned from; the policy acted by those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from runnel.agents.base import merge_segments
from runnel.agents.deciding import refuse_idle_rows
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.state import State
from runnel.core.trajectories import CARRIED
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.layers import ReturnScale
from runnel.nets.stream import StreamQNet
from runnel.ops.distributions import mask_logits

ALONE = SingleProcess()


@dataclass(frozen=True)
class StreamConfig:
    """Hyperparameters of both: those of the paper, which are the same for all of its tasks."""

    on_resume: ClassVar[OnResume] = may_change("lr", "trace_lambda", "kappa_value") | stays(
        "gamma", why="rewards were scaled by the returns that it makes"
    )

    lr: float = bounded(1.0, above=0)
    """Step size before `kappa` bounds it."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards."""
    trace_lambda: float = bounded(0.8, at_least=0, at_most=1)
    """How slowly a transition's share in later errors fades: 0 learns from the newest alone, 1 from all of the episode."""
    kappa_value: float = bounded(2.0, above=0)
    """How strictly steps of values are bounded: an estimate of overshooting times this is at most 1."""

    def check(self, name: str) -> None:
        """Raise a `ConfigError` for settings that cannot train; `name` is the field that holds this config."""
        check_bounds(self, f"{name}.")


@dataclass(frozen=True)
class StreamACConfig(StreamConfig):
    """Hyperparameters of stream AC(lambda)."""

    on_resume: ClassVar[OnResume] = may_change("kappa_policy", "entropy_coef")

    kappa_policy: float = bounded(3.0, above=0)
    """How strictly steps of the policy are bounded."""
    entropy_coef: float = bounded(0.01, at_least=0, finite=True)
    """Weight of the entropy bonus."""


@dataclass(frozen=True)
class StreamQConfig(StreamConfig):
    """Hyperparameters of stream Q(lambda)."""

    on_resume: ClassVar[OnResume] = may_change("epsilon")

    epsilon: float | str = scheduled("linear(1, 0.01, 0.2)")
    """Share of random actions: a number, or a schedule over the run."""


class ObGD:
    """Overshooting-bounded gradient descent with eligibility traces (alg. 3), on all `parameters` at once.

        z = decay z + gradient of the output
        M = lr kappa max(|delta|, 1) |z|_1
        w = w + lr / max(M, 1) delta z

    M estimates by how much a step would move the output, measured in errors: above 1 it would overshoot. So the step is as
    large as it can be without a line search. Traces end with the episode.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, decay: float, kappa: float) -> None:
        self.lr, self.decay, self.kappa = lr, decay, kappa
        self._weights: list[Tensor] = list(parameters)
        self.traces = [torch.zeros_like(w) for w in self._weights]

    def step(self, output: Tensor, delta: Tensor, *, ended: bool) -> Tensor:
        """Move `output` by the error `delta`, and what came before it by its share. Returns the step size. `[], [] -> []`"""
        grads = torch.autograd.grad(output, self._weights)
        with torch.no_grad():
            torch._foreach_mul_(self.traces, self.decay)
            torch._foreach_add_(self.traces, grads)
            norm = torch.stack(torch._foreach_norm(self.traces, 1)).sum()
            overshoot = self.lr * self.kappa * delta.abs().clamp(min=1.0) * norm
            size = self.lr / overshoot.clamp(min=1.0)
            torch._foreach_add_(self._weights, torch._foreach_mul(self.traces, size * delta))
            if ended:
                torch._foreach_zero_(self.traces)
        return size

    def state_dict(self) -> State:
        return {"traces": [z.clone() for z in self.traces]}

    def load_state_dict(self, state: State) -> None:
        for mine, saved in zip(self.traces, state["traces"], strict=True):
            mine.copy_(saved)


class _StreamLearner:
    """The common part: one transition in, one version out."""

    config: StreamConfig
    _steppers: Mapping[str, ObGD]

    def __init__(self, config: StreamConfig, net: ActorCritic | StreamQNet, *, device: str = "cpu") -> None:
        self.config, self.device, self.version = config, torch.device(device), 0
        net.to(device)
        self._net: nn.Module = net
        self._reward_scale = ReturnScale(gamma=config.gamma).to(device)
        self._params = dict(net.state_dict())

    def _stepper(self, net: nn.Module, kappa: float) -> ObGD:
        c = self.config
        return ObGD(net.parameters(), lr=c.lr, decay=c.gamma * c.trace_lambda, kappa=kappa)

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The transition, with its reward scaled: `{...: [1, 1, ...]}`."""
        data = merge_segments([s for group in segments.values() for s in group]).to(self.device)
        refuse_idle_rows(data, self)
        if data["action"].shape[:2] != (1, 1):
            raise ConfigError("num_steps", list(data["action"].shape[:2]), "learns from one step of one environment at a time")
        over = data["terminated"] | data["truncated"]
        return Batch({**data, "rewards/env": self._reward_scale(data["rewards/env"], over, data[CARRIED], ALONE)})

    def update(self, batch: Batch) -> Update:
        """One step of the algorithm on the transition, from which nothing is kept but its share in the traces."""
        numbers = self.step(batch)
        if not math.isfinite(sum(numbers.values())):
            bad = next((k for k, x in batch.items() if x.is_floating_point() and not x.isfinite().all()), "loss/td")
            raise NonFiniteError(bad, self.version)
        self.version += 1
        return Update(numbers)

    def step(self, batch: Batch) -> dict[str, float]:
        """The update, and its metrics."""
        raise NotImplementedError

    def params(self) -> Mapping[str, Tensor]:
        """Weights, statistics of observations, exploration rate: the same tensors at every call, updated in place."""
        return self._params

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "steppers": {name: stepper.state_dict() for name, stepper in self._steppers.items()},
            "reward_scale": dict(self._reward_scale.state_dict()),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self._net.load_state_dict(state["net"])
        for name, stepper in self._steppers.items():
            stepper.load_state_dict(state["steppers"][name])
        self._reward_scale.load_state_dict(state["reward_scale"])
        self.version = state["version"]


class StreamACLearner(_StreamLearner):
    """Stream AC(lambda), alg. 5: consumes one transition a version; owns network, traces and statistics."""

    def __init__(self, config: StreamACConfig, net: ActorCritic, *, device: str = "cpu") -> None:
        config.check("stream_ac")
        super().__init__(config, net, device=device)
        self.net, self._entropy_coef = net, config.entropy_coef
        actor, critic = net.body.get_submodule("actor"), net.body.get_submodule("critic")
        both = nn.ModuleList([actor]) if net.log_std is None else nn.ModuleList([actor, nn.ParameterList([net.log_std])])
        self._steppers = {
            "policy": self._stepper(both, config.kappa_policy),
            "value": self._stepper(critic, config.kappa_value),
        }

    def step(self, batch: Batch) -> dict[str, float]:
        """`delta = r + gamma V(s') - V(s)`; V follows it along its traces, and so does
        `log pi(a | s) + entropy_coef sign(delta) H(pi(. | s))`: a step along `delta` then raises the entropy either way."""
        self.net.update_statistics({k: batch[k][:-1].flatten(0, 1) for k in self.net.env_spec.obs}, ALONE)
        scores, values, following = self.net.unroll(batch)
        mask = batch["action_mask"][:-1] if "action_mask" in batch else None
        logprob, entropy = self.net.evaluate_scores(scores, batch["action"], mask)
        alive = (~batch["terminated"]).to(values.dtype)
        delta = (batch["rewards/env"] + self.config.gamma * alive * following - values).detach().squeeze()
        ended = bool(batch["terminated"] | batch["truncated"])
        bonus = self._entropy_coef * delta.sign() * entropy.squeeze()
        sizes = [
            self._steppers["value"].step(values.squeeze(), delta, ended=ended),
            self._steppers["policy"].step(logprob.squeeze() + bonus, delta, ended=ended),
        ]
        numbers = {"loss/td": delta.square() / 2, "value": values.detach(), "entropy": entropy.detach()}
        numbers |= {"step_size/value": sizes[0], "step_size/policy": sizes[1]}
        return {name: x.item() for name, x in numbers.items()}


class StreamQLearner(_StreamLearner):
    """Stream Q(lambda), alg. 4: consumes one transition a version; owns network, traces and statistics."""

    def __init__(self, config: StreamQConfig, net: StreamQNet, *, device: str = "cpu") -> None:
        config.check("stream_q")
        super().__init__(config, net, device=device)
        self.net, self._epsilon = net, config.epsilon
        self._steppers = {"q": self._stepper(net, config.kappa_value)}
        net.epsilon.fill_(schedule.at(config.epsilon, 0.0))

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The transition. The exploration rate moves here and is published after the update."""
        self.net.epsilon.fill_(schedule.at(self._epsilon, progress))
        return super().prepare(segments, progress=progress)

    def step(self, batch: Batch) -> dict[str, float]:
        """`delta = r + gamma max Q(s', .) - Q(s, a)`. As in Watkins's Q(lambda), traces end where an action was not the best:
        what follows says nothing of the greedy policy."""
        leaves = self.net.env_spec.obs
        now, after = {k: batch[k][0] for k in leaves}, {k: _after(batch, k) for k in leaves}
        mask, next_mask = (batch["action_mask"][0], _after(batch, "action_mask")) if "action_mask" in batch else (None, None)
        self.net.statistics.update(self.net.torso(now), ALONE)
        q, action = mask_logits(self.net.q(now), mask), batch["action"][0]
        out = q.gather(-1, action.unsqueeze(-1)).squeeze()
        with torch.no_grad():
            best = mask_logits(self.net.q(after), next_mask).amax(-1).squeeze()
        alive = (~batch["terminated"]).to(q.dtype).squeeze()
        delta = (batch["rewards/env"].squeeze() + self.config.gamma * alive * best - out).detach()
        ended = bool(batch["terminated"] | batch["truncated"]) or bool(q.detach().argmax(-1) != action)
        size = self._steppers["q"].step(out, delta, ended=ended)
        numbers = {"loss/td": delta.square() / 2, "q": out.detach(), "step_size/value": size, "epsilon": self.net.epsilon}
        return {name: x.item() for name, x in numbers.items()}


def _after(batch: Batch, key: str) -> Tensor:
    """What followed the step: the next observation, or the one at which the episode ended. `[1, ...]`"""
    final = batch["final_" + key]
    return final if len(final) else batch[key][1]
