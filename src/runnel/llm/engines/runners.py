"""The model's side of an engine: prompts and tokens in, hidden states out, keys and values kept by slot.

`DecoderRunner` runs our own decoder (Llama-like models), on CUDA with Triton kernels that can be recorded in a graph.
`ModuleRunner` runs the modules of any other decoder-only Hugging Face model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from runnel.core.memory import check_room
from runnel.core.protocols import State
from runnel.nets.causal_lm import hidden_states, output_head
from runnel.nets.decoder import Decoder
from runnel.ops import cache_kernels
from runnel.ops.attention import PackedRows
from runnel.ops.capture import Captured
from runnel.ops.loops import loops

STEP_WEIGHTS = 1 << 22
"""Weights of all layers up to which the host decodes in one loop: then they stay in a processor's cache."""
SPARE_BLOCKS = 64
"""Blocks beside those of full size: every piece may end in one that is not full."""


@dataclass(frozen=True)
class Piece:
    """Tokens of one prompt that come next in slot `slot`, from position `start` on."""

    slot: int
    tokens: Tensor
    start: int


class Runner(Protocol):
    """Hidden states of tokens whose past lies in slots."""

    records: bool
    """Whether `decode` may be recorded in a CUDA graph."""

    def prefill(self, pieces: Sequence[Piece]) -> Tensor:
        """Put the pieces into the cache; the hidden state behind each piece's last token. `-> [pieces, width]`"""
        ...

    def states(self, tokens: Tensor) -> Tensor:
        """Hidden states of a row beside those in slots, which stay as they are; at least one token shorter than a slot.
        `[n] -> [n, width]`"""
        ...

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """One token in each of the slots `0 ... n - 1`, at `positions`, all below `longest`. `[n], [n] -> [n, width]`"""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token. `[n, width] -> [n, vocabulary] float32`"""
        ...

    def next_logits(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """`logits` of what `decode` gives. `[n], [n] -> [n, vocabulary] float32`"""
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """The first `length` positions of slots `sources` into slots `targets`."""
        ...

    def refresh(self) -> None:
        """The model's parameters lie elsewhere now."""
        ...

    def snapshot(self, num_slots: int, length: int) -> State: ...

    def restore(self, state: State) -> None: ...


def make_runner(model: Any, *, num_slots: int, max_length: int) -> Runner:
    """The fastest runner that knows `model`."""
    decoder = Decoder.of(model)
    if decoder is not None:
        return DecoderRunner(decoder, num_slots=num_slots, max_length=max_length)
    return ModuleRunner(model, num_slots=num_slots, max_length=max_length)


