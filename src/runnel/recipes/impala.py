"""IMPALA: asynchronous actors, V-trace, one pass over each batch. Any Gymnasium environment.

runnel train impala --env CartPole-v1 --launcher local --num-actors 2

CartPole-v1, 500,000 steps, 5 seeds: greedy return 500. Acrobot-v1, the same budget: -84.3 (-87.7 to -80.9).
LunarLander-v3, 1,000,000 steps, settings of the zoo: 135.8 (77.1 to 194.4), not solved (200).
All results: docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """IMPALA (agents/impala.py): actors run ahead of the learner by at most `staleness.max_lag` versions."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("network", why="what was learned is of that network") | rl.core.stays(
        "num_segments", why="segments of that number are on their way"
    )

    num_actors: int = 2
    """Number of actors, which play at the same time; each has its own environments."""
    num_envs: int = 4
    """Environments of each actor."""
    num_steps: int = 8
    """Steps of each environment in one segment."""
    num_segments: int = rl.core.bounded(2, at_least=1)
    """Segments in one update: the first that any actors finish."""
    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: the network of `net`."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window", max_lag=4))
    impala: rl.agents.IMPALAConfig = field(
        default_factory=lambda: rl.agents.IMPALAConfig(normalise_obs=True, normalise_reward=True)
    )

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.impala.check()


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories` as fast as the window allows; an update takes the first `num_segments`."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.ActorCritic:
        body = rl.make_network(c.network, task.spec, c.seed) if c.network else rl.nets.build_body(task.spec, c.net, seed=c.seed)
        return rl.nets.ActorCritic(task.spec, body, normalise_obs=c.impala.normalise_obs)

    def learner(ranks: rl.Collective) -> rl.agents.IMPALALearner:
        return rl.agents.IMPALALearner(c.impala, network(), seed=c.seed, collective=ranks, device=c.device)

    return rl.on_policy_graph(
        c, task, network=network, learner=learner, batch_segments=c.num_segments, return_gamma=c.impala.return_gamma
    )
