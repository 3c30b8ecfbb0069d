"""Stream Q(lambda): Q-learning from each transition once, as it comes, with no memory and no batch.

runnel train stream_q --env CartPole-v1 --total-steps 50000
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes.stream_ac import SingleStepConfig


@dataclass(frozen=True)
class Config(SingleStepConfig):
    """Stream Q(lambda) (agents/stream.py), for discrete actions."""

    stream_q: rl.agents.StreamQConfig = field(default_factory=rl.agents.StreamQConfig)

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.stream_q.check("stream_q")


def build(c: Config) -> rl.Experiment:
    """An actor writes each step to `trajectories`; an update takes one."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.StreamQNet:
        return rl.nets.StreamQNet(task.spec, c.net, seed=c.seed)

    def learner(ranks: rl.Collective) -> rl.agents.StreamQLearner:
        return rl.agents.StreamQLearner(c.stream_q, network(), device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.stream_q.gamma)
