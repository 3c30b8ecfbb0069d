"""What both sides share, so that both are timed by the same code: arguments, and the watches that callbacks tell.

Imported by the scripts in either virtual environment; needs nothing but Python.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

SOLVED, EPISODES = 475.0, 100
UNLIMITED = 1_000_000_000


def arguments() -> argparse.Namespace:
    """`throughput` or `solve`, and how long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=("throughput", "solve"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds of learning before the window (throughput)")
    parser.add_argument("--window", type=float, default=12.0, help="seconds of the window (throughput)")
    parser.add_argument("--max-steps", type=int, help="step limit (solve: 500,000)")
    args = parser.parse_args()
    if args.max_steps is None:
        args.max_steps = 500_000 if args.measure == "solve" else UNLIMITED
    return args


class WindowWatch:
    """Counts steps in a window of whole updates, after a warm-up. `update` returns False when the window has closed."""

    def __init__(self, start: float, *, warmup_s: float, window_s: float) -> None:
        self._open_at, self._window = start + warmup_s, window_s
        self._first: tuple[float, float, int] | None = None
        self._last: tuple[float, float, int] | None = None

    def episode(self, total: float) -> None:
        """Learning is not judged here."""

    def update(self, steps: int) -> bool:
        """`steps` environment steps have been learned from, now."""
        now = (time.perf_counter(), time.process_time(), steps)
        if self._first is None:
            if now[0] >= self._open_at:
                self._first = now
            return True
        if self._last is None and now[0] - self._first[0] >= self._window:
            self._last = now
        return self._last is None

    def answer(self) -> dict[str, Any]:
        assert self._first is not None, "the run ended before its window opened; allow more steps"
        assert self._last is not None, "the run ended before its window closed; allow more steps"
        (wall0, cpu0, steps0), (wall1, cpu1, steps1) = self._first, self._last
        seconds, steps = wall1 - wall0, steps1 - steps0
        return {"steps_per_s": steps / seconds, "steps": steps, "seconds": seconds, "cores": (cpu1 - cpu0) / seconds}


class SolveWatch:
    """Waits for a mean of at least 475 over the last 100 training episodes. `update` returns False once it is there."""

    def __init__(self, start: float) -> None:
        self._start, self._cpu = start, time.process_time()
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self._steps = 0
        self._end: tuple[float, float] | None = None
        self._solved = False

    def episode(self, total: float) -> None:
        if not self._solved:
            self._returns.append(float(total))

    def mean(self) -> float | None:
        return sum(self._returns) / len(self._returns) if self._returns else None

    def update(self, steps: int) -> bool:
        if self._solved:
            return False
        self._steps, self._end = steps, (time.perf_counter(), time.process_time())
        mean = self.mean()
        self._solved = mean is not None and len(self._returns) == EPISODES and mean >= SOLVED
        return not self._solved

    def answer(self) -> dict[str, Any]:
        assert self._end is not None, "the run ended before its first update; allow more steps"
        seconds = self._end[0] - self._start
        return {
            "solved": self._solved,
            "solve_s": seconds if self._solved else None,
            "solve_steps": self._steps if self._solved else None,
            "steps": self._steps,
            "seconds": seconds,
            "cores": (self._end[1] - self._cpu) / seconds,
            "mean_return": self.mean(),
        }


def make_watch(args: argparse.Namespace, *, start: float) -> WindowWatch | SolveWatch:
    """The watch of the measure that was asked for."""
    if args.measure == "solve":
        return SolveWatch(start)
    return WindowWatch(start, warmup_s=args.warmup, window_s=args.window)
