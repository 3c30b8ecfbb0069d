"""DDPG from replay: deep deterministic policy gradient, for a box of continuous actions.

runnel train ddpg --env Pendulum-v1

Pendulum-v1, 20,000 steps, settings of the zoo, 5 seeds: greedy return -152.6 (-167.2 to -137.9). All results:
docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.ReplayEnvConfig):
    """DDPG (agents/ddpg.py): uniformly random actions until `min_fill` steps, then `update_ratio` updates for each step."""

    recurrent: ClassVar[bool] = False
    env: str = "HalfCheetah-v5"
    """The environment: a Gymnasium id, module:Class, or path/to/file.py:factory."""
    num_steps: int = 8
    """Steps of each environment in one segment."""
    min_fill: int = 25_000
    """Environment steps in the buffer before the first update; until then actions are uniformly random."""
    total_steps: int | None = 1_000_000
    """Budget in steps of the environment."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(256, 256), activation="relu"))
    ddpg: rl.agents.DDPGConfig = field(default_factory=rl.agents.DDPGConfig)
    replay: rl.ReplayConfig = field(default_factory=lambda: rl.ReplayConfig(capacity=1_000_000, prioritised=False))
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=10))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=100_000, keep=1))

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.ddpg.check()


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer sends errors back."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    if task.spec.action.kind != "continuous":
        fix = "DDPG needs one box of continuous actions; use ppo, or sac or dqn for discrete ones"
        raise rl.ConfigError("env", c.env, fix)

    def network() -> rl.nets.DeterministicActor:
        return rl.nets.DeterministicActor(task.spec, c.net, seed=c.seed)

    def learner(ranks: rl.Collective) -> rl.agents.DDPGLearner:
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=1, seed=c.seed)
        return rl.agents.DDPGLearner(c.ddpg, network(), critic, seed=c.seed, collective=ranks, device=c.device)

    return rl.replay_graph(c, task, network=network, learner=learner, batch_size=c.ddpg.batch_size, gamma=c.ddpg.gamma)
