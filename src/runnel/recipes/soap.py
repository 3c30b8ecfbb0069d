"""SOAP: PPO with options that it finds by itself, as a memory of what it has seen. Any Gymnasium environment.

runnel train soap --env runnel.envs.toy:Recall --total-steps 40000
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """SOAP (agents/soap.py) on `num_actors` x `num_envs` environments, `num_steps` steps of each per update."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("num_options", why="it is the size of the network")

    num_options: int = rl.core.bounded(4, at_least=1)
    """Number of sub-policies; 1 is PPO without a memory."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    ppo: rl.agents.PPOConfig = field(default_factory=rl.agents.PPOConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "options are the memory, and sub-policies, option policy and critic share nothing but convolutions"
        clips = dict.fromkeys(("ppo.value_clip", "ppo.dual_clip"), "the loss of options has no such clip")
        nets = dict.fromkeys(("net.core", "net.core_size", "net.shared", "net.critic_only"), why)
        kernels = {"compiled": "there are no kernels for options"}
        return super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync") | clips | nets | kernels


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    c.ppo.check(c.batch_steps // c.placement.trainers)

    def network() -> rl.nets.OptionNet:
        return rl.nets.OptionNet(task.spec, c.net, num_options=c.num_options, seed=c.seed, normalise_obs=c.ppo.normalise_obs)

    def learner(ranks: rl.Collective) -> rl.agents.SOAPLearner:
        return rl.agents.SOAPLearner(c.ppo, network(), seed=c.seed, collective=ranks, device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.ppo.return_gamma)
