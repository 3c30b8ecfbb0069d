"""The lock of a run's folder: a process that writes into the folder takes it; a process that only reads never does.

A process can ask whether a lock is free only by taking it, and a run that starts at that moment would be refused. So readers
look at the kernel's list of locks. That list covers only this machine (and this container). Therefore the holder also writes
into `.lock` where it runs, and empties the file at its end. If the file names a place that is not visible from here, the state
is unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from runnel.core.errors import ConfigError
from runnel.core.trace import whereabouts
from runnel.track.files import NotRegularError, open_append, read_regular

LOCK = ".lock"
MOST_BYTES = 4096
"""Largest size of the lock file that is read: a foreign folder may hold anything under its name."""


class Lock(NamedTuple):
    """A lock that a process holds: the file (inode and device) and the process id."""

    inode: int
    device: tuple[int, int]
    pid: int


@dataclass(frozen=True)
class Holder:
    """Who holds the lock of a folder."""

    state: Literal["here", "nobody", "unknown"]
    """here: a process of this machine. unknown: a process of `host` took it, and may still live."""
    host: str = ""


@contextmanager
def locked(folder: Path, field: str, fix: str) -> Iterator[None]:
    """Hold the lock of `folder`. If another process has it, raise a `ConfigError` with the fix `fix`."""
    try:
        file = open_append(folder / LOCK)
    except NotRegularError as error:
        raise ConfigError(field, str(folder), f"{error}; remove it") from error
    except OSError as error:
        why = f"its {LOCK} cannot be written ({error.strerror}); free the disk, or make the folder one that you may write to"
        raise ConfigError(field, str(folder), why) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(field, str(folder), fix) from error
        except OSError as error:
            why = f"its file system gives no locks ({error.strerror}); use a folder on another one"
            raise ConfigError(field, str(folder), why) from error
        with suppress(OSError):  # the disk may be full; the lock itself holds all the same
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps({**whereabouts(), "place": _place(), "machine": _machine()}).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(file.fileno(), 0)


def locked_files() -> set[Lock] | None:
    """The locks that processes of this machine hold; None if the system does not list them."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        fields = line.split()
        # a process that waits for a lock has an arrow in place of FLOCK
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].count(":") == 2:
            major, minor, inode = fields[5].split(":")
            found.add(Lock(int(inode), (int(major, 16), int(minor, 16)), int(fields[4])))
    return found


def holder_of(folder: Path, held: Collection[Lock] | None) -> Holder:
    """Who holds `folder`, according to `held` (from `locked_files()`). Takes no lock and writes nothing."""
    path = folder / LOCK
    try:
        found = os.stat(path)
    except OSError:
        return Holder("nobody")
    noted = _read_note(path)
    pid, host = noted.get("pid"), str(noted.get("host") or "")
    device = (os.major(found.st_dev), os.minor(found.st_dev))
    for lock in held or ():
        # some file systems (btrfs, overlays) report another device in the list than to `stat`: then the pid must agree
        if lock.inode == found.st_ino and (lock.device == device or not noted or lock.pid == pid):
            return Holder("here", host)
    if not noted:
        return Holder("nobody")
    if noted.get("place") != _place():
        return Holder("nobody") if _before_reboot(noted) else Holder("unknown", host)
    if held is None and isinstance(pid, int):
        return Holder("here" if _lives(pid) else "nobody", host)
    return Holder("nobody")


def _read_note(path: Path) -> dict[str, object]:
    """What the holder wrote about itself; empty after a clean end, and for a file that is not ours."""
    try:
        data = json.loads(read_regular(path, most=MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _place() -> str:
    """A name of this boot of this machine and this container: processes with the same place see each other's locks."""
    try:
        names = os.readlink("/proc/self/ns/pid")
    except OSError:
        names = ""
    return f"{whereabouts()['boot']} {names}" if names else socket.gethostname()


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""


def _before_reboot(noted: Mapping[str, object]) -> bool:
    """Whether the holder ran on this machine before it was rebooted: then it cannot live any more."""
    here = whereabouts()
    same = bool(_machine()) and noted.get("machine") == _machine() and noted.get("host") == here["host"]
    return same and noted.get("boot") != here["boot"]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's, so it lives
        return True
    return True
