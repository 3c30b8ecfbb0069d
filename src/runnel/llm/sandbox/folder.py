"""Folders of sandboxes: made, held while in use, removed at the end, and swept by the next process where the end never came.

A folder in use is locked by the process that made it, and the kernel takes that lock away with the process, even a killed one.
So it is not by a number that an owner is known, which another process may have by now.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from runnel.llm.sandbox.confine import DYNAMIC, USERS

PREFIX = "runnel-sandbox-"
LARGEST_PID = 1 << 22
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without locks: there, nothing is swept."""


@contextmanager
def sandbox_folder() -> Iterator[str]:
    """A folder for one run, removed afterwards. The first in a process sweeps those that killed processes have left."""
    parent = tempfile.gettempdir()
    sweep_once(parent)
    folder, held = _make(parent)
    try:
        yield folder.name
    finally:
        folder.cleanup()
        os.close(held)


@lru_cache
def sweep_once(parent: str) -> int:
    """Sweep, the first time that this process asks for it."""
    return sweep(parent)


def _make(parent: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """A new folder, and the descriptor whose lock says that it is in use."""
    while True:
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
        try:
            held = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # a sweep came between
            folder.cleanup()
            continue
        if _lock(held, without=True) and os.path.exists(folder.name):
            return folder, held
        os.close(held)
        folder.cleanup()


def _lock(fd: int, *, without: bool) -> bool:
    """Take the lock, if nobody has it; `without` is the answer where the file system knows no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in UNLOCKABLE:
            return without
        raise
    return True


def sweep(parent: str) -> int:
    """Remove this user's folders of sandboxes in `parent` that nobody holds; returns how many."""
    try:
        around = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one may write there, but not see what is there
        return 0
    try:
        return sum(_sweep_one(name, around) for name in os.listdir(around) if name.startswith(PREFIX))
    finally:
        os.close(around)


def _sweep_one(name: str, around: int) -> bool:
    """Empty a folder by its descriptor, so that nobody can put another, or a link, in its place meanwhile."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=around)
    except OSError:  # a link, a file, another user's, or gone
        return False
    try:
        if not _ours(os.fstat(fd)) or not _lock(fd, without=False):
            return False
        for entry in os.listdir(fd):
            _remove(entry, fd)
        os.rmdir(name, dir_fd=around)
    except OSError:  # what cannot be removed is left to the next sweep
        return False
    finally:
        os.close(fd)
    return True


def _ours(found: os.stat_result) -> bool:
    """Made by this user; or, for root, lent to the user of a sandbox."""
    lent = USERS <= found.st_uid < USERS + LARGEST_PID or DYNAMIC[0] <= found.st_uid <= DYNAMIC[1]
    return found.st_uid == os.geteuid() or (os.geteuid() == 0 and lent)


def _remove(entry: str, fd: int) -> None:
    if stat.S_ISDIR(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
        shutil.rmtree(entry, dir_fd=fd)
    else:
        os.unlink(entry, dir_fd=fd)
