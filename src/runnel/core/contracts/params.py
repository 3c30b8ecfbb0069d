"""Parameter versions: what is published, by whom, and where it is written."""

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
    of a few tokens under this version as the learner computes them; who loads the version computes them again and compares.
    """

    version: int
    params: Mapping[str, Tensor]
    shared: bool = False
    weight_check: WeightCheck | None = None


class ParamPublisher(Protocol):
    """Where the learner puts a new version of its parameters."""

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...


class SharedPublisher(ParamPublisher, Protocol):
    """Where several ranks write one version: one opens it, all write their rows, then one commits it."""

    def open(self, version: int, pieces: Mapping[str, ParamShard]) -> None: ...

    def write(self, version: int, pieces: Mapping[str, ParamShard]) -> None: ...

    def commit(self, version: int) -> None: ...

    def views(self, version: int) -> Mapping[str, Tensor]:
        """A committed version where it lies."""
        ...
