"""SAC from replay: soft actor-critic for a box of continuous actions, or for discrete ones.

runnel train sac --env Pendulum-v1

Pendulum-v1, 20,000 steps, settings of the zoo, 5 seeds: greedy return -151.1 (-166 to -136.2). Acrobot-v1, 100,000 steps,
settings of the zoo, 5 seeds: -82.2 (-89.8 to -74.5). All results: docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.ReplayEnvConfig):
    """SAC (agents/sac.py): uniformly random actions until `min_fill` steps, then `update_ratio` updates for each step."""

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
    sac: rl.agents.SACConfig = field(default_factory=rl.agents.SACConfig)
    replay: rl.ReplayConfig = field(default_factory=lambda: rl.ReplayConfig(capacity=1_000_000, prioritised=False))
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=10))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=100_000, keep=1))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused()
        if not self.sac.auto_temperature:
            fixed = "is what an automatic temperature holds; set sac.auto_temperature"
            found |= {"sac.target_entropy": fixed, "sac.entropy_share": fixed}
        elif self.sac.target_entropy is not None:
            found["sac.entropy_share"] = "sac.target_entropy says what is held"
        return found

    def unused_on(self, spec: rl.core.EnvSpec) -> dict[str, str]:
        """The settings that this run does not use on an environment of `spec`, each with the reason."""
        found = super().unused_on(spec)
        if spec.action.kind != "discrete":
            found["sac.entropy_share"] = "is of discrete actions; set sac.target_entropy"
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.sac.check()


def build(c: Config, learner: type[rl.agents.SACLearner] = rl.agents.SACLearner) -> rl.Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer sends errors back.
    `learner` may be a variant of SAC."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    discrete = task.spec.action.kind == "discrete"

    def network() -> rl.nets.CategoricalActor | rl.nets.SquashedGaussianActor:
        return (rl.nets.CategoricalActor if discrete else rl.nets.SquashedGaussianActor)(task.spec, c.net, seed=c.seed)

    def single(ranks: rl.Collective) -> rl.agents.SACLearner:
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=2, seed=c.seed)
        return learner(c.sac, network(), critic, seed=c.seed, collective=ranks, device=c.device)

    return rl.replay_graph(c, task, network=network, learner=single, batch_size=c.sac.batch_size, gamma=c.sac.gamma)
