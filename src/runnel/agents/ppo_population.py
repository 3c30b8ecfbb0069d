"""PPO for a population: independent learners on one lane, each with its own weights, environments and shuffles.

A small network leaves a GPU almost idle. `PopulationLearner` holds one `PPOLearner` for each member and updates them one after
the other, on any device. Where the kernels of `nets/fused.py` serve the network, `FusedPopulationLearner` makes the same steps
for all members at once: one launch for 32 learners costs little more than one for a single learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.batch import Batch
from runnel.core.protocols import Learner, State, Update
from runnel.core.records import Segment
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.compiled import Compiled
from runnel.nets.fused import Fused, can_fuse
from runnel.nets.population import Population


def population_learner(config: PPOConfig, net: Population, *, seed: int, device: str) -> Learner:
    """The learner of all members; member i has the seed `seed + i`."""
    first = net.to(device).members[0]
    if first.fuses and can_fuse(first) and config.target_kl is None and not config.normalise_reward:
        return FusedPopulationLearner(config, net, seed=seed, device=device)
    return PopulationLearner(config, net, seed=seed, device=device)


class PopulationLearner:
    """A `PPOLearner` for each member, on the columns of the segment that are its own. Metrics are means over members."""

    def __init__(self, config: PPOConfig, net: Population, *, seed: int, device: str = "cpu") -> None:
        self.net = net.to(device)
        self.learners = [PPOLearner(config, m, seed=seed + i, device=device) for i, m in enumerate(net.members)]
        self._params = dict(net.state_dict())

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The batches of all members, with the member's number before each name."""
        (segment,) = (s for group in segments.values() for s in group)
        data = segment.arrays
        self.net.keep(data["rewards/env"], data["terminated"] | data["truncated"])
        batch = Batch()
        for i, learner in enumerate(self.learners):
            own = replace(segment, arrays=self._columns(segment, i))
            made = learner.prepare({"trajectories": [own]}, progress=progress)
            batch |= {f"{i}/{k}": x for k, x in made.items()}
        return batch

    def _columns(self, segment: Segment, member: int) -> Batch:
        """The environments of one member, with the final observations that are theirs."""
        width, first = self.net.num_envs, member * self.net.num_envs
        data, spec = segment.arrays, segment.spec
        steps, place = data["final_index"] // segment.num_rows, data["final_index"] % segment.num_rows - first
        mine = ((place >= 0) & (place < width)).nonzero().flatten()
        own = Batch()
        for name, field in spec.fields.items():
            x = data[name]
            if "F" in field.dims:
                own[name] = x.index_select(0, mine)
            else:
                own[name] = x.narrow(field.dims.index("B"), first, width) if "B" in field.dims else x
        own["final_index"] = (steps * width + place).index_select(0, mine)
        return own

    def update(self, batch: Batch) -> Update:
        """One version of every member."""
        told = []
        for i, learner in enumerate(self.learners):
            own = {k.partition("/")[2]: x for k, x in batch.items() if k.startswith(f"{i}/")}
            told.append(learner.update(Batch(own)).metrics)
        return Update({k: sum(m[k] for m in told) / len(told) for k in told[0]})

    def params(self) -> Mapping[str, Tensor]:
        return self._params

    def state_dict(self) -> State:
        return {"tally": self.net.tally.clone(), "members": {str(i): x.state_dict() for i, x in enumerate(self.learners)}}

    def load_state_dict(self, state: State) -> None:
        self.net.tally.copy_(state["tally"])
        for i, learner in enumerate(self.learners):
            learner.load_state_dict(state["members"][str(i)])


class FusedPopulationLearner(PPOLearner):
    """All members in the same kernels, with one flat vector of weights and one optimiser (norms are each member's own)."""

    def __init__(self, config: PPOConfig, net: Population, *, seed: int, device: str) -> None:
        super().__init__(replace(config, normalise_advantage=False), cast(ActorCritic, net), seed=seed, device=device)
        self.population, self._standardises = net, config.normalise_advantage

    def _batch(self, data: Batch) -> Batch:
        self.population.keep(data["rewards/env"], data["terminated"] | data["truncated"])
        batch, (num_steps, _) = super()._batch(data), data["terminated"].shape
        if self._standardises:
            advantages = batch["advantage"].view(num_steps, len(self.population.members), -1)
            std, mean = torch.std_mean(advantages, dim=(0, 2), keepdim=True, correction=0)
            batch["advantage"] = ((advantages - mean) / (std + 1e-8)).flatten()
        return batch

    def _fused_passes(self, kernels: Fused | Compiled, batch: Batch) -> Tensor:
        """As for one network, with an order of its own for each member. `-> [steps, 7]`, means over members"""
        assert isinstance(kernels, Fused)
        config, num = self.config, len(self.population.members)
        num_rows, width = len(batch["advantage"]) // num, num * self.population.num_envs
        size = num_rows // config.num_minibatches
        settings = {"optimiser": self._optimiser, "max_norm": config.max_grad_norm, **self._loss}
        history = [
            kernels.step(batch, order, rows=(first, first + size), width=width, **settings)
            for order in self._shuffle.orders(config.num_epochs * num, num_rows).view(config.num_epochs, num, -1)
            for first in range(0, num_rows, size)
        ]
        return torch.stack(history).mean(1)
