"""Balance between generation and training while a run goes on: how many workers generate, by what their idle shares say.

AReaL (Fu et al. 2025, arXiv:2505.24298) shares devices between generation and training once, before a run. Here the shares
follow what is measured: a trainer that waits for samples gets one more worker that makes them, within `placement.max_actors`
and `placement.max_policy_workers`; workers that wait for the trainer leave their cores to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runnel.graphs.run_config import RunConfig
from runnel.run.ledger import Ledger, What
from runnel.track.folder import Row

PERIOD_S = 20.0
"""Seconds between two looks: a change must show before the next one."""
WAITS, WORKS = 0.3, 0.15
"""Idle shares from which on a side waits, and up to which it works all the time."""
WORSE = 0.95
"""A change after which the rate is below this share of the one before is taken back."""
CLOSED = 10
"""Looks for which a change that was taken back is not tried again."""


@dataclass(frozen=True)
class Change:
    """What a run does with its own workers, and why."""

    numbers: Mapping[str, int]
    """The number of workers from now on, by kind; kinds that stay as they are left out."""
    why: str
    what: What
    """What the event is about."""
    about: Row
    """The same as data, for the event."""


@dataclass
class Balance:
    """`numbers` are the workers of each kind at present, `most` how many there may be; at least one of each stays."""

    numbers: dict[str, int]
    most: dict[str, int]
    trainer: str
    _next: float | None = None
    _tried: tuple[str, int, float] | None = None
    """The last change: kind, by how many, and the rate before it."""
    _closed: dict[tuple[str, int], int] = field(default_factory=dict)

    @staticmethod
    def of(config: RunConfig, trainer: str) -> Balance | None:
        """The balance that a config asks for, if any."""
        if config.staleness.balance != "auto":
            return None
        numbers, most = {"actor": config.num_actors}, {"actor": config.most_actors}
        if config.placement.policy_workers:
            numbers["policy"], most["policy"] = config.placement.policy_workers, config.most_policy_workers
        return Balance(numbers, most, trainer)

    def hear(self, order: Mapping[str, Any]) -> None:
        """A person has set numbers: go on from those."""
        self.numbers |= {kind: int(n) for kind, n in order["numbers"].items() if kind in self.numbers}
        self._tried, self._next = None, None

    def look(self, now: float, ledger: Ledger) -> Change | None:
        """What changes now, by the idle shares of the last seconds; None if all may stay as it is."""
        if "idle" not in ledger.pace:
            return None
        pace = ledger.pace
        found = self.weigh(now, pace["idle"], max(pace["steps_per_s"], pace["tokens_per_s"]))
        return None if found is None else Change({found[0]: found[1]}, found[2], "order", {})

    def weigh(self, now: float, idle: Mapping[str, float], rate: float) -> tuple[str, int, str] | None:
        """A kind of worker, the number that it should have from now on, and why; None if all may stay as it is."""
        if self._next is None or now < self._next:
            self._next = now + PERIOD_S if self._next is None else self._next
            return None
        self._next = now + PERIOD_S
        self._closed = {change: left - 1 for change, left in self._closed.items() if left > 1}
        if self._tried is not None:
            (kind, by, before), self._tried = self._tried, None
            if rate < WORSE * before:
                self._closed[kind, by] = CLOSED
                return self._set(kind, -by, f"the rate fell to {rate / before:.0%} of the one before")
        shares = self._shares(idle)
        if self.trainer not in idle or not shares:
            return None
        waits = f"the trainer waits {idle[self.trainer]:.0%} of the time, "
        waits += " and ".join(f"{kind} workers {share:.0%}" for kind, share in shares.items())
        if idle[self.trainer] >= WAITS:
            busy = [k for k, share in shares.items() if share <= WORKS and self._may(k, 1)]
            return self._try(min(busy, key=shares.__getitem__), 1, rate, waits) if busy else None
        if idle[self.trainer] <= WORKS:
            lazy = [k for k, share in shares.items() if share >= WAITS and self._may(k, -1)]
            return self._try(max(lazy, key=shares.__getitem__), -1, rate, waits) if lazy else None
        return None

    def _shares(self, idle: Mapping[str, float]) -> dict[str, float]:
        """The mean idle share of each kind of worker."""
        found = {k: [share for name, share in idle.items() if name.rpartition("-")[0] == k] for k in self.numbers}
        return {kind: sum(shares) / len(shares) for kind, shares in found.items() if shares}

    def _may(self, kind: str, by: int) -> bool:
        return 1 <= self.numbers[kind] + by <= self.most[kind] and (kind, by) not in self._closed

    def _try(self, kind: str, by: int, rate: float, why: str) -> tuple[str, int, str]:
        self._tried = (kind, by, rate)
        return self._set(kind, by, why)

    def _set(self, kind: str, by: int, why: str) -> tuple[str, int, str]:
        self.numbers[kind] += by
        return kind, self.numbers[kind], f"staleness.balance: {why}"
