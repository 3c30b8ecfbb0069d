"""The token learner: one update for every algorithm on tokens, written out once.

It reads annotated tokens (component, weight, advantage; see `algorithms.py`), sums the loss components with denominators of
the whole global batch, and owns the optimiser. Read `update`, then `_micro_batch`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError, NonFiniteError, RunnelError
from runnel.core.protocols import Collective, Metrics, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.core.schedule import at, parse
from runnel.llm.algorithms import POLICY, SFT, Algorithm, annotate_sft
from runnel.losses.token import kl_loss, policy_loss, sft_loss
from runnel.nets.causal_lm import hidden_states, load_model_params, model_params
from runnel.ops.logprobs import token_logprobs

DEMOS, ROLLOUTS = "demos", "rollouts"


@dataclass(frozen=True)
class TokenLearnerConfig:
    """Optimiser and loss of a language model."""

    lr: float | str = 1e-4
    """Learning rate on rollouts: a number, or a schedule such as linear(1e-4, 0)."""
    sft_lr: float | str = 1e-3
    """Learning rate of updates that see demonstrations only (the warm-up)."""
    warmup_updates: int = 20
    """Updates over which the learning rate rises from 0 at the start of the run."""
    clip_low: float = 0.2
    """The policy ratio stops counting below 1 - clip_low."""
    clip_high: float = 0.28
    """The policy ratio stops counting above 1 + clip_high."""
    sft_coef: float = 1.0
    """Weight of the demonstrations' cross entropy."""
    kl_coef: float = 0.0
    """Weight of the KL to a reference model; 0 keeps no reference."""
    num_epochs: int = 1
    """Optimiser steps on each batch of rollouts."""
    micro_batch_tokens: int = 8192
    """Most padded tokens in one forward pass; lowers memory, never changes the gradient."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    temperature: float = 1.0
    """The sampling temperature of the rollouts; log-probabilities are taken at it."""
    max_mismatch: float = 0.02
    """Largest KL between the engine's and the learner's log-probabilities of the same version before the run stops."""

    def __post_init__(self) -> None:
        parse(self.lr, "learner.lr")
        parse(self.sft_lr, "learner.sft_lr")
        for name in ("num_epochs", "micro_batch_tokens", "temperature", "max_grad_norm", "max_mismatch"):
            if self.__dict__[name] <= 0:
                raise ConfigError(f"learner.{name}", self.__dict__[name], "must be above 0")


class TokenLearner:
    """Trains a causal language model on annotated tokens (core `Learner`).

    Readers: `demos` (supervised rows) and `rollouts` (groups, annotated by `algorithm`); a batch may hold either or both.
    With `kl_coef`, the reference is `reference`, else a copy of the model at its first batch with rollouts.
    """

    def __init__(
        self,
        config: TokenLearnerConfig,
        model: Any,
        *,
        algorithm: Algorithm,
        collective: Collective | None = None,
        reference: Any = None,
        device: str = "cpu",
    ) -> None:
        self.config, self.model, self.algorithm = config, model.to(device), algorithm
        self.version = 0
        self._device = device
        self._collective: Collective = collective or OneProcess()
        self._parameters = [p.requires_grad_(True) for p in model.parameters()]
        self._optimiser = torch.optim.AdamW(
            self._parameters, lr=1.0, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
        )
        self._reference = reference.to(device).requires_grad_(False) if reference is not None else None

    # ---------------------------------------------------------------------------------------------------------- update
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Annotated tokens of all segments, as one batch on the device."""
        unknown = segments.keys() - {DEMOS, ROLLOUTS}
        if unknown:
            raise DataError(f"reader {sorted(unknown)[0]!r} is unknown to the token learner; use {DEMOS!r} and {ROLLOUTS!r}")
        parts = []
        if segments.get(ROLLOUTS):
            parts.append(self.algorithm.annotate(segments[ROLLOUTS]))
        if segments.get(DEMOS):
            parts.append(annotate_sft(segments[DEMOS]))
        stats = Batch({k: v for part in parts for k, v in part.items() if k.startswith("stats/")})
        batch = Batch.cat([{k: v for k, v in part.items() if not k.startswith("stats/")} for part in parts])
        batch["row_start"] = batch["row_length"].cumsum(0) - batch["row_length"]
        lr = self.config.lr if segments.get(ROLLOUTS) else self.config.sft_lr
        stats["stats/lr"] = torch.tensor(at(lr, progress), dtype=torch.float64)
        return Batch(batch | stats).to(self._device)

    def update(self, batch: Batch) -> Update:
        """One version: `num_epochs` optimiser steps (one if there are only demonstrations) on the whole batch."""
        counts = self._counts(batch)
        if counts["policy"] and self.config.kl_coef and self._reference is None:
            self._reference = copy.deepcopy(self.model).requires_grad_(False)
        lr = float(batch["stats/lr"]) * min(1.0, (self.version + 1) / max(self.config.warmup_updates, 1))
        micro_batches = list(self._split(batch))
        metrics: Metrics = {"lr": lr}
        for epoch in range(self.config.num_epochs if counts["policy"] else 1):
            sums = self._gradient(batch, micro_batches, counts, check=epoch == 0)
            trained = sums.pop("num_tokens")
            metrics |= sums
            if trained:
                metrics["grad_norm"] = self._step(lr)
        metrics |= {k.removeprefix("stats/"): self._mean(v) for k, v in batch.under("stats").items() if k != "stats/lr"}
        self.version += 1
        return Update(metrics)

    def _gradient(self, batch: Batch, micro_batches: Sequence[Tensor], counts: Metrics, *, check: bool) -> Metrics:
        """Accumulate gradients over micro-batches; returns the metrics, summed over them and over ranks."""
        self._optimiser.zero_grad(set_to_none=True)
        sums = {name: torch.zeros((), device=self._device) for name in self._summed(counts)}
        worst = torch.zeros((), device=self._device)
        for rows in micro_batches:
            parts = self._micro_batch(batch, rows, counts)
            worst = torch.maximum(worst, parts.pop("mismatch_max", worst))
            sums = {name: value + parts[name] for name, value in sums.items()}
        totals = dict(zip(sums, self._collective.all_reduce(torch.stack(list(sums.values())).double()).tolist(), strict=True))
        for name, value in totals.items():
            if not math.isfinite(value):
                raise NonFiniteError(name, self.version)
        totals["entropy"] = totals.pop("entropy_sum") / max(totals["num_tokens"], 1.0)
        matched, mismatch = totals.pop("num_matched", 0.0), totals.pop("mismatch_sum", 0.0)
        if matched and check:
            self._check_mismatch(totals, mismatch / matched, math.exp(min(float(worst), 80.0)))
        return totals

    def _summed(self, counts: Metrics) -> list[str]:
        """What `_micro_batch` reports for this batch: the same names on every rank."""
        names = ["num_tokens", "entropy_sum"]
        if counts["policy"]:
            names += ["loss/policy", "clip_fraction", "approx_kl", "num_matched", "mismatch_sum"]
            names += ["kl"] if self.config.kl_coef else []
        return names + (["loss/sft"] if counts["sft"] else [])

    def _micro_batch(self, batch: Batch, rows: Tensor, counts: Metrics) -> dict[str, Tensor]:
        """Forward and backward of the rows `rows` `[r]`; every term divides by a count of the global batch."""
        c = self.config
        tokens, index = self._pad(batch, rows)
        trained = batch["component"][index] != 0
        trained[:, 0] = False
        trained &= torch.arange(tokens.shape[1], device=self._device) < batch["row_length"][rows, None]
        at_token = index[trained]
        component, weight = batch["component"][at_token], batch["weight"][at_token]
        logprob, entropy = self._logprobs(self.model, tokens, trained)
        policy, sft = weight * (component == POLICY), weight * (component == SFT)
        out: dict[str, Tensor] = {"num_tokens": trained.sum().float(), "entropy_sum": entropy.detach().sum()}
        loss = torch.zeros((), device=self._device)
        if counts["policy"]:
            part = policy_loss(
                logprob,
                torch.where(component == POLICY, batch["logprob"][at_token], logprob.detach()),
                batch["advantage"][at_token],
                weight=policy,
                clip_low=c.clip_low,
                clip_high=c.clip_high,
                denominator=counts["policy"],
            )
            loss = loss + part.value
            out |= {"loss/policy": part.value.detach(), **part.metrics}
            out |= self._mismatch(batch, at_token, logprob.detach())
        if counts["sft"]:
            part = sft_loss(logprob, weight=sft, denominator=counts["sft"])
            loss = loss + c.sft_coef * part.value
            out["loss/sft"] = part.value.detach()
        if counts["policy"] and c.kl_coef and self._reference is not None:
            with torch.no_grad():
                expected, _ = self._logprobs(self._reference, tokens, trained)
            part = kl_loss(logprob, expected, weight=policy, denominator=counts["policy"])
            loss = loss + c.kl_coef * part.value
            out["kl"] = part.value.detach()
        loss.backward()  # type: ignore[no-untyped-call]
        return out

    def _step(self, lr: float) -> float:
        """Sum gradients over ranks, clip and step, unless they are not finite; returns their norm before the clip."""
        for parameter in self._parameters:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self._collective.all_reduce(grad)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise NonFiniteError("grad_norm", self.version)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        self._optimiser.step()
        return norm

    # ----------------------------------------------------------------------------------------------------------- parts
    def _counts(self, batch: Batch) -> Metrics:
        """Tokens of each component in the global batch: the denominators."""
        counts = torch.stack([(batch["component"] == kind).sum() for kind in (POLICY, SFT)]).double()
        policy, sft = self._collective.all_reduce(counts).tolist()
        return {"policy": policy, "sft": sft}

    def _split(self, batch: Batch) -> Iterator[Tensor]:
        """Rows by micro-batch: of similar length, at most `micro_batch_tokens` padded tokens each (at least one row).

        Rows that cannot move the parameters (no advantage in any token, and no KL) are left out; denominators are not.
        """
        component = batch["component"]
        moves = (component == SFT) | ((component == POLICY) & (batch["advantage"] != 0))
        moves = moves | (component == POLICY) if self.config.kl_coef else moves
        row = torch.repeat_interleave(torch.arange(len(batch["row_length"]), device=self._device), batch["row_length"])
        useful = torch.zeros(len(batch["row_length"]), dtype=torch.bool, device=self._device)
        useful[row[moves & (batch["weight"] != 0)]] = True
        order = torch.argsort(batch["row_length"], stable=True)
        order = order[useful[order]]
        lengths, start = batch["row_length"][order].tolist(), 0
        for end in range(1, len(lengths) + 1):
            if end == len(lengths) or (end + 1 - start) * lengths[end] > self.config.micro_batch_tokens:
                yield order[start:end]
                start = end

    def _pad(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of `rows`, padded at the end, and their places in the flat arrays. `[r] -> [r, L], [r, L]`

        Attention is causal, so what stands behind a row's end changes nothing in it: no mask is needed.
        """
        lengths = batch["row_length"][rows, None]
        steps = torch.arange(int(lengths.max()), device=self._device)
        index = batch["row_start"][rows, None] + torch.minimum(steps, lengths - 1)
        return batch["tokens"][index], index

    def _logprobs(self, model: Any, tokens: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy at the trained tokens; the hidden state one place before predicts each. `-> [M], [M]`"""
        hidden = hidden_states(model, tokens[:, :-1])[trained[:, 1:]]
        head = model.get_output_embeddings()
        return token_logprobs(hidden, tokens[trained], head=head, temperature=self.config.temperature)

    def _mismatch(self, batch: Batch, at_token: Tensor, logprob: Tensor) -> dict[str, Tensor]:
        """How far engine and learner are apart on rows that this very version made whole (else keys and values differ)."""
        component, version = batch["component"], batch["policy_version"]
        row = torch.repeat_interleave(torch.arange(len(batch["row_length"]), device=self._device), batch["row_length"])
        other = torch.zeros(len(batch["row_length"]), dtype=torch.bool, device=self._device)
        other[row[(component == POLICY) & (version != self.version)]] = True
        same = (component[at_token] == POLICY) & ~other[row[at_token]]
        gap = (logprob - batch["logprob"][at_token])[same]
        worst = gap.abs().max() if gap.numel() else gap.new_zeros(())
        return {
            "num_matched": same.sum().float(),
            "mismatch_sum": (torch.exp(gap) - gap - 1.0).sum(),
            "mismatch_max": worst,
        }

    def _check_mismatch(self, metrics: Metrics, kl: float, max_ratio: float) -> None:
        metrics |= {"mismatch/kl": kl, "mismatch/max_ratio": max_ratio}
        if not kl <= self.config.max_mismatch:
            raise RunnelError(
                f"engine and learner disagree at version {self.version}: mismatch/kl = {kl:.3g} (largest ratio "
                f"{max_ratio:.3g}) is above learner.max_mismatch = {self.config.max_mismatch:g}. Check that both use one "
                "temperature and that the engine has this version's weights; raise the bound only if its arithmetic is "
                "meant to differ."
            )

    def _mean(self, value: Tensor) -> float:
        return float(self._collective.all_reduce(value.clone().float())) / self._collective.world_size

    # ----------------------------------------------------------------------------------------------------------- state
    def params(self) -> Mapping[str, Tensor]:
        """Live weights, tied ones once."""
        return model_params(self.model)

    def state_dict(self) -> State:
        return {
            "model": {k: v.clone() for k, v in model_params(self.model).items()},
            "optimiser": self._moments(),
            "version": self.version,
            "reference": None if self._reference is None else {k: v.clone() for k, v in model_params(self._reference).items()},
        }

    def load_state_dict(self, state: State) -> None:
        load_model_params(self.model, state["model"], bind=False)
        self._load_moments(state["optimiser"])
        self.version = state["version"]
        if state["reference"] is not None:
            if self._reference is None:
                self._reference = copy.deepcopy(self.model).requires_grad_(False)
            load_model_params(self._reference, state["reference"], bind=False)

    def _moments(self) -> list[dict[str, Tensor]]:
        """AdamW's state by parameter; empty before the first step."""
        states = [self._optimiser.state[p] for p in self._parameters if p in self._optimiser.state]
        return [{name: value.clone() for name, value in state.items()} for state in states]

    def _load_moments(self, moments: Sequence[Mapping[str, Tensor]]) -> None:
        self._optimiser.state.clear()
        for parameter, state in zip(self._parameters, moments, strict=False):
            self._optimiser.state[parameter] = {name: torch.as_tensor(value).clone() for name, value in state.items()}
