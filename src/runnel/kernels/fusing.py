"""Long functions of small tensors, fused into few kernels where they are on a GPU.

A world in which thousands of small operations follow each other waits for launches, not for memory: at 16,384 worlds a step of
hide-and-seek has 2,600 of them. `torch.compile` makes one kernel of what lies between two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


class Fused(Generic[R]):
    """Calls `function(leaves)`; on a device of `devices` through `torch.compile`, in one graph for each set of shapes.

    Leaves are made contiguous before, because code is compiled for strides as it is for shapes, and that takes a minute or two.
    The first call on a device runs plainly: constants that the function keeps by device are there afterwards.
    """

    def __init__(
        self, function: Callable[[dict[str, Tensor]], R], *, devices: tuple[str, ...] = ("cuda",), backend: str = "inductor"
    ) -> None:
        self._function, self._devices, self._backend = function, devices, backend
        self._compiled: Callable[[dict[str, Tensor]], R] | None = None

    def __call__(self, leaves: Mapping[str, Tensor]) -> R:
        first = next(iter(leaves.values()))
        if first.device.type not in self._devices:
            return self._function(dict(leaves))
        given = {key: x.contiguous() for key, x in leaves.items()}
        if self._compiled is None:
            self._function(given)
            self._compiled = torch.compile(self._function, dynamic=False, fullgraph=True, backend=self._backend)
        return self._compiled(given)
