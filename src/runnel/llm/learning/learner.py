"""The token learner: one update for every algorithm on tokens, written out once.

`prepare` joins rows, computes what the algorithms need (log-probabilities of a reference, values), and has each algorithm
annotate the rows of its reader. `update` sums the loss components with denominators of the whole global batch, and owns the
optimisers. Models are `llm/model/token_model.py` and `sharded_model.py`. Read `update`, then `_gradient`, then `_losses`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.live_settings import live_fields, not_live, with_live
from runnel.core.memory import memory_for
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.schedule import at
from runnel.core.state import Metrics, State
from runnel.core.weight_check import WeightCheck
from runnel.core.worker import progressed
from runnel.llm.algorithms.base import Adapts, Algorithm, Component, HasConfig, Part, metrics_of, name_components
from runnel.llm.learning.batches import (
    MicroBatch,
    asked,
    join_rows,
    merge,
    sample_rows,
    split_tokens,
    split_units,
    token_places,
)
from runnel.llm.learning.drift import Canary, Drift, Mismatch, Unchanged, mean_of, version_stats
from runnel.llm.learning.recording import GroupRecorder
from runnel.llm.learning.reference import REFERENCE, KeptReference, ReferencePlan, given_reference
from runnel.llm.model.decoder import Recompute
from runnel.llm.model.lora import LoraConfig
from runnel.llm.model.sharded_model import TrainedModel
from runnel.llm.model.token_model import Precision, TokenModel
from runnel.ops.credit import row_index, row_sum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEMOS = "demos"
"""The reader of demonstrations. Beside other readers it is a warm-up: batches that hold nothing else have a learning rate of
their own, and one optimiser step."""
READ_LEAST, READ_SHARE = 8192, 0.125
"""Tokens of rows without signal that an optimiser step reads for its statistics: as many as one micro-batch, or this share of
the step's tokens where that is more. A forward pass of all of them would cost a third of what leaving them out saves."""


