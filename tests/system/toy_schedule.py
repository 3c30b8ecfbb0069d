"""A recipe whose best setting changes on the way: descent on a noisy bowl, which wants large steps first and small ones later.

With rate r the distance from the minimum shrinks by 1 - r an update, down to a floor that noise sets: r / (2 - r). A constant
rate is too slow or too noisy; only a schedule is neither.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import runnel as rl

START = 1e4


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """Descent with a rate."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.live("rate", "ill")
    env: str = "runnel.envs.toy:TruncationTrap"
    """Plays no part."""
    num_envs: int = 1
    """Environments of each actor."""
    num_steps: int = 2
    """Steps of each environment in one segment."""
    total_updates: int | None = 40
    """Budget in updates of the learner."""
    rate: float = 0.1
    """Of descent."""
    ill: bool = False
    """Raise at the first update of a run."""
    trouble: str = ""
    """fail: every update raises. die: the process is killed once, in the middle. wait: the first tuning seed stands still in
    its sixth update until somebody makes the file `released`."""
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=0))


class Descent(rl.core.LiveConfig):
    """w <- w - rate (w + noise) in 64 directions at once; its loss is the mean square of w."""

    def __init__(self, config: Config, net: rl.nets.ActorCritic) -> None:
        self.config, self.net, self.version = config, net, 0
        self.w = torch.full((64,), START)
        self.noise = torch.Generator().manual_seed(config.seed)

    def prepare(self, segments: Mapping[str, Sequence[rl.core.Segment]], *, progress: float) -> rl.Batch:
        return rl.Batch({"progress": torch.tensor([progress])})

    def update(self, batch: rl.Batch) -> rl.Update:
        if self.config.trouble == "fail":
            raise ValueError("the toy is broken")
        if self.config.ill and self.version == 0:
            raise ValueError("this one is ill")
        flag = Path(self.config.out) / "died"
        if self.config.trouble == "die" and self.version == 20 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while self.config.trouble == "wait" and (self.config.seed, self.version) == (10_000, 5):
            if (Path(self.config.out) / "released").exists():
                break
            time.sleep(0.002)
        self.w -= self.config.rate * (self.w + torch.randn(64, generator=self.noise))
        self.version += 1
        return rl.Update({"bowl": self.w.square().mean().item(), "rate": self.config.rate})

    def params(self) -> Mapping[str, Tensor]:
        return self.net.state_dict()

    def state_dict(self) -> dict[str, Any]:
        net = {k: v.clone() for k, v in self.net.state_dict().items()}
        return {"w": self.w.clone(), "noise": self.noise.get_state(), "version": self.version, "net": net}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w.copy_(state["w"])
        self.noise.set_state(state["noise"])
        self.net.load_state_dict(state["net"])
        self.version = state["version"]


def build(c: Config) -> rl.Experiment:
    task = rl.EnvTask(c.env, c)

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, rl.NetConfig(hidden=(4,)), seed=c.seed))

    return rl.on_policy_graph(c, task, network=network, learner=lambda ranks: Descent(c, network()))
