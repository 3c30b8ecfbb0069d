"""Files of a run's folder, taken for what they should be: regular files in that folder, and no links, pipes or devices.

A folder may come from somebody else. A link in it would show, or overwrite, a file of whoever reads it; a pipe or a device
would hold him up for ever, and a file without an end of line would fill his memory.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MAX_JSON = 64 << 20
"""Bytes of a file that is read as one object: a config, what a run is, a study."""
MAX_LINE = 64 << 20
"""Bytes of a line; longer ones are no rows."""
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class NotRegularError(OSError):
    """Something else than a regular file of the folder: says what, and why it is left alone."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path.name} {what}; only regular files of the folder are used")


def open_regular(path: Path, *, below: Path | None = None) -> BinaryIO:
    """`path`, to be read. From the folder `below` on (its own, if there is none) nothing on the way may be a link."""
    folder, name = _walk(path, below)
    try:
        _check(path, os.stat(name, dir_fd=folder, follow_symlinks=False))  # opening a device can do something by itself
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check(path, os.fstat(file))
    except NotRegularError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def _walk(path: Path, below: Path | None) -> tuple[int, str]:
    """The folder of `path`, opened, and the name of the file in it."""
    home = path.parent if below is None else below
    *between, name = path.relative_to(home).parts
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    folder = os.open(home, flags)
    for part in between:
        try:
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder)
        except NotADirectoryError as error:
            raise NotRegularError(path, f"lies in {part}, which is a link or no folder") from error
        finally:
            os.close(folder)
        folder = inner
    return folder, name


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularError(path, f"is {KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}")


def is_regular(path: Path, *, below: Path | None = None) -> bool:
    """Whether `open_regular` would open it."""
    try:
        open_regular(path, below=below).close()
    except OSError:
        return False
    return True


def size_of(path: Path) -> int:
    """Bytes of a regular file."""
    found = path.lstat()
    _check(path, found)
    return found.st_size


def read_regular(path: Path, *, most: int | None = None, below: Path | None = None) -> bytes:
    """All of `path`; a file of more than `most` bytes is refused."""
    with open_regular(path, below=below) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise NotRegularError(path, f"has {size:,} bytes, where {most:,} are the most")
        return file.read() if most is None else file.read(most)


def open_append(path: Path) -> BinaryIO:
    """`path`, to be written on at its end; made where it is missing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if path.is_symlink() or (path.exists() and not path.is_file()):
        _check(path, path.lstat())
    file = os.open(path, flags, 0o666)
    try:
        _check(path, os.fstat(file))
    except NotRegularError:
        os.close(file)
        raise
    return os.fdopen(file, "ab")


def replace_file(path: Path, data: bytes) -> None:
    """Write beside, then rename: a reader sees the old file or the new one, and a link in its place is gone, not followed."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:  # a full disk keeps nothing of it
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
