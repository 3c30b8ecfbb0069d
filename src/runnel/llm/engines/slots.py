"""The rows of an engine: each completion's state in tensors on the model's device, so that decoding never waits for the CPU.

Running completions fill the rows `0 ... num_running - 1`. When a row ends, the last row moves into its place. Row i owns slot i
of the cache. A decode step reads and writes only these tensors. The CPU reads them when it checks which rows have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.inference import Request
from runnel.kernels.lm.numba.loops import loops
from runnel.llm.engines.requests import SamplingConfig, sampling_of
from runnel.llm.model.logprobs import draw

MAX_STOPS = 16
"""The most tokens that may end a row: the model's, and those of its request."""
NUMBERS = ("last", "position", "count", "left", "active", "sane", "top_k")


class SlotRows:
    """The state of every row. `last`: newest token, not in the cache yet; `position`: its position; `count`: tokens made;
    `left`: how many more may follow; `active`: 1 while running; `sane`: 0 after a log-probability that is not finite."""

    def __init__(self, num_rows: int, max_new: int, *, device: torch.device) -> None:
        self._ints = torch.zeros((len(NUMBERS), num_rows), dtype=torch.int64, device=device)
        self.last, self.position, self.count, self.left, self.active, self.sane, self.top_k = self._ints.unbind(0)
        self._floats = torch.ones((3, num_rows), dtype=torch.float32, device=device)
        self.heat, self.top_p, self.min_p = self._floats.unbind(0)
        self.stops = torch.full((num_rows, MAX_STOPS), -1, dtype=torch.int64, device=device)
        self.uniforms = torch.zeros((num_rows, max_new), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((num_rows, max_new), dtype=torch.int64, device=device)
        self.logprobs = torch.zeros((num_rows, max_new), dtype=torch.float32, device=device)
        self.drawn = torch.zeros((num_rows, max_new), dtype=torch.float32, device=device)
        self._last_column = max_new - 1

    def draw(self, logits: Tensor, rows: Tensor) -> None:
        """Draw a token for each of `rows` from the whole distribution, and `record` it. `[n, V], [n]`"""
        if loops(logits):
            from runnel.kernels.lm.numba import token_loops

            made = (self.tokens, self.logprobs)
            given = (rows, logits, self.heat, self.uniforms, self._ints, self.stops, made)
            token_loops.advance(*given)  # type: ignore[no-untyped-call]
            return
        self.record(rows, *draw(logits, heat=self.heat[rows], uniform=self.uniform(rows)), None)

    def uniform(self, rows: Tensor) -> Tensor:
        """The uniform number for the next token of each of `rows`. `[n] -> [n]`"""
        return self.uniforms[rows, self.count[rows].clamp(max=self._last_column)]

    def record(self, rows: Tensor, token: Tensor, logprob: Tensor, drawn: Tensor | None) -> None:
        """Append a token to each of `rows` that is active, and end rows that are complete. All on the device."""
        if loops(logprob):
            from runnel.kernels.lm.numba import token_loops

            made = (self.tokens, self.logprobs, self.drawn)
            token_loops.record(rows, token, logprob, drawn, self._ints, self.stops, made)  # type: ignore[no-untyped-call]
            return
        _, position, count, left, active, sane, _ = self._ints[:, rows].unbind(0)
        live, at = active > 0, count.clamp(max=self._last_column)
        self.tokens[rows, at] = torch.where(live, token, self.tokens[rows, at])
        self.logprobs[rows, at] = torch.where(live, logprob, self.logprobs[rows, at])
        if drawn is not None:
            self.drawn[rows, at] = torch.where(live, drawn, self.drawn[rows, at])
        self.last[rows] = torch.where(live, token, self.last[rows])
        sane = sane * torch.where(live, torch.isfinite(logprob), True)
        # `left` counts this token still: a row goes on if more than this one (1 while active) may come
        going = (self.stops[rows] != token[:, None]).all(dim=1) & (left > active)
        self._ints[1:6, rows] = torch.stack((position + active, count + active, left - active, active * going, sane))

    def put(self, rows: Sequence[Running]) -> None:
        """Write the state of completions into their rows. The rows run after `start`."""
        where = torch.tensor([r.row for r in rows], device=self._ints.device)
        ints = [[r.last, r.length - 1, r.made, r.max_tokens - r.made, 0, 1, r.sampling.top_k] for r in rows]
        self._ints[:, where] = torch.tensor(ints, device=where.device).t()
        floats = [[r.sampling.temperature, r.sampling.top_p, r.sampling.min_p] for r in rows]
        self._floats[:, where] = torch.tensor(floats, device=where.device).t()
        stops = [[*r.stops, *[-1] * (MAX_STOPS - len(r.stops))] for r in rows]
        self.stops[where] = torch.tensor(stops, device=where.device)
        widest = max(r.max_tokens for r in rows)
        uniforms = np.zeros((len(rows), widest))
        for i, r in enumerate(rows):
            uniforms[i, : r.max_tokens] = r.uniforms
        self.uniforms[where, :widest] = torch.from_numpy(uniforms).to(where.device)

    def start(self, rows: Sequence[Running]) -> Tensor:
        """Let rows run from now on. Returns their indices `[n]`."""
        where = torch.tensor([r.row for r in rows], device=self._ints.device)
        self.active[where] = 1
        return where

    def seen(self, n: int) -> Tensor:
        """A CPU copy of last, count, active and sane of the rows `0 ... n - 1`. `[n, 4]`"""
        return self._ints[[0, 2, 4, 5], :n].t().cpu()

    def quiet(self, n: int) -> bool:
        """Whether none of the rows `0 ... n - 1` has ended or is broken. Always False on a GPU, where reading it would wait."""
        return self._ints.is_cpu and bool(self._ints[4:6, :n].all())

    def put_made(self, row: Running, tokens: Tensor, logprobs: Tensor, drawn: Tensor) -> None:
        """Write the tokens that a restored row had made before the snapshot."""
        self.tokens[row.row, : row.made] = tokens.to(self.tokens.device)
        self.logprobs[row.row, : row.made] = logprobs.to(self.logprobs.device)
        self.drawn[row.row, : row.made] = drawn.to(self.drawn.device)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the rows `sources` to the rows `targets`."""
        a, b = list(sources), list(targets)
        self._ints[:, b], self._floats[:, b] = self._ints[:, a], self._floats[:, a]
        for part in (self.stops, self.uniforms, self.tokens, self.logprobs, self.drawn):
            part[b] = part[a]


@dataclass(eq=False)
class Running:
    """A running completion, as the CPU knows it."""

    request: Request
    sampling: SamplingConfig
    prompt: Tensor
    max_tokens: int
    stops: tuple[int, ...]
    uniforms: np.ndarray
    """One number in [0, 1) for each possible token, from the request's own seed."""
    num_prompt: int
    """Tokens of the prompt."""
    row: int = -1
    made: int = 0
    """Tokens made at the last check."""
    last: int = 0
    """Newest token at the last check."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version): this version made the tokens from that one on, up to the next span."""

    @staticmethod
    def of(request: Request, *, end_ids: Sequence[int]) -> Running:
        rows = request.rows
        limit, sampling = int(rows["max_tokens"]), sampling_of(rows)
        uniforms = np.random.Generator(np.random.Philox(key=int(rows["seed"]))).random(limit)
        stops = tuple(dict.fromkeys((*end_ids, *sampling.stop_tokens)))
        return Running(request, sampling, rows["tokens"], limit, stops, uniforms, len(rows["tokens"]))

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return self.num_prompt + self.made

    def versions(self, count: int) -> Tensor:
        """The version of each of the first `count` tokens. `[count]`"""
        out = torch.empty(count, dtype=torch.int64)
        for start, version in self.spans:
            out[start:] = version
        return out

    def mark(self, version: int) -> None:
        """Note that `version` makes the tokens from now on."""
        if self.spans and self.spans[-1][0] == self.made:
            self.spans.pop()
        if not self.spans or self.spans[-1][1] != version:
            self.spans.append((self.made, version))
