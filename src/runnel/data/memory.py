"""Allocates large arrays: in memory or, above a limit, in a mapped file without a name.

Neither takes room before it is written: fresh pages of memory and holes of a file cost nothing. The file never has a name, so
the kernel frees it however the process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from runnel.core.disk import told_if_refused
from runnel.core.errors import ConfigError
from runnel.core.memory import free_memory
from runnel.core.state import Array

AHEAD = 8 << 20
"""Bytes of a mapped file for which disk blocks are reserved at once."""
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE of Linux on x86 and ARM, which Python's `mmap` has no name for: the kernel sets nothing aside for the pages."""


class Memory:
    """Allocates zeroed arrays of `num_bytes` in all. From `mmap_bytes` on they are files in `folder`."""

    def __init__(self, num_bytes: int, *, mmap_bytes: int, folder: str = "") -> None:
        self.num_bytes, self.mapped = num_bytes, num_bytes >= mmap_bytes
        self.folder = folder or tempfile.gettempdir()
        self._files: list[_Mapped] = []

    def check(self, field: str, value: int, *, taken: int = 0, why: str = "") -> None:
        """Refuse if `num_bytes` do not fit, of which `taken` are used already. The error names a `value` of `field` that
        fits."""
        room = taken + (shutil.disk_usage(self.folder).free if self.mapped else free_memory())
        if self.num_bytes <= room:
            return
        fits = int(room * 0.9 / self.num_bytes * value)
        other = "" if self.mapped else ", or set replay.mmap_bytes lower to keep it in a file"
        where = f"the disk of {self.folder}" if self.mapped else "memory"
        needs = f"needs {self.num_bytes / 2**30:.1f} GiB, and {where} has {room / 2**30:.1f} GiB free"
        raise ConfigError(field, value, f"{why}{needs}; use at most {fits}{other}")

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A zeroed array."""
        return np.zeros(shape, dtype) if not self.mapped or 0 in shape else self._file(shape, dtype)

    def reserve(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A zeroed array of which perhaps only a part is ever written. It only reserves addresses, so it may be larger than
        the memory of the machine."""
        if self.mapped or 0 in shape:
            return self.zeros(shape, dtype)
        size = int(np.prod(shape))
        pages = mmap.mmap(-1, size * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # as numpy does for large arrays: draws are a fifth faster; some kernels lack it
                pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype, size).reshape(shape)

    def _file(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        with told_if_refused(self.folder):
            file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (it closes with this object)
            os.ftruncate(file.fileno(), int(np.prod(shape)) * dtype.itemsize)
        found = np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
        self._files.append(_Mapped(file, found))
        return found

    def will_fill(self, array: Array, num: int) -> None:
        """Reserve disk blocks for the first `num` rows of one of its arrays, or raise a `DiskFullError`.

        Call it before they are written: where the disk has no block for a page, the write would kill the process (SIGBUS).
        """
        for found in self._files:
            if found.array is array:
                fix = "the replay memory grows there; free some, or set replay.mmap_dir"
                with told_if_refused(self.folder, what="the replay memory finds no room", fix=fix):
                    found.set_aside(num)


@dataclass
class _Mapped:
    """A mapped file. Blocks of the disk are reserved for its first `done` bytes."""

    file: IO[bytes]
    array: Array
    done: int = 0

    def set_aside(self, num: int) -> None:
        need = num * self.array[:1].nbytes
        if need > self.done and hasattr(os, "posix_fallocate"):
            upto = min(self.array.nbytes, -(-need // AHEAD) * AHEAD)
            os.posix_fallocate(self.file.fileno(), self.done, upto - self.done)
            self.done = upto
