"""A token learner that works on the segments of a batch one by one, as they arrive (AsyncFlow, Han et al. 2025,
arXiv:2507.01663), and takes the step of the whole batch.

Short completions are there before long ones. A learner that waits for the last of a batch stands still meanwhile; this one runs
forward and backward passes of what is there. The losses of a batch are sums over tokens, divided by numbers that are known only
when all tokens are. So passes add up the gradient of the sums, and the end divides it. That needs one divisor for all that
trains a model, and credit that a segment gets alone as it would in the batch; both are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runnel.core.contracts.learning import Update
from runnel.core.errors import ConfigError
from runnel.core.memory import memory_for
from runnel.core.records import Batch, Segment
from runnel.core.state import Metrics, State
from runnel.llm.algorithms.base import OPTIONAL
from runnel.llm.learning.batches import PER_ROW, SCALARS, merge
from runnel.llm.learning.drift import Drift
from runnel.llm.learning.learner import TokenLearner
from runnel.llm.model.token_model import TokenModel

RTOL, ATOL = 1e-4, 1e-6
"""How close the credit of a segment alone must be to its credit in the batch."""


class TokenLearnerInParts(TokenLearner):
    """A `TokenLearner` with `learner.in_parts` (core `TakesParts`): `update` is that of `finish_parts`."""

    takes_parts = True
    policy: TokenModel
    critic: TokenModel | None

    def __init__(self, *settings: Any, **more: Any) -> None:
        super().__init__(*settings, **more)
        self._forget()

    def _forget(self) -> None:
        self._segments: dict[str, list[Segment]] = {}
        self._credited: dict[str, list[Batch]] = {}
        self._known: dict[str, list[Batch]] = {}
        self._sums: dict[str, Tensor] = {}
        self._drift: Drift | None = None
        self._progress = 0.0

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._forget()

    def add_part(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> None:
        """Forward and backward passes of some segments of one reader; their gradient is of sums, not yet of means."""
        ((reader, some),) = segments.items()
        with memory_for("the learner", self._lower):
            (annotated,), joined = self.annotate(segments)
            batch = self.dated(merge([annotated]), [reader], progress=progress)
            if not self._segments:
                for model in (self.policy, self.critic):
                    if model is not None:
                        model.zero_grad()
            rows, drift = torch.arange(len(batch["row_length"])), Drift(batch, self.version, self._device)
            active, counts = self._active(batch, rows)
            sums = self._passes(batch, rows, active, dict.fromkeys(counts, 1.0), drift)
            self._drift = drift if self._drift is None else self._drift.join(drift)
        self._segments.setdefault(reader, []).extend(some)
        self._credited.setdefault(reader, []).append(_credit_of(annotated))
        needs = self.algorithms[reader].needs
        self._known.setdefault(reader, []).append(Batch({k: joined[reader][k] for k in needs}))
        for name, total in sums.items():
            self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._progress = progress

    def finish_parts(self) -> Update:
        """Divide the gradient and the metrics by the numbers of the whole batch, and step."""
        assert self._drift is not None, "finish_parts comes after add_part"
        known = {reader: Batch.cat(parts) for reader, parts in self._known.items()}
        annotated, _ = self.annotate(self._segments, known)
        self._compare(annotated)
        batch = self.dated(merge(annotated), list(self._segments), progress=self._progress)
        active, counts = self._active(batch, torch.arange(len(batch["row_length"])))
        for uses, model in ((("logprob", "score"), self.policy), (("value",), self.critic)):
            divisors = {counts[name] for name, c in active.items() if c.uses in uses}
            if len(divisors) > 1:
                names = ", ".join(name for name, c in active.items() if c.uses in uses)
                fix = f"components {names} are divided by different numbers, so their gradients cannot be one sum; use false"
                raise ConfigError("learner.in_parts", True, fix)
            if divisors and model is not None:
                model.divide_grad(divisors.pop())
        metrics = self._measured(self._divided(active, counts), self._drift, active, first=True, first_pass=True)
        rates = self._rates(batch)
        if metrics.pop("trained"):
            metrics |= self._stepped(active, rates)
        self._forget()
        return self._finished(batch, [metrics], rates)

    def _divided(self, active: Mapping[str, Any], counts: Metrics) -> dict[str, Tensor]:
        """Sums over parts, as the metrics of the whole batch: a loss over its divisor, others over theirs."""
        over = {f"loss/{name}": counts[name] for name in active}
        divisor = {name: counts[name if c.by_denominator else f"tokens/{name}"] for name, c in active.items()}
        over |= {metric: divisor[name] for name, c in active.items() for metric in c.metrics}
        return {name: total / over[name] if name in over else total for name, total in self._sums.items()}

    def _compare(self, annotated: Sequence[Batch]) -> None:
        """Refuse an algorithm whose credit depends on the other segments of the batch."""
        for whole, parts in zip(annotated, self._credited.values(), strict=True):
            for name, alone in Batch.cat(parts).items():
                if not torch.allclose(alone, whole[name], rtol=RTOL, atol=ATOL):
                    fix = f"with this algorithm the {name} of a token depends on the whole batch; use false"
                    raise ConfigError("learner.in_parts", True, fix)


def _credit_of(annotated: Batch) -> Batch:
    """What an algorithm says of tokens in numbers; what it was told of them (their log-probabilities) is left out."""
    own = {k: v for k, v in annotated.items() if not k.startswith((*PER_ROW, *SCALARS)) and k not in ("tokens", *OPTIONAL)}
    return Batch({k: v for k, v in own.items() if v.is_floating_point()})
