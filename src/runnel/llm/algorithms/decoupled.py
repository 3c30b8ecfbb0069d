"""Decoupled PPO: the trust region lies around a recent policy, not around the one that sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import CLIP_METRICS, Part
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.losses.base import Loss
from runnel.losses.token import decoupled_policy_loss, log_linear_proximal


@dataclass(frozen=True)
class DecoupledConfig(GRPOConfig):
    """Decoupled PPO on group-relative advantages."""

    on_resume: ClassVar[OnResume] = may_change("proximal", "behaviour", "behaviour_of", "behaviour_from") | live(
        "behaviour_low", "behaviour_high"
    )

    aggregation: Literal["sequence", "token", "constant"] = "token"
    """The mean of the loss: over all tokens (token), over the means of completions (sequence), or their sum over completions
    times max_tokens (constant)."""
    proximal: Literal["forward", "loglinear", "reuse"] = "forward"
    """Where the proximal log-probabilities come from: forward (one more pass at the start of the update), loglinear (between
    behaviour and policy, by each token's age), reuse (the training pass itself; for one optimiser step a batch)."""
    behaviour: Literal["clamp", "mask"] = "clamp"
    """Weights proximal / behaviour outside their interval: clamp moves them to its end, mask leaves their tokens out."""
    behaviour_of: Literal["token", "sequence"] = "token"
    """Whose weight it is: each token's own, or the product over all tokens of a trajectory, for each of them."""
    behaviour_from: Literal["logprob", "sampling_logprob"] = "logprob"
    """The behaviour's log-probabilities: the model's at the temperature (logprob), or those of the distribution that tokens
    were drawn from after top_k, top_p and min_p (sampling_logprob)."""
    behaviour_low: float = bounded(0.0, at_least=0, below=1)
    """Lower end of that interval."""
    behaviour_high: float = bounded(5.0, above=1)
    """Upper end of that interval."""

    def unused(self) -> dict[str, str]:
        why = "with proximal reuse the ratio is 1, and nothing is clipped; set proximal to forward or loglinear"
        clips = ("clip_low", "clip_high", "dual_clip")
        return super().unused() | (dict.fromkeys(clips, why) if self.proximal == "reuse" else {})


class DecoupledPPO(GRPO):
    """Decoupled PPO of AReaL (Fu et al. 2025, arXiv:2505.24298, eq. 5), on GRPO's advantages.

        b = pi_prox(y_t) / mu(y_t)     kept within [behaviour_low, behaviour_high]; no gradient
        u = pi(y_t) / pi_prox(y_t)
        L = -1/N sum_t b_t min(u_t A, clip(u_t, 1 - clip_low, 1 + clip_high) A)

    mu is what sampled a token, of whatever version; pi_prox is the policy at the start of the update. N counts masked tokens
    too.

    In a synchronous run b is the mismatch of engine and learner alone: behaviour "clamp" with `behaviour_high` 2 is truncated
    importance sampling (TIS), "mask" is masked importance sampling (MIS), each by token or by sequence (`behaviour_of`). Where
    sampling is cut (top_k, top_p, min_p), `behaviour_from` "sampling_logprob" takes the probabilities that tokens really had.
    """

    config: DecoupledConfig
    metrics = (*CLIP_METRICS, "behaviour/outside", "behaviour/mean")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"proximal_logprob"} if self.config.proximal == "forward" else set())

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out = super().annotate(rows, collective)
        if self.config.behaviour_of == "sequence":
            # a product over all rows of a trajectory: they stay together
            out["unit"] = rows["row_owner"]
        if (name := self.config.behaviour_from) != "logprob":
            if name not in rows:
                fix = "use logprob: sampling is not cut by top_k, top_p or min_p, so both are the same, and one is stored"
                raise ConfigError("behaviour_from", name, fix)
            out[name] = rows[name]
        return out

    def loss(self, part: Part, denominator: float) -> Loss:
        c = self.config
        return decoupled_policy_loss(
            part.outputs["logprob"],
            self._proximal(part),
            part.fields[c.behaviour_from],
            part.fields["advantage"],
            weight=part.fields["weight"],
            clip_low=c.clip_low,
            clip_high=c.clip_high,
            dual_clip=c.dual_clip,
            behaviour=c.behaviour,
            behaviour_low=c.behaviour_low,
            behaviour_high=c.behaviour_high,
            row=part.unit if c.behaviour_of == "sequence" else None,
            num_rows=part.num_units,
            denominator=denominator,
            count=part.count,
        )

    def _proximal(self, part: Part) -> Tensor:
        if self.config.proximal == "forward":
            return part.fields["proximal_logprob"]
        if self.config.proximal == "reuse":
            return part.outputs["logprob"].detach()
        made = part.fields["policy_version"]
        return log_linear_proximal(part.outputs["logprob"], part.fields["logprob"], made, version=part.version)
