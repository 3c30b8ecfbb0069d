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
from runnel.core.resuming import OnResume, may_change
from runnel.llm.algorithms.base import PAIR, Component, Part, sum_channels
from runnel.losses.base import Loss
from runnel.losses.preference import dpo_loss
from runnel.losses.token import sft_loss
from runnel.ops.credit import best_and_worst, row_index, row_sum

PAIR_METRICS = ("preference/accuracy", "preference/margin")


@dataclass(frozen=True)
class DPOConfig:
    """Direct preference optimisation."""

    on_resume: ClassVar[OnResume] = may_change("beta", "chosen_coef")

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
        metrics = (*PAIR_METRICS, "preference/reward_chosen", "preference/reward_rejected")
        components = {"dpo": Component(self._loss, kind=PAIR, metrics=metrics, tempered=False)}
        if config.chosen_coef:
            components["chosen"] = Component(_chosen_loss, kind=PAIR, coef=config.chosen_coef, tempered=False)
        self.components: Mapping[str, Component] = components

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        first = torch.arange(0, len(rows["row_length"]), 2)
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
    """Tokens of the rows `chosen` are pushed up, those of `rejected` `[P]` down; row i of both is one unit. Other rows rest."""
    num_rows, length = len(rows["row_length"]), rows["row_length"]
    sign, share = torch.zeros(num_rows), torch.zeros(num_rows)
    sign[chosen], sign[rejected], share[chosen] = 1.0, -1.0, 1.0
    unit = torch.arange(num_rows)
    unit[rejected] = unit[chosen]
    by_token = sign[row_index(length)] * rows["loss_mask"]
    names = ("tokens", "row_length", "reference_logprob", "logprob", "policy_version")
    out = Batch({k: rows[k] for k in names if k in rows} | {"unit": unit, f"denominator/{name}": share})
    out["denominator/chosen"] = row_sum((by_token > 0).float(), row_index(length), num_rows)
    return Batch(out | {"component": (by_token != 0).to(torch.int8) * kind, "weight": by_token.abs(), "advantage": by_token})
