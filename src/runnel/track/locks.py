"""Who holds a run's folder: whoever writes there takes its lock, and whoever only reads never does.

To ask for a lock is to take it, and a run that starts at that moment would be refused. So readers look at the kernel's list
of locks. That list is of this machine (and of this container) alone. Therefore the holder also writes into `.lock` where it
is, and empties the file when it is done: a name that is left there, of a place that cannot be seen from here, means that
nobody here can know.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from runnel.core.errors import ConfigError
from runnel.core.trace import whereabouts
from runnel.track.files import NotRegularError, open_append, read_regular

LOCK = ".lock"
MOST_BYTES = 4096


class Lock(NamedTuple):
    """A file that a process holds a lock on."""

    inode: int
    device: tuple[int, int]
    pid: int


@dataclass(frozen=True)
class Holder:
    """Whether a process works in a folder: one of this machine (`here`), `nobody`, or one of `host`, if it still lives."""

    state: Literal["here", "nobody", "unknown"]
    host: str = ""


@contextmanager
def locked(folder: Path, field: str, fix: str) -> Iterator[None]:
    """While the block lasts, this process alone has the lock of `folder`; where another has it, a `ConfigError` says `fix`."""
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
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps({**whereabouts(), "place": _place(), "machine": _machine()}).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(file.fileno(), 0)


def locked_files() -> set[Lock] | None:
    """What processes of this machine hold a lock on; None where the system does not tell."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].count(":") == 2:  # who waits has an arrow there
            major, minor, inode = fields[5].split(":")
            found.add(Lock(int(inode), (int(major, 16), int(minor, 16)), int(fields[4])))
    return found


def holder_of(folder: Path, held: Collection[Lock] | None) -> Holder:
    """Who holds `folder`, by `held` (`locked_files()`). Takes no lock, and writes nothing."""
    path = folder / LOCK
    try:
        found = os.stat(path)
    except OSError:
        return Holder("nobody")
    said = _said(path)
    pid, host = said.get("pid"), str(said.get("host") or "")
    device = (os.major(found.st_dev), os.minor(found.st_dev))
    for lock in held or ():
        # some file systems (btrfs, overlays) show another device there than to their users
        if lock.inode == found.st_ino and (lock.device == device or not said or lock.pid == pid):
            return Holder("here", host)
    if not said:
        return Holder("nobody")
    if said.get("place") != _place():
        return Holder("nobody") if _before_reboot(said) else Holder("unknown", host)
    if held is None and isinstance(pid, int):
        return Holder("here" if _lives(pid) else "nobody", host)
    return Holder("nobody")


def _said(path: Path) -> dict[str, Any]:
    """What the holder has written; empty after a clean end, and for what is no file of ours."""
    try:
        data = json.loads(read_regular(path, most=MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _place() -> str:
    """Processes of one place see each other's locks: one boot of one machine, one container."""
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


def _before_reboot(said: dict[str, Any]) -> bool:
    """Whether the holder was on this very machine, which was started again since."""
    here = whereabouts()
    same = bool(_machine()) and said.get("machine") == _machine() and said.get("host") == here["host"]
    return same and said.get("boot") != here["boot"]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
