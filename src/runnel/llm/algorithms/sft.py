"""Supervised fine-tuning: imitate demonstrated answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.llm.algorithms.base import SFT, Component, Part, aggregate
from runnel.losses.base import Loss
from runnel.losses.token import sft_loss


class SupervisedFineTuning:
    """Cross entropy on the answers' tokens, all of equal weight (`base.Algorithm`).

    L = -1/N sum_t log pi(y_t)
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, *, coef: float = 1.0) -> None:
        self.components: Mapping[str, Component] = {"sft": Component(_cross_entropy, kind=SFT, coef=coef, tempered=False)}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        mask, length = rows["loss_mask"], rows["row_length"]
        weight, share = aggregate(mask, length, "token")
        out = Batch({"tokens": rows["tokens"], "row_length": length, "unit": torch.arange(len(length))})
        out |= {"component": mask.to(torch.int8) * SFT, "weight": weight, "denominator/sft": share}
        out["advantage"] = torch.zeros_like(weight)
        return out


def _cross_entropy(part: Part, denominator: float) -> Loss:
    return sft_loss(part.outputs["logprob"], weight=part.fields["weight"], denominator=denominator)
