"""PPO whose rank 1 is slow, and then breaks in the way that `fault` says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO with a rank that breaks."""

    fault: str = ""
    """dies, dies once, hangs or raises."""
    at: int = 10
    """The version at which it does."""
    slow_s: float = 0.0
    """Seconds that rank 1 sleeps in each `prepare`."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(num_epochs=1, num_minibatches=1))


class Faulty(rl.agents.PPOLearner):
    """Rank 1 is late, and at last does not come."""

    settings: Config

    def prepare(self, segments: Mapping[str, Sequence[Any]], *, progress: float) -> rl.Batch:
        if self.collective.rank == 1:
            time.sleep(self.settings.slow_s)
        return super().prepare(segments, progress=progress)

    def update(self, batch: rl.Batch) -> rl.Update:
        if self.collective.rank == 1 and self.version == self.settings.at:
            match self.settings.fault:
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "dies once" if not (mark := Path(self.settings.out) / "died").exists():
                    mark.write_text(getattr(self.collective, "address", ""))  # where the ranks have met
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hangs":
                    time.sleep(600)
                case "raises":
                    raise ValueError("the second learner lost its mind")
        return super().update(batch)


def build(c: Config) -> rl.Experiment:
    """As the recipe `ppo`."""
    task = rl.EnvTask(c.env, c)

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, c.net, seed=c.seed))

    def learner(ranks: rl.Collective) -> Faulty:
        made = Faulty(c.ppo, network(), seed=c.seed, collective=ranks)
        made.settings = c
        return made

    return rl.on_policy_graph(c, task, network=network, learner=learner)
