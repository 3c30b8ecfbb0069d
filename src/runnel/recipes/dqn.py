"""DQN from replay: double Q-learning with prioritised replay, for environments with discrete actions.

runnel train dqn --env CartPole-v1 --total-steps 50000
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import runnel as rl


@dataclass(frozen=True)
class Config(rl.RunConfig):
    """DQN (agents/dqn.py): actors fill a replay buffer, which gives out `update_ratio` batches for each step."""

    env: str = "CartPole-v1"
    """Gymnasium id, module:Class, or path/to/file.py:factory."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    num_envs: int = 1
    """Environments of each actor."""
    num_steps: int = 32
    """Steps of each environment in one segment."""
    update_ratio: float = 0.25
    """Updates for each environment step; kept by pacing actors and learner, on every launcher."""
    min_fill: int = 1_000
    """Environment steps in the buffer before the first update."""
    total_steps: int | None = 50_000
    """Budget in steps of the environment."""
    mlp: rl.MLPConfig = field(default_factory=lambda: rl.MLPConfig(hidden=(120, 84), activation="relu"))
    dqn: rl.DQNConfig = field(default_factory=rl.DQNConfig)
    replay: rl.ReplayConfig = field(default_factory=rl.ReplayConfig)

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        self.dqn.check()
        if self.update_ratio <= 0:
            raise rl.ConfigError("update_ratio", self.update_ratio, "must be above 0")
        if self.min_fill < self.dqn.batch_size:
            raise rl.ConfigError("min_fill", self.min_fill, f"must hold a batch; use at least {self.dqn.batch_size}")
        if self.total_steps is not None and self.total_steps < self.min_fill:
            raise rl.ConfigError("total_steps", self.total_steps, f"ends before the first update; use at least {self.min_fill}")
        if self.replay.capacity < self.min_fill:
            raise rl.ConfigError("replay.capacity", self.replay.capacity, f"must hold min_fill; use at least {self.min_fill}")
        if self.staleness.mode == "window" and self.deterministic:
            raise rl.ConfigError("staleness.mode", "window", "a deterministic replay run is sync or one_step")


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer answers with priorities."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    if task.spec.action.kind != "discrete":
        raise rl.ConfigError("env", c.env, "DQN needs discrete actions; use ppo for this environment")
    segment_steps = c.num_envs * c.num_steps
    exact = c.staleness.mode != "window"
    ratio = rl.RatioPolicy(
        ratio=c.update_ratio,
        min_fill=c.min_fill,
        segment_steps=segment_steps,
        lag=c.staleness.lag,
        exact=exact,
    )
    if c.total_steps:
        ratio = dataclasses.replace(ratio, num_segments=ratio.segments_for(c.total_steps))
    batches = rl.LagPolicy(lag=c.staleness.lag, batch=1, exact=exact)
    experience = rl.trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs,
        logprob=False,
        capacity=2 * c.num_actors,
        num_writers=c.num_actors,
        reader="buffer",
    )
    replay = rl.replay_stream(task.spec, batch_size=c.dqn.batch_size, capacity=batches.lag + 2)

    def network() -> rl.QNet:
        return rl.QNet(task.spec, c.mlp, seed=c.seed)

    return rl.Experiment(
        config=c,
        title=task.name,
        streams=(experience, replay),
        staleness={"trajectories": ratio, "replay": batches},
        actors=task.actors(c.num_envs, noise_size=network().noise_size),
        inference=(
            rl.InferenceStream(
                lambda: rl.TorchInferencer(network(), device=c.device, merge=not c.deterministic),
                num_workers=c.placement.policy_workers,
            ),
        ),
        learner=lambda: rl.DQNLearner(c.dqn, network(), device=c.device),
        phases=(rl.Phase({"replay": 1}),),
        buffer=rl.BufferSpec(lambda: rl.ReplayStore(c.replay, task.spec, source=experience), ratio),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
    )
