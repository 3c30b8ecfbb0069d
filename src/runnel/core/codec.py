"""States as JSON and named tensors, or as bytes, and back: what checkpoints and start states are made of. No pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import CheckpointError
from runnel.core.state import Plain, SealedChunk, State


def encode(value: object, tensors: dict[str, Tensor], sealed: dict[str, SealedChunk] | None = None) -> Plain:
    """JSON-ready data; tensors and arrays go to `tensors`, sealed pieces to `sealed`, and leave a name behind.

    >>> t = {}
    >>> encode({"a": torch.ones(1), 3: [1, None]}, t)
    {'$items': [['a', {'$tensor': 't0'}], [3, [1, None]]]}
    """
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous()
        return {"$tensor": name}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        name = f"t{len(tensors)}"
        # torch takes no negative strides and no read-only arrays: copy, in C order
        tensors[name] = torch.from_numpy(value.copy(order="C"))
        return {"$array": name}
    if isinstance(value, SealedChunk) and sealed is not None:
        sealed[value.name] = value
        return {"$frozen": value.name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        # JSON keys are texts, and "$" marks our own entries: other keys go into a list of pairs
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: encode(v, tensors, sealed) for k, v in value.items()}
        return {"$items": [[k, encode(v, tensors, sealed)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(v, tensors, sealed) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"a checkpoint holds data only; {type(value).__name__} is not (snapshot plain values instead)")


def decode(value: Plain, tensors: Mapping[str, Tensor], sealed: Callable[[str], SealedChunk] | None = None) -> Plain:
    """Undo `encode` (tuples come back as lists)."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$array" in value:
            return tensors[value["$array"]].numpy()
        if "$frozen" in value and sealed is not None:
            return sealed(value["$frozen"])
        if "$items" in value:
            return {k: decode(v, tensors, sealed) for k, v in value["$items"]}
        return {k: decode(v, tensors, sealed) for k, v in value.items()}
    if isinstance(value, list):
        return [decode(v, tensors, sealed) for v in value]
    return value


_TEXT, _HEADER = "plain", 8
"""Where the JSON stands in a file of safetensors, and the bytes that say how long its head is."""


def to_bytes(state: State) -> bytes:
    """A state as one file of safetensors, whose head has the JSON.

    >>> from_bytes(to_bytes({"x": np.ones(2), "n": 3}))
    {'x': array([1., 1.]), 'n': 3}
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(state, tensors))
    own = {name: x.clone() for name, x in tensors.items()}  # a file of safetensors holds none twice
    return bytes(save(own, metadata={_TEXT: text}))


def from_bytes(data: bytes) -> State:
    """Undo `to_bytes`. Raises a `ValueError` or a `KeyError` for other bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    size = int.from_bytes(data[:_HEADER], "little")
    try:
        text = json.loads(data[_HEADER : _HEADER + size])["__metadata__"][_TEXT]
        found: State = decode(json.loads(text), load(data))
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return found
