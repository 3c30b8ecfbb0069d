"""Your own algorithm: a recipe file with its own learner. Here advantage actor-critic (A2C, Mnih et al. 2016).

    runnel train examples/own_algorithm.py --total-steps 40000
    runnel train examples/own_algorithm.py --launcher local --placement.trainers 2
    runnel train examples/own_algorithm.py --help

A recipe is a module with `Config` and `build(config)`. A learner turns segments into a batch (`prepare`), takes one step
(`update`), and says what actors need (`params`). Launchers, checkpoints, resume, evaluation and the report come for free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import runnel as rl


@dataclass(frozen=True)
class Config(rl.RunConfig):
    """A2C: one gradient step on each batch, then new data."""

    on_resume: ClassVar[rl.OnResume] = rl.may_change("lr", "gamma", "value_coef", "entropy_coef")
    env: str = "CartPole-v1"
    """Any Gymnasium environment."""
    num_envs: int = 16
    """Environments of each actor."""
    num_steps: int = 8
    """Steps of each environment in one update."""
    total_steps: int | None = 40_000
    """Budget in steps of the environment."""
    lr: float = 3e-3
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount of future rewards."""
    value_coef: float = 0.5
    """Weight of the critic's loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""


class A2C:
    """Consumes `[T, B]` segments, one gradient step a version."""

    def __init__(self, config: Config, net: rl.ActorCritic, ranks: rl.Collective) -> None:
        self.config, self.net, self.ranks, self.version = config, net, ranks, 0
        self.optimiser = torch.optim.Adam(net.parameters(), lr=config.lr)

    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[rl.Segment]], *, progress: float) -> rl.Batch:
        """All segments as one flat batch with returns. `{...: [N, ...]}`"""
        return rl.Batch.cat([self.with_returns(s.arrays) for s in segments["trajectories"]])

    def with_returns(self, data: rl.Batch) -> rl.Batch:
        """R_t = r_t + gamma * (what followed): R_{t+1}; V(final obs) where the clock ran out; 0 where the task ended."""
        values = self.net.value({k: data[k] for k in self.net.env_spec.obs})
        following = values[1:].clone()
        ends = self.net.value({k: data["final_" + k] for k in self.net.env_spec.obs})
        following.view(-1)[data["final_index"]] = ends
        returns, ahead = torch.empty_like(following), following[-1]
        for t in reversed(range(len(following))):
            ahead = torch.where(data["truncated"][t], following[t], ahead)
            ahead = data["rewards/env"][t] + self.config.gamma * torch.where(data["terminated"][t], 0.0, ahead)
            returns[t] = ahead
        batch = {k: data[k][: len(returns)].flatten(0, 1) for k in (*self.net.env_spec.obs, "action")}
        advantage = (returns - values[:-1]).flatten()
        return rl.Batch({**batch, "return": returns.flatten(), "advantage": advantage})

    def update(self, batch: rl.Batch) -> rl.Update:
        """L = -log pi(a|s) A + value_coef (V - R)^2 / 2 - entropy_coef H"""
        logprob, entropy = self.net.evaluate(batch, batch["action"])
        policy = -(logprob * batch["advantage"]).mean()
        value = 0.5 * (self.net.value(batch) - batch["return"]).square().mean()
        loss = policy + self.config.value_coef * value - self.config.entropy_coef * entropy.mean()
        if not torch.isfinite(loss):
            raise rl.NonFiniteError("loss/total", self.version)
        self.optimiser.zero_grad()
        (loss / self.ranks.world_size).backward()  # of several ranks each has a part of the batch: the sum is its gradient
        for weight in self.net.parameters():
            weight.grad = self.ranks.all_reduce(weight.grad)
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimiser.step()
        self.version += 1
        numbers = {"loss/policy": policy, "loss/value": value, "entropy": entropy.mean(), "grad_norm": norm}
        return rl.Update({name: number.item() for name, number in numbers.items()})

    def params(self) -> Mapping[str, Tensor]:
        """What is published after each update: live tensors."""
        return self.net.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Plain data, for the checkpoint. Copies: the run goes on while it is written."""
        net = {k: v.clone() for k, v in self.net.state_dict().items()}
        return {"net": net, "optimiser": self.optimiser.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr  # torch keeps the old one in its state; whoever resumes with another means it
        self.version = state["version"]


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c)
    lag = c.lag_policy(c.num_actors, batch_steps=c.num_actors * c.num_envs * c.num_steps)
    stream = rl.trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs,
        batch_segments=c.num_actors,
        capacity=c.num_actors * (lag.lag + 1),
        num_writers=c.num_actors,
    )

    def network() -> rl.ActorCritic:
        return rl.ActorCritic(task.spec, rl.build_body(task.spec, rl.NetConfig(), seed=c.seed))

    return rl.Experiment(
        config=c,
        title=task.name,
        streams=(stream,),
        staleness={"trajectories": lag},
        actors=task.actors(c.num_envs, noise_size=task.spec.action.noise_size),
        inference=(rl.InferenceStream(lambda: rl.TorchInferencer(network()), num_workers=c.placement.policy_workers),),
        learner=lambda ranks: A2C(c, network(), ranks),
        phases=(rl.Phase({"trajectories": c.num_actors}),),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
    )
