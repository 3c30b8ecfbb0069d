"""A running completion: its request, its tokens so far, and the rule by which it ends.

It is for engines that keep the state of completions in Python, one token at a time (`hf`, `vllm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runnel.core.contracts.inference import Reply, Request
from runnel.core.state import State
from runnel.llm.engines.requests import Decode, SamplingConfig, reply_rows, request_data, request_of, sampling_of
from runnel.llm.engines.stops import completes


@dataclass
class Completion:
    """A request and its tokens so far."""

    request: Request
    prompt: list[int]
    max_tokens: int
    seed: int
    sampling: SamplingConfig
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @staticmethod
    def of(request: Request) -> Completion:
        rows = request.rows
        return Completion(request, rows["tokens"].tolist(), int(rows["max_tokens"]), int(rows["seed"]), sampling_of(rows))

    @property
    def id(self) -> int:
        return self.request.id

    def append(self, token: int, *, logprob: float, sampling_logprob: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.sampling_logprobs.append(sampling_logprob)
        self.versions.append(version)

    def terminated(self, end_ids: Sequence[int], decode: Decode | None) -> bool:
        """Whether the newest token ends the completion: eos, a stop token, or the end of a stop text."""
        if not self.tokens:
            return False
        if self.tokens[-1] in end_ids or self.tokens[-1] in self.sampling.stop_tokens:
            return True
        return decode is not None and completes(self.tokens, self.sampling.stop, decode)

    def reply(self, *, terminated: bool, truncates: bool) -> Reply:
        """The reply of a finished completion. With `truncates`, tokens were drawn from a changed distribution, and the reply
        includes their log-probabilities in it."""
        sampled = self.sampling_logprobs if truncates else None
        rows = reply_rows(self.tokens, self.logprobs, self.versions, terminated=terminated, sampling_logprobs=sampled)
        return Reply(self.id, rows, self.versions[-1])

    # ----------------------------------------------------------------------------------------------------------- state
    def data(self) -> State:
        return request_data(self.request) | {
            "tokens": torch.tensor(self.tokens, dtype=torch.int64),
            "logprob": torch.tensor(self.logprobs, dtype=torch.float64),
            "sampling_logprob": torch.tensor(self.sampling_logprobs, dtype=torch.float64),
            "policy_version": torch.tensor(self.versions, dtype=torch.int64),
        }

    @staticmethod
    def of_data(data: State) -> Completion:
        """The inverse of `data`."""
        found = Completion.of(request_of(data))
        found.tokens, found.versions = _list(data["tokens"]), _list(data["policy_version"])
        found.logprobs, found.sampling_logprobs = _list(data["logprob"]), _list(data["sampling_logprob"])
        return found


def _list(values: Any) -> list[Any]:
    found: list[Any] = np.asarray(values).tolist()
    return found
