"""Learners: the update, its ranks, and optional abilities of a learner."""

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
        """The sum of `x` over ranks, with the same bits on each rank. It may overwrite `x`. All ranks call it equally often,
        with equal shapes."""
        ...


class MeshCollective(Collective, Protocol):
    """Ranks over which a model can be sharded."""

    def mesh(self) -> DeviceMesh:
        """A `torch.distributed.DeviceMesh` of the ranks. The first call waits until all ranks have called it."""
        ...


class SingleProcess:
    """The collective of a learner with one rank."""

    rank = 0
    world_size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Update:
    """The result of one update. `feedback` has one mapping per segment, in the order in which `prepare` got the segments."""

    metrics: Metrics
    feedback: dict[str, list[Mapping[str, Tensor]]] = field(default_factory=dict)
    events: list[WorkerEvent] = field(default_factory=list)
    """Other events for the run (`kind`, and plain data). Only those of rank 0 are used."""


@runtime_checkable
class Learner(Protocol):
    """An algorithm's update; it owns the optimiser. It knows segments and tensors, but no environments and no streams."""

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Turn segments, by reader name, into one training batch: advantages, targets, masks. `progress` is in [0, 1]."""
        ...

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes one new version. Raises `NonFiniteError` instead of stepping on a bad loss."""
        ...

    def params(self) -> Mapping[str, Tensor]:
        """The published parameters: weights, and statistics that acting needs (normalisers, exploration rate)."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Sharded(Protocol):
    """A learner that keeps only some rows of every parameter on each rank. `params` is not called: no rank has them all."""

    def pieces(self) -> Mapping[str, ParamShard]:
        """This rank's rows of the published parameters; all rows before the first computation."""
        ...


@runtime_checkable
class LoadsInitialParams(Protocol):
    """A learner with its own way to load initial parameters.

    It keeps more than it publishes (float32 masters of half-precision weights, base weights of adapters, target networks), or
    it publishes values that are no initial parameters (an exploration rate).
    """

    def base_params(self) -> Mapping[str, Tensor]:
        """Live parameters by name, with the shapes and types that initial parameters must have."""
        ...

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Continue with `params`, which another run has published, as the weights."""
        ...


@runtime_checkable
class StartsPartly(Protocol):
    """A learner that trains parts which it does not publish. A run that starts from another (`init_from`) lists these parts."""

    def not_taken(self) -> Sequence[str]:
        """In words, the parts that keep their initial values."""
        ...


@runtime_checkable
class HasWeightCheck(Protocol):
    """A learner that publishes a weight check with its parameters, so that the worker that loads a version can verify it."""

    def weight_check(self) -> WeightCheck | None:
        """Log-probabilities of a few tokens under the current parameters; None before the first batch of tokens."""
        ...


@runtime_checkable
class TakesParts(Protocol):
    """A learner that can work on the segments of a batch one by one, as they arrive, and step when all are there.

    The step must be the one that `prepare` and `update` of the whole batch would take, up to rounding.
    """

    takes_parts: bool
    """Whether it is to do so; False: it gets whole batches."""

    def add_part(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> None:
        """Accumulate the gradient of a part of the batch."""
        ...

    def finish_parts(self) -> Update:
        """All parts are there: take the step, which makes one new version."""
        ...


@runtime_checkable
class LoadsParams(Protocol):
    """A learner that uses parameters which another trainer of the run publishes (a reward network, a teacher)."""

    def load_params(self, channel: str, params: ParamSet) -> None:
        """Use these from the next `prepare` on. What is kept of them belongs into `state_dict`."""
        ...


@runtime_checkable
class HasLiveSettings(Protocol):
    """A learner with settings that may change between two updates. For one with a single config: `core/live_settings.py`."""

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """By config class, the fields that `set` takes."""
        ...

    def set(self, name: str, value: object) -> None:
        """Use another value of the field `name` from the next `prepare` on. Raises a `ConfigError`, and changes nothing, for a
        field that is not live and for a value that it cannot have. Its trainer calls it between two updates, on every rank."""
        ...


@runtime_checkable
class HasMembers(Protocol):
    """A learner made of several (a team, a population). `set("red/lr", 1e-4)` changes a setting of the member `red` alone, and
    `set("lr", 1e-4)` that of all."""

    @property
    def members(self) -> Mapping[str, Learner]: ...


@runtime_checkable
class HasReference(Protocol):
    """A learner that freezes copies of a model (references), which other workers load. Each has a parameter channel."""

    def frozen(self) -> Mapping[str, ParamSet]:
        """By channel, the reference to use now, with the version at which it was made; empty before the first reference."""
        ...


@runtime_checkable
class HasRng(Protocol):
    """A learner that draws random numbers. Each rank has its own generator; all other state is equal on every rank."""

    own_state: tuple[str, ...]
    """Entries of `state_dict` that differ between ranks."""

    def reseed(self, version: int) -> None:
        """Give a rank that joins at `version` random numbers that no other rank draws and that were not drawn at the start."""
        ...
