"""The memory of an engine: a key-value cache of fixed size, and the running completions beside it.

Running completions always fill the rows `0 .. num_running - 1` (the last one moves into a hole), so that a decode step reads
its keys and values as one slice, cut to the longest running row, without a gather.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.protocols import Request, State


class SlotCache:
    """Keys and values of every layer, `[slots, kv_heads, max_length, head_dim]`, written at each row's own position.

    Stands in for a transformers cache: attention calls `update` and nothing else, since positions and a 4D mask are given.
    """

    def __init__(self, num_slots: int, max_length: int) -> None:
        self._shape = (num_slots, max_length)
        self.layers: list[tuple[Tensor, Tensor]] = []
        self._rows = slice(0, 0)
        self._positions: Tensor | None = None
        self._length = 0

    def aim_prefill(self, first_row: int, num_rows: int, length: int) -> None:
        """The next forward pass writes positions `0 .. length - 1` of these rows."""
        self._rows, self._positions, self._length = slice(first_row, first_row + num_rows), None, length

    def aim_decode(self, positions: Tensor, length: int) -> None:
        """The next forward pass writes one token a row, at `positions` `[n]`, and attends to `length` positions."""
        self._rows, self._positions, self._length = slice(0, positions.shape[0]), positions, length

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store `[rows, kv_heads, q, head_dim]` and give back everything that attention may look at."""
        if layer_idx == len(self.layers):
            shape = (self._shape[0], key.shape[1], self._shape[1], key.shape[3])
            self.layers.append((key.new_zeros(shape), value.new_zeros(shape)))
        keys, values = self.layers[layer_idx]
        if self._positions is None:
            keys[self._rows, :, : self._length] = key
            values[self._rows, :, : self._length] = value
            return key, value
        rows = torch.arange(key.shape[0], device=key.device)
        keys[rows, :, self._positions] = key.squeeze(2)
        values[rows, :, self._positions] = value.squeeze(2)
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def move(self, source: int, target: int, length: int) -> None:
        """Row `source` takes the place of row `target`."""
        for keys, values in self.layers:
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def snapshot(self, num_rows: int, length: int) -> State:
        """The part in use. Rows are cut to the longest, since what lies behind is never read."""
        return {
            "keys": [k[:num_rows, :, :length].clone() for k, _ in self.layers],
            "values": [v[:num_rows, :, :length].clone() for _, v in self.layers],
        }

    def restore(self, state: State) -> None:
        self.layers = []
        for k, v in zip(state["keys"], state["values"], strict=True):
            shape = (self._shape[0], k.shape[1], self._shape[1], k.shape[3])
            keys, values = k.new_zeros(shape), v.new_zeros(shape)
            keys[: k.shape[0], :, : k.shape[2]] = k
            values[: v.shape[0], :, : v.shape[2]] = v
            self.layers.append((keys, values))


@dataclass
class Running:
    """One completion on its way: its request, and what was made so far."""

    request: Request
    prompt_length: int
    max_tokens: int
    temperature: float
    uniforms: np.ndarray
    """One number in [0, 1) for each token that may come, from the request's own seed."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @staticmethod
    def of(request: Request) -> Running:
        rows = request.rows
        limit = int(rows["max_tokens"])
        uniforms = np.random.Generator(np.random.Philox(key=int(rows["seed"]))).random(limit)
        return Running(request, rows["tokens"].shape[0], limit, float(rows["temperature"]), uniforms)

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return self.prompt_length + len(self.tokens)

    @property
    def last(self) -> int:
        return self.tokens[-1]

    def append(self, token: int, logprob: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
