"""Passes of a decoder over packed rows, replayed from CUDA graphs: the host launches two graphs for each micro-batch.

A block has about thirty kernels, forward and backward. With a small micro-batch the device would wait for the host to launch
them one by one. Here rows are padded to a few shapes, and each shape is captured when it occurs for the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from runnel.kernels.graphs import recording
from runnel.llm.model.attention import flash_rows
from runnel.llm.model.blocks import Context, anchor, run
from runnel.llm.model.decoder import Decoder, Recompute
from runnel.ops.credit import send


class Shape(NamedTuple):
    """Sizes of a captured pass: tokens, rows, and tokens of the longest row."""

    tokens: int
    rows: int
    longest: int

    @staticmethod
    def of(lengths: Sequence[int]) -> Shape:
        """The shape that holds rows of these lengths, and the rows that fill it up.

        >>> Shape.of([300] * 27)
        Shape(tokens=8192, rows=64, longest=512)
        """
        size, longest = sum(lengths), _step(max(lengths), 128, 4)
        grain = max(256, _step(size, 1, 2) // 8)
        tokens = -(-size // grain) * grain
        return Shape(tokens, _step(len(lengths) + -(-(tokens - size) // longest), 16, 4), longest)


def _step(least: int, start: int, factor: int) -> int:
    """The first of `start`, `start * factor`, `start * factor^2`, ... that is at least `least`."""
    while start < least:
        start *= factor
    return start


@dataclass
class GraphStage:
    """Fixed memory from which a pass of one shape reads: tokens and positions `[N]`, bounds of the rows `[R + 1] int32`."""

    tokens: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int

    @staticmethod
    def of(shape: Shape, device: torch.device) -> GraphStage:
        tokens, positions = torch.zeros((2, shape.tokens), dtype=torch.int64, device=device).unbind(0)
        return GraphStage(tokens, positions, torch.zeros(shape.rows + 1, dtype=torch.int32, device=device), shape.longest)

    def put(self, tokens: Tensor, lengths: Sequence[int]) -> None:
        """Write rows of `lengths` `[n]`. Rows of token 0 fill the rest; no other row attends to them."""
        size, all_tokens = len(tokens), len(self.tokens)
        sizes = [*lengths, *_filling(all_tokens - size, self.longest)]
        bounds = np.full(len(self.bounds), all_tokens, dtype=np.int32)
        bounds[0], bounds[1 : len(sizes) + 1] = 0, np.cumsum(sizes)
        positions = np.arange(all_tokens) - np.repeat(bounds[: len(sizes)], sizes)
        positions[size:] = 0  # a filling row may have more tokens than the model has positions
        self.tokens[:size].copy_(tokens)
        self.tokens[size:].zero_()
        self.positions.copy_(send(torch.from_numpy(positions), self.positions.device))
        self.bounds.copy_(send(torch.from_numpy(bounds), self.bounds.device))


def _filling(size: int, most: int) -> list[int]:
    """Lengths of rows of at most `most` tokens that have `size` tokens together."""
    return [min(most, size - i) for i in range(0, size, most)]


@dataclass
class GraphedPasses:
    """Captured passes of one shape: replay `forward`, read `hidden`; write `grad`, replay `backward`."""

    stage: GraphStage
    forward: torch.cuda.CUDAGraph
    hidden: Tensor
    backward: torch.cuda.CUDAGraph | None = None
    grad: Tensor | None = None


class GraphedDecoder:
    """Runs `decoder` over packed rows on CUDA in half precision: the first pass of a shape plainly, later ones from graphs.

    All passes share memory, so the backward pass must come before the next forward pass; one that comes too late raises.
    Weights and the sums of their gradients must stay at their addresses.
    """

    def __init__(self, decoder: Decoder, *, recompute: Recompute = "none") -> None:
        self._decoder, self._recompute = decoder, recompute
        self._device = decoder.embed.value.device
        self._passes: dict[tuple[Shape, bool], GraphedPasses] = {}
        self._seen: set[tuple[Shape, bool]] = set()
        self._pool: object = torch.cuda.graph_pool_handle()
        self.num_passes = 0
        """Forward passes from graphs so far."""

    def __call__(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Last hidden states. `[n] -> [n, width]`"""
        shape, trains = Shape.of(lengths), self._decoder.trains
        key = (shape, trains)
        if key not in self._seen:
            self._seen.add(key)
            stage = GraphStage.of(shape, self._device)
            stage.put(tokens, lengths)
            return self._run(stage)[: len(tokens)]
        if key not in self._passes:
            self._passes[key] = self._capture(shape, trains)
        passes = self._passes[key]
        passes.stage.put(tokens, lengths)
        self.num_passes += 1
        if trains:
            return cast(Tensor, run(_Replay, anchor(self._device), self, passes, len(tokens)))
        passes.forward.replay()
        return passes.hidden[: len(tokens)].clone()  # the next replay writes to the same memory

    def _run(self, stage: GraphStage) -> Tensor:
        scale = self._decoder.scale

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            return flash_rows(turned, value, stage.bounds, stage.longest, scale=scale)

        return self._decoder(stage.tokens, stage.positions, attend, recompute=self._recompute)

    def _capture(self, shape: Shape, trains: bool) -> GraphedPasses:
        stage = GraphStage.of(shape, self._device)
        with recording("a forward pass", pool=self._pool) as forward:
            hidden = self._run(stage)
        if not trains:
            return GraphedPasses(stage, forward, hidden)
        grad = torch.zeros_like(hidden)
        with recording("a backward pass", pool=self._pool) as backward:
            torch.autograd.backward(hidden, grad)
        return GraphedPasses(stage, forward, hidden.detach(), backward, grad)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, start: Tensor, owner: GraphedDecoder, passes: GraphedPasses, size: int) -> Tensor:
        passes.forward.replay()
        ctx.owner, ctx.passes, ctx.number = owner, passes, owner.num_passes
        return passes.hidden[:size].clone()

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, ...]:
        if ctx.number != ctx.owner.num_passes:
            raise RuntimeError("another forward pass came before this backward pass and replaced its inner states")
        buffer = ctx.passes.grad
        buffer[: len(grad)].copy_(grad)
        buffer[len(grad) :].zero_()
        ctx.passes.backward.replay()
        return None, None, None, None
