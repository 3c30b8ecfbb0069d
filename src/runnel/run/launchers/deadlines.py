"""Rules for when a process of a run counts as hung, from its heartbeats. A process that makes progress never does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LIMIT, STALL = "placement.stage_timeout_s", "placement.stall_timeout_s"
START_TIMEOUT_S = 300.0
"""A starting process may show no progress for this time, or for `placement.stage_timeout_s` if that is longer."""
FIRST_TIMES = 2.5
"""Factor on `placement.stage_timeout_s` the first time in a stage: kernels are compiled, engines start."""

Stage = tuple[str, float, bool]
"""A worker's stage, the seconds since its last progress, and whether the worker is in this stage for the first time."""


@dataclass(frozen=True)
class Deadlines:
    """The time limits of a run. `limit_s` is `placement.stage_timeout_s`."""

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
        """The first worker that hangs, and its stage in words; None if no worker hangs.

        A rank of the trainer does not hang while another rank makes progress: it may wait for that rank inside a kernel.
        """
        busy = {worker: found for worker, found in stages.items() if found[0] != "idle"}
        youngest = min((age for worker, (_, age, _) in busy.items() if worker in ranks), default=0.0)
        for worker, (stage, own, first) in busy.items():
            age, limit = youngest if worker in ranks else own, self.limit_s * (FIRST_TIMES if first else 1.0)
            if age > limit:
                return worker, f"hung in stage {stage!r}: nothing came back for {age:.1f} s ({self.named(limit)})"
        return None

    def at_odds(self, held: Mapping[str, float], ranks: Collection[str]) -> str:
        """Why the ranks of a trainer are in a deadlock, in words; empty if they are not.

        A rank waits for others without a deadline, because another rank may have more work. If all ranks wait, none will come.
        """
        waits = [held[rank] for rank in ranks if rank in held]
        if len(ranks) < 2 or len(waits) < len(ranks) or min(waits) <= self.limit_s:
            return ""
        why = "does the learner take part in the same sums on every rank?"
        return f"and all other ranks have waited for each other for {min(waits):.1f} s ({self.named(self.limit_s)}); {why}"
