"""Behaviour cloning from a data set: the policy learns to do what was done there.

runnel data record runs/teacher data/teacher --episodes 50
runnel train bc --env CartPole-v1 --data data/teacher
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.ImitationConfig):
    """Behaviour cloning (agents/bc.py). The environment is played in evaluations only."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("network", why="what was learned is of that network")

    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: the network of `net`."""
    log_every: int = 50
    """Write one row of metrics every so many updates, with the means of their numbers."""
    total_updates: int | None = 5_000
    """Budget in updates of the learner."""
    bc: rl.agents.BCConfig = field(default_factory=rl.agents.BCConfig)
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=1_000))


def build(c: Config, learner: type[rl.agents.BCLearner] = rl.agents.BCLearner) -> rl.Experiment:
    """One actor reads the data set; each update trains on `bc.batch_size` steps of it. `learner` may be a variant."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.ActorCritic:
        body = rl.make_network(c.network, task.spec, c.seed) if c.network else rl.nets.build_body(task.spec, c.net, seed=c.seed)
        return rl.nets.ActorCritic(task.spec, body, normalise_obs=c.bc.normalise_obs)

    def single(ranks: rl.Collective) -> rl.agents.BCLearner:
        return learner(c.bc, network(), seed=c.seed, collective=ranks, device=c.device)

    return rl.graphs.imitation_graph(c, task, network=network, learner=single, batch_size=c.bc.batch_size)
