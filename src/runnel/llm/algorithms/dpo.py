"""DPO: preferences without a reward model, from given pairs or from a policy's own rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import PAIR, Component, Part, aggregate, sum_channels
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.preference import dpo_loss, pair_regression_loss
from runnel.losses.token import sft_loss
from runnel.ops.credit import best_and_worst, row_index, row_sum

PAIR_METRICS = ("preference/accuracy", "preference/margin")
MARGIN_METRICS = (*PAIR_METRICS, "preference/reward_chosen", "preference/reward_rejected")
REGRESSION_METRICS = (*PAIR_METRICS, "preference/error")


@dataclass(frozen=True)
class PairLossConfig:
    """Settings of every algorithm that learns from pairs of answers."""

    on_resume: ClassVar[OnResume] = live("chosen_coef")

    chosen_coef: float = bounded(0.0, at_least=0)
    """Weight of the chosen answers' cross entropy, which keeps them likely in themselves (Pang et al. 2024,
    arXiv:2404.19733)."""


@dataclass(frozen=True)
class DPOConfig(PairLossConfig):
    """Direct preference optimisation."""

    on_resume: ClassVar[OnResume] = live("beta") | may_change("loss", "smoothing")

    beta: float = bounded(0.1, above=0)
    """How strongly the policy is held to the reference: small lets it go far."""
    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """What the margin of a pair costs: the logistic loss (DPO), how far it is below 1 (hinge, of SLiC), or the squared distance
    of the log-ratio to 1 / (2 beta) (IPO)."""
    smoothing: float = bounded(0.0, at_least=0, below=0.5)
    """The share of pairs that may be the wrong way round (conservative DPO)."""

    def __post_init__(self) -> None:
        check_bounds(self, "dpo.")
        if self.smoothing and self.loss != "sigmoid":
            raise ConfigError(
                "dpo.smoothing", self.smoothing, "is of the logistic loss; set dpo.loss sigmoid, or leave it at 0"
            )


class Pairs(TypedDict):
    """Which tokens of a micro-batch are of one pair, and by what a sum over pairs is divided."""

    unit: Tensor
    num_units: int
    denominator: float


def pairs_of(part: Part, denominator: float) -> Pairs:
    """The pairs of a micro-batch, as losses take them."""
    return {"unit": part.unit, "num_units": part.num_units, "denominator": denominator}


class PairAlgorithm:
    """Base of the algorithms on pairs of answers, the chosen one first (`base.Algorithm`). One overrides `loss`.

    `chosen_coef` of the config adds the cross entropy of the chosen answers, a mean over their tokens.
    """

    name: ClassVar[str]
    """Of its loss in metrics."""
    tempered: ClassVar[bool] = False
    """Log-probabilities are the models' own, whatever the temperature at which pairs were sampled. True: those at that
    temperature, where the loss compares with what was recorded."""
    needs: frozenset[str] = frozenset()

    def __init__(self, config: PairLossConfig) -> None:
        check_bounds(config)
        self.config = config

    def loss(self, part: Part, denominator: float) -> Loss:
        """The loss of the pairs in a micro-batch, divided by `denominator`."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of `loss`."""
        return PAIR_METRICS

    @property
    def components(self) -> Mapping[str, Component]:
        components = {self.name: Component(self.loss, kind=PAIR, metrics=self.metrics, tempered=self.tempered)}
        if coef := self.config.chosen_coef:
            components["chosen"] = Component(_chosen_loss, kind=PAIR, coef=coef, tempered=False)
        return components

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        first = torch.arange(0, len(rows["group"]), 2)
        return annotate_pairs(rows, first, first + 1, name=self.name)


