"""Opens files of a run's folder, and only regular files: no links, pipes or devices.

A folder may come from somebody else. A link in it could show or overwrite another file of the person who opens the folder.
Reading a pipe or a device could block forever. A file without line ends could fill the memory, so lines and files have a limit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from runnel.core.errors import ConfigError

MAX_JSON = 64 << 20
"""Largest size in bytes of a file that is read as one object: config.json, run.json, study.json."""
MAX_LINE = 64 << 20
"""Largest length in bytes of a line that is read as a row."""
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class NotRegularError(OSError):
    """A path that is not a regular file of the folder; the message says what it is."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path.name} {what}; only regular files of the folder are used")


def open_regular(path: Path, *, below: Path | None = None) -> BinaryIO:
    """Open `path` for reading. No folder on the way from `below` (default: the file's own folder) may be a link."""
    folder, name = _walk(path, below)
    try:
        _check(path, os.stat(name, dir_fd=folder, follow_symlinks=False))  # opening a device can do something by itself
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return _opened(path, os.open(name, flags, dir_fd=folder), "rb")
    finally:
        os.close(folder)


def _opened(path: Path, file: int, mode: Literal["rb", "ab"]) -> BinaryIO:
    """A file object of the open file. It is checked again: the path may have been replaced between check and opening."""
    try:
        _check(path, os.fstat(file))
    except NotRegularError:
        os.close(file)
        raise
    return os.fdopen(file, mode)


def _walk(path: Path, below: Path | None) -> tuple[int, str]:
    """A descriptor of the folder of `path`, and the name of the file in it.

    Each folder is opened relative to the one before, so that none can be replaced by a link meanwhile.
    """
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
    """The size of a regular file in bytes."""
    found = path.lstat()
    _check(path, found)
    return found.st_size


def read_regular(path: Path, *, most: int | None = None, below: Path | None = None) -> bytes:
    """The content of `path`. A file of more than `most` bytes is refused."""
    with open_regular(path, below=below) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise NotRegularError(path, f"has {size:,} bytes, where {most:,} are the most")
        return file.read() if most is None else file.read(most)


def open_append(path: Path) -> BinaryIO:
    """Open `path` for appending; the file is made if it is missing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if path.is_symlink() or (path.exists() and not path.is_file()):
        _check(path, path.lstat())
    return _opened(path, os.open(path, flags, 0o666), "ab")


@contextmanager
def writing(path: Path, what: str, *, field: str = "out") -> Iterator[None]:
    """Turn an `OSError` of the block into a `ConfigError` of `field`: `what` cannot be written to the user's `path`."""
    try:
        yield
    except OSError as error:
        fix = f"{what} cannot be written there ({error.strerror or error}); give another path"
        raise ConfigError(field, str(path), fix) from error


def replace_file(path: Path, data: bytes) -> None:
    """Write another file, then rename it: a reader sees the old content or the new one. A link at `path` is replaced, not
    followed."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:  # the disk is full, say: leave no half file behind
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
