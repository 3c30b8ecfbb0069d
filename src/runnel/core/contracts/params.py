"""Parameter versions, and the publishers to which learners write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runnel.core.sharding.param_shards import ParamShard
from runnel.core.weight_check import WeightCheck


@dataclass
class ParamSet:
    """One published version of the parameters.

    `shared`: the tensors are the learner's own (in one process, published in the same poll). `weight_check`: log-probabilities
    of a few tokens, as the learner computes them with this version. The worker that loads the version computes them again and
    compares.
    """

    version: int
    params: Mapping[str, Tensor]
    shared: bool = False
    weight_check: WeightCheck | None = None


class ParamPublisher(Protocol):
    """Where the learner puts a new version of its parameters."""

    name: str

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...


class SharedPublisher(ParamPublisher, Protocol):
    """A publisher for several ranks. One rank opens a version, all ranks write their rows, then one rank commits it."""

    def open(self, version: int, pieces: Mapping[str, ParamShard]) -> None: ...

    def write(self, version: int, pieces: Mapping[str, ParamShard]) -> None: ...

    def commit(self, version: int) -> None: ...

    def views(self, version: int) -> Mapping[str, Tensor]:
        """Views of a committed version, without a copy."""
        ...
