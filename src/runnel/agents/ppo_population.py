"""PPO for a population: independent learners side by side, each with its own weights, environments and shuffles.

A `PPOLearner` for each member, updated one after the other, on any device. A small network leaves a GPU almost idle: there
`kernels/small/triton/population.py` makes the same steps for all members at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.learning import Update
from runnel.core.records import Batch, Segment
from runnel.core.state import State
from runnel.nets.population import Population


class PopulationLearner:
    """A `PPOLearner` for each member, on the columns of the segment that are its own; member i has the seed `seed + i`. Metrics
    are means over members."""

    def __init__(
        self,
        config: PPOConfig,
        net: Population,
        *,
        seed: int,
        device: str = "cpu",
        learner: type[PPOLearner] = PPOLearner,
    ) -> None:
        self.config, self.net, self.seed, self.device = config, net.to(device), seed, device
        self.learners = [learner(config, m, seed=seed + i, device=device) for i, m in enumerate(net.members)]
        self._params = dict(net.state_dict())
        self._segment: Segment | None = None
        self._progress = 0.0

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The segment as it is: members make their batches one after the other, each just before its update. Recorded in CUDA
        graphs, the steps of one member may write over what another one has prepared."""
        ((self._segment,),) = segments.values()
        self._progress, data = progress, self._segment.arrays
        self.net.keep(data["rewards/env"], data["terminated"] | data["truncated"])
        return data

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
        segment, self._segment = self._segment, None
        assert segment is not None, "prepare comes first"
        told = []
        for i, learner in enumerate(self.learners):
            own = replace(segment, arrays=self._columns(segment, i))
            made = learner.prepare({"trajectories": [own]}, progress=self._progress)
            told.append(learner.update(made).metrics)
        return Update({k: sum(m[k] for m in told) / len(told) for k in told[0]})

    def params(self) -> Mapping[str, Tensor]:
        return self._params

    def state_dict(self) -> State:
        return {"tally": self.net.tally.clone(), "members": {str(i): x.state_dict() for i, x in enumerate(self.learners)}}

    def load_state_dict(self, state: State) -> None:
        self.net.tally.copy_(state["tally"])
        for i, learner in enumerate(self.learners):
            learner.load_state_dict(state["members"][str(i)])
