"""When a process of a run counts as hung: by what its heartbeat says, never while pieces of its work come back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LIMIT, STALL = "placement.stage_timeout_s", "placement.stall_timeout_s"
START_TIMEOUT_S = 300.0
"""A process that starts may do nothing that can be seen for so long, or for `placement.stage_timeout_s` where that is more."""
FIRST_TIMES = 2.5
"""The first time in a stage may last so many times `placement.stage_timeout_s`: kernels are compiled, engines start."""

Stage = tuple[str, float, bool]
"""The stage of a worker, the seconds since something of it came back, and whether it is in it for the first time."""


@dataclass(frozen=True)
class Deadlines:
    """The limits of a run whose `placement.stage_timeout_s` is `limit_s`."""

    limit_s: float

    @property
    def start_s(self) -> float:
        return max(START_TIMEOUT_S, self.limit_s)

    def named(self, limit_s: float) -> str:
        """The setting behind a limit, as a message names it.

        >>> Deadlines(120).named(120), Deadlines(120).named(300)
        ('placement.stage_timeout_s = 120', 'placement.stage_timeout_s = 120; 300 s here')
        """
        return f"{LIMIT} = {self.limit_s:g}" + ("" if limit_s == self.limit_s else f"; {limit_s:g} s here")

    def hung(self, stages: Mapping[str, Stage], ranks: Collection[str]) -> tuple[str, str] | None:
        """A worker that hangs, and in what. A rank of the trainer does not while another one makes progress: it may wait for
        that one inside a kernel."""
        busy = {worker: found for worker, found in stages.items() if found[0] != "idle"}
        youngest = min((age for worker, (_, age, _) in busy.items() if worker in ranks), default=0.0)
        for worker, (stage, own, first) in busy.items():
            age, limit = youngest if worker in ranks else own, self.limit_s * (FIRST_TIMES if first else 1.0)
            if age > limit:
                return worker, f"hung in stage {stage!r}: nothing came back for {age:.1f} s ({self.named(limit)})"
        return None

    def at_odds(self, held: Mapping[str, float], ranks: Collection[str]) -> str:
        """Why the ranks of a trainer will never meet, or nothing. They wait for each other without a deadline of their own,
        since one may have more to do than the others; but if all of them wait, nobody will come."""
        waits = [held[rank] for rank in ranks if rank in held]
        if len(ranks) < 2 or len(waits) < len(ranks) or min(waits) <= self.limit_s:
            return ""
        why = "does the learner take part in the same sums on every rank?"
        return f"and all other ranks wait for each other since {min(waits):.1f} s ({self.named(self.limit_s)}); {why}"
