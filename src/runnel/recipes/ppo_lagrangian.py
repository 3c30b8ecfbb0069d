"""PPO that holds the costs of an episode under limits, on any environment that reports costs.

runnel train ppo_lagrangian
runnel train ppo_lagrangian --env SafetyPointGoal1Gymnasium-v0 --channels.costs cost --lagrangian.limits '{"cost": 25}'

The settings of PPO are those of recipe `ppo`, but rewards are not scaled: a multiplier is then what 1 of cost is worth in
return. docs/guides/costs.md says what costs are and how to choose limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO-Lagrangian (agents/ppo_lagrangian.py) on `num_actors` x `num_envs` environments."""

    on_resume: ClassVar[rl.core.OnResume] = {}

    env: str = "tensor:GoalBeyondHazard"
    """The environment, with at least one cost: a tensor environment declares its own, others are read from info
    (channels.costs)."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(normalise_obs=True))
    lagrangian: rl.agents.LagrangianConfig = field(default_factory=lambda: rl.agents.LagrangianConfig({"hazard": 2.0}))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync")
        return found | {"net.critic_only": "the critics of costs read what the policy reads"}

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        if self.net.core != "none":
            raise rl.ConfigError("net.core", self.net.core, "the critics of costs have no memory; use none")


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    c.ppo.check(c.batch_steps // c.placement.trainers)
    c.lagrangian.check(task.spec.channels, c.channels.weights)

    def network() -> rl.nets.ActorCritic:
        body = rl.nets.build_body(task.spec, c.net, seed=c.seed)
        return rl.nets.ActorCritic(task.spec, body, normalise_obs=c.ppo.normalise_obs)

    def learner(ranks: rl.Collective) -> rl.agents.PPOLagrangianLearner:
        critics = rl.nets.CostCritics(task.spec, c.net, list(c.lagrangian.limits), seed=c.seed)
        return rl.agents.PPOLagrangianLearner(
            c.ppo, c.lagrangian, network(), critics, seed=c.seed, collective=ranks, device=c.device
        )

    return rl.on_policy_graph(
        c,
        task,
        network=network,
        learner=learner,
        return_gamma=c.ppo.return_gamma,
        carried_costs=list(c.lagrangian.limits),
    )
