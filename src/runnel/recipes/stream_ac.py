"""Stream AC(lambda): actor-critic from each transition once, as it comes, with no memory and no batch.

runnel train stream_ac --env CartPole-v1 --total-steps 50000
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class SingleStepConfig(rl.EnvConfig):
    """One environment, one step of it in an update."""

    num_envs: int = 1
    """Environments of each actor."""
    num_steps: int = 1
    """Steps of each environment in one segment."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    log_every: int = 200
    """Write one row of metrics every so many updates, with the means of their numbers."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(128, 128)))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=20_000))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "a stream has networks of its own (nets/stream.py), of which net.hidden alone is open"
        names = ("activation", "conv", "channels", "core", "core_size", "shared", "critic_only")
        alone = dict.fromkeys(
            ("num_actors", "num_envs", "num_steps", "num_env_groups", "staleness", "placement.trainers"),
            "a stream learns from one step of one environment at a time, made by the newest policy",
        )
        alone["compiled"] = "there are no kernels for these networks"
        return super().unused() | alone | {f"net.{name}": why for name in names}


@dataclass(frozen=True)
class Config(SingleStepConfig):
    """Stream AC(lambda) (agents/stream.py), for discrete and for continuous actions."""

    stream_ac: rl.agents.StreamACConfig = field(default_factory=rl.agents.StreamACConfig)

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.stream_ac.check("stream_ac")


def build(c: Config) -> rl.Experiment:
    """An actor writes each step to `trajectories`; an update takes one."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.StreamBody(task.spec, c.net, seed=c.seed), normalise_obs=True)

    def learner(ranks: rl.Collective) -> rl.agents.StreamACLearner:
        return rl.agents.StreamACLearner(c.stream_ac, network(), device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.stream_ac.gamma)
