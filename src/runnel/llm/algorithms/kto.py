"""KTO: single answers that are good or bad, without pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import PAIR, Component, Part, aggregate
from runnel.llm.algorithms.dpo import PAIR_METRICS, pairs_of
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.preference import kto_loss


@dataclass(frozen=True)
class KTOConfig:
    """Kahneman-Tversky optimisation."""

    on_resume: ClassVar[OnResume] = live("beta", "good_weight", "bad_weight")

    beta: float = bounded(0.1, above=0)
    """How soon an answer counts as won or lost: small lets the policy go far from the reference."""
    good_weight: float = bounded(1.0, above=0)
    """Weight of a good answer; the paper's lambda_D. Raise the rarer kind's weight until both kinds weigh about the same."""
    bad_weight: float = bounded(1.0, above=0)
    """Weight of a bad answer; the paper's lambda_U."""


class KTO:
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8; `base.Algorithm`): a good answer shall
    gain on the reference more than the policy drifts from it anyway, and a bad one less.

        r(x, y) = log pi(y|x)/pi_ref(y|x)
        L = 1/U sum_u lambda_u [1 - sigmoid(s_u beta (r(x_u, y_u) - z0))],   s = 1 and lambda = good_weight for good answers,
                                                                             s = -1 and lambda = bad_weight for bad ones
        z0 = max(0, 1/U sum_u r(x_u, y_v)),   y_v the answer to another prompt

    z0 estimates the KL to the reference, and has no gradient. It is a mean over the whole global batch, with the weights at the
    start of the update. Rows come in twos: an answer with its prompt, and the same prompt with another row's answer
    (`mismatched`), of which nothing is trained.
    """

    name = "kto"
    needs: frozenset[str] = frozenset({"reference_logprob", "mismatched_logprob"})

    def __init__(self, config: KTOConfig) -> None:
        check_bounds(config)
        self.config = config

    @property
    def components(self) -> Mapping[str, Component]:
        return {self.name: Component(self.loss, kind=PAIR, metrics=PAIR_METRICS, tempered=False)}

    def loss(self, part: Part, denominator: float) -> Loss:
        """The loss of the answers in a micro-batch, divided by `denominator`."""
        c = self.config
        return kto_loss(
            part.outputs["logprob"],
            part.fields["reference_logprob"],
            part.fields["advantage"],
            part.fields["point"],
            weight=part.fields["weight"],
            beta=c.beta,
            good_weight=c.good_weight,
            bad_weight=c.bad_weight,
            **pairs_of(part, denominator),
        )

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        owner, extra = token_owner(rows), rows["mismatched"]
        mask = rows["loss_mask"] & ~extra[owner]
        weight, share = aggregate(mask, rows["row_length"], rows["row_owner"], "sequence")
        point = reference_point(rows, collective)
        out = Batch({k: rows[k] for k in ("tokens", "row_length", "row_owner", "reference_logprob")})
        out |= {"component": mask.to(torch.int8) * PAIR, "weight": weight, f"denominator/{self.name}": share}
        out["unit"] = torch.arange(len(extra)) // 2
        out["advantage"] = torch.where(rows["rating"] > 0, 1.0, -1.0)[owner] * mask
        out["point"] = torch.full_like(weight, float(point))
        good = rows["rating"][~extra].mean()
        return Batch(out | {"stats/preference/point": point, "stats/preference/good": good})


def reference_point(rows: Batch, collective: Collective) -> Tensor:
    """z0: the mean log-ratio of mismatched rows over the global batch, at least 0. `[]`"""
    extra = rows["mismatched"]
    at = rows["loss_mask"] & extra[token_owner(rows)]
    ratio = (rows["mismatched_logprob"] - rows["reference_logprob"])[at].double().sum()
    total, count = collective.all_reduce(torch.stack([ratio, extra.sum().double()])).tolist()
    return torch.tensor(max(0.0, total / count), dtype=torch.float64)
