"""The model's side of an engine: prompts and tokens in, hidden states out, keys and values kept by slot.

`DecoderRunner` runs our own decoder (Llama-like models), on CUDA with Triton kernels that can be recorded in a graph.
Other decoder-only Hugging Face models run through their own modules (`module_runners.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from runnel.core.memory import check_room
from runnel.core.state import State
from runnel.kernels.graphs import CudaGraphed
from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import cache_kernels
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.decoder import Decoder
from runnel.llm.model.lora import Adapters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STEP_WEIGHTS = 1 << 22
"""Weights of all layers up to which the host decodes in one loop: then they stay in a processor's cache."""
SPARE_BLOCKS = 64
"""Extra entries in the table of blocks: each chunk may end in a block that is not full."""


@dataclass(frozen=True)
class PromptChunk:
    """Tokens of one prompt that come next in slot `slot`, from position `start` on."""

    slot: int
    tokens: Tensor
    start: int


class Runner(Protocol):
    """Computes hidden states of tokens whose past is in the slots of a cache."""

    records: bool
    """Whether `decode` may be captured in a CUDA graph."""
    batches: bool
    """Whether rows run side by side."""
    continues: bool
    """Whether a chunk costs only its own tokens, wherever in a slot it starts."""

    def prefill(self, chunks: Sequence[PromptChunk]) -> Tensor:
        """Put the chunks into the cache; return the hidden state of each chunk's last token. `-> [chunks, width]`"""
        ...

    def states(self, tokens: Tensor) -> Tensor:
        """Hidden states of a row that has no slot, and is shorter than one; the slots do not change. `[n] -> [n, width]`"""
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
        """Copy the first `length` positions of slots `sources` to slots `targets`."""
        ...

    def refresh(self) -> None:
        """The addresses of the model's parameters have changed."""
        ...

    def adapt(self, adapters: Adapters | None, *, bind: bool) -> bool:
        """Use these adapters (None removes all); with `bind`, use their memory. Returns whether captured graphs have become
        invalid."""
        ...

    def snapshot(self, num_slots: int, length: int) -> State: ...

    def restore(self, state: State) -> None: ...


def make_runner(model: PreTrainedModel, *, num_slots: int, max_length: int) -> Runner:
    """The fastest runner that knows `model`."""
    decoder = Decoder.of(model)
    if decoder is not None:
        return DecoderRunner(decoder, num_slots=num_slots, max_length=max_length)
    from runnel.llm.engines.module_runners import ModuleRunner, RowRunner, keeps_keys_alone

    kind = ModuleRunner if keeps_keys_alone(model) else RowRunner
    return kind(model, num_slots=num_slots, max_length=max_length)


