"""PPO on any Gymnasium environment: discrete, continuous or masked actions, Dict observations.

runnel train ppo --env Pendulum-v1 --total-steps 200000 --ppo.normalise-obs
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import runnel as rl


@dataclass(frozen=True)
class Config(rl.RunConfig):
    """PPO (agents/ppo.py) on `num_actors` x `num_envs` environments, `num_steps` steps of each per update."""

    env: str = "CartPole-v1"
    """Gymnasium id, module:Class, or path/to/file.py:factory; tensor:CartPole-v1 keeps the environment on the device."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    num_envs: int = 8
    """Environments of each actor."""
    num_steps: int = 128
    """Steps of each environment in one segment."""
    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: `mlp`."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    mlp: rl.MLPConfig = field(default_factory=rl.MLPConfig)
    ppo: rl.PPOConfig = field(default_factory=rl.PPOConfig)


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    batch_steps = c.num_actors * c.num_envs * c.num_steps
    c.ppo.check(batch_steps)
    policy = c.lag_policy(c.num_actors, batch_steps=batch_steps)

    def network() -> rl.ActorCritic:
        make = rl.resolve(c.network, "network") if c.network else c.mlp.build
        return rl.ActorCritic(task.spec, make(task.spec, c.seed), normalise_obs=c.ppo.normalise_obs)

    return rl.Experiment(
        config=c,
        title=task.name,
        streams=(
            rl.trajectory_stream(
                task.spec,
                num_steps=c.num_steps,
                num_envs=c.num_envs,
                batch_segments=c.num_actors,
                capacity=c.num_actors * (policy.lag + 1),
                num_writers=c.num_actors,
                device=c.device,
            ),
        ),
        staleness={"trajectories": policy},
        actors=task.actors(c.num_envs, noise_size=task.spec.action.noise_size),
        inference=(
            rl.InferenceStream(
                lambda: rl.TorchInferencer(network(), device=c.device, merge=not c.deterministic),
                num_workers=c.placement.policy_workers,
            ),
        ),
        learner=lambda: rl.PPOLearner(c.ppo, network(), seed=c.seed, device=c.device),
        phases=(rl.Phase({"trajectories": c.num_actors}),),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
    )
