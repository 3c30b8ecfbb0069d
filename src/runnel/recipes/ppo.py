"""PPO on any Gymnasium environment: discrete, continuous or masked actions, Dict observations.

runnel train ppo --env Pendulum-v1 --total-steps 200000 --ppo.normalise-obs
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO (agents/ppo.py) on `num_actors` x `num_envs` environments, `num_steps` steps of each per update."""

    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: `net`."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    ppo: rl.PPOConfig = field(default_factory=rl.PPOConfig)


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    c.ppo.check(c.batch_steps)

    def network() -> rl.ActorCritic:
        body = (
            rl.resolve(c.network, "network")(task.spec, c.seed) if c.network else rl.build_body(task.spec, c.net, seed=c.seed)
        )
        return rl.ActorCritic(task.spec, body, normalise_obs=c.ppo.normalise_obs)

    def learner() -> rl.PPOLearner:
        return rl.PPOLearner(c.ppo, network(), seed=c.seed, device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner)
