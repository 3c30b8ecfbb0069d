"""A running completion (its request and its tokens so far), and what engines have in common that keep such objects.

It is for engines that keep the state of completions in Python, one token at a time (`hf`, `vllm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from runnel.core.contracts.inference import Reply, Request
from runnel.core.state import State
from runnel.llm.engines.requests import QueuedEngine, reply_rows, request_data, request_of, sampling_of, session_of
from runnel.llm.engines.stops import completes


@dataclass(eq=False)
class Completion:
    """A request and its tokens so far."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    prefilled: int = 0
    """Tokens that were put into the cache for it."""
    key: str = ""
    """vllm: its name in vLLM's process."""

    def __post_init__(self) -> None:
        rows = self.request.rows
        self.prompt: list[int] = rows["tokens"].tolist()
        self.max_tokens, self.seed, self.sampling = int(rows["max_tokens"]), int(rows["seed"]), sampling_of(rows)
        self.session = session_of(rows)

    def data(self) -> State:
        return request_data(self.request) | {
            "tokens": torch.tensor(self.tokens, dtype=torch.int64),
            "logprob": torch.tensor(self.logprobs, dtype=torch.float64),
            "sampling_logprob": torch.tensor(self.sampling_logprobs, dtype=torch.float64),
            "policy_version": torch.tensor(self.versions, dtype=torch.int64),
            "prefilled": self.prefilled,
        }

    @staticmethod
    def of_data(data: State) -> Completion:
        """The inverse of `data`."""
        made = [data[name].tolist() for name in ("tokens", "logprob", "sampling_logprob", "policy_version")]
        completion = Completion(request_of(data), *made)
        completion.prefilled = data.get("prefilled", 0)  # older checkpoints do not have it
        return completion


class CompletionEngine(QueuedEngine):
    """A `QueuedEngine` whose running requests are `Completion` objects."""

    _running: list[Completion]

    def _remove(self, running: Sequence[Completion]) -> None:
        for completion in running:
            self._running.remove(completion)

    def so_far(self, id: int) -> list[int]:
        return next((list(c.tokens) for c in self._running if c.request.id == id), [])

    def _append(
        self, completion: Completion, token: int, *, logprob: float, sampling_logprob: float, truncates: bool
    ) -> list[Reply]:
        """Append a token. If it is the last one (eos, a stop token, the end of a stop text, or `max_tokens` are reached), the
        completion is removed and its reply returned. With `truncates`, tokens are drawn from a changed distribution, and the
        reply includes their log-probabilities in it."""
        c = completion
        self.num_tokens += 1
        c.tokens.append(token)
        c.logprobs.append(logprob)
        c.sampling_logprobs.append(sampling_logprob)
        c.versions.append(self.version)
        terminated = token in self.end_ids or token in c.sampling.stop_tokens
        if not terminated and self.decode_text is not None:
            terminated = completes(c.tokens, c.sampling.stop, self.decode_text)
        if not terminated and len(c.tokens) < c.max_tokens:
            return []
        self._remove([c])
        more = {"sampling_logprobs": c.sampling_logprobs if truncates else None}
        prefilled = None if c.session is None else c.prefilled
        rows = reply_rows(c.tokens, c.logprobs, c.versions, terminated=terminated, num_prefilled=prefilled, **more)
        return [Reply(c.request.id, rows, self.version)]

    def snapshot(self) -> State:
        return super().snapshot() | {"running": [c.data() for c in self._running]}
