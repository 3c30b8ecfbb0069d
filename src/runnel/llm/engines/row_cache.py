"""The past of one row in transformers' own cache, whatever a family keeps there: keys, windows, states."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from runnel.core.state import State
from runnel.llm.model.causal_lm import body_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAMES = ("past_key_values", "cache_params")
"""What families call the argument that takes a cache."""


UNCACHED = ("bamba", "git", "minimax", "nemotron_h", "recurrent_gemma", "zamba2")
"""Families whose forward pass with transformers' cache gives other numbers than without (transformers 5.22), or that keep their
state elsewhere. A row of theirs runs whole again for each token."""


def cache_argument(model: PreTrainedModel) -> str | None:
    """The argument by which the body of `model` takes transformers' cache; None where it has none that can be used."""
    if model.config.model_type in UNCACHED:
        return None
    takes = inspect.signature(body_of(model).forward).parameters
    return next((name for name in NAMES if name in takes), None)


class RowCache:
    """A row of tokens and what `model` keeps of it."""

    def __init__(self, model: PreTrainedModel) -> None:
        from transformers import DynamicCache

        self.tokens: list[int] = []
        self._model, self._name = model, cache_argument(model)
        self._cache = DynamicCache(config=model.config)

    def run(self, module: PreTrainedModel, tokens: Sequence[int]) -> Any:
        """What `module`, the model or its body, gives for the next `tokens`."""
        device = next(self._model.parameters()).device
        self.tokens += tokens
        if self._name is None:  # all of the row again
            return module(input_ids=torch.tensor([self.tokens], device=device))
        given = {self._name: self._cache}
        return module(input_ids=torch.tensor([list(tokens)], device=device), use_cache=True, **given)

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """The last hidden state behind the next `tokens`. `-> [1, width]`"""
        out: Tensor = self.run(body_of(self._model), tokens).last_hidden_state[:, -1]
        return out

    def copy(self) -> RowCache:
        twin = copy.copy(self)
        twin.tokens, twin._cache = list(self.tokens), copy.deepcopy(self._cache)
        return twin

    # ----------------------------------------------------------------------------------------------------------- state
    def state(self) -> State:
        """The tokens, and what the layers of the cache hold, as plain data."""
        return {"tokens": list(self.tokens), "layers": [_held(vars(layer)) for layer in self._cache.layers]}

    @classmethod
    def of(cls, model: PreTrainedModel, state: State) -> Self:
        row = cls(model)
        row.tokens = list(state["tokens"])
        like = next(model.parameters())
        for layer, held in zip(row._cache.layers, state["layers"], strict=True):
            vars(layer).update({"dtype": like.dtype, "device": like.device}, **_given(held, like.device))
        return row


def _held(value: Any) -> Any:
    """A copy of what can be saved: a dictionary as a list of its items, because keys may be numbers."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return [[key, _held(x)] for key, x in value.items() if isinstance(x, Tensor | dict | bool | int | None)]
    return value


def _given(value: Any, device: torch.device) -> Any:
    """The reverse of `_held`."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, list):
        return {key: _given(x, device) for key, x in value}
    return value