@dataclass(frozen=True)
class TokenLearnerConfig:
    """Optimisers and batches of a language model."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "sft_lr", "critic_lr", "max_grad_norm", "max_mismatch")
        | may_change("num_epochs", "num_minibatches", "micro_batch_tokens")
        | may_change("in_parts", "weight_decay", "recompute", "precision", "shard", "offload", "count_unchanged")
        | stays("warmup_updates", why="it is how the run started")
        | stays("temperature", why="completions that are on their way were drawn at it")
        | stays("reference", why="the reference policy in the checkpoint is made of them")
        | stays("reference_every", "reference_decay", why="the reference policy in the checkpoint follows by it")
    )

    lr: float | str = scheduled(1e-4)
    """Learning rate: a number, or a schedule such as linear(1e-4, 0)."""
    sft_lr: float | str = scheduled(1e-3)
    """Learning rate of a warm-up: updates that see demonstrations only, in recipes that go on to rollouts."""
    critic_lr: float | str = scheduled(1e-4)
    """Learning rate of the critic, where the algorithm has one."""
    warmup_updates: int = bounded(20, at_least=0)
    """Updates over which the learning rate rises from 0 at the start of the run."""
    num_epochs: int = bounded(1, at_least=1)
    """Passes over each batch (one in a warm-up)."""
    num_minibatches: int = bounded(1, at_least=1)
    """Optimiser steps in a pass (one in a warm-up): the batch is split into so many parts of as many rows."""
    micro_batch_tokens: int = bounded(8192, at_least=1)
    """Most tokens in one forward pass; lowers memory, never changes the gradient."""
    in_parts: bool = False
    """Work on each segment of a batch (the completions of a prompt) as it arrives, instead of waiting for the whole batch. The
    step is the same up to rounding. Groups of completions are not recorded."""
    precision: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """Arithmetic of forward and backward passes; weights, gradients and moments are kept in float32. auto: bfloat16 on CUDA."""
    recompute: Recompute = "none"
    """What the backward pass computes again instead of keeping it: inner states of each block's gated part (mlp; a little
    slower, less than half the memory) or of the whole block (block)."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    max_grad_norm: float = bounded(1.0, above=0)
    """Gradients are scaled down to this norm."""
    weight_decay: float = bounded(0.0, at_least=0)
    """Decoupled weight decay (AdamW)."""
    temperature: float = bounded(1.0, above=0)
    """The sampling temperature of the rollouts; their log-probabilities are taken at it. Supervised losses and DPO take the
    model's own, at 1."""
    reference: tuple[str, ...] = ()
    """Folder of the model that is the reference policy; of several, the mean of their weights is. Empty: the policy, as it was
    at the first batch that needed a reference."""
    reference_every: int = bounded(0, at_least=0)
    """Updates after which the reference policy follows; 0 keeps it as it was."""
    reference_decay: float = bounded(0.0, at_least=0, below=1)
    """How much of the reference stays when it follows: 0 copies the policy, 0.99 is a moving average (of the adapters, where
    those are trained)."""
    shard: bool = False
    """Let each rank of the trainer (placement.trainers) keep only its part of weights, gradients and moments (FSDP2)."""
    offload: tuple[Literal["reference", "optimiser"], ...] = ()
    """What is kept on the host while the device does not need it."""
    count_unchanged: bool = False
    """Show the share of trained weights that an update left exactly as they were, in the precision of the passes (the metric
    `weights_unchanged`); a copy of these weights is kept meanwhile."""
    max_mismatch: float | None = bounded(None, above=0)
    """Largest mean KL between the engine's and the learner's log-probabilities of the same version, over the last eight
    updates, before the run stops (ten times as much in a single one, a hundred times on the weight_check); by default 1e-3 in
    bfloat16, else 1e-5."""

    def temperature_for(self, algorithm: Algorithm) -> float:
        """The temperature at which the log-probabilities of an algorithm are computed."""
        tempered = any(c.tempered for c in algorithm.components.values() if c.uses == "logprob")
        return self.temperature if tempered else 1.0

    def mismatch_on(self, device: str) -> float:
        """`max_mismatch`, or its default for a device."""
        if self.max_mismatch is not None:
            return self.max_mismatch
        return 1e-3 if self.precision_on(device) == "bfloat16" else 1e-5

    def precision_on(self, device: str) -> Precision:
        """`precision`; auto is resolved for a device."""
        if self.precision == "auto":
            return "bfloat16" if device.startswith("cuda") else "float32"
        return self.precision

    def absolute(self) -> TokenLearnerConfig:
        """A copy with absolute paths, so that a run can be resumed from any folder."""
        return replace(self, reference=tuple(str(Path(f).resolve()) if f and Path(f).is_dir() else f for f in self.reference))

    def __post_init__(self) -> None:
        check_bounds(self, "learner.")
        if self.reference and self.reference_every:
            fix = "a reference from folders stays as it is; use 0, or leave learner.reference empty"
            raise ConfigError("learner.reference_every", self.reference_every, fix)
        if self.reference and self.shard:
            raise ConfigError("learner.shard", True, "a reference from folders is a whole model; use learner.shard false")
        if self.in_parts and (self.num_epochs > 1 or self.num_minibatches > 1):
            fix = "several passes or steps need the whole batch; use learner.num_epochs 1 and learner.num_minibatches 1"
            raise ConfigError("learner.in_parts", True, fix)
        if self.shard and self.lora.rank:
            raise ConfigError(
                "learner.shard", True, "adapters are trained on whole models; use learner.lora.rank 0, or no shards"
            )
        if self.shard and self.count_unchanged:
            raise ConfigError("learner.count_unchanged", True, "each rank keeps a part of the weights; use learner.shard false")
        if "reference" in self.offload and self.lora.rank:
            fix = "with adapters the reference reads the very weights of the policy; leave it out"
            raise ConfigError("learner.offload", self.offload, fix)


