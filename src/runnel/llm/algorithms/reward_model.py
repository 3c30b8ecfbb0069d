"""A reward model from preferences."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.llm.algorithms.base import SCORE, Component, Part
from runnel.llm.algorithms.dpo import PAIR_METRICS, annotate_pairs
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.preference import bradley_terry_loss
from runnel.ops.credit import last_of_row


class RewardModelling:
    """Bradley-Terry on pairs of answers (Ouyang et al. 2022, arXiv:2203.02155, eq. 1; `base.Algorithm`).

        L = -1/P sum_p log sigmoid(s(y+) - s(y-))

    The score of an answer is read at its last token. Rows come in pairs, the chosen answer first; the model has a scalar head.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        component = Component(_loss, kind=SCORE, uses="score", metrics=PAIR_METRICS)
        self.components: Mapping[str, Component] = {"reward_model": component}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        num, mask = len(rows["group"]), rows["loss_mask"]
        first = torch.arange(0, num, 2)
        last = torch.zeros_like(mask)
        last[last_of_row(mask, token_owner(rows), num)] = True
        return annotate_pairs(Batch(rows | {"loss_mask": last}), first, first + 1, name="reward_model", kind=SCORE)


def _loss(part: Part, denominator: float) -> Loss:
    sign = part.fields["advantage"]
    return bradley_terry_loss(part.outputs["score"], sign, unit=part.unit, num_units=part.num_units, denominator=denominator)