class DecoderRunner:
    """Runs a `Decoder` over a cache `[layers, 2, slots, kv_heads, length, head_dim]` that is allocated once."""

    batches = continues = True

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
        self._graphed = CudaGraphed(self._prefill_blocks, name="a prefill")
        self._step: Any = None
        self._adapters: Adapters | None = None
        """Adapters in this runner's own memory."""

    # ---------------------------------------------------------------------------------------------------------- prefill
    def prefill(self, chunks: Sequence[PromptChunk]) -> Tensor:
        hidden = self._prefill_graphed(chunks) if self.records else self._prefill(chunks)
        return hidden[torch.tensor(list(accumulate(len(p.tokens) for p in chunks)), device=hidden.device) - 1]

    def states(self, tokens: Tensor) -> Tensor:
        chunks = [PromptChunk(self._spare, tokens, 0)]
        return (self._prefill_graphed(chunks) if self.records else self._prefill(chunks))[: len(tokens)]

    def _prefill(self, chunks: Sequence[PromptChunk]) -> Tensor:
        """Hidden states behind all tokens of the chunks. `-> [N, width]`"""
        device = self.cache.device
        packed = PackedRows([len(p.tokens) for p in chunks], device=device)
        tokens = torch.cat([p.tokens for p in chunks]).to(device)
        slots = torch.tensor([p.slot for p in chunks], device=device)[packed.rows]
        positions = packed.positions + torch.tensor([p.start for p in chunks], device=device)[packed.rows]

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer].unbind(0)
            keys[slots, :, positions] = turned[:, self.decoder.heads :]
            values[slots, :, positions] = value
            return self._attend_chunks(turned, keys, values, chunks)

        return self.decoder(tokens, positions, attend)

    def _prefill_graphed(self, chunks: Sequence[PromptChunk]) -> Tensor:
        """`_prefill` in a few fixed sizes, so that the host launches one graph. `-> [N or more, width]`

        Padding tokens are written to the last position of the spare slot, which no row reads.
        """
        sizes = [len(p.tokens) for p in chunks]
        blocks = [b for p, first in zip(chunks, accumulate(sizes, initial=0), strict=False) for b in _blocks(p, first)]
        least = max(sum(sizes), (len(blocks) - SPARE_BLOCKS) * cache_kernels.PREFILL_BLOCK)
        size = max(128, 1 << (least - 1).bit_length())  # the next power of two, so that there are few graphs
        flat = np.zeros((3, size), dtype=np.int64)
        flat[0, : sum(sizes)] = torch.cat([p.tokens for p in chunks]).numpy()
        flat[1], flat[2] = self._spare, self._max_length - 1
        for chunk, first in zip(chunks, accumulate(sizes, initial=0), strict=False):
            part = slice(first, first + len(chunk.tokens))
            flat[1, part], flat[2, part] = chunk.slot, np.arange(chunk.start, chunk.start + len(chunk.tokens))
        table = np.zeros((size // cache_kernels.PREFILL_BLOCK + SPARE_BLOCKS, 4), dtype=np.int64)
        table[: len(blocks)] = blocks
        stage = self._stage(size, table.shape[0])
        stage[0].copy_(torch.from_numpy(flat))
        stage[1].copy_(torch.from_numpy(table))
        return self._graphed(*stage)

    def _stage(self, size: int, num_blocks: int) -> tuple[Tensor, Tensor]:
        """Fixed memory that a prefill of `size` tokens reads: tokens, slots, positions `[3, N]`, blocks `[b, 4]`."""
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

    def _attend_chunks(self, turned: Tensor, keys: Tensor, values: Tensor, chunks: Sequence[PromptChunk]) -> Tensor:
        heads, out, first = self.decoder.heads, [], 0
        for chunk in chunks:
            size, end = len(chunk.tokens), chunk.start + len(chunk.tokens)
            q = turned[first : first + size, :heads].transpose(0, 1)[None]
            k, v = keys[chunk.slot : chunk.slot + 1, :, :end], values[chunk.slot : chunk.slot + 1, :, :end]
            mask = None
            if chunk.start:
                steps = torch.arange(end, device=k.device)
                mask = steps[None] <= steps[chunk.start :, None]
            seen = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.decoder.scale, enable_gqa=True
            )
            out.append(seen[0].transpose(0, 1).reshape(size, -1))
            first += size
        return torch.cat(out)

    # ----------------------------------------------------------------------------------------------------------- decode
    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        if self.records:
            return self._decode_with(cache_kernels, tokens, positions)
        if not loops(self.cache):
            return self._decode_in_torch(tokens, positions, longest)
        if (step := self._whole_step()) is not None:
            return step(tokens, positions)  # type: ignore[no-any-return]
        from runnel.kernels.lm.numba import cache_loops

        return self._decode_with(cache_loops, tokens, positions)

    def next_logits(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        if loops(self.cache) and self.decoder.head.value.numel() <= STEP_WEIGHTS and (step := self._whole_step()) is not None:
            return step.logits(tokens, positions)  # type: ignore[no-any-return]
        return self.logits(self.decode(tokens, positions, longest))

    def _whole_step(self) -> Any:
        """All layers in one compiled loop (`DecodeStep`) for a small model, else None. The loop supports plain weights only;
        with adapters, the decoder runs layer by layer in the code that the learner differentiates."""
        d = self.decoder
        if d.adapters:
            return None
        if self._step is None and sum(w.numel() for layer in d.layers for w in layer.values() if w is not None) <= STEP_WEIGHTS:
            from runnel.kernels.lm.numba.decode_loops import DecodeStep

            sizes, numbers = (d.heads, d.kv_heads, d.layers[0].down.value.shape[1]), (d.eps, d.scale)
            layers = [layer.values() for layer in d.layers]
            whole = (layers, d.embed.value, d.norm_out.value, d.head.value, d.tables, self.cache, sizes, numbers)
            self._step = DecodeStep(*whole)  # type: ignore[no-untyped-call]
        return self._step

    def _decode_with(self, kernels: ModuleType, tokens: Tensor, positions: Tensor) -> Tensor:
        """A decode step with the compiled attention of `kernels`."""

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer].unbind(0)
            seen: Tensor = kernels.decode_attention(turned, value, keys, values, positions, scale=self.decoder.scale)
            return seen

        return self.decoder(tokens, positions, attend)

    def _decode_in_torch(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """A decode step in torch. Queries of one key-value head form the rows of a small matrix, so that keys are not
        repeated."""
        d, n = self.decoder, len(tokens)
        mask = (torch.arange(longest) <= positions[:, None])[:, None, None]

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer].unbind(0)
            rows = self._rows[:n]
            keys[rows, :, positions], values[rows, :, positions] = turned[:, d.heads :], value
            q = turned[:, : d.heads].reshape(n, d.kv_heads, -1, d.head_dim)
            keys, values = keys[:n, :, :longest], values[:n, :, :longest]
            return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=d.scale).reshape(n, -1)

        return d(tokens, positions, attend)

    # ------------------------------------------------------------------------------------------------------------ slots
    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        self.cache[:, :, list(targets), :, :length] = self.cache[:, :, list(sources), :, :length]

    def refresh(self) -> None:
        self.decoder.refresh()
        self.decoder.join_adapters()
        self._graphed.forget()
        self._step = None

    def adapt(self, adapters: Adapters | None, *, bind: bool) -> bool:
        known = self.decoder.adapters
        if adapters is None and not known:
            return False
        if adapters is not None and bind:
            if known.keys() == adapters.tensors.keys() and all(
                known[name].data_ptr() == value.data_ptr() for name, value in adapters.tensors.items()
            ):
                self.decoder.join_adapters()
                return False
            self._adapters = None
        elif adapters is not None:
            if self._adapters is not None and self._adapters.copy_from(adapters):  # in place, so captured graphs stay valid
                self.decoder.join_adapters()
                return False
            weight = self.decoder.embed.value
            self._adapters = adapters = adapters.own(dtype=weight.dtype, device=weight.device)
        self.decoder.adapt({} if adapters is None else adapters.tensors, 1.0 if adapters is None else adapters.scale)
        self.decoder.join_adapters()
        self._graphed.forget()
        self._step = None
        return True

    def snapshot(self, num_slots: int, length: int) -> State:
        return {"cache": self.cache[:, :, :num_slots, :, :length].clone()}

    def restore(self, state: State) -> None:
        kept = state["cache"]
        self.cache[:, :, : kept.shape[2], :, : kept.shape[4]] = kept.to(self.cache.device)


def _blocks(chunk: PromptChunk, first: int) -> list[list[int]]:
    """The blocks of a chunk whose tokens start at `first`, for `prefill_attention`: first token, size, slot, position."""
    most, size = cache_kernels.PREFILL_BLOCK, len(chunk.tokens)
    return [[first + i, min(most, size - i), chunk.slot, chunk.start + i] for i in range(0, size, most)]
