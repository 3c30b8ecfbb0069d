"""PPO on any Gymnasium environment: discrete, continuous or masked actions, Dict observations.

runnel train ppo --env Pendulum-v1

CartPole-v1, 500,000 steps, 5 seeds: greedy return 500. Acrobot-v1, the same budget: -78.3 (-82.4 to -74.2).
All results: docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO (agents/ppo.py) on `num_actors` x `num_envs` environments, `num_steps` steps of each per update."""

    on_resume: ClassVar[rl.core.OnResume] = (
        rl.core.stays("network", why="what was learned is of that network")
        | rl.core.stays("population", why="the learners are part of the checkpoint")
        | rl.core.may_change("member", then="is what `rl.load` gives from now on")
    )

    network: str = ""
    """Your own network: module:make or path/to/file.py:make, called as make(env_spec, seed). Empty: the network of `net`."""
    population: int = rl.core.bounded(1, at_least=1)
    """Number of independent learners that train at the same time, with seeds seed, seed + 1, ... and `num_envs` environments
    each."""
    member: int = rl.core.bounded(-1, at_least=-1)
    """Member of a population that `rl.load` returns; -1: the one with the highest return in training."""
    exchange: rl.agents.ExchangeConfig = field(default_factory=rl.agents.ExchangeConfig)
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(normalise_obs=True, normalise_reward=True))

    @property
    def num_planned_steps(self) -> int:
        """Environment steps until the budget is spent, of all members."""
        return self.total_steps or (self.total_updates or 0) * self.batch_steps * self.population

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync")
        one = "there is but one learner; set population"
        member = {} if self.population > 1 else {"member": one, "exchange": one}
        still = {} if self.exchange.every else dict.fromkeys(("exchange.settings", "exchange.spread"), "set exchange.every")
        return found | still | member

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        if self.member >= self.population:
            raise rl.ConfigError("member", self.member, f"use 0 to {self.population - 1}, or -1 for the best")
        if self.exchange.every:
            self.exchange.check(self.ppo, "ppo")


def build(c: Config, learner: type[rl.agents.PPOLearner] = rl.agents.PPOLearner) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor. `learner` may be a variant of PPO."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    c.ppo.check(c.batch_steps // c.placement.trainers)

    def network(seed: int = c.seed) -> rl.nets.ActorCritic:
        body = rl.make_network(c.network, task.spec, seed) if c.network else rl.nets.build_body(task.spec, c.net, seed=seed)
        return rl.nets.ActorCritic(task.spec, body, normalise_obs=c.ppo.normalise_obs)

    def single(ranks: rl.Collective) -> rl.agents.PPOLearner:
        return learner(c.ppo, network(), seed=c.seed, collective=ranks, device=c.device)

    if c.population == 1:
        gamma = c.ppo.return_gamma
        return rl.on_policy_graph(c, task, network=network, learner=single, return_gamma=gamma, scores_levels=True)

    def networks(chosen: int | None = None) -> rl.nets.Population:
        members = [network(c.seed + i) for i in range(c.population)]
        return rl.nets.Population(members, num_envs=c.num_envs, chosen=chosen)

    def learners(ranks: rl.Collective) -> rl.Learner:
        exchange = c.exchange if c.exchange.every else None
        return rl.agents.PopulationLearner(c.ppo, networks(), seed=c.seed, device=c.device, learner=learner, exchange=exchange)

    gamma = c.ppo.return_gamma
    return rl.graphs.population_graph(
        c, task, members=c.population, network=networks, learner=learners, chosen=c.member, return_gamma=gamma
    )
