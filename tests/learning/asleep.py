"""TD3 and DrM whose actor starts with every hidden unit asleep: no gradient passes through a relu that never opens.

`runnel train tests/learning/asleep.py --drm.perturb-every 100`, and `--woken False` for TD3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import runnel as rl
from runnel.recipes import drm


@dataclass(frozen=True)
class Config(drm.Config):
    """DrM, or TD3 with the same settings, from a sleeping actor."""

    woken: bool = True
    """DrM; False: TD3."""


def build(c: Config) -> rl.Experiment:
    """The graph of DrM with another start."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def make(seed: int) -> tuple[rl.nets.DeterministicActor, rl.nets.QEnsemble, rl.nets.VNet]:
        actor = rl.nets.DeterministicActor(task.spec, c.net, seed=seed)
        if seed == c.seed:
            with torch.no_grad():
                for bias in list(actor.head.bias)[:-1]:
                    bias.fill_(-5.0)
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=2, seed=seed)
        return actor, critic, rl.nets.VNet(task.spec, c.net, seed=seed)

    def learner(ranks: rl.Collective) -> Any:
        if c.woken:
            return rl.agents.DrMLearner(c.drm, make, seed=c.seed, collective=ranks)
        actor, critic, _ = make(c.seed)
        return rl.agents.TD3Learner(c.drm, actor, critic, seed=c.seed, collective=ranks)

    sizes = {"batch_size": c.drm.batch_size, "gamma": c.drm.gamma}
    return rl.replay_graph(c, task, network=lambda: make(c.seed)[0], learner=learner, **sizes)
