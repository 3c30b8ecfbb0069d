"""Clip-Cov and KL-Cov: entropy falls by few tokens, and these are left alone, or held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.core.rng import content_id, make_rng
from runnel.llm.algorithms.base import Component, Part
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import distance_loss


@dataclass(frozen=True)
class CovarianceConfig(GRPOConfig):
    """Control of entropy by the tokens that lower it most."""

    on_resume: ClassVar[OnResume] = may_change("how") | live("share", "low", "high", "distance_coef")

    aggregation: Literal["sequence", "token", "constant"] = "token"
    """The mean of the loss: over all tokens (token), over the means of completions (sequence), or their sum over completions
    times max_tokens (constant)."""
    how: Literal["clip", "kl"] = "clip"
    """What happens to the chosen tokens: they get no gradient (Clip-Cov), or are held to what sampled them (KL-Cov)."""
    share: float = bounded(2e-4, above=0, at_most=1)
    """The share of tokens that is chosen; at least one."""
    low: float = bounded(1.0, finite=True)
    """Clip-Cov chooses at random among tokens whose covariance is above this,"""
    high: float = bounded(5.0, finite=True)
    """and below this."""
    distance_coef: float = bounded(1.0, at_least=0)
    """KL-Cov: how strongly the chosen tokens are held."""

    def unused(self) -> dict[str, str]:
        other = {
            "clip": {"distance_coef": "is of KL-Cov; set how kl"},
            "kl": dict.fromkeys(("low", "high"), "KL-Cov holds the tokens with the highest covariance; set how clip"),
        }
        return super().unused() | other[self.how]


class Covariance(GRPO):
    """Clip-Cov and KL-Cov (Cui et al. 2025, "The entropy mechanism of reinforcement learning for reasoning language models",
    arXiv:2505.22617, sec. 4), on GRPO.

        c_t      = (log mu(y_t) - mean(log mu)) (A_t - mean(A))                                over all tokens of the batch
        Clip-Cov : of the tokens with low < c_t < high, share N at random have no gradient
        KL-Cov   : the share N tokens with the highest c_t get + distance_coef |log pi(y_t) - log mu(y_t)|

    The entropy of a policy changes by minus the covariance of log-probability and advantage, and few tokens have most of it.
    c is taken with the log-probabilities of what sampled, once for the batch, where the authors' code takes those of each
    step and micro-batch. Clip-Cov chooses each candidate with the same probability, so that share N are chosen in the mean,
    whatever the number of ranks. Chosen tokens stay in N. KL-Cov in the paper clips no ratios (clip_low and clip_high None,
    as in the recipe `kl_cov`); on fresh samples its first step is that of GRPO.
    """

    config: CovarianceConfig

    def __init__(self, config: CovarianceConfig, *, channels: Mapping[str, float], max_tokens: int = 0, seed: int = 0) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        self._seed = seed

    @property
    def components(self) -> Mapping[str, Component]:
        if self.config.how == "clip":
            return super().components
        held = Component(_held_loss, coef=self.config.distance_coef, denominator="policy")
        return {**super().components, "held": held}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out, mask = super().annotate(rows, collective), rows["loss_mask"]
        found, num = covariance(rows["logprob"], out["advantage"], mask, collective)
        wanted = max(1, int(self.config.share * num))
        if self.config.how == "clip":
            chosen = mask & self._drawn((found > self.config.low) & (found < self.config.high) & mask, wanted, rows, collective)
            out["advantage"] = out["advantage"] * ~chosen
        else:
            chosen = mask & (found >= highest(found[mask], wanted, collective))
            out["held"] = chosen.float()
        return Batch(out | {"stats/covariance/chosen": chosen.sum() / mask.sum()})

    def _drawn(self, candidates: Tensor, wanted: int, rows: Batch, collective: Collective) -> Tensor:
        """Each candidate with the probability that makes it `wanted` of all ranks in the mean. What is drawn depends on the
        seed and on the tokens of a row, and not on its place in the batch. `[N]`"""
        num = float(collective.all_reduce(candidates.sum().double()))
        places = rows["loss_mask"].nonzero().squeeze(1)
        # the trained tokens alone: they are the same however a trajectory is cut into rows
        lengths = torch.bincount(token_owner(rows)[places], minlength=len(rows["group"])).tolist()
        drawn = torch.ones(len(candidates), dtype=torch.float64)
        for at in torch.split(places, lengths):
            rng = make_rng(self._seed, "clip-cov", content_id(rows["tokens"][at].numpy().tobytes()))
            drawn[at] = torch.from_numpy(rng.random(len(at)))
        return candidates & (drawn < wanted / max(num, 1.0))


def covariance(logprob: Tensor, advantage: Tensor, mask: Tensor, collective: Collective) -> tuple[Tensor, int]:
    """Each token's part of the covariance of log-probability and advantage over the masked tokens of all ranks, and their
    number. `[N], [N], [N] -> [N]`"""
    kept = torch.stack([x.double()[mask].sum() for x in (logprob, advantage, torch.ones_like(logprob))])
    total, of_advantage, num = collective.all_reduce(kept).tolist()
    return (logprob - total / max(num, 1.0)) * (advantage - of_advantage / max(num, 1.0)) * mask, int(num)


def highest(x: Tensor, num: int, collective: Collective) -> float:
    """The largest number that at least `num` entries of all ranks reach; below all where there are fewer. `[N] -> []`

    >>> from runnel.core.contracts.learning import SingleProcess
    >>> highest(torch.tensor([3.0, 1.0, 2.0]), 2, SingleProcess()) <= 2.0
    True
    """
    x = x.double()
    bound: float = float(collective.all_reduce((x * x).sum())) ** 0.5 + 1.0
    low, high = -bound, bound
    # ranks can only add, so the place is found by halving: after 60 steps nothing lies between
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float(collective.all_reduce((x >= middle).sum().double())) >= num:
            low = middle
        else:
            high = middle
    return low


def _held_loss(part: Part, denominator: float) -> Loss:
    weight = part.fields["weight"] * part.fields["held"]
    return distance_loss(part.outputs["logprob"], part.fields["logprob"], weight=weight, denominator=denominator)
