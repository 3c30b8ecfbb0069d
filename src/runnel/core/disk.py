"""Errors of a disk in one sentence: where, and why. Without it, a traceback would point at the code that wrote last."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runnel.core.errors import DiskError, DiskFullError

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)


def refused(error: BaseException, place: Path | str, *, what: str = "", fix: str = "") -> DiskError | None:
    """The `DiskError` for `error` if a disk is full, over its quota or read-only; None for any other error.

    A file without write permission counts if it is in `place`. If the error names no file, the text names `place`. `what` was
    not done, and `fix` is what to do.
    """
    if isinstance(error, DiskError):
        return error
    number = _number(error)
    path = getattr(error, "filename", None) or str(place)
    if number in FULL:
        text = f"disk full at {path} ({_left(path, number)})"
    elif number == errno.EROFS:
        text = f"the disk of {path} is read-only"
    elif number in DENIED and Path(path).absolute().is_relative_to(Path(place).absolute()):
        text = f"{path} may not be written ({os.strerror(number)})"
    else:
        return None
    kind = DiskFullError if number in FULL else DiskError
    return kind(f"{what}: {text}; {fix}" if what and fix else f"{what}: {text}" if what else text)


@contextmanager
def told_if_refused(place: Path | str, *, what: str = "", fix: str = "") -> Iterator[None]:
    """Turn an error of the disk of `place` in the block into a `DiskError`."""
    try:
        yield
    except Exception as error:
        told = refused(error, place, what=what, fix=fix)
        if told is None or told is error:
            raise
        raise told from error


def _number(error: BaseException) -> int:
    """The error number of the operating system; safetensors has it only in its message."""
    if isinstance(error, OSError):
        return error.errno or 0
    if type(error).__name__ == "SafetensorError":
        return next((n for n in (*FULL, *DENIED, errno.EROFS) if f"os error {n})" in str(error)), 0)
    return 0


def _left(path: str, number: int) -> str:
    """In words, what is left on the disk of `path`, which need not exist."""
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    if number == errno.EDQUOT:
        return "your quota is spent"
    if os.statvfs(folder).f_files and not os.statvfs(folder).f_favail:
        return "no more files can be made there"
    return f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB are left"
