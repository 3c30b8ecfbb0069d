"""What all sides share, so that all are timed by the same code: arguments, and the watches that they tell.

Imported by the scripts in every virtual environment; needs nothing but Python. A script is asked for one piece of work (an
algorithm on an environment, how many of it, made how, with how many threads) and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from typing import Any

SOLVED, EPISODES = 475.0, 100
UNLIMITED = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def arguments() -> argparse.Namespace:
    """`throughput` or `solve`, the work, and how long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=("throughput", "solve"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algo", choices=("ppo", "dqn", "sac"), default="ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--vec", default="", help="how the environments are stepped, in the words of the library")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--preset", choices=("same", "wide", "tuned"), default="same", help="which hyperparameters")
    parser.add_argument("--set", default="{}", help="JSON of more settings (runnel alone)")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds of learning before the window (throughput)")
    parser.add_argument("--warmup-steps", type=int, default=0, help="steps before the window at least (throughput)")
    parser.add_argument("--window", type=float, default=12.0, help="seconds of the window (throughput)")
    parser.add_argument("--max-steps", type=int, help="step limit (solve: 500,000)")
    args = parser.parse_args()
    if args.max_steps is None:
        args.max_steps = 500_000 if args.measure == "solve" else UNLIMITED
    return args


def cpu_seconds() -> float:
    """Processor time of this process, its live children and theirs, and those of them that have ended."""
    return _tree_seconds(os.getpid()) if os.path.isdir("/proc/self") else time.process_time()


def _tree_seconds(pid: int) -> float:
    """From `/proc`: user and system time, also of children that were waited for; then each live child."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
    except OSError:
        return 0.0
    return sum(int(n) for n in fields[11:15]) / TICKS + sum(_tree_seconds(int(child)) for child in children)


class WindowWatch:
    """Counts steps in a window of whole updates, after a warm-up. `update` returns False when the window has closed."""

    def __init__(self, start: float, *, warmup_s: float, window_s: float, warmup_steps: int = 0) -> None:
        self._open_at, self._window, self._open_steps = start + warmup_s, window_s, warmup_steps
        self._first: tuple[float, float, int] | None = None
        self._last: tuple[float, float, int] | None = None

    def episode(self, total: float) -> None:
        """Learning is not judged here."""

    def update(self, steps: int) -> bool:
        """`steps` environment steps have been learned from, now."""
        now = time.perf_counter()
        if self._first is None:
            if now >= self._open_at and steps >= self._open_steps:
                self._first = (now, cpu_seconds(), steps)
            return True
        if self._last is None and now - self._first[0] >= self._window:
            self._last = (now, cpu_seconds(), steps)
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
        self._start, self._cpu = start, cpu_seconds()
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self._steps = 0
        self._end: float | None = None
        self._solved = False

    def episode(self, total: float) -> None:
        if not self._solved:
            self._returns.append(float(total))

    def mean(self) -> float | None:
        return sum(self._returns) / len(self._returns) if self._returns else None

    def update(self, steps: int) -> bool:
        if self._solved:
            return False
        self._steps, self._end = steps, time.perf_counter()
        mean = self.mean()
        self._solved = mean is not None and len(self._returns) == EPISODES and mean >= SOLVED
        return not self._solved

    def answer(self) -> dict[str, Any]:
        assert self._end is not None, "the run ended before its first update; allow more steps"
        seconds = self._end - self._start
        return {
            "solved": self._solved,
            "solve_s": seconds if self._solved else None,
            "solve_steps": self._steps if self._solved else None,
            "steps": self._steps,
            "seconds": seconds,
            "cores": (cpu_seconds() - self._cpu) / max(time.perf_counter() - self._start, 1e-9),
            "mean_return": self.mean(),
        }


Watch = WindowWatch | SolveWatch


def make_watch(args: argparse.Namespace, *, start: float) -> Watch:
    """The watch of the measure that was asked for."""
    if args.measure == "solve":
        return SolveWatch(start)
    return WindowWatch(start, warmup_s=args.warmup, window_s=args.window, warmup_steps=args.warmup_steps)


def tell(answer: dict[str, Any], **more: Any) -> None:
    """Print the answer as the one line that the harness reads."""
    print(json.dumps({**answer, **more}))


def refuse(args: argparse.Namespace, *, algos: tuple[str, ...], presets: tuple[str, ...] = ("same",)) -> None:
    """End with a word if this script does not know the work."""
    if args.algo not in algos or args.preset not in presets:
        sys.exit(f"{args.algo} with preset {args.preset!r} is not written for this library")
