"""Finds, without a GPU, what a CUDA graph could not record: waits of the host for the device, and constants made meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "bincount", "equal", "is_nonzero")
_COPIES = ("lift_fresh", "lift_fresh_copy")
"""What `torch.tensor(...)` calls: its numbers would come from pageable memory of the host."""


class Recorded(TorchDispatchMode):
    """Inside, an operation whose kernels or shapes depend on what a tensor holds raises an `AssertionError`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in _WAITS, f"{name} waits for the device"
        assert name not in _COPIES, "a constant tensor is made on the way; make it before the first call"
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{name} by a mask waits for the device"
        if name == "repeat_interleave":
            assert (kwargs or {}).get("output_size") is not None, "repeat_interleave by a tensor waits for the device"
        return func(*args, **(kwargs or {}))