class DecoderRunner:
    """Runs a `Decoder` over a cache `[layers, 2, slots, kv_heads, length, head_dim]` that is allocated once."""

    def __init__(self, decoder: Decoder, *, num_slots: int, max_length: int) -> None:
        self.decoder = decoder
        shape = (decoder.num_layers, 2, num_slots + 1, decoder.kv_heads, max_length, decoder.head_dim)
        weight, other = decoder.embed.value, ", or lower max_tokens"
        check_room(
            math.prod(shape) * weight.element_size(), weight.device, field="engine.num_slots", value=num_slots, other=other
        )
        self.cache = torch.zeros(shape, dtype=decoder.embed.value.dtype, device=decoder.embed.value.device)
        self.records = self.cache.is_cuda
        self._rows = torch.arange(num_slots, device=self.cache.device)
        self._spare, self._max_length = num_slots, max_length
        self._stages: dict[int, tuple[Tensor, Tensor]] = {}
        self._recorded = Captured(self._prefill_blocks, name="a prefill")
        self._step: Any = None

    # ---------------------------------------------------------------------------------------------------------- prefill
    def prefill(self, pieces: Sequence[Piece]) -> Tensor:
        hidden = self._prefill_recorded(pieces) if self.records else self._prefill(pieces)
        return hidden[torch.tensor(list(accumulate(len(p.tokens) for p in pieces)), device=hidden.device) - 1]

    def states(self, tokens: Tensor) -> Tensor:
        pieces = [Piece(self._spare, tokens, 0)]
        return (self._prefill_recorded(pieces) if self.records else self._prefill(pieces))[: len(tokens)]

    def _prefill(self, pieces: Sequence[Piece]) -> Tensor:
        """Hidden states behind all tokens of the pieces. `-> [N, width]`"""
        device = self.cache.device
        packed = PackedRows([len(p.tokens) for p in pieces], device=device)
        tokens = torch.cat([p.tokens for p in pieces]).to(device)
        slots = torch.tensor([p.slot for p in pieces], device=device)[packed.rows]
        positions = packed.positions + torch.tensor([p.start for p in pieces], device=device)[packed.rows]

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer].unbind(0)
            keys[slots, :, positions] = turned[:, self.decoder.heads :]
            values[slots, :, positions] = value
            return self._attend_pieces(turned, keys, values, pieces)

        return self.decoder(tokens, positions, attend)

    def _prefill_recorded(self, pieces: Sequence[Piece]) -> Tensor:
        """In shapes of a few sizes, so that the host launches one graph: what is left over goes to the end of the spare slot.
        `-> [N or more, width]`"""
        sizes = [len(p.tokens) for p in pieces]
        blocks = [b for p, first in zip(pieces, accumulate(sizes, initial=0), strict=False) for b in _blocks(p, first)]
        size = _bucket(max(sum(sizes), (len(blocks) - SPARE_BLOCKS) * cache_kernels.PREFILL_BLOCK))
        flat = np.zeros((3, size), dtype=np.int64)
        flat[0, : sum(sizes)] = torch.cat([p.tokens for p in pieces]).numpy()
        flat[1], flat[2] = self._spare, self._max_length - 1
        for piece, first in zip(pieces, accumulate(sizes, initial=0), strict=False):
            part = slice(first, first + len(piece.tokens))
            flat[1, part], flat[2, part] = piece.slot, np.arange(piece.start, piece.start + len(piece.tokens))
        table = np.zeros((size // cache_kernels.PREFILL_BLOCK + SPARE_BLOCKS, 4), dtype=np.int64)
        table[: len(blocks)] = blocks
        stage = self._stage(size, table.shape[0])
        stage[0].copy_(torch.from_numpy(flat))
        stage[1].copy_(torch.from_numpy(table))
        return self._recorded(*stage)

    def _stage(self, size: int, num_blocks: int) -> tuple[Tensor, Tensor]:
        """Fixed memory from which a prefill of `size` tokens reads: tokens, slots, positions `[3, N]`, blocks `[b, 4]`."""
        if size not in self._stages:
            device = self.cache.device
            flat = torch.zeros((3, size), dtype=torch.int64, device=device)
            self._stages[size] = flat, torch.zeros((num_blocks, 4), dtype=torch.int64, device=device)
        return self._stages[size]

    def _prefill_blocks(self, flat: Tensor, blocks: Tensor) -> Tensor:
        tokens, slots, positions = flat.unbind(0)

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer].unbind(0)
            keys[slots, :, positions], values[slots, :, positions] = turned[:, self.decoder.heads :], value
            return cache_kernels.prefill_attention(  # type: ignore[no-any-return, no-untyped-call]
                turned, keys, values, blocks, scale=self.decoder.scale
            )

        return self.decoder(tokens, positions, attend)

    def _attend_pieces(self, turned: Tensor, keys: Tensor, values: Tensor, pieces: Sequence[Piece]) -> Tensor:
        heads, out, first = self.decoder.heads, [], 0
        for piece in pieces:
            size, end = len(piece.tokens), piece.start + len(piece.tokens)
            q = turned[first : first + size, :heads].transpose(0, 1)[None]
            k, v = keys[piece.slot : piece.slot + 1, :, :end], values[piece.slot : piece.slot + 1, :, :end]
            mask = None
            if piece.start:
                steps = torch.arange(end, device=k.device)
                mask = steps[None] <= steps[piece.start :, None]
            seen = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.decoder.scale, enable_gqa=True
            )
            out.append(seen[0].transpose(0, 1).reshape(size, -1))
            first += size
        return torch.cat(out)

    # ----------------------------------------------------------------------------------------------------------- decode
    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        if self.records:
            return self.decoder(tokens, positions, lambda i, r, v: self._attend_kernel(i, r, v, positions))
        if loops(self.cache):
            if (step := self._whole_step()) is not None:
                return step(tokens, positions)  # type: ignore[no-any-return]
            return self.decoder(tokens, positions, lambda i, r, v: self._attend_loop(i, r, v, positions))
        n = tokens.shape[0]
        mask = (torch.arange(longest) <= positions[:, None])[:, None, None]
        return self.decoder(tokens, positions, lambda i, r, v: self._attend(i, r, v, positions, mask, n, longest))

    def next_logits(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        if loops(self.cache) and self.decoder.head.value.numel() <= STEP_WEIGHTS and (step := self._whole_step()) is not None:
            return step.logits(tokens, positions)  # type: ignore[no-any-return]
        return self.logits(self.decode(tokens, positions, longest))

    def _attend_kernel(self, layer: int, turned: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        keys, values = self.cache[layer].unbind(0)
        return cache_kernels.decode_attention(  # type: ignore[no-any-return, no-untyped-call]
            turned, value, keys, values, positions, scale=self.decoder.scale
        )

    def _whole_step(self) -> Any:
        """All layers as one compiled loop (`DecodeStep`), for a small model; else None."""
        d = self.decoder
        if self._step is None and sum(w.numel() for layer in d.layers for w in layer.values() if w is not None) <= STEP_WEIGHTS:
            from runnel.ops.decode_loops import DecodeStep

            sizes, numbers = (d.heads, d.kv_heads, d.layers[0].down.value.shape[1]), (d.eps, d.scale)
            layers = [layer.values() for layer in d.layers]
            whole = (layers, d.embed.value, d.norm_out.value, d.head.value, d.tables, self.cache, sizes, numbers)
            self._step = DecodeStep(*whole)  # type: ignore[no-untyped-call]
        return self._step

    def _attend_loop(self, layer: int, turned: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        from runnel.ops import cache_loops

        keys, values = self.cache[layer].unbind(0)
        return cache_loops.decode_attention(  # type: ignore[no-any-return, no-untyped-call]
            turned, value, keys, values, positions, scale=self.decoder.scale
        )

    def _attend(
        self, layer: int, turned: Tensor, value: Tensor, positions: Tensor, mask: Tensor, n: int, longest: int
    ) -> Tensor:
        """The queries of a key-value head are the rows of one small matrix: keys are not repeated."""
        d = self.decoder
        keys, values = self.cache[layer].unbind(0)
        rows = self._rows[:n]
        keys[rows, :, positions], values[rows, :, positions] = turned[:, d.heads :], value
        q = turned[:, : d.heads].reshape(n, d.kv_heads, -1, d.head_dim)
        seen = scaled_dot_product_attention(q, keys[:n, :, :longest], values[:n, :, :longest], attn_mask=mask, scale=d.scale)
        return seen.reshape(n, -1)

    # ------------------------------------------------------------------------------------------------------------ slots
    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        self.cache[:, :, list(targets), :, :length] = self.cache[:, :, list(sources), :, :length]

    def refresh(self) -> None:
        self.decoder.refresh()
        self._recorded.forget()
        self._step = None

    def snapshot(self, num_slots: int, length: int) -> State:
        return {"cache": self.cache[:, :, :num_slots, :, :length].clone()}

    def restore(self, state: State) -> None:
        kept = state["cache"]
        self.cache[:, :, : kept.shape[2], :, : kept.shape[4]] = kept.to(self.cache.device)


def _blocks(piece: Piece, first: int) -> list[list[int]]:
    """What `prefill_attention` reads of a piece whose tokens start at `first`: first token, size, slot, position of blocks."""
    most, size = cache_kernels.PREFILL_BLOCK, len(piece.tokens)
    return [[first + i, min(most, size - i), piece.slot, piece.start + i] for i in range(0, size, most)]


def _bucket(size: int) -> int:
    """The next power of two, from 128 on."""
    return max(128, 1 << (size - 1).bit_length())


class ModuleRunner:
    """Runs the modules of a Hugging Face model; stands in for their cache (attention calls `update` and nothing else)."""

    records = False

    def __init__(self, model: Any, *, num_slots: int, max_length: int) -> None:
        self.model = model
        self._head = output_head(model)
        self._shape = (num_slots, max_length)
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._slots: tuple[Tensor, Tensor] | slice = slice(0, 0)
        self._span = (0, 0)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_output_embeddings().weight.device
        return device

    def prefill(self, pieces: Sequence[Piece]) -> Tensor:
        return torch.cat([self._prefill(piece) for piece in pieces])

    def _prefill(self, piece: Piece) -> Tensor:
        end = piece.start + len(piece.tokens)
        self._slots, self._span = slice(piece.slot, piece.slot + 1), (piece.start, end)
        steps = torch.arange(end, device=self._device)
        mask = (steps[None] <= steps[piece.start :, None])[None, None]
        return self._forward(piece.tokens[None], steps[None, piece.start :], mask)[:, -1]

    def states(self, tokens: Tensor) -> Tensor:
        return hidden_states(self.model, tokens[None].to(self._device))[0]

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        rows = torch.arange(tokens.shape[0], device=self._device)
        self._slots, self._span = (rows, positions), (0, longest)
        mask = torch.arange(longest, device=self._device) <= positions[:, None]
        return self._forward(tokens[:, None], positions[:, None], mask[:, None, None])[:, -1]

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        given = {"position_ids": positions, "attention_mask": hidden, "past_key_values": self}
        return hidden_states(self.model, tokens.to(self._device), **given)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store `[rows, kv_heads, q, head_dim]` and give back everything that attention may look at."""
        if layer_idx == len(self._layers):
            shape = (self._shape[0], key.shape[1], self._shape[1], key.shape[3])
            self._layers.append((key.new_zeros(shape), value.new_zeros(shape)))
        keys, values = self._layers[layer_idx]
        start, end = self._span
        if isinstance(self._slots, slice):
            keys[self._slots, :, start:end], values[self._slots, :, start:end] = key, value
            return keys[self._slots, :, :end], values[self._slots, :, :end]
        rows, positions = self._slots
        keys[rows, :, positions], values[rows, :, positions] = key.squeeze(2), value.squeeze(2)
        return keys[: len(rows), :, :end], values[: len(rows), :, :end]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).float()

    def next_logits(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        return self.logits(self.decode(tokens, positions, longest))

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        for part in (x for layer in self._layers for x in layer):
            part[list(targets), :, :length] = part[list(sources), :, :length]

    def refresh(self) -> None:
        """Modules read their own parameters."""

    def snapshot(self, num_slots: int, length: int) -> State:
        return {
            "keys": [k[:num_slots, :, :length].clone() for k, _ in self._layers],
            "values": [v[:num_slots, :, :length].clone() for _, v in self._layers],
        }

    def restore(self, state: State) -> None:
        self._layers = []
        for parts in zip(state["keys"], state["values"], strict=True):
            fresh = [p.new_zeros((self._shape[0], p.shape[1], self._shape[1], p.shape[3])) for p in parts]
            for whole, part in zip(fresh, parts, strict=True):
                whole[: part.shape[0], :, : part.shape[2]] = part
            self._layers.append((fresh[0], fresh[1]))
