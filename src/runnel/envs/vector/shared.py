"""Memory that forked processes share, and messages between them.

The memory is anonymous, so the kernel frees it however a process ends. A step encodes nothing: arrays are written in place, and
one byte starts a step or reports its end. A message (a snapshot, an error) is JSON followed by the bytes of its arrays. Nothing
is pickled.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.framing import read_frame, write_frame
from runnel.core.records import Batch
from runnel.core.state import Array, Plain
from runnel.envs.vector.contract import StepOut

MOST_BYTES = 1 << 38
"""A snapshot of environments may be large: they may hold frames, maps or meshes."""


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros in memory that processes share which are forked later."""
    count = prod(shape)
    block = mmap.mmap(-1, (count + 1) * dtype.itemsize)  # one more, because `mmap` refuses an empty block
    return torch.frombuffer(block, dtype=dtype)[:count].view(shape)


def slice_out(out: StepOut, rows: slice) -> StepOut:
    """Views of some rows of `out`."""
    mask = None if out.action_mask is None else out.action_mask[rows]
    parts = (out.obs, out.final_obs, out.channels)
    obs, final, channels = (Batch({k: x[rows] for k, x in part.items()}) for part in parts)
    active = None if out.active is None else out.active[rows]
    task, following = (Batch({k: x[rows] for k, x in part.items()}) for part in (out.task, out.next_task))
    reward, terminated, truncated = out.reward[rows], out.terminated[rows], out.truncated[rows]
    return StepOut(obs, reward, terminated, truncated, final, [], mask, active, channels, task, following)


def send_message(fd: int, value: object) -> None:
    """Write plain data (numbers, strings, lists, dicts, arrays, tensors) into a pipe: a frame of JSON, then one of arrays."""
    arrays: list[Array] = []
    write_frame(fd, json.dumps(_encode(value, arrays)).encode())
    write_frame(fd, *(a.tobytes() for a in arrays), limit=MOST_BYTES)


def read_message(fd: int) -> Plain:
    """Read what `send_message` wrote. EOFError if the other side is gone."""
    head = json.loads(read_frame(fd))
    return _decode(head, memoryview(read_frame(fd, MOST_BYTES)))


def _encode(value: object, arrays: list[Array]) -> object:
    if isinstance(value, Tensor | np.ndarray):
        array = np.ascontiguousarray(value.numpy() if isinstance(value, Tensor) else value)
        if array.dtype.kind not in "biuf":
            raise DataError(f"a snapshot holds plain data only; an array of {array.dtype} is not")
        start = sum(a.nbytes for a in arrays)
        arrays.append(array)
        return {"$array": [array.dtype.str, list(np.shape(value)), start]}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {"$items": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(v, arrays) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"a snapshot holds plain data only; {type(value).__name__} is not (see get_state)")


def _decode(value: Plain, body: memoryview) -> Plain:
    if isinstance(value, dict):
        if "$items" in value:
            return {k: _decode(v, body) for k, v in value["$items"]}
        dtype, shape, start = value["$array"]
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(body, dtype, count, start).reshape(shape) if count else np.zeros(shape, dtype)
    return [_decode(v, body) for v in value] if isinstance(value, list) else value
