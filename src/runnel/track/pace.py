"""Estimates how long a run still takes. The run writes it into its rows (`time.left_s`), so every view shows the same time."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
"""The pace is measured over the last seconds, this many; if one update takes longer, over the last update."""
APART_S = 1.0
"""Points are kept this many seconds apart, so that memory stays small at hundreds of updates a second."""


class Pace:
    """The time left, from how fast progress (0 to 1) was lately. Evaluations and checkpoints count as part of the pace.

    >>> pace = Pace()
    >>> pace.left_s(0.0, 0.0), pace.left_s(10.0, 0.1), pace.left_s(100.0, 0.6)
    (None, 90.0, 72.0)
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def left_s(self, now: float, progress: float) -> float | None:
        """Seconds left at `now`; None if there was no progress to measure yet."""
        points = self._points
        while len(points) > 1 and now - points[1][0] >= WINDOW_S:
            points.popleft()
        then, before = points[0] if points else (now, progress)
        if not points or now - points[-1][0] >= APART_S:
            points.append((now, progress))
        gained = progress - before
        return (now - then) * (1.0 - progress) / gained if gained > 0 and now > then else None