class DPO(PairAlgorithm):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

        h = beta [log pi(y+)/pi_ref(y+) - log pi(y-)/pi_ref(y-)]
        L = -1/P sum_p log sigmoid(h_p)  -  chosen_coef/N sum_t log pi(y+_t)

    N is the number of chosen tokens. `loss` has other costs of h, which `losses/preference.py` writes out: `hinge` and `ipo`
    (Azar et al. 2023, arXiv:2310.12036: h / beta shall be 1 / (2 beta), so a pair that is always preferred does not push the
    policy away from the reference for ever).
    """

    config: DPOConfig
    name = "dpo"
    needs: frozenset[str] = frozenset({"reference_logprob"})

    @property
    def metrics(self) -> tuple[str, ...]:
        return REGRESSION_METRICS if self.config.loss == "ipo" else MARGIN_METRICS

    def loss(self, part: Part, denominator: float) -> Loss:
        logprob, reference, sign = part.outputs["logprob"], part.fields["reference_logprob"], part.fields["advantage"]
        c, pairs = self.config, pairs_of(part, denominator)
        if c.loss == "ipo":
            target = (sign > 0) * part.fields["weight"] / (2.0 * c.beta)
            return pair_regression_loss(logprob, reference, sign, target, scale=1.0, **pairs)
        return dpo_loss(logprob, reference, sign, beta=c.beta, form=c.loss, smoothing=c.smoothing, **pairs)


def _chosen_loss(part: Part, denominator: float) -> Loss:
    return sft_loss(part.outputs["logprob"], weight=(part.fields["advantage"] > 0).float(), denominator=denominator)


class OnlineDPO(DPO):
    """DPO on rollouts: the best and the worst completion of each prompt by reward are a pair (Guo et al. 2024,
    arXiv:2402.04792, with a reward in place of the annotator). Groups in which all rewards are equal have no pair."""

    def __init__(self, config: DPOConfig, *, channels: Mapping[str, float]) -> None:
        super().__init__(config)
        self.channels = dict(channels)

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        return annotate_best_and_worst(rows, self.channels, name=self.name)


def annotate_best_and_worst(rows: Batch, channels: Mapping[str, float], *, name: str) -> Batch:
    """`annotate_pairs` with the best and the worst trajectory of each group, and what their rewards differ by: `gap` `[N]`,
    spread over the tokens of the best one."""
    rewards = sum_channels(rows, channels)
    best, worst = best_and_worst(rewards, rows["group"])
    out = annotate_pairs(rows, best, worst, name=name)
    gap = torch.zeros(len(rewards))
    gap[best] = rewards[best] - rewards[worst]
    out["gap"] = gap[token_owner(rows)] * out["weight"] * (out["advantage"] > 0)
    stats = {"reward/mean": rewards.mean(), "pairs": torch.tensor(float(len(best)))}
    return Batch(out | {f"stats/{k}": v for k, v in stats.items()})


def annotate_pairs(rows: Batch, chosen: Tensor, rejected: Tensor, *, name: str, kind: int = PAIR) -> Batch:
    """Tokens of the trajectories `chosen` are pushed up, those of `rejected` `[P]` down; number i of both is one unit. Other
    trajectories rest. The `weight` of a token is 1 / (number of trained tokens of its trajectory)."""
    num, owner, row = len(rows["group"]), rows["row_owner"], row_index(rows["row_length"])
    sign, unit = torch.zeros(num), torch.arange(num)
    sign[chosen], sign[rejected] = 1.0, -1.0
    unit[rejected] = unit[chosen]
    by_token = sign[owner[row]] * rows["loss_mask"]
    names = ("tokens", "row_length", "row_owner", "reference_logprob", "logprob", "policy_version")
    out = Batch({k: rows[k] for k in names if k in rows} | {"unit": unit[owner]})
    weight, share = aggregate(rows["loss_mask"], rows["row_length"], owner, "sequence")
    out[f"denominator/{name}"] = share * (sign[owner] > 0)
    out["denominator/chosen"] = row_sum((by_token > 0).float(), row, len(owner))
    return Batch(
        out | {"component": (by_token != 0).to(torch.int8) * kind, "weight": weight * by_token.abs(), "advantage": by_token}
    )
