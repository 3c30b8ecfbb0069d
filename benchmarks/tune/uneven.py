"""A recipe whose members are uneven in speed: one update sleeps for as long as the seed and the part of the budget say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

import runnel as rl

UPDATES, PARTS = 40, 8
"""Updates of a run, and parts of it in each of which its speed is another."""


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """Descent on a bowl that takes its time."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.live("rate")
    env: str = "CartPole-v1"
    """Plays no part."""
    num_envs: int = 1
    """Environments of each actor."""
    num_steps: int = 1
    """Steps of each environment in one segment."""
    total_updates: int | None = UPDATES
    """Budget in updates of the learner."""
    rate: float = 0.1
    """Of descent."""
    pace: str = "steady"
    """steady: each member has a speed of its own, up to four times that of another. fits: it is another in each part."""
    mean_s: float = 0.4
    """Seconds of an update, in the mean."""
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=0))


def seconds(c: Config, version: int) -> float:
    """Seconds of an update. A lognormal factor of mean 1 (fits), or one of the members' own (steady)."""
    if c.pace == "steady":
        return c.mean_s * (0.4 + 0.4 * (c.seed % 4))
    rng = rl.core.make_rng(c.seed, "pace", version * PARTS // UPDATES)
    return float(c.mean_s * rng.lognormal(-0.32, 0.8))


class Descent(rl.core.LiveConfig):
    """w <- w - rate (w + noise); its loss is the mean square of w."""

    def __init__(self, config: Config, net: rl.nets.ActorCritic) -> None:
        self.config, self.net, self.version = config, net, 0
        self.w, self.noise = torch.full((64,), 1e4), torch.Generator().manual_seed(config.seed)

    def prepare(self, segments: Mapping[str, Sequence[rl.core.Segment]], *, progress: float) -> rl.Batch:
        return rl.Batch({"progress": torch.tensor([progress])})

    def update(self, batch: rl.Batch) -> rl.Update:
        time.sleep(seconds(self.config, self.version))
        self.w -= self.config.rate * (self.w + torch.randn(64, generator=self.noise))
        self.version += 1
        return rl.Update({"bowl": self.w.square().mean().item()})

    def params(self) -> Mapping[str, Tensor]:
        return self.net.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w.clone(), "noise": self.noise.get_state(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w.copy_(state["w"])
        self.noise.set_state(state["noise"])
        self.version = state["version"]


def build(c: Config) -> rl.Experiment:
    task = rl.EnvTask(c.env, c)

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, rl.NetConfig(hidden=(4,)), seed=c.seed))

    return rl.on_policy_graph(c, task, network=network, learner=lambda ranks: Descent(c, network()))
