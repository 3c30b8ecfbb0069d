"""DPO: preferences without a reward model, from given pairs or from a policy's own rollouts."""

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
from runnel.llm.algorithms.base import PAIR, Component, Part, aggregate, sum_channels
from runnel.losses.base import Loss
from runnel.losses.preference import dpo_loss
from runnel.losses.token import sft_loss
from runnel.ops.credit import best_and_worst, row_index, row_sum

PAIR_METRICS = ("preference/accuracy", "preference/margin")


@dataclass(frozen=True)
class DPOConfig:
    """Direct preference optimisation."""

    on_resume: ClassVar[OnResume] = live("beta", "chosen_coef")

    beta: float = bounded(0.1, above=0)
    """How strongly the policy is held to the reference: small lets it go far."""
    chosen_coef: float = bounded(0.0, at_least=0)
    """Weight of the chosen answers' cross entropy, which keeps them likely in themselves (Pang et al. 2024,
    arXiv:2404.19733)."""

    def __post_init__(self) -> None:
        check_bounds(self, "dpo.")


class DPO:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7; `base.Algorithm`).

        L = -1/P sum_p log sigmoid(beta [log pi(y+)/pi_ref(y+) - log pi(y-)/pi_ref(y-)])  -  chosen_coef/N sum_t log pi(y+_t)

    Rows come in pairs, the chosen answer first; N is the number of chosen tokens. Log-probabilities are the models' own,
    whatever the temperature at which pairs were sampled.
    """

    needs: frozenset[str] = frozenset({"reference_logprob"})

    def __init__(self, config: DPOConfig) -> None:
        self.config = config

    @property
    def components(self) -> Mapping[str, Component]:
        metrics = (*PAIR_METRICS, "preference/reward_chosen", "preference/reward_rejected")
        components = {"dpo": Component(self._loss, kind=PAIR, metrics=metrics, tempered=False)}
        if coef := self.config.chosen_coef:
            components["chosen"] = Component(_chosen_loss, kind=PAIR, coef=coef, tempered=False)
        return components

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        first = torch.arange(0, len(rows["group"]), 2)
        return annotate_pairs(rows, first, first + 1, name="dpo")

    def _loss(self, part: Part, denominator: float) -> Loss:
        return dpo_loss(
            part.outputs["logprob"],
            part.fields["reference_logprob"],
            part.fields["advantage"],
            unit=part.unit,
            num_units=part.num_units,
            beta=self.config.beta,
            denominator=denominator,
        )


def _chosen_loss(part: Part, denominator: float) -> Loss:
    return sft_loss(part.outputs["logprob"], weight=(part.fields["advantage"] > 0).float(), denominator=denominator)


class OnlineDPO(DPO):
    """DPO on rollouts: the best and the worst completion of each prompt by reward are a pair (Guo et al. 2024,
    arXiv:2402.04792, with a reward in place of the annotator). Groups in which all rewards are equal have no pair."""

    def __init__(self, config: DPOConfig, *, channels: Mapping[str, float]) -> None:
        super().__init__(config)
        self.channels = dict(channels)

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        rewards = sum_channels(rows, self.channels)
        best, worst = best_and_worst(rewards, rows["group"])
        out = annotate_pairs(rows, best, worst, name="dpo")
        stats = {"reward/mean": rewards.mean(), "pairs": torch.tensor(float(len(best)))}
        return Batch(out | {f"stats/{k}": v for k, v in stats.items()})


def annotate_pairs(rows: Batch, chosen: Tensor, rejected: Tensor, *, name: str, kind: int = PAIR) -> Batch:
    """Tokens of the trajectories `chosen` are pushed up, those of `rejected` `[P]` down; number i of both is one unit. Other
    trajectories rest."""
    num, owner, row = len(rows["group"]), rows["row_owner"], row_index(rows["row_length"])
    sign, unit = torch.zeros(num), torch.arange(num)
    sign[chosen], sign[rejected] = 1.0, -1.0
    unit[rejected] = unit[chosen]
    by_token = sign[owner[row]] * rows["loss_mask"]
    names = ("tokens", "row_length", "row_owner", "reference_logprob", "logprob", "policy_version")
    out = Batch({k: rows[k] for k in names if k in rows} | {"unit": unit[owner]})
    share = aggregate(rows["loss_mask"], rows["row_length"], owner, "sequence")[1]
    out[f"denominator/{name}"] = share * (sign[owner] > 0)
    out["denominator/chosen"] = row_sum((by_token > 0).float(), row, len(owner))
    return Batch(out | {"component": (by_token != 0).to(torch.int8) * kind, "weight": by_token.abs(), "advantage": by_token})
