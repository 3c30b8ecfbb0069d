# mypy: ignore-errors
"""Numba's compiler, if it is installed, and the removal of outdated files from its cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

try:
    from numba import njit
except ImportError:  # then nobody calls a compiled function

    def njit(function, **options):
        """Return a function as it is."""
        return function


def forget_older(kernels: str, *sources: str) -> None:
    """Delete cached machine code of file `kernels` that is older than one of `sources`.

    Numba compares the cache with a function's own file only. If the function calls into another file that has changed since,
    Numba would run the old code of that file.
    """
    file = Path(kernels)
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or file.parent / "__pycache__")
    newest = max(Path(source).stat().st_mtime for source in sources)
    for index in folder.rglob(f"{file.stem}.*.nbi"):
        with suppress(OSError):  # another process deleted it first, or the folder is not ours
            if index.stat().st_mtime < newest:
                index.unlink()
