"""A recipe in which the sender's steps go to two streams: PPO reads one, and a learner of another kind reads the other, in
shorter segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import runnel as rl


class Watcher:
    """Learns how often each word is said: the running share of each action among decisions."""

    def __init__(self, num_actions: int) -> None:
        self.counts = torch.zeros(num_actions)

    def prepare(self, segments: Mapping[str, Sequence[rl.core.Segment]], *, progress: float) -> rl.Batch:
        (group,) = segments.values()
        assert {len(s.arrays["action"]) for s in group} == {5}
        chosen = [s.arrays["action"][s.arrays["active"][:-1]] for s in group]
        return rl.Batch(action=torch.cat(chosen))

    def update(self, batch: rl.Batch) -> rl.Update:
        self.counts += torch.bincount(batch["action"], minlength=len(self.counts))
        return rl.Update({"seen": float(self.counts.sum()), "most": float(self.counts.max())})

    def params(self) -> dict[str, Tensor]:
        return {"counts": self.counts}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.counts.copy_(torch.as_tensor(state["counts"]))


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """PPO for both policies of the whisper, and a watcher of the sender."""

    ppo: rl.agents.PPOConfig = field(default_factory=rl.agents.PPOConfig)


def build(c: Config) -> rl.Experiment:
    sender, receiver = rl.core.team_routes(["sender=sender", "receiver=receiver"])
    sender = replace(sender, samples=(*sender.samples, rl.core.SampleRoute("watched", num_steps=5)))
    task = rl.graphs.TeamTask(c, routes=[sender, receiver])

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.nets.ActorCritic(spec, rl.nets.build_body(spec, c.net, seed=seed), normalise_obs=c.ppo.normalise_obs)

    def learner(policy: str, net: rl.nets.ActorCritic, ranks: rl.Collective) -> rl.agents.PPOLearner:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.agents.PPOLearner(c.ppo, net, seed=seed, collective=ranks, device=c.device)

    others = {"watched": lambda ranks: Watcher(3)}
    return rl.graphs.team_graph(c, task, network=network, learner=learner, others=others)
