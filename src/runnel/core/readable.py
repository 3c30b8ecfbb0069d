"""Waiting until something can be read, however many descriptors this process has."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Readable(Protocol):
    """What can be waited for."""

    def fileno(self) -> int: ...


T = TypeVar("T", bound=Readable | int)


def readable(those: Iterable[T], timeout_s: float | None = None) -> list[T]:
    """Those that can be read, or have ended. Waits at most so long for the first one (None: as long as it takes).

    `select.select` refuses descriptors from 1024 on, which processes with many sandboxes have.

    >>> readable([], 0.0)
    []
    """
    poll, found = select.poll(), dict[int, T]()
    for one in those:
        number = one if isinstance(one, int) else one.fileno()
        found[number] = one
        poll.register(number, select.POLLIN)
    return [found[number] for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1e3)]
