# mypy: ignore-errors
"""Numba's compiler, where it is installed, and what keeps its files on disk true."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

try:
    from numba import njit
except ImportError:  # then nothing here is ever called

    def njit(**options):
        """Leave a function as it is."""
        return lambda function: function


def forget_older(kernels: str, *sources: str) -> None:
    """Delete compiled forms of the functions in file `kernels` that are older than one of `sources`, which went into them too.

    Numba looks at a function's own file alone, and would run what another file said when it was compiled.
    """
    file = Path(kernels)
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or file.parent / "__pycache__")
    newest = max(Path(source).stat().st_mtime for source in sources)
    for index in folder.rglob(f"{file.stem}.*.nbi"):
        with suppress(OSError):  # another process was faster, or the folder is not ours
            if index.stat().st_mtime < newest:
                index.unlink()