class TokenLearner:
    """Trains a causal language model on annotated tokens (core `Learner`).

    `algorithms` gives each reader its algorithm; a batch may hold rows of one reader or of several. Where an algorithm needs a
    reference policy, it is the model that `config.reference` names, or else a copy of the model at the first batch of that
    algorithm; where one needs values, a critic starts from a copy of the model. A `model` with a scalar head (`ScalarModel`) is
    trained as a reward model. With a plan for the `reference`, other workers run it (`reference.py`): segments bring its
    log-probabilities, and the learner only keeps and publishes its weights.
    """

    def __init__(
        self,
        config: TokenLearnerConfig,
        model: PreTrainedModel,
        *,
        algorithms: Mapping[str, Algorithm],
        collective: Collective | None = None,
        device: str = "cpu",
        reference: ReferencePlan | None = None,
        recorder: GroupRecorder | None = None,
    ) -> None:
        self.config, self.algorithms = config, dict(algorithms)
        self._device = device
        self._collective: Collective = collective or SingleProcess()
        self.policy = self._trained(model)
        self.critic: TrainedModel | None = None
        self.reference: TrainedModel | None = None
        self._plan = reference
        self._recorder = recorder if self._collective.rank == 0 else None
        self._kept: KeptReference | None = None
        self._before: Unchanged | None = None
        self.version = 0
        self._seen, self._mismatch, self._weight_check = dict.fromkeys(self.algorithms, 0), Mismatch(), Canary()
        self._components, self._reader_of = name_components(self.algorithms)

    # -------------------------------------------------------------------------------------------------------- settings
    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """The live fields of its own config and of its algorithms'; not those of a critic or a warm-up that it has not."""
        fields = {kind: live_fields(kind) for kind in (type(self.config), *(type(a.config) for a in self._settable))}
        unread = [] if any("value" in a.needs for a in self.algorithms.values()) else ["critic_lr"]
        unread += [] if DEMOS in self.algorithms and len(self.algorithms) > 1 else ["sft_lr"]
        return {kind: [field for field in found if field not in unread] for kind, found in fields.items()}

    @property
    def _settable(self) -> list[HasConfig]:
        return [a for a in self.algorithms.values() if isinstance(a, HasConfig)]

    def set(self, name: str, value: object) -> None:
        """Another value of a live field of its own config, or else of every algorithm that has it, from the next batch on."""
        taken = self.takes
        if name in taken[type(self.config)]:
            self.config = with_live(self.config, name, value)
            return
        holders = [a for a in self._settable if name in taken[type(a.config)]]
        if not holders:
            raise not_live(name, value, [known for fields in taken.values() for known in fields])
        for algorithm in holders:
            algorithm.config = with_live(algorithm.config, name, value)
        self._components, self._reader_of = name_components(self.algorithms)

    # --------------------------------------------------------------------------------------------------------- prepare
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Annotated tokens of all segments, as one batch on the host."""
        found = {name: part for name, part in segments.items() if part}
        with memory_for("the learner", self._lower):
            parts, joined = self.annotate(segments)
            batch = merge(parts)
        if self._recorder is not None:
            batch |= self._recorder.choose(self.version + 1, found, joined, parts)
        return self.dated(batch, found, progress=progress)

    def annotate(
        self, segments: Mapping[str, Sequence[Segment]], known: Mapping[str, Batch] | None = None
    ) -> tuple[list[Batch], dict[str, Batch]]:
        """The annotated tokens of each reader, and its rows. Fields that an algorithm needs are computed, unless `known`."""
        unknown = sorted(segments.keys() - self.algorithms.keys())
        if unknown:
            raise DataError(f"reader {unknown[0]!r} has no algorithm; the learner knows {sorted(self.algorithms)}")
        parts, joined = [], dict[str, Batch]()
        for reader, some in segments.items():
            if not some:
                continue
            algorithm = self.algorithms[reader]
            rows = Batch(join_rows(some) | (known or {}).get(reader, {}))
            for need in sorted(algorithm.needs - rows.keys()):
                rows[need] = self._field(need, rows, temperature=self.config.temperature_for(algorithm))
            parts.append(algorithm.annotate(rows, self._collective))
            joined[reader] = rows
        return parts, joined

    def dated(self, batch: Batch, readers: Collection[str], *, progress: float) -> Batch:
        """An annotated batch with what is set at `progress`: the rates, and which readers it is of."""
        rate = self.config.sft_lr if self._warms_up(readers) else self.config.lr
        now = {"lr": at(rate, progress), "critic_lr": at(self.config.critic_lr, progress)}
        now |= {f"seen/{name}": float(name in readers) for name in self.algorithms}
        return Batch(batch | {f"now/{k}": torch.tensor(v, dtype=torch.float64) for k, v in now.items()})

    @property
    def _lower(self) -> str:
        """What to change when memory runs out."""
        c = self.config
        more = {"none": "set learner.recompute mlp", "mlp": "set learner.recompute block"}.get(c.recompute, "train adapters")
        return f"lower learner.micro_batch_tokens (now {c.micro_batch_tokens}), then {more}, then lower engine.num_slots"

    @torch.no_grad()
    def _field(self, name: str, rows: Batch, *, temperature: float) -> Tensor:
        """A per-token field that an algorithm needs, at the tokens of `loss_mask`; 0 elsewhere. `[N]`"""
        (batch, some), out = asked(name, rows), torch.zeros(len(rows["tokens"]))
        model = self._critic() if name == "value" else self._reference() if name == "reference_logprob" else self.policy
        with model.resident():
            for part in self._parts(batch, some):
                found = model.scores(part) if name == "value" else model.logprobs(part, temperature=temperature)[0]
                out[part.fields["place"].cpu()] = found.to("cpu", out.dtype)
        return out

    def _parts(self, batch: Batch, rows: Tensor) -> Iterator[MicroBatch]:
        """Micro-batches of `rows`, those in which something trains."""
        for some in split_tokens(rows, batch["unit"], batch["row_length"], self.config.micro_batch_tokens):
            part = MicroBatch.of(batch, some, device=self._device)
            if part.kinds:
                yield part
                progressed()  # the caller has finished with `part` when it asks for the next one

    def _trained(self, model: PreTrainedModel, *, foreign: bool = False) -> TrainedModel:
        c = self.config
        return TokenModel(
            model,
            device=self._device,
            precision=c.precision_on(self._device),
            weight_decay=c.weight_decay,
            recompute=c.recompute,
            lora=c.lora if c.lora.rank else None,
            offload="optimiser" in c.offload,
            foreign=foreign,
        )

    def _critic(self) -> TrainedModel:
        if self.critic is None:
            self.critic = self._trained(self.policy.scalar_model(), foreign=True)
        return self.critic

    @property
    def _moves(self) -> bool:
        """Whether the reference is a moving average."""
        return self.config.reference_every > 0 and self.config.reference_decay > 0

    def _reference(self) -> TrainedModel:
        if self.reference is None and self.config.reference:
            precision, away = self.config.precision_on(self._device), "reference" in self.config.offload
            self.reference = given_reference(self.config.reference, device=self._device, precision=precision, offload=away)
        if self.reference is None:
            self.reference = self.policy.frozen_copy(offload="reference" in self.config.offload, moves=self._moves)
        return self.reference

    # ---------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """One version: `num_epochs` times `num_minibatches` optimiser steps (one in a warm-up)."""
        c, rates = self.config, self._rates(batch)
        epochs, parts = (1, 1) if self._warms_up(self._readers(batch)) else (c.num_epochs, c.num_minibatches)
        steps: list[Metrics] = []
        all_rows = torch.arange(len(batch["row_length"]))
        with memory_for("the learner", self._lower):
            for epoch in range(epochs):
                seed = make_seed(self.version, "minibatches", epoch)
                for rows in split_units(all_rows, batch["unit"], parts, seed=seed):
                    steps.append(self._step(batch, rows, rates, first=not steps, first_pass=epoch == 0))
            return self._finished(batch, steps, rates)

    def _readers(self, batch: Batch) -> list[str]:
        return [name for name in self.algorithms if batch[f"now/seen/{name}"] > 0]

    def _rates(self, batch: Batch) -> Metrics:
        """The learning rates of this update, lower while the run warms up."""
        warmth = min(1.0, (self.version + 1) / max(self.config.warmup_updates, 1))
        return {name: float(batch[f"now/{name}"]) * warmth for name in ("lr", "critic_lr")}

    def _finished(self, batch: Batch, steps: list[Metrics], rates: Metrics) -> Update:
        """All optimiser steps are taken: one version more, and its metrics."""
        metrics: Metrics = {"lr": rates["lr"], **mean_of(steps)}
        metrics |= self._stats(batch)
        metrics |= version_stats(batch, self.version)
        if self._before is not None:
            metrics["weights_unchanged"], self._before = self._before.share(self.policy.params()), None
        for name in self._readers(batch):
            self._seen[name] += 1
            if isinstance(algorithm := self.algorithms[name], Adapts):
                algorithm.adapt(metrics)
                self._components, self._reader_of = name_components(self.algorithms)
        self.version += 1
        self._follow()
        self._weight_check.take(batch)
        return Update(metrics, events=[] if self._recorder is None else self._recorder.take())

    def _step(self, batch: Batch, rows: Tensor, rates: Metrics, *, first: bool, first_pass: bool) -> Metrics:
        """One optimiser step on the rows `rows`, if anything in them trains."""
        active, counts = self._active(batch, rows)
        for model in self._models(active).values():
            model.zero_grad()
        drift = Drift(batch, self.version, self._device)
        sums = self._passes(batch, rows, active, counts, drift)
        metrics = self._measured(sums, drift, active, first=first, first_pass=first_pass)
        if metrics.pop("trained"):
            metrics |= self._stepped(active, rates)
        return metrics

    def _models(self, active: Mapping[str, Component]) -> dict[str, TrainedModel]:
        """The models that the active components train, by the name of the norm of their gradient."""
        trained = {c.uses for c in active.values()}
        models = {"grad_norm": self.policy} if trained & {"logprob", "score"} else {}
        return models | ({"critic_grad_norm": self._critic()} if "value" in trained else {})

    def _stepped(self, active: Mapping[str, Component], rates: Metrics) -> Metrics:
        """Step every trained model; the norms of their gradients."""
        if self.config.count_unchanged and self._before is None:
            self._before = Unchanged(self.policy.params())
        norms = {}
        for name, model in self._models(active).items():
            lr, norm = rates["critic_lr" if model is self.critic else "lr"], self.config.max_grad_norm
            norms[name] = model.step(lr, max_grad_norm=norm, collective=self._collective, name=name, version=self.version)
        return norms

    def _active(self, batch: Batch, rows: Tensor) -> tuple[dict[str, Component], Metrics]:
        """Components that train on the rows of all ranks, their denominators (by name) and counts of tokens
        (`tokens/<name>`)."""
        due = {n: c for n, c in self._components.items() if self._seen[self._reader_of[n]] >= c.start}
        local = torch.zeros(2, len(self._components), dtype=torch.float64)
        kind = batch["component"][token_places(batch["row_start"][rows], batch["row_length"][rows])]
        for i, (name, component) in enumerate(self._components.items()):
            share = batch.get(f"denominator/{component.denominator or name}")
            local[0, i] = share[rows].sum() if share is not None else 0.0
            local[1, i] = (kind == component.kind).sum()
        denominators, tokens = self._collective.all_reduce(local.to(self._device)).tolist()
        counts = dict(zip(self._components, denominators, strict=True))
        counts |= {f"tokens/{name}": n for name, n in zip(self._components, tokens, strict=True)}
        return {n: c for n, c in due.items() if counts[n] > 0 and counts[f"tokens/{n}"] > 0}, counts

    def _passes(
        self, batch: Batch, rows: Tensor, active: Mapping[str, Component], counts: Metrics, drift: Drift
    ) -> dict[str, Tensor]:
        """Accumulate gradients over micro-batches; return the metrics, summed over them, and add to `drift`.

        Rows without signal have no gradient but count in the statistics: they get a forward pass only, all or a sample of them
        (`READ_SHARE`).
        """
        sums = dict.fromkeys(["trained", "num_tokens", "entropy", *metrics_of(active)], torch.zeros((), device=self._device))
        useful = self._useful(batch, active)[rows]
        for part in self._parts(batch, rows[useful]):
            outputs = self._outputs(part, active)
            total, shown = self._losses(part, outputs, active, counts)
            total.backward()  # type: ignore[no-untyped-call]
            for model in (self.policy, self.critic):
                if model is not None:
                    model.gather()
            sums = self._add(sums, part, outputs, shown | {"trained": shown["num_tokens"]}, drift, 1.0)
        if any(c.uses == "logprob" for c in active.values()):
            most = max(READ_LEAST, int(READ_SHARE * batch["row_length"][rows].sum()))
            some, share = sample_rows(batch, rows[~useful], most=most, seed=make_seed(self.version, "rows without signal"))
            with torch.no_grad():
                for part in self._parts(batch, some):
                    outputs = self._outputs(part, active)
                    sums = self._add(sums, part, outputs, self._losses(part, outputs, active, counts)[1], drift, share)
        return sums

    def _measured(
        self, sums: Mapping[str, Tensor], drift: Drift, active: Mapping[str, Component], *, first: bool, first_pass: bool
    ) -> Metrics:
        """The metrics of an optimiser step, summed over ranks."""
        totals = self._reduce({**sums, **drift.sums})
        metrics = {name: totals[name] for name in ("trained", *metrics_of(active))}
        if any(c.uses == "logprob" for c in active.values()):
            metrics["entropy"] = totals["entropy"] / max(totals["num_tokens"], 1.0)
        if first_pass:
            metrics |= drift.effective_sample_size(totals)
        if first and totals["mismatch/num"]:
            metrics |= self._mismatch.check(totals, drift.worst, self.version, self.config.mismatch_on(self._device))
        return metrics

    def _add(
        self, sums: dict[str, Tensor], part: MicroBatch, outputs: Batch, shown: dict[str, Tensor], drift: Drift, share: float
    ) -> dict[str, Tensor]:
        """`sums` plus the metrics of a micro-batch, each token of which stands for `share` tokens."""
        if self._recorder is not None:
            self._recorder.see(part, outputs)
        if "logprob" in outputs and part.kinds:
            shown["entropy"] = outputs["entropy"].detach().sum()
            drift.add(part, outputs.get("sampled_logprob", outputs["logprob"]).detach(), share)
        return {name: total + share * shown[name] if name in shown else total for name, total in sums.items()}

    def _outputs(self, part: MicroBatch, active: Mapping[str, Component]) -> Batch:
        """What the active components need of the models, with gradients. All `[M]`."""
        uses, out, sampled = {c.uses for c in active.values()}, Batch(), self.config.temperature
        kinds = {c.tempered and sampled != 1.0 for c in active.values() if c.uses == "logprob"}
        if kinds:
            out["logprob"], out["entropy"] = self.policy.logprobs(part, temperature=sampled if True in kinds else 1.0)
        if len(kinds) == 2:  # one batch of rollouts and demonstrations
            out["own_logprob"], out["own_entropy"] = self.policy.logprobs(part, temperature=1.0)
        if kinds == {False} and sampled != 1.0 and "logprob" in part.fields:  # to compare with those that the engine recorded
            with torch.no_grad():
                out["sampled_logprob"] = self.policy.logprobs(part, temperature=sampled)[0]
        if "score" in uses:
            out["score"] = self.policy.scores(part)
        if "value" in uses:
            out["value"] = self._critic().scores(part)
        return out

    def _losses(
        self, part: MicroBatch, outputs: Batch, active: Mapping[str, Component], counts: Metrics
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of the components of one micro-batch, each over its denominator of the global batch, and their metrics."""
        shown = {"num_tokens": torch.tensor(float(len(part.target)), device=self._device)}
        total = self._nothing(outputs)
        for name, component in active.items():
            if component.kind not in part.kinds:
                continue
            taken = outputs
            if "own_logprob" in outputs and not component.tempered:
                taken = Batch(outputs | {"logprob": outputs["own_logprob"], "entropy": outputs["own_entropy"]})
            tokens = Part.of(part, component.kind, taken, count=counts[f"tokens/{name}"], version=self.version)
            loss = component.loss(tokens, counts[name])
            total = total + component.coef * loss.value
            shown |= {f"loss/{name}": loss.value.detach(), **loss.metrics}
        return total, shown

    def _nothing(self, outputs: Batch) -> Tensor:
        """The sum from which the losses of a micro-batch are added up."""
        return torch.zeros((), device=self._device)

    # ----------------------------------------------------------------------------------------------------------- parts
    def _useful(self, batch: Batch, active: Mapping[str, Component]) -> Tensor:
        """Rows that can move the parameters; the others have no backward pass, but count in the denominators. `[R]`"""
        kind, moves = batch["component"], torch.zeros(len(batch["tokens"]), dtype=torch.bool)
        for component in active.values():
            mine = kind == component.kind
            moves |= mine & (batch["advantage"] != 0) if component.by_advantage else mine
        row, num = row_index(batch["row_length"]), len(batch["row_length"])
        useful = row_sum(moves.float(), row, num) > 0
        units = row_sum(useful.float(), batch["unit"], int(batch["unit"].max()) + 1) > 0
        trains = row_sum((kind != 0).float(), row, num) > 0  # rows of a unit are together, but for those with nothing to read
        return units[batch["unit"]] & trains

    def _reduce(self, sums: Mapping[str, Tensor]) -> Metrics:
        stacked = torch.stack([x.double() for x in sums.values()])
        totals = dict(zip(sums, self._collective.all_reduce(stacked).tolist(), strict=True))
        for name, value in totals.items():
            if not math.isfinite(value):
                raise NonFiniteError(name, self.version)
        return totals

    def _warms_up(self, readers: Collection[str]) -> bool:
        """Whether a batch belongs to a warm-up: it has demonstrations only, and the learner has other readers too."""
        return set(readers) == {DEMOS} and len(self.algorithms) > 1

    def _stats(self, batch: Batch) -> Metrics:
        """The statistics of the algorithms, as means over the ranks that measured them; those that no rank did are left out."""
        found = {k.removeprefix("stats/"): v.double() for k, v in batch.items() if k.startswith("stats/")}
        if not found:
            return {}
        values = torch.stack(list(found.values())).to(self._device)
        known = ~values.isnan()
        both = torch.stack([torch.where(known, values, torch.zeros_like(values)), known.to(values)])
        sums, counts = self._collective.all_reduce(both).tolist()
        return {name: total / num for name, total, num in zip(found, sums, counts, strict=True) if num}

    def _follow(self) -> None:
        """Move the reference towards the policy, at every `reference_every`-th version."""
        every = self.config.reference_every
        for reference in (self.reference, self._kept):
            if reference is not None and every and self.version % every == 0:
                reference.move_towards(self.policy, 1.0 - self.config.reference_decay)

    # ----------------------------------------------------------------------------------------------------------- state
    def params(self) -> Mapping[str, Tensor]:
        """Live weights, tied ones once."""
        return self.policy.params()

    def weight_check(self) -> WeightCheck | None:
        """Log-probabilities of a few tokens under the current policy. They are published with the weights, and an engine that
        loads these compares its own."""
        return self._weight_check.weight_check(self.policy, self.config.mismatch_on(self._device))

    def frozen(self) -> dict[str, ParamSet]:
        """The reference, from its first version on, if other workers run it (core `HasReference`)."""
        if self._plan is None or self.version < self._plan.start:
            return {}
        if self._kept is None:
            self._kept = KeptReference(self.policy.params(), moves=self._moves)
        return {REFERENCE: ParamSet(self._plan.at(self.version), self._kept.params)}

    def base_params(self) -> Mapping[str, Tensor]:
        """Live weights as `start_from` takes them: with adapters, those of the plain model."""
        return self.policy.base_params()

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start from the weights of another run, with fresh moments."""
        self.policy.start_from(params)
        self._kept = None

    def state_dict(self) -> State:
        reference = self.reference if self._kept is None else self._kept
        return {
            "policy": self.policy.state_dict(),
            "critic": None if self.critic is None else self.critic.state_dict(),
            "reference": None if reference is None else reference.state_dict(),
            "version": self.version,
            "seen": dict(self._seen),
            "mismatch": [list(one) for one in self._mismatch.recent],
            "canary": self._weight_check.state_dict(),
            "algorithms": {name: a.state_dict() for name, a in self.algorithms.items() if isinstance(a, Adapts)},
        }

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state["policy"])
        self.version, self._seen = state["version"], dict(state["seen"])
        self._mismatch.recent.clear()
        self._mismatch.recent.extend((kl, num) for kl, num in state["mismatch"])
        self._weight_check.load_state_dict(state.get("canary", {}))  # older checkpoints have none, nor the next
        for name, saved in state.get("algorithms", {}).items():
            if isinstance(algorithm := self.algorithms.get(name), Adapts):
                algorithm.load_state_dict(saved)
        self._components, self._reader_of = name_components(self.algorithms)
        self.critic = self.reference = self._kept = None
        if state["critic"] is not None:
            self._critic().load_state_dict(state["critic"])
        if state["reference"] is not None and self._plan is None:
            self._reference().load_state_dict(state["reference"])
        elif state["reference"] is not None and self._collective.rank == 0:
            self._kept = KeptReference(self.policy.params(), moves=self._moves)
            self._kept.load_state_dict(state["reference"])
