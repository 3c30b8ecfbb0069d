"""Rows as bytes and back, between processes: a JSON header of names, types and shapes, then the arrays. Nothing is pickled."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch

_ALIGN = 16


_HOST: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.bfloat16: None,
}
"""Types that can be sent, with their numpy types: numpy's views cost a fifth of torch's."""


_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _HOST}


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


Leaf = tuple[str, torch.dtype, tuple[int, ...]]


class MessageLayout(NamedTuple):
    """Layout of a message: its first bytes, (start, stop) of each leaf, and its total size."""

    head: Bytes
    leaves: tuple[Leaf, ...]
    places: tuple[tuple[int, int], ...]
    size: int


def pack(rows: Batch, out: Bytes, name: str) -> int:
    """Write `rows` into `out`: a length, a JSON header of names, types and shapes, then the arrays. Returns the bytes."""
    layout = _layout(tuple((k, v.dtype, v.shape) for k, v in rows.items()))
    if layout.size > len(out):
        raise ConfigError(f"{name}.max_bytes", len(out), f"a message takes {layout.size} bytes; use at least that")
    out[: len(layout.head)] = layout.head
    for value, (start, stop) in zip(rows.values(), layout.places, strict=True):
        kind = _HOST[value.dtype]
        if kind is not None:
            out[start:stop].view(kind).reshape(value.shape)[...] = value.numpy(force=True)
        elif stop > start:
            out[start:stop] = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return layout.size


def packed(rows: Batch, max_bytes: int = 1 << 62, name: str = "") -> Bytes:
    """`pack` into new memory; a message of more than `max_bytes` is an error."""
    size = _layout(tuple((k, v.dtype, v.shape) for k, v in rows.items())).size
    out = np.empty(min(size, max_bytes), np.uint8)
    pack(rows, out, name)
    return out


def unpack(data: Bytes, size: int) -> Batch:
    """Undo `pack`; the tensors own their memory."""
    length = int(data[:8].view(np.int64)[0])
    layout = _parse(data[8 : 8 + length].tobytes())
    # One copy for all leaves: the mailbox that `data` views is used again at once.
    body, rows = data[:size].copy(), Batch()
    for (key, dtype, shape), (start, stop) in zip(layout.leaves, layout.places, strict=True):
        kind = _HOST[dtype]
        raw = body[start:stop]
        whole = torch.from_numpy(raw).view(dtype) if kind is None else torch.from_numpy(raw.view(kind))
        rows[key] = whole.view(shape)
    return rows


@lru_cache(maxsize=1024)
def _layout(leaves: tuple[Leaf, ...]) -> MessageLayout:
    """The layout for some leaves. Cached, because a sampler sends the same shapes at every step."""
    header = json.dumps([[k, str(dtype).removeprefix("torch."), list(shape)] for k, dtype, shape in leaves]).encode()
    return _place(header, leaves)


@lru_cache(maxsize=1024)
def _parse(header: bytes) -> MessageLayout:
    return _place(header, tuple((k, _NAMES[dtype], tuple(shape)) for k, dtype, shape in json.loads(header)))


def _place(header: bytes, leaves: tuple[Leaf, ...]) -> MessageLayout:
    at, places = _aligned(8 + len(header)), []
    for _, dtype, shape in leaves:
        size = math.prod(shape) * dtype.itemsize
        places.append((at, at + size))
        at += _aligned(size)
    head = np.frombuffer(np.int64(len(header)).tobytes() + header, np.uint8)
    return MessageLayout(head, leaves, tuple(places), at)


def _aligned(num: int) -> int:
    return -(-num // _ALIGN) * _ALIGN
