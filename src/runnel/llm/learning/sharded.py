"""The token learner with a sharded model (`learner.shard`): the same update, with all passes made by all ranks together.

Weights are gathered only inside a pass that all ranks make, so ranks must make equally many. A rank with fewer micro-batches
adds empty ones, and models that a rank does not train in a pass still take part in its backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective, MeshCollective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.sharding.param_shards import ParamShard
from runnel.core.weight_check import WeightCheck
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.learning.in_parts import TokenLearnerInParts
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.sharded_model import ShardedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def learner_class(config: TokenLearnerConfig, collective: Collective, device: str) -> type[TokenLearner]:
    """The class of one rank's learner. A single rank has nothing to shard, whatever `config.shard` says."""
    if config.in_parts and collective.world_size > 1:
        fix = "ranks take their parts of a whole batch; use placement.trainers 1, or false"
        raise ConfigError("learner.in_parts", True, fix)
    if config.in_parts:
        return TokenLearnerInParts
    if not config.shard or collective.world_size == 1:
        return TokenLearner
    if device.startswith("cuda:"):
        raise ConfigError("device", device, "with learner.shard each rank has a GPU of its own; use cuda")
    return ShardedTokenLearner


class ShardedTokenLearner(TokenLearner):
    """A `TokenLearner` over ranks that keep their rows of every parameter (core `Sharded`)."""

    own_state = ("policy", "critic", "reference")
    _collective: MeshCollective
    policy: ShardedModel
    critic: ShardedModel | None
    reference: ShardedModel | None

    def reseed(self, version: int) -> None:
        """Does nothing: a rank draws no random numbers of its own."""

    def pieces(self) -> dict[str, ParamShard]:
        """This rank's rows of the live weights."""
        return self.policy.param_shards()

    def weight_check(self) -> WeightCheck | None:
        """As in `TokenLearner`. Every rank must call it, because all ranks make the forward pass together."""
        ready = torch.tensor(float(self._weight_check.ready), device=self._device)
        if float(self._collective.all_reduce(ready)) == 0.0:
            return None
        found = super().weight_check()
        if found is None:
            row = torch.zeros(2, dtype=torch.int64, device=self._device)
            with torch.no_grad():
                self.policy.row_logprobs(row, 1)
        return found

    # ------------------------------------------------------------------------------------------------------------ models
    def _trained(self, model: PreTrainedModel, *, foreign: bool = False) -> ShardedModel:
        c = self.config
        made = ShardedModel(
            model,
            mesh=self._collective.mesh,
            device=self._device,
            precision=c.precision_on(self._device),
            weight_decay=c.weight_decay,
            recompute=c.recompute,
            offload="optimiser" in c.offload,
        )
        if foreign:  # a critic, whose body has no values yet (`ShardedModel.scalar_model`)
            made.copy_from(self.policy)
        return made

    # ------------------------------------------------------------------------------------------------------------ passes
    def _parts(self, batch: Batch, rows: Tensor) -> Iterator[MicroBatch]:
        """This rank's micro-batches, filled up with empty ones to the same number on every rank."""
        own = list(super()._parts(batch, rows))
        count = torch.zeros(self._collective.world_size, device=self._device)
        count[self._collective.rank] = len(own)
        most = int(self._collective.all_reduce(count).max())
        yield from own
        for _ in range(most - len(own)):
            yield MicroBatch.empty(batch, device=self._device)

    def _nothing(self, outputs: Batch) -> Tensor:
        """A sum of no losses that depends on every output, so that the backward pass reaches every model."""
        return torch.stack([value[:0].sum() for value in outputs.values()]).sum()
