"""What an algorithm on tokens is: a rule that annotates rows, and the loss components that its annotations feed.

An annotation says for every token of which kind it is (`component`), how much it counts (`weight`) and in which direction it is
pushed (`advantage`). The learner sums the components and never learns an algorithm's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.llm.learning.batches import NONE, PAIR, POLICY, SCORE, SFT, MicroBatch
from runnel.losses.base import Loss
from runnel.ops.ragged import row_index, row_sum

__all__ = ["NONE", "PAIR", "POLICY", "SCORE", "SFT", "Aggregation", "Algorithm", "Component", "Part"]

Aggregation = Literal["token", "sequence", "sum", "constant"]
"""How tokens make a batch's mean: over all tokens; over the means of rows; over the sums of rows; over rows times a
constant."""


@dataclass(frozen=True)
class Part:
    """The tokens of one component in a micro-batch, and what the models say of them. All `[M]`.

    `logprob` and `entropy` are of the policy (at the component's temperature), `score` is of a reward model, `value` of the
    critic; only what the batch's components use is there. `fields` are the annotations; `row` and `unit` are numbered from 0.
    `count` is the number of tokens of the component in the global batch, `version` that of the weights at the start of the
    update.
    """

    fields: Batch
    row: Tensor
    unit: Tensor
    num_rows: int
    num_units: int
    count: float
    version: int
    outputs: Batch

    @property
    def logprob(self) -> Tensor:
        return self.outputs["logprob"]

    @property
    def entropy(self) -> Tensor:
        return self.outputs["entropy"]

    @property
    def score(self) -> Tensor:
        return self.outputs["score"]

    @property
    def value(self) -> Tensor:
        return self.outputs["value"]

    @staticmethod
    def of(part: MicroBatch, kind: int, outputs: Batch, *, count: float, version: int) -> Part:
        """The tokens of `kind`."""
        at = part.kinds[kind]
        if len(at) == len(part.target):
            fields, out, row, unit = part.fields, outputs, part.row, part.unit
        else:
            fields, out = part.fields.map(lambda x: x[at]), outputs.map(lambda x: x[at])
            row, unit = part.row[at], part.unit[at]
        return Part(fields, row, unit, part.num_rows, part.num_units, count, version, out)


@dataclass(frozen=True)
class Component:
    """One term of a loss, on the tokens of one kind.

    `loss(part, denominator)` divides by `denominator/<name>` of the global batch (`denominator` names another's). `uses` says
    which model it trains. `metrics` names what it shows. It trains from the algorithm's batch number `start` on. With
    `by_advantage`, tokens whose advantage is 0 have no gradient. `tempered`: log-probabilities are those of what rollouts were
    sampled from, at their temperature; otherwise the model's own, at 1.
    """

    loss: Callable[[Part, float], Loss]
    kind: int = POLICY
    coef: float = 1.0
    uses: Literal["logprob", "score", "value"] = "logprob"
    metrics: tuple[str, ...] = ()
    denominator: str = ""
    start: int = 0
    by_advantage: bool = False
    tempered: bool = True


class Algorithm(Protocol):
    """An annotation rule and its components.

    `needs` names per-token fields that the learner computes first, without gradients: `reference_logprob`, `proximal_logprob`
    (of the weights at the start of the update), `value` (of the critic).
    """

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def components(self) -> Mapping[str, Component]: ...

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        """Joined rows (`batches.join_rows`, with the fields that it needs) with annotations.

        Per token `[N]`: `tokens`, `component`, `weight`, `advantage`, and what the components read. Per row `[R]`:
        `row_length`, `unit` (rows of one unit stay together), `denominator/<component>` (the row's share of it).
        `stats/<name>`: scalars to show; NaN where nothing was measured.
        """
        ...


def aggregate(mask: Tensor, row_length: Tensor, how: Aggregation, *, constant: float = 1.0) -> tuple[Tensor, Tensor]:
    """Weights of tokens and shares of rows in the denominator. `[N], [R] -> [N], [R]`

    >>> mask = torch.tensor([False, True, True, False, True])
    >>> [x.tolist() for x in aggregate(mask, torch.tensor([3, 2]), "sequence")]
    [[0.0, 0.5, 0.5, 0.0, 1.0], [1.0, 1.0]]
    >>> [x.tolist() for x in aggregate(mask, torch.tensor([3, 2]), "token")]
    [[0.0, 1.0, 1.0, 0.0, 1.0], [2.0, 1.0]]
    """
    row, weight = row_index(row_length), mask.float()
    count = row_sum(weight, row, len(row_length))
    if how == "token":
        return weight, count
    if how == "sequence":
        weight = weight / count.clamp(min=1.0)[row]
    trained = (count > 0).float()
    return weight, trained * (constant if how == "constant" else 1.0)


def row_reward(rows: Mapping[str, Tensor], channel: str) -> Tensor:
    """The reward of each row in one channel, summed where it is given by token; NaN where it does not apply. `[R]`"""
    if f"rewards/{channel}" not in rows:
        raise DataError(f"segments have no reward channel {channel!r}; name it in the stream, or leave it out of channels")
    found, length = rows[f"rewards/{channel}"], rows["row_length"]
    return found if len(found) == len(length) else row_sum(found, row_index(length), len(length))


def sum_channels(rows: Mapping[str, Tensor], channels: Mapping[str, float]) -> Tensor:
    """`sum_c weight_c * rewards/c`, over the channels that apply to a row. `[R]`"""
    return torch.stack([weight * row_reward(rows, c).nan_to_num(0.0) for c, weight in channels.items()]).sum(dim=0)
