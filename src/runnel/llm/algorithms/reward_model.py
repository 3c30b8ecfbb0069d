"""Reward models: from preferences, and from scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.resuming import NEXT_UPDATE, OnResume, live, stays
from runnel.llm.algorithms.base import SCORE, Component, Part
from runnel.llm.algorithms.dpo import PAIR_METRICS, annotate_pairs, pairs_of
from runnel.llm.learning.batches import token_owner
from runnel.llm.tasks.preferences import Strength
from runnel.losses.base import Loss
from runnel.losses.preference import bradley_terry_loss, score_regression_loss
from runnel.ops.credit import last_of_row


@dataclass(frozen=True)
class RewardModelConfig:
    """How strongly pairs count for a reward model."""

    on_resume: ClassVar[OnResume] = live("margin_coef", then=NEXT_UPDATE, switches=False) | stays(
        "weighted", why="segments on their way have the weights, or have none"
    )

    margin_coef: float = bounded(0.0, at_least=0)
    """How many times its `margin`, a field of each pair, the chosen answer's score shall be ahead (Llama 2's margin). 0: pairs
    need none."""
    weighted: bool = False
    """Let each pair count by its field `weight`, in place of all alike."""

    @property
    def asked(self) -> dict[Strength, str]:
        """Fields that pairs need, each by the setting that asks for it."""
        found: dict[Strength, str] = {"margin": "reward_model.margin_coef"} if self.margin_coef else {}
        return {**found, "weight": "reward_model.weighted"} if self.weighted else found


class RewardModelling:
    """Bradley-Terry on pairs of answers (Ouyang et al. 2022, arXiv:2203.02155, eq. 1; `base.Algorithm`).

        L = -1/P sum_p w_p log sigmoid(s(y+) - s(y-) - margin_coef m_p)

    The score of an answer is read at its last token. Rows come in pairs, the chosen answer first; the model has a scalar head.
    m is the pair's `margin`, how much better the chosen answer is (Touvron et al. 2023, arXiv:2307.09288, eq. 2), or how many
    more judges prefer it (Wang et al. 2024, arXiv:2401.06080); w is its `weight` if `weighted` (the scaled loss of Wang et al.
    2024, arXiv:2410.01257), else 1.
    """

    name = "reward_model"
    needs: frozenset[str] = frozenset()

    def __init__(self, config: RewardModelConfig | None = None) -> None:
        self.config = config or RewardModelConfig()
        check_bounds(self.config)

    @property
    def components(self) -> Mapping[str, Component]:
        return {self.name: Component(self.loss, kind=SCORE, uses="score", metrics=PAIR_METRICS)}

    def loss(self, part: Part, denominator: float) -> Loss:
        """The loss of the pairs in a micro-batch, divided by `denominator`."""
        c, fields = self.config, part.fields
        return bradley_terry_loss(
            part.outputs["score"],
            fields["advantage"],
            margin=c.margin_coef * fields["margin"] if c.margin_coef else None,
            weight=fields["pair_weight"] if c.weighted else None,
            **pairs_of(part, denominator),
        )

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        first = torch.arange(0, len(rows["group"]), 2)
        out = annotate_pairs(Batch(rows | {"loss_mask": last_tokens(rows)}), first, first + 1, name=self.name, kind=SCORE)
        chosen = (out["advantage"] > 0).float()
        for name, into in (("margin", "margin"), ("weight", "pair_weight")):
            if name in rows:
                out[into] = rows[name][token_owner(rows)] * chosen
        if self.config.margin_coef and "margin" not in out:
            raise DataError("pairs have no margin, which margin_coef multiplies; give the stream this strength")
        if self.config.weighted and "pair_weight" not in out:
            raise DataError("pairs have no weight, by which they shall count (weighted); give the stream this strength")
        return out


class ScoreRegression:
    """Regression to the scores that answers were given (Wang et al. 2024, arXiv:2410.01257, sec. 3; `base.Algorithm`).

        L = 1/R sum_r (s(y_r) - score_r)^2

    s is read at the last token of an answer; `score` is the row's `rating`. The model has a scalar head.
    """

    name = "scores"
    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        component = Component(_squared_error, kind=SCORE, uses="score", metrics=("preference/error",))
        self.components: Mapping[str, Component] = {self.name: component}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        last, num = last_tokens(rows), len(rows["row_length"])
        out = Batch({k: rows[k] for k in ("tokens", "row_length", "row_owner")})
        out |= {"component": last.to(torch.int8) * SCORE, "advantage": last.float(), "unit": torch.arange(num)}
        out |= {"target": rows["rating"][token_owner(rows)] * last, f"denominator/{self.name}": torch.ones(num)}
        return out


def last_tokens(rows: Batch) -> Tensor:
    """Where the last trained token of each row is. `[N]`"""
    last = torch.zeros_like(rows["loss_mask"])
    last[last_of_row(rows["loss_mask"], token_owner(rows), len(rows["group"]))] = True
    return last


def _squared_error(part: Part, denominator: float) -> Loss:
    return score_regression_loss(part.outputs["score"], part.fields["target"], denominator=denominator)
