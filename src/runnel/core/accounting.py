"""Accounting of a sample stream: where every row is. Reports read it too, so this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from runnel.core.errors import DataError


@dataclass
class Accounting:
    """Where every row is: dispatched = consumed + dropped + cancelled + in flight, at every moment.

    `in_flight` is counted by the holders (slots, readers that keep rows), never by subtraction.
    """

    dispatched: int = 0
    consumed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    cancelled: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    queued: int = 0
    """Of those in flight: finished, and waiting for the reader."""
    steps: int = 0
    """Environment steps or tokens committed."""

    @property
    def balance(self) -> int:
        """Number of rows without an account. If it is not 0, the run has lost or invented data."""
        settled = self.consumed + sum(self.dropped.values()) + sum(self.cancelled.values())
        return self.dispatched - settled - self.in_flight

    def check(self, stream: str) -> None:
        if self.balance != 0:
            raise DataError(f"stream {stream!r} does not add up: {self} leaves {self.balance} rows unaccounted for")
