"""The engine under test with its parameters, and how the checks ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.llm.engines.requests import Engine, SamplingConfig, make_request

Logprobs = Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]
"""`logprobs(params, tokens) -> [n, vocabulary]`: a plain forward pass at temperature 1; row i predicts token i + 1."""
MAX_TOKENS = 8
MAX_STEPS = 1000


@dataclass(frozen=True)
class EngineCase:
    """An engine to check; the fields are the arguments of `check_engine`."""

    make: Callable[[], Engine]
    params: ParamSet
    prompts: Sequence[Sequence[int]]
    logprobs: Logprobs | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    exact: bool = True
    tolerance: float = 1e-5

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """A fresh engine with the parameters loaded. Only one exists at a time."""
        engine = self.make()
        try:
            engine.load_params(self.params)
            yield engine
        finally:
            engine.close()

    def others(self, version: int) -> ParamSet:
        """Other values for the same parameters."""
        noise = torch.Generator().manual_seed(version)
        params = {
            name: (p + 0.2 * p.float().std().nan_to_num(0.1).item() * torch.randn(p.shape, generator=noise).to(p)).to(p.dtype)
            for name, p in self.params.params.items()
        }
        return ParamSet(version, params, shared=self.params.shared)

    def renamed(self, version: int) -> ParamSet:
        """The same values under another version."""
        return ParamSet(version, self.params.params, shared=self.params.shared)

    def reference(self, params: Mapping[str, Tensor], prompt: Sequence[int], tokens: Sequence[int], heat: float) -> Tensor:
        """Log-probabilities `[m, vocabulary]` at temperature `heat` for the `m` places of `tokens` after `prompt`."""
        assert self.logprobs is not None
        rows = self.logprobs(params, [*prompt, *tokens])[len(prompt) - 1 : -1]
        return torch.log_softmax(rows.double() / heat, dim=-1)

    def same(self, a: Reply, b: Reply) -> bool:
        """Whether two replies are equal bit for bit, except for the rounding of log-probabilities in an engine that is not
        exact."""
        if a.rows.keys() != b.rows.keys():
            return False
        return all(self._same_row(name, a.rows[name], b.rows[name]) for name in a.rows)

    def _same_row(self, name: str, a: Tensor, b: Tensor) -> bool:
        if self.exact or "logprob" not in name:
            return torch.equal(a, b)
        return a.shape == b.shape and bool((a - b).abs().max() <= self.tolerance)


def ask(
    id: int,
    tokens: Sequence[int],
    max_tokens: int = MAX_TOKENS,
    *,
    seed: int | None = None,
    version: int = -1,
    sampling: SamplingConfig | None = None,
) -> Request:
    """Make a request. Its seed is its id unless given."""
    return make_request(
        id, tokens, seed=id if seed is None else seed, max_tokens=max_tokens, sampling=sampling, version=version
    )


def drain(engine: Engine) -> list[Reply]:
    """Step until nothing is pending. Returns all replies in the order of their completion."""
    replies: list[Reply] = []
    for _ in range(MAX_STEPS):
        replies += engine.step()
        if not engine.pending():
            return replies
    raise AssertionError(f"{engine.pending()} requests are pending after {MAX_STEPS} steps")


def answer(engine: Engine, requests: Sequence[Request]) -> list[Reply]:
    """Submit `requests` and return their replies in the same order."""
    engine.submit(requests)
    found = {r.id: r for r in drain(engine)}
    return [found[r.id] for r in requests]


def tokens_of(reply: Reply) -> list[int]:
    """The tokens of a completion."""
    found: list[int] = reply.rows["tokens"].tolist()
    return found


def long_seed(engine: Engine, prompt: Sequence[int]) -> int:
    """A seed whose completion is longer than four tokens, so that a later request can overtake it or a stop can cut it."""
    for first in range(0, 100, 4):
        replies = answer(engine, [ask(seed, prompt, seed=seed) for seed in range(first, first + 4)])
        for seed, reply in enumerate(replies, start=first):
            if len(tokens_of(reply)) > 4:
                return seed
    raise AssertionError("no seed of 100 gives a completion of more than four tokens; give another prompt or model")
