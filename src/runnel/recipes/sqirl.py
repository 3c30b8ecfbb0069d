"""SQIRL: plans an episode step by step, from random exploration and a few fitted Q-functions. For discrete actions.

runnel train sqirl --env CartPole-v1 --sqirl.horizon 40 --total-updates 40
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """SQIRL (agents/sqirl.py): version i explores at random from step i of an episode on, and then plans that step."""

    num_steps: int = 256
    """Steps of each environment in one segment; those of episodes that end in it are learned from."""
    total_updates: int | None = 20
    """Budget in updates: one for each planned step."""
    sqirl: rl.agents.SQIRLConfig = field(default_factory=rl.agents.SQIRLConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "a regression fits one perceptron to vectors"
        names = ("conv", "channels", "core", "core_size", "shared", "critic_only")
        ranks = {"placement.trainers": "ranks would need one regression in common", "compiled": "there are no kernels for it"}
        return super().unused() | ranks | {f"net.{name}": why for name in names}

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.sqirl.check()
        if self.staleness.mode != "sync":
            fix = "which steps are random depends on the version, so data of an older one do not fit; use sync"
            raise rl.ConfigError("staleness.mode", self.staleness.mode, fix)
        if self.curriculum.kind == "states":
            fix = "an episode is planned step by step from its own beginning; use off or uniform, or another recipe"
            raise rl.ConfigError("curriculum.kind", self.curriculum.kind, fix)


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.StepQNet:
        return rl.nets.StepQNet(task.spec, c.net, horizon=c.sqirl.horizon)

    def learner(ranks: rl.Collective) -> rl.agents.SQIRLLearner:
        return rl.agents.SQIRLLearner(c.sqirl, network(), seed=c.seed)

    return rl.on_policy_graph(c, task, network=network, learner=learner)
