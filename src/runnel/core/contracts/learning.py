"""Learners: the update, its ranks, and what a learner may do beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch, Segment
from runnel.core.sharding.param_shards import ParamShard
from runnel.core.state import Metrics, State, WorkerEvent
from runnel.core.weight_check import WeightCheck

if TYPE_CHECKING:  # torch without distributed has no such module
    from torch.distributed.device_mesh import DeviceMesh


class Collective(Protocol):
    """The ranks of one learner. Every denominator, mean and stop decision goes through it."""

    rank: int
    world_size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over ranks, the same bits on each; it may be made in the memory of `x`, so hand over what you can
        spare. Every rank calls it as often, with as many numbers."""
        ...


class MeshCollective(Collective, Protocol):
    """Ranks over which a model can be taken apart."""

    def mesh(self) -> DeviceMesh:
        """A `torch.distributed.DeviceMesh` of the ranks; they meet when it is first asked for."""
        ...


class SingleProcess:
    """The collective of a learner that is alone."""

    rank = 0
    world_size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Update:
    """What an update says of itself. `feedback` has one mapping per segment, in the order `prepare` got them."""

    metrics: Metrics
    feedback: dict[str, list[Mapping[str, Tensor]]] = field(default_factory=dict)
    events: list[WorkerEvent] = field(default_factory=list)
    """What else there is to tell the run (`kind`, and plain data); the leading rank's is told."""


@runtime_checkable
class Learner(Protocol):
    """An algorithm's update, owner of the optimiser. It knows segments and tensors; never environments or streams."""

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Turn segments, by reader name, into one training batch: advantages, targets, masks. `progress` is in [0, 1]."""
        ...

    def update(self, batch: Batch) -> Update:
        """Consume the batch: one version. Raises `NonFiniteError` before it would step on a bad loss."""
        ...

    def params(self) -> Mapping[str, Tensor]:
        """What is published: weights, and the statistics that acting needs (normalisers, exploration rate)."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Sharded(Protocol):
    """A learner of which each rank keeps some rows of every parameter: nobody has the whole, and `params` is not asked for."""

    def pieces(self) -> Mapping[str, ParamShard]:
        """This rank's rows of what is published; all of them as long as nothing was computed yet."""
        ...


@runtime_checkable
class LoadsInitialParams(Protocol):
    """A learner that keeps more than it publishes (float32 masters of half-precision weights, the weights beside adapters,
    target networks), or publishes what does not belong to a start (an exploration rate): it takes a start itself."""

    def base_params(self) -> Mapping[str, Tensor]:
        """Live parameters as a start must have them, by name."""
        ...

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Use `params`, published by another run, as the weights from here on."""
        ...


@runtime_checkable
class StartsPartly(Protocol):
    """A learner that learns with more than what it publishes: a run that starts from another (`init_from`) says what is not
    taken."""

    def not_taken(self) -> Sequence[str]:
        """In words, what stays as it was made."""
        ...


@runtime_checkable
class HasWeightCheck(Protocol):
    """A learner whose versions prove themselves where they arrive: its weight_check is published with the parameters."""

    def weight_check(self) -> WeightCheck | None:
        """What the parameters of now say of some tokens; None before there are any."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """A learner that fixes copies of a model for workers elsewhere to hold (a reference). Each has a parameter channel."""

    def frozen(self) -> Mapping[str, ParamSet]:
        """By channel, the copy that workers are to hold now, under the version at which it was fixed; nothing before that."""
        ...


@runtime_checkable
class HasRng(Protocol):
    """A learner that draws random numbers: each rank has a generator of its own, all else is the same on every rank."""

    own_state: tuple[str, ...]
    """Entries of `state_dict` that are the rank's own."""

    def reseed(self, version: int) -> None:
        """A rank that joins at `version`: draw as no other rank does, and not what it drew at the start."""
        ...
