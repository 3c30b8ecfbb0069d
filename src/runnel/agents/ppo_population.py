"""PPO for a population: independent learners side by side, each with its own weights, environments and shuffles.

A `PPOLearner` for each member, updated one after the other, on any device. A small network leaves a GPU almost idle: there
`kernels/small/triton/population.py` makes the same steps for all members at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from torch import Tensor

from runnel.agents.exchange import ExchangeConfig, Value, begin, explore, pairs
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.team import set_members, takes_of
from runnel.core.contracts.learning import Learner, Update
from runnel.core.errors import ConfigError
from runnel.core.live_settings import not_live
from runnel.core.records import Batch, Segment
from runnel.core.rng import make_rng
from runnel.core.state import State, WorkerEvent
from runnel.nets.population import Population


class PopulationLearner:
    """A `PPOLearner` for each member, on the columns of the segment that are its own; member i has the seed `seed + i`. Metrics
    are means over members. With `exchange`, the worst take over from the best now and then."""

    def __init__(
        self,
        config: PPOConfig,
        net: Population,
        *,
        seed: int,
        device: str = "cpu",
        learner: type[PPOLearner] = PPOLearner,
        exchange: ExchangeConfig | None = None,
    ) -> None:
        self.config, self.net, self.seed, self.device = config, net.to(device), seed, device
        self.learners = [learner(config, m, seed=seed + i, device=device) for i, m in enumerate(net.members)]
        self.exchange = exchange
        self._settings: list[dict[str, Value]] = []
        """Of each member those that exchanges move."""
        if exchange is not None:
            exchange.check(config, "ppo")
            self._settle([begin(config, exchange, make_rng(seed, "exchange", i)) for i in range(len(self.learners))])
        self._params = dict(net.state_dict())
        self._segment: Segment | None = None
        self._progress = 0.0

    @property
    def members(self) -> Mapping[str, Learner]:
        """The learners by their number."""
        return {str(i): learner for i, learner in enumerate(self.learners)}

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """The live settings of the members, but for those that exchanges move."""
        moved = () if self.exchange is None else self.exchange.settings
        return {kind: [f for f in fields if f not in moved] for kind, fields in takes_of(self.members).items()}

    def set(self, name: str, value: object) -> None:
        """A setting of one member (`3/lr`), or of all (`lr`)."""
        field, known = name.rpartition("/")[2], [f for fields in self.takes.values() for f in fields]
        if field not in known:
            raise not_live(name, value, known)
        set_members(self.members, name, value)

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
        return Update({k: sum(m[k] for m in told) / len(told) for k in told[0]}, events=self._exchange())

    # -------------------------------------------------------------------------------------------------------- exchange
    def _exchange(self) -> list[WorkerEvent]:
        """Every so many updates, let the worst members take over from the best. An event for each."""
        version = self.learners[0].version
        if self.exchange is None or version % self.exchange.every:
            return []
        rng, returns = make_rng(self.seed, "exchange at", version), self.net.returns().tolist()
        return [self._take_over(member, parent, returns, rng) for member, parent in pairs(returns, rng)]

    def _take_over(self, member: int, parent: int, returns: Sequence[float], rng: np.random.Generator) -> WorkerEvent:
        """Copy a learner, but for its shuffles, and move its settings a little."""
        child = self.learners[member]
        child.load_state_dict({**self.learners[parent].state_dict(), "shuffle": child.state_dict()["shuffle"]})
        self.net.tally[member] = self.net.tally[parent]
        before = self._settings[member]
        self._settle([explore(self._settings[parent], rng) if i == member else own for i, own in enumerate(self._settings)])
        moved = ", ".join(f"{name} {before[name]} -> {value}" for name, value in self._settings[member].items())
        scores = f"return {returns[member]:.4g} against {returns[parent]:.4g}"
        return {"kind": "event", "text": f"member {member} took over from member {parent} ({scores}): {moved}"}

    def _settle(self, settings: Sequence[dict[str, Value]]) -> None:
        """Give each member its settings; a value that a field cannot have leaves it as it was."""
        kept: list[dict[str, Value]] = []
        for learner, own in zip(self.learners, settings, strict=True):
            for name, value in own.items():
                with suppress(ConfigError):
                    learner.set(name, value)
            kept.append({name: getattr(learner.config, name) for name in own})
        self._settings = kept

    def params(self) -> Mapping[str, Tensor]:
        return self._params

    def state_dict(self) -> State:
        members = {str(i): x.state_dict() for i, x in enumerate(self.learners)}
        return {"tally": self.net.tally.clone(), "members": members, **({"settings": self._settings} if self._settings else {})}

    def load_state_dict(self, state: State) -> None:
        self.net.tally.copy_(state["tally"])
        for i, learner in enumerate(self.learners):
            learner.load_state_dict(state["members"][str(i)])
        if self.exchange is not None:
            self._settle(state["settings"])
