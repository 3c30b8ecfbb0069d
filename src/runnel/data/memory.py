"""Where large arrays live: in memory, or, above a limit, in a file without a name that is mapped into memory.

Neither takes room before it is written to: fresh pages of memory, and the holes of a file, cost nothing. The file has no name
from the start, so however the process ends, the kernel takes it back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.memory import free_memory

Array = NDArray[Any]


class Memory:
    """Gives out zeroed arrays for something of `num_bytes` in all; from `mmap_bytes` on they are files in `folder`."""

    def __init__(self, num_bytes: int, *, mmap_bytes: int, folder: str = "") -> None:
        self.num_bytes, self.mapped = num_bytes, num_bytes >= mmap_bytes
        self.folder = folder or tempfile.gettempdir()

    def check(self, field: str, value: int) -> None:
        """Refuse what does not fit, and say which `value` of `field` would."""
        room = shutil.disk_usage(self.folder).free if self.mapped else free_memory()
        if self.num_bytes <= room:
            return
        fits = int(room * 0.9 / self.num_bytes * value)
        other = "" if self.mapped else ", or set replay.mmap_bytes lower to keep it in a file"
        where = f"the disk of {self.folder}" if self.mapped else "memory"
        needs = f"needs {self.num_bytes / 2**30:.1f} GiB, and {where} has {room / 2**30:.1f} GiB free"
        raise ConfigError(field, value, f"{needs}; use at most {fits}{other}")

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A zeroed array."""
        size = int(np.prod(shape))
        if not self.mapped or size == 0:
            return np.zeros(shape, dtype)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            os.ftruncate(file.fileno(), size * dtype.itemsize)
            return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
