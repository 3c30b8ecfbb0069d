"""Runners for models that the decoder does not know: they use the model's own modules and masks.

`ModuleRunner` is for models that keep only keys and values of the past. Rows of any length run side by side, aligned at their
newest token, as transformers pads a batch for generation. `RowRunner` is for models that keep something else (states of Mamba,
convolutions, an index of keys). Each row has a cache of transformers and runs alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from runnel.core.state import State
from runnel.llm.engines.row_cache import RowCache, cache_argument
from runnel.llm.engines.runners import PromptChunk, Runner
from runnel.llm.model.causal_lm import body_of, hidden_states, output_head
from runnel.llm.model.lora import Adapters, MergedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def keeps_keys_alone(model: PreTrainedModel) -> bool:
    """Whether `model` keeps only keys and values of the past, in every layer."""
    if cache_argument(model) != "past_key_values":
        return False
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in new_cache(model).layers)


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache as transformers makes it for `model`."""
    return DynamicCache(config=model.config)


@dataclass
class _Pass:
    """The tokens of the current pass; all layers read it."""

    num_slots: int
    max_length: int
    rows: slice | Tensor = field(default_factory=lambda: slice(0, 0))
    """The slot of a prompt chunk, or the slots of all rows that decode `[n]`."""
    past: int = 0
    """Columns before the new tokens."""
    columns: Tensor | None = None
    """Positions in each slot that attention reads `[n, L]`; None while one prompt chunk is processed."""


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer in all slots, `[slots, kv_heads, length, head_dim]` each.

    All positions are kept even if the layer has a window: the model's own mask hides those outside of it.
    """

    is_sliding = False

    def __init__(self, now: _Pass) -> None:
        super().__init__()
        self._now = now

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        size = (self._now.num_slots, key_states.shape[1], self._now.max_length)
        self.keys = key_states.new_zeros((*size, key_states.shape[3]))
        self.values = value_states.new_zeros((*size, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Store `[rows, kv_heads, q, head_dim]` and return everything that attention may read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._put(self.keys, key_states), self._put(self.values, value_states)

    def _put(self, held: Tensor, new: Tensor) -> Tensor:
        now = self._now
        if now.columns is None:
            end = now.past + new.shape[2]
            held[now.rows, :, now.past : end] = new
            return held[now.rows, :, :end].contiguous()
        held[now.rows, :, now.columns[:, -1]] = new.squeeze(2)
        heads = torch.arange(held.shape[1], device=held.device)[:, None]
        return held[now.rows[:, None, None], heads, now.columns.clamp(min=0)[:, None]]  # type: ignore[index]

    def get_seq_length(self) -> int:
        return self._now.past

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._now.past + query_length, 0

    def get_max_length(self) -> int:
        return -1


class _TransformersRunner(Runner):
    """A runner whose weights, masks and output head are those of the model's own modules."""

    records = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._merged = MergedModel(model)
        self._head = output_head(model)

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def prefill(self, chunks: Sequence[PromptChunk]) -> Tensor:
        return torch.cat([self._prefill(chunk) for chunk in chunks])

    def _prefill(self, chunk: PromptChunk) -> Tensor:
        raise NotImplementedError

    def states(self, tokens: Tensor) -> Tensor:
        return hidden_states(self.model, tokens[None].to(self._device))[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).float()

    def next_logits(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        return self.logits(self.decode(tokens, positions, longest))

    def refresh(self) -> None:
        """Nothing to do: modules read their own parameters."""

    def adapt(self, adapters: Adapters | None, *, bind: bool) -> bool:
        self._merged.load(adapters)
        return False


class ModuleRunner(_TransformersRunner):
    """Runs the modules of a Hugging Face model over slots of keys and values; transformers makes the masks."""

    batches = continues = True

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_length: int) -> None:
        super().__init__(model)
        self._now = _Pass(num_slots, max_length)
        self._cache = self._empty_cache()
        self._takes = inspect.signature(body_of(model).forward).parameters

    def _empty_cache(self) -> Cache:
        return Cache(layers=[_SlotLayer(self._now) for _ in new_cache(self.model).layers])

    def _prefill(self, chunk: PromptChunk) -> Tensor:
        end = chunk.start + len(chunk.tokens)
        self._now.rows, self._now.past, self._now.columns = slice(chunk.slot, chunk.slot + 1), chunk.start, None
        steps = torch.arange(end, device=self._device)[None]
        return self._forward(chunk.tokens[None], steps[:, chunk.start :], torch.ones_like(steps))[:, -1]

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Rows are aligned at their newest token, which is the last column; a short row has unseen columns before it."""
        now = self._now
        now.rows, now.past = torch.arange(len(tokens), device=self._device), longest - 1
        columns = positions[:, None] + torch.arange(1 - longest, 1, device=self._device)
        now.columns = columns
        return self._forward(tokens[:, None], positions[:, None], (columns >= 0).long())[:, -1]

    def _forward(self, tokens: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        given = {"position_ids": positions, "attention_mask": seen, "past_key_values": self._cache}
        given = {name: value for name, value in given.items() if name in self._takes}
        return hidden_states(self.model, tokens.to(self._device), **given)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        for held in (x for layer in self._cache.layers if layer.is_initialized for x in (layer.keys, layer.values)):
            held[list(targets), :, :length] = held[list(sources), :, :length]

    def snapshot(self, num_slots: int, length: int) -> State:
        made = [layer for layer in self._cache.layers if layer.is_initialized]
        return {
            "keys": [layer.keys[:num_slots, :, :length].clone() for layer in made],
            "values": [layer.values[:num_slots, :, :length].clone() for layer in made],
        }

    def restore(self, state: State) -> None:
        self._cache = self._empty_cache()
        for layer, key, value in zip(self._cache.layers, state["keys"], state["values"], strict=False):
            layer.lazy_initialization(key.to(self._device), value.to(self._device))
            layer.keys[: key.shape[0], :, : key.shape[2]] = key
            layer.values[: value.shape[0], :, : value.shape[2]] = value


class RowRunner(_TransformersRunner):
    """Runs a model that keeps more of the past than keys and values: one row at a time, each with a cache of transformers.

    Such a cache cannot be cut back or filled in chunks. A prompt that arrives in chunks is therefore computed from its start
    with each chunk, and a row decodes only if its newest token is the next one.
    """

    batches = continues = False

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_length: int) -> None:
        super().__init__(model)
        self._rows = [RowCache(model) for _ in range(num_slots)]

    def _prefill(self, chunk: PromptChunk) -> Tensor:
        before = self._rows[chunk.slot].tokens[: chunk.start]
        row = self._rows[chunk.slot] = RowCache(self.model)
        return row.hidden([*before, *chunk.tokens.tolist()])

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        out: list[Tensor | None] = []
        for row, token, position in zip(self._rows, tokens.tolist(), positions.tolist(), strict=False):  # the first n rows
            out.append(row.hidden([token]) if len(row.tokens) == position else None)
        like = next(h for h in out if h is not None)
        return torch.cat([torch.zeros_like(like) if h is None else h for h in out])

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        kept = [self._rows[source].copy() for source in sources]
        for target, row in zip(targets, kept, strict=True):
            self._rows[target] = row

    def snapshot(self, num_slots: int, length: int) -> State:
        return {"rows": [row.state() for row in self._rows[:num_slots]]}

    def restore(self, state: State) -> None:
        for index, data in enumerate(state["rows"]):
            self._rows[index] = RowCache.of(self.model, data)
