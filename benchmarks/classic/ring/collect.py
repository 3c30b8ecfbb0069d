"""Collecting without learning: the graph of PPO with a learner that takes its batches and changes nothing.

A recipe, so that `rl.train("collect.py", ...)` runs it on any launcher; what it measures is the way of a step from the
environment to the policy and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """One actor with `ring` groups of environments, and a policy worker that answers it."""

    total_steps: int | None = 10**9
    """Budget in steps of the environment."""
    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window", max_lag=4))


class Idle:
    """A learner that learns nothing."""

    def __init__(self, net: rl.nets.ActorCritic) -> None:
        self._params = dict(net.state_dict())

    def prepare(self, segments: Mapping[str, Sequence[rl.core.Segment]], *, progress: float) -> rl.Batch:
        return rl.Batch()

    def update(self, batch: rl.Batch) -> rl.Update:
        return rl.Update({})

    def params(self) -> Mapping[str, Tensor]:
        return self._params

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`; the learner takes one segment of each group of environments and forgets it."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network() -> rl.nets.ActorCritic:
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, c.net, seed=c.seed))

    graph = rl.on_policy_graph(c, task, network=network, learner=lambda ranks: Idle(network()))
    # every group of the ring may have a request under way
    return replace(graph, inference=tuple(replace(s, depth=max(s.depth, c.num_env_groups)) for s in graph.inference))
