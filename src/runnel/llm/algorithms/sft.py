"""Supervised fine-tuning: imitate demonstrated answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.llm.algorithms.base import SFT, Component, Part, aggregate
from runnel.losses.base import Loss
from runnel.losses.token import sft_loss
from runnel.ops.credit import row_index, row_sum


class SupervisedFineTuning:
    """Cross entropy on the answers' tokens (`base.Algorithm`).

    L = -(sum_t w_t log pi(y_t)) / (sum_t w_t)

    w is 1, or the `weight` of tokens where demonstrations bring it: key tokens may count more, and wrong steps not at all (as
    in TL-Training, Ye et al. 2024, arXiv:2412.15495, whose weights change during training; here they are given). `name` is that
    of its loss: two in one learner have two.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, *, coef: float = 1.0, name: str = "sft") -> None:
        self._share = f"denominator/{name}"
        self.components: Mapping[str, Component] = {name: Component(_cross_entropy, kind=SFT, coef=coef, tempered=False)}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        mask, length = rows["loss_mask"], rows["row_length"]
        weight, share = aggregate(mask, length, rows["row_owner"], "token")
        if "weight" in rows:
            weight = weight * rows["weight"]
            share = row_sum(weight, row_index(length), len(length))
        out = Batch({"unit": torch.arange(len(length)), **{k: rows[k] for k in ("tokens", "row_length", "row_owner")}})
        out |= {"component": mask.to(torch.int8) * SFT, "weight": weight, self._share: share}
        out["advantage"] = torch.zeros_like(weight)
        return out


def _cross_entropy(part: Part, denominator: float) -> Loss:
    return sft_loss(part.outputs["logprob"], weight=part.fields["weight"], denominator=denominator)
