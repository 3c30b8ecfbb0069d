"""What a run records of behaviour: videos of episodes, and groups of completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from runnel.core.bounds import bounded
from runnel.core.resuming import OnResume, may_change

MOST_GROUPS = 200
"""Groups that a run of known length records, if it is not told otherwise."""


@dataclass(frozen=True)
class RecordConfig:
    """What is recorded to be looked at. None of it changes what is learned."""

    on_resume: ClassVar[OnResume] = may_change(
        "videos", "every", "fps", "max_steps", "keep", "groups_every", then="counts from the next recording on"
    )

    videos: int = bounded(0, at_least=0)
    """Episodes that each evaluation records as video, beside the episodes that it measures (for environments that can be
    drawn)."""
    every: int = bounded(1, at_least=1)
    """Record at every so many evaluations."""
    fps: float = bounded(0.0, at_least=0)
    """Frames a second; 0: as many as the environment says."""
    max_steps: int = bounded(2_000, at_least=1)
    """Longest recorded episode in steps; a longer one is cut."""
    keep: int = bounded(50, at_least=1)
    """Number of videos kept. Those of the first recorded version are always kept; of the others the oldest are deleted."""
    groups_every: int | None = bounded(None, at_least=0)
    """Write one group of completions, as the learner sees it, every so many updates (language models); 0: never. Default: a
    distance with which a run has at most 200 groups."""

    def group_every(self, total_updates: int | None) -> int:
        """Updates from one recorded group to the next; 0 is never."""
        if self.groups_every is not None:
            return self.groups_every
        return max(1, -(-total_updates // MOST_GROUPS)) if total_updates else 10
