"""GBRL: PPO on gradient-boosted trees instead of a network, for observations that are tables of numbers and categories.

runnel train gbrl --env CartPole-v1
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO on trees (agents/gbrl.py): each optimiser step adds a tree."""

    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    gbrl: rl.agents.GBRLConfig = field(default_factory=lambda: rl.agents.GBRLConfig(normalise_reward=True))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        trees = {"net": "there are trees instead of a network; see gbrl", "compiled": "there are no kernels for trees"}
        trees["gbrl.normalise_obs"] = "a tree asks whether a number is above another, on any scale"
        trees["placement.trainers"] = "ranks would grow trees of their own"
        return super().unused() | self.gbrl.unused("gbrl", fresh=self.staleness.mode == "sync") | trees


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    c.gbrl.check(c.batch_steps)
    c.gbrl.check_room(c.total_updates or math.ceil((c.total_steps or 0) / c.batch_steps))

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.TreeBody(task.spec, depth=c.gbrl.depth, max_trees=c.gbrl.max_trees))

    def learner(ranks: rl.Collective) -> rl.agents.GBRLLearner:
        return rl.agents.GBRLLearner(c.gbrl, network(), seed=c.seed, device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.gbrl.return_gamma)
