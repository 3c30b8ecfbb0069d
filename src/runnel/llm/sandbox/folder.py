"""Makes and removes the folders of sandboxes. Folders that a killed process has left are removed by the next process.

The process that makes a folder holds a lock on it, which the kernel releases when the process ends, even if it was killed. A
process id in the name would not do: another process may have the same id later.
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
"""Errors of a file system without locks: no left folders are removed there."""


@contextmanager
def sandbox_folder() -> Iterator[str]:
    """A folder for one run, removed afterwards. The first call in a process removes folders that killed processes have left."""
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
    """`sweep`, but only at the first call in this process."""
    return sweep(parent)


def _make(parent: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """A new folder, and a descriptor that holds its lock."""
    while True:
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
        try:
            held = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # a sweep of another process has removed it already
            folder.cleanup()
            continue
        if _lock(held, without=True) and os.path.exists(folder.name):
            return folder, held
        os.close(held)
        folder.cleanup()


def _lock(fd: int, *, without: bool) -> bool:
    """Take the lock; returns whether that succeeded. `without` is returned on a file system without locks."""
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
    """Remove this user's sandbox folders in `parent` that no process holds a lock on; returns their number."""
    try:
        around = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # the folder can be written to, but not listed
        return 0
    try:
        return sum(_sweep_one(name, around) for name in os.listdir(around) if name.startswith(PREFIX))
    finally:
        os.close(around)


def _sweep_one(name: str, around: int) -> bool:
    """Empty a folder through its descriptor, so that it cannot be replaced by another folder or a link meanwhile."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=around)
    except OSError:  # a link, a file, another user's folder, or removed already
        return False
    try:
        if not _ours(os.fstat(fd)) or not _lock(fd, without=False):
            return False
        for entry in os.listdir(fd):
            _remove(entry, fd)
        os.rmdir(name, dir_fd=around)
    except OSError:  # the next sweep tries again
        return False
    finally:
        os.close(fd)
    return True


def _ours(found: os.stat_result) -> bool:
    """Whether this user made it; or, for root, whether its owner is the user of a sandbox."""
    lent = USERS <= found.st_uid < USERS + LARGEST_PID or DYNAMIC[0] <= found.st_uid <= DYNAMIC[1]
    return found.st_uid == os.geteuid() or (os.geteuid() == 0 and lent)


def _remove(entry: str, fd: int) -> None:
    if stat.S_ISDIR(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
        shutil.rmtree(entry, dir_fd=fd)
    else:
        os.unlink(entry, dir_fd=fd)
