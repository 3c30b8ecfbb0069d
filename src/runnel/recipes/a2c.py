"""A2C on any Gymnasium environment: the plain synchronous actor-critic, one gradient for each batch.

runnel train a2c --env CartPole-v1 --total-steps 100000

CartPole-v1, 500,000 steps, 5 seeds: greedy return 500. Acrobot-v1, the same budget: -83.4 (-86.9 to -79.9).
All results: docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """A2C (agents/a2c.py) on `num_actors` x `num_envs` environments, `num_steps` steps of each per update."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("network", why="what was learned is of that network")

    num_steps: int = 8
    """Steps of each environment in one segment."""
    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: the network of `net`."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    a2c: rl.agents.A2CConfig = field(default_factory=lambda: rl.agents.A2CConfig(normalise_obs=True, normalise_reward=True))

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.a2c.check()
        if self.staleness.mode != "sync":
            raise rl.ConfigError(
                "staleness.mode", self.staleness.mode, "a2c does not correct for older data; use recipe impala"
            )


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.ActorCritic:
        body = rl.make_network(c.network, task.spec, c.seed) if c.network else rl.nets.build_body(task.spec, c.net, seed=c.seed)
        return rl.nets.ActorCritic(task.spec, body, normalise_obs=c.a2c.normalise_obs)

    def learner(ranks: rl.Collective) -> rl.agents.A2CLearner:
        return rl.agents.A2CLearner(c.a2c, network(), seed=c.seed, collective=ranks, device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.a2c.return_gamma)
