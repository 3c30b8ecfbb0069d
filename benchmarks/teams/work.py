"""What both sides share: their arguments. The watches are those of all benchmarks (`classic/clock.py`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "classic"))
from clock import WindowWatch, tell

__all__ = ["EPISODE", "NUM_DRAWS", "WindowWatch", "arguments", "tell"]
EPISODE = 25
"""Steps of an episode."""
NUM_DRAWS = 64
"""Random actions that are drawn before the clock starts, and are then taken in turn."""


def arguments() -> argparse.Namespace:
    """The work and how long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=("step", "train"), default="step", help="VMAS steps in any case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds before the window")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of the window")
    return parser.parse_args()
