"""Several learners in lock-step: each trains on streams of its own, and together they make one line of versions.

One trainer runs them: a batch has segments for each member, an update is one of every member, and a version holds the
parameters of all. For members at their own pace, give each a `TrainerSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from runnel.core.contracts.learning import (
    HasLiveSettings,
    HasRng,
    HasWeightCheck,
    Learner,
    LoadsInitialParams,
    LoadsParams,
    Sharded,
    Update,
)
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.core.live_settings import not_live
from runnel.core.records import Batch, Segment
from runnel.core.state import State


class TeamLearner:
    """A `Learner` of several. Parameters, metrics and state of member `red` are named `red/...`.

    `reads` names the streams of each member; a member that it does not name reads the stream of its own name. Serve a member
    with `TorchInferencer(net, member="red")`, which takes its part of a version.
    """

    def __init__(self, members: Mapping[str, Learner], reads: Mapping[str, Sequence[str]] | None = None) -> None:
        if wrong := [name for name in members if "/" in name or not name]:
            raise ConfigError("members", wrong[0], "use a name without a slash: names of parameters begin with it")
        for name, member in members.items():
            if isinstance(member, Sharded | HasWeightCheck):
                fix = "its versions are checked or sharded as a whole; give it a trainer of its own (TrainerSpec)"
                raise ConfigError("members", f"{name} ({type(member).__name__})", fix)
        self.members = dict(members)
        self._reads = {name: tuple((reads or {}).get(name, (name,))) for name in members}
        streams = [stream for some in self._reads.values() for stream in some]
        if twice := [stream for stream in streams if streams.count(stream) > 1]:
            raise ConfigError("reads", twice[0], "two members read this stream; give each its own")

    @property
    def own_state(self) -> tuple[str, ...]:
        """Entries of `state_dict` that differ between ranks: those of the members."""
        return tuple(f"{name}/{entry}" for name, m in self.members.items() if isinstance(m, HasRng) for entry in m.own_state)

    def reseed(self, version: int) -> None:
        for member in self.members.values():
            if isinstance(member, HasRng):
                member.reseed(version)

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        return takes_of(self.members)

    def set(self, name: str, value: object) -> None:
        """A setting of one member (`red/lr`), or of every member that has it (`lr`)."""
        set_members(self.members, name, value)

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        batch = Batch()
        for name, member in self.members.items():
            mine = {stream: segments[stream] for stream in self._reads[name] if stream in segments}
            if mine:
                batch |= {f"{name}/{key}": leaf for key, leaf in member.prepare(mine, progress=progress).items()}
        return batch

    def update(self, batch: Batch) -> Update:
        """One update of each member that has a part in the batch, in the order of the members."""
        whole = Update({})
        for name, member in self.members.items():
            mine = _under(name, batch)
            if mine:
                update = member.update(Batch(mine))
                whole.metrics |= {f"{name}/{key}": value for key, value in update.metrics.items()}
                whole.feedback |= update.feedback
                whole.events += update.events
        return whole

    def params(self) -> Mapping[str, Tensor]:
        return {f"{name}/{key}": x for name, member in self.members.items() for key, x in member.params().items()}

    def load_params(self, channel: str, params: ParamSet) -> None:
        """Give them to every member that loads parameters of other trainers."""
        for member in self.members.values():
            if isinstance(member, LoadsParams):
                member.load_params(channel, params)

    def base_params(self) -> Mapping[str, Tensor]:
        return {f"{name}/{key}": x for name, member in self.members.items() for key, x in _base(member).items()}

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        for name, member in self.members.items():
            mine = _under(name, params)
            if isinstance(member, LoadsInitialParams):
                member.start_from(mine)
            else:
                with torch.no_grad():
                    for key, tensor in member.params().items():
                        tensor.copy_(mine[key])

    def state_dict(self) -> State:
        return {f"{name}/{key}": value for name, member in self.members.items() for key, value in member.state_dict().items()}

    def load_state_dict(self, state: State) -> None:
        for name, member in self.members.items():
            member.load_state_dict(_under(name, state))


def takes_of(members: Mapping[str, Learner]) -> dict[type, Sequence[str]]:
    """The live settings that any of `members` takes."""
    return {kind: fields for m in members.values() if isinstance(m, HasLiveSettings) for kind, fields in m.takes.items()}


def set_members(members: Mapping[str, Learner], name: str, value: object) -> None:
    """Set the field of one member (`red/lr`), or of every member that has it (`lr`)."""
    member, _, field = name.rpartition("/")
    if member and member not in members:
        raise ConfigError(name, value, f"there is no such member; use one of {', '.join(members)}")
    found = [members[member]] if member else list(members.values())
    taking = [m for m in found if isinstance(m, HasLiveSettings) and any(field in fields for fields in m.takes.values())]
    if not taking:
        raise not_live(name, value, [known for fields in takes_of(members).values() for known in fields])
    for m in taking:
        m.set(field, value)


def _base(member: Learner) -> Mapping[str, Tensor]:
    return member.base_params() if isinstance(member, LoadsInitialParams) else member.params()


Value = TypeVar("Value")


def _under(member: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """The entries of a member, without its name."""
    start = f"{member}/"
    return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
