"""Put all parameters of a module into one vector, in which matrices that are multiplied together are neighbours.

Query, key and value projections of a layer are next to each other, and so are gate and up. Engine and learner read neighbours
as one matrix, while the module keeps its own parameters in the same memory. An engine in the learner's process therefore uses a
new version without a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

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

    In each module, matrices come before vectors, each in the module's own order.
    """
    own, first = packed_parameters(model), next(iter(model.parameters()))
    kind, place = dtype or first.dtype, torch.device(device) if device is not None else first.device
    vector = pack_tensors({name: p for name, p in own.items() if names is None or name in names}, dtype=kind, device=place)
    if device is not None:
        model.to(place)  # for the buffers: the parameters are there already
    return vector


def packed(model: nn.Module, *, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """The vector of `pack`. If the parameters are packed already, nothing is copied, so others may share their memory. `[P]`"""
    tensors, place = [p.data for p in packed_parameters(model).values()], torch.device(device)
    first = tensors[0]
    same_place = first.device.type == place.type and place.index in (None, first.device.index)
    if same_place and first.dtype == dtype and is_joined(tensors):
        vector: Tensor = torch.as_strided(first, (sum(t.numel() for t in tensors),), (1,))
        return vector
    return pack(model, dtype=dtype, device=device)


def pack_tensors(tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Move named tensors into one vector, one after the other; they become views of it. `[P]`"""
    vector = torch.empty(sum(t.numel() for t in tensors.values()), dtype=dtype, device=device)
    with torch.no_grad():
        for tensor, view in zip(tensors.values(), split_like(vector, tensors).values(), strict=True):
            view.copy_(tensor)
            tensor.data = view
    return vector


def split_like(vector: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of a vector by name, in the shapes of `tensors`, one after the other."""
    flat = torch.split(vector, [t.numel() for t in tensors.values()])
    return {name: x.view(t.shape) for (name, t), x in zip(tensors.items(), flat, strict=True)}


def packed_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, in the order of `pack`."""

    def owner(item: tuple[str, nn.Parameter]) -> str:
        return item[0].rsplit(".", 2)[0] if item[0].count(".") >= 2 else ""

    out: dict[str, nn.Parameter] = {}
    for _, group in groupby(model.named_parameters(), key=owner):
        out |= sorted(group, key=lambda item: item[1].dim() < 2)
    return out


def is_joined(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors follow each other in one storage."""
    ends = [t.data_ptr() + t.numel() * t.element_size() for t in tensors]
    neighbours = all(end == t.data_ptr() for end, t in zip(ends[:-1], tensors[1:], strict=True))
    # neighbouring addresses are not enough: an allocator may place two storages side by side
    one_storage = len({t.untyped_storage().data_ptr() for t in tensors}) <= 1
    return neighbours and all(t.is_contiguous() for t in tensors) and one_storage


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Neighbours in memory as one tensor along the first dim, without a copy. `[a, W], [b, W] -> [a + b, W]`"""
    first = tensors[0]
    rows = sum(t.shape[0] for t in tensors)
    whole: Tensor = torch.as_strided(first, (rows, *first.shape[1:]), first.stride())
    return whole


def parameters_of(module: nn.Module, names: Sequence[str], kind: str) -> list[Tensor]:
    """The parameter `kind` (weight, bias) of each named submodule of `module` that has one."""
    found = [getattr(getattr(module, name), kind, None) for name in names]
    return [p.data for p in found if p is not None]
