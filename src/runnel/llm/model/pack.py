"""All parameters of a module in one vector, neighbours where they are multiplied together.

Query, key and value projections of a layer lie one after the other, and so do gate and up: whoever computes them at once (the
engine, the learner) sees one matrix, while the module keeps its own parameters in the same memory. Nothing is copied when a
learner's new version is used by an engine beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn


def pack(
    model: nn.Module,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    names: Collection[str] | None = None,
) -> Tensor:
    """Move the parameters of `model` (or those of `names`) into one vector and return it; they become views of it. `[P]`

    Under one module, matrices come before vectors, each in the module's own order.
    """
    own = dict(model.named_parameters())
    names = [name for name in packed_order(model) if names is None or name in names]
    first = next(iter(own.values()))
    kind, place = dtype or first.dtype, torch.device(device) if device is not None else first.device
    vector = pack_tensors({name: own[name] for name in names}, dtype=kind, device=place)
    if device is not None:
        model.to(place)  # buffers; the parameters are there
    return vector


def packed(model: nn.Module, *, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """`pack`, where the parameters do not lie so already: then nothing is copied, and others that read them still do. `[P]`"""
    own, first = dict(model.named_parameters()), next(iter(model.parameters()))
    parts, place = [own[name].data for name in packed_order(model)], torch.device(device)
    same_place = first.device.type == place.type and place.index in (None, first.device.index)
    if same_place and first.dtype == dtype and is_joined(parts):
        whole: Tensor = torch.as_strided(parts[0], (sum(p.numel() for p in parts),), (1,))
        return whole
    return pack(model, dtype=dtype, device=device)


def pack_tensors(tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Named tensors one after the other in one vector; their memory is there from now on. `[P]`"""
    vector = torch.empty(sum(t.numel() for t in tensors.values()), dtype=dtype, device=device)
    with torch.no_grad():
        for tensor, part in zip(tensors.values(), split_like(vector, tensors).values(), strict=True):
            part.copy_(tensor)
            tensor.data = part
    return vector


def split_like(vector: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parts of a vector in the shapes of `tensors`, which lie in it one after the other, by their names."""
    parts = torch.split(vector, [t.numel() for t in tensors.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(tensors.items(), parts, strict=True)}


def packed_order(model: nn.Module) -> list[str]:
    """Names of the parameters in the order of `pack`."""
    named = [(name, p.dim()) for name, p in model.named_parameters()]

    def owner(item: tuple[str, int]) -> str:
        return item[0].rsplit(".", 2)[0] if item[0].count(".") >= 2 else ""

    out: list[str] = []
    for _, group in groupby(named, key=owner):
        out += [name for name, _ in sorted(group, key=lambda item: item[1] < 2)]
    return out


def is_joined(parts: Sequence[Tensor]) -> bool:
    """Whether tensors lie one after the other in one piece of memory (an allocator may put separate pieces side by side)."""
    ends = [p.data_ptr() + p.numel() * p.element_size() for p in parts]
    neighbours = all(e == p.data_ptr() for e, p in zip(ends[:-1], parts[1:], strict=True))
    return neighbours and all(p.is_contiguous() for p in parts) and len({p.untyped_storage().data_ptr() for p in parts}) <= 1


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Neighbours in memory as one tensor along the first dim, without a copy. `[a, W], [b, W] -> [a + b, W]`"""
    first = parts[0]
    rows = sum(p.shape[0] for p in parts)
    whole: Tensor = torch.as_strided(first, (rows, *first.shape[1:]), first.stride())
    return whole


def parameters_of(module: Any, names: Sequence[str], kind: str) -> list[Tensor]:
    """The parameter `kind` (weight, bias) of each named part of `module`, those that there are."""
    found = [getattr(getattr(module, name), kind, None) for name in names]
    return [p.data for p in found if p is not None]
