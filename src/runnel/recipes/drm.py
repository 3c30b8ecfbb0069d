"""DrM from replay: TD3 that keeps its neurons awake, for a box of continuous actions.

runnel train drm --env Pendulum-v1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.ReplayEnvConfig):
    """DrM (agents/drm.py): uniformly random actions until `min_fill` steps, then `update_ratio` updates for each step."""

    recurrent: ClassVar[bool] = False
    env: str = "HalfCheetah-v5"
    """The environment: a Gymnasium id, module:Class, or path/to/file.py:factory."""
    num_steps: int = 8
    """Steps of each environment in one segment."""
    min_fill: int = 5_000
    """Environment steps in the buffer before the first update; until then actions are uniformly random."""
    total_steps: int | None = 1_000_000
    """Budget in steps of the environment."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(256, 256), activation="relu"))
    drm: rl.agents.DrMConfig = field(default_factory=rl.agents.DrMConfig)
    replay: rl.ReplayConfig = field(default_factory=lambda: rl.ReplayConfig(capacity=1_000_000, prioritised=False))
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=10))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=100_000, keep=1))

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.drm.check()


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer sends errors back."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    if task.spec.action.kind != "continuous":
        raise rl.ConfigError("env", c.env, "DrM needs one box of continuous actions; use ppo, or sac or dqn for discrete ones")

    def make(seed: int) -> tuple[rl.nets.DeterministicActor, rl.nets.QEnsemble, rl.nets.VNet]:
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=2, seed=seed)
        return rl.nets.DeterministicActor(task.spec, c.net, seed=seed), critic, rl.nets.VNet(task.spec, c.net, seed=seed)

    def learner(ranks: rl.Collective) -> rl.agents.DrMLearner:
        return rl.agents.DrMLearner(c.drm, make, seed=c.seed, collective=ranks, device=c.device)

    def network() -> rl.nets.DeterministicActor:
        return make(c.seed)[0]

    return rl.replay_graph(c, task, network=network, learner=learner, batch_size=c.drm.batch_size, gamma=c.drm.gamma)
