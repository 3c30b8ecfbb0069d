"""A reference model from folders, or on workers of its own: the engine that they run, the versions that they hold, and the
weights that the trainer keeps to publish and save.

A finished completion is sent to those workers, and its log-probabilities travel with its segment. So the trainer does not make
this forward pass; it is made while other completions are decoded and judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request
from runnel.core.memory import memory_for
from runnel.core.records import Batch
from runnel.core.sharding.param_shards import whole
from runnel.core.state import State
from runnel.llm.engines.one_pass import OnePassEngine
from runnel.llm.learning.batches import MicroBatch, questions
from runnel.llm.model.sharded_model import TrainedModel
from runnel.llm.model.soup import soup
from runnel.llm.model.token_model import Precision, TokenModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

REFERENCE = "reference"
"""Name of its inference stream, and of its parameter channel."""


@dataclass(frozen=True)
class ReferencePlan:
    """Of which versions the reference is a copy: it is fixed at `start`, and follows at each multiple of `every` (0: never).

    >>> plan = ReferencePlan(start=3, every=4)
    >>> [plan.at(version) for version in (-1, 2, 3, 5, 8, 11)]
    [-1, 3, 3, 4, 8, 8]
    >>> ReferencePlan(start=3).at(8)
    3
    """

    start: int = 0
    every: int = 0

    def at(self, version: int) -> int:
        """The version of the reference that belongs to one of the policy; -1 (whatever is newest) to -1."""
        if version < 0:
            return -1
        return max(self.start, version // self.every * self.every if self.every else 0)


class KeptReference:
    """The weights of a reference that other workers run, on the host: the trainer publishes and saves them. One that `moves`
    keeps its average in float32, because half precision would round its small steps away."""

    def __init__(self, params: Mapping[str, Tensor], *, moves: bool = False) -> None:
        self.params = {name: value.detach().to("cpu", copy=True) for name, value in params.items()}
        wide = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in self.params.items()}
        self._average = {name: value for name, value in wide.items() if moves and value is not self.params[name]}

    @torch.no_grad()
    def move_towards(self, policy: TrainedModel, share: float) -> None:
        """Move the weights towards those of `policy` by `share` of the difference; 1 copies them."""
        wide = policy.masters()
        for name, value in policy.params().items():
            mine = self._average.get(name, self.params[name])
            given = wide.get(name, value).to(mine.device, mine.dtype)
            mine.copy_(given) if share == 1.0 else mine.lerp_(given, share)
            if mine is not self.params[name]:
                self.params[name].copy_(mine)

    def state_dict(self) -> State:
        """The state in the form of a frozen model's."""
        kinds = {"model": self.params, "average": self._average}
        return {kind: {name: value.clone() for name, value in values.items()} for kind, values in kinds.items() if values}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Load a state of this class, or of the frozen model of a trainer that ran its reference itself."""
        for name, value in state["model"].items():
            self.params[name].copy_(whole(value))
        kept: State = state["average" if "average" in state else "model"]  # a reference that does not move has no average
        for name, mine in self._average.items():
            mine.copy_(whole(kept.get(name, self.params[name])))


def given_reference(folders: Sequence[str], *, device: str, precision: Precision, offload: bool) -> TokenModel:
    """The frozen model of a folder, or the mean of several."""
    return TokenModel(soup(folders), device=device, precision=precision, frozen=True, offload=offload)


def reference_rows(prompt: Tensor, completion: Tensor) -> Batch:
    """A request: a row, and how long its prompt is. `[n] int64, [m] int64`"""
    tokens = torch.cat([prompt, completion]).to(torch.int32)
    return Batch(tokens=tokens, prompt_length=torch.tensor([len(prompt)]))


def message_bytes(length: int) -> int:
    """The bytes that a request or reply about a row of `length` tokens may take."""
    return 1024 + 4 * length


class ReferenceEngine(OnePassEngine):
    """Replies to requests (`reference_rows`) with the log-probabilities of their completions at `temperature`, `logprob` `[m]`
    (core `Inferencer`).

    A step serves the oldest requests, up to `max_tokens` tokens in one forward pass; with `apart` it serves one request, so
    that a reply does not depend on which other requests are waiting.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        device: str = "cpu",
        precision: Precision = "float32",
        max_tokens: int = 8192,
        apart: bool = False,
    ) -> None:
        super().__init__()
        self.model: TokenModel = TokenModel(model, device=device, precision=precision, frozen=True)
        self._temperature, self._device, self._max_tokens, self._apart = temperature, device, max_tokens, apart

    def step(self) -> list[Reply]:
        if not (some := self.take(self._num_next())):
            return []
        lower = f"lower learner.micro_batch_tokens (now {self._max_tokens})"
        with memory_for("the reference worker", lower), torch.no_grad():
            found = self._logprobs(some)
        return [Reply(r.id, Batch(logprob=logprob), self.version) for r, logprob in zip(some, found, strict=True)]

    def _num_next(self) -> int:
        """How many of the oldest requests fit into a pass, but at least one."""
        num, size = 0, 0
        for request in self.waiting:
            size += len(request.rows["tokens"])
            if num and (self._apart or size > self._max_tokens):
                break
            num += 1
        return num

    def _logprobs(self, some: Sequence[Request]) -> list[Tensor]:
        length = torch.tensor([len(r.rows["tokens"]) for r in some])
        start, first = length.cumsum(0) - length, [int(r.rows["prompt_length"]) for r in some]
        rows = Batch(tokens=torch.cat([r.rows["tokens"] for r in some]).long(), row_start=start, row_length=length)
        rows["loss_mask"] = torch.cat([torch.arange(n) >= f for n, f in zip(length.tolist(), first, strict=True)])
        out = torch.zeros(len(rows["tokens"]))
        part = MicroBatch.of(questions(rows), torch.arange(len(some)), device=self._device)
        if part.kinds:
            logprobs = self.model.logprobs(part, temperature=self._temperature)[0]
            out[part.fields["place"].cpu()] = logprobs.to("cpu", out.dtype)
        return [row[f:] for row, f in zip(torch.split(out, length.tolist()), first, strict=True)]
