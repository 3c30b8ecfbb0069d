"""How much a trainer gains that works on completions as they arrive (`learner.in_parts`), with lengths that are far apart.

    python -m benchmarks.llm.in_parts --pairs 7

Two processes: the actor generates with the native engine, the trainer trains; synchronous, so every batch is of the newest
version. The model has random weights, so a completion ends at any token with about the same chance, and lengths are spread
geometrically up to the limit. The rate is 0, so both sides do the same work at every update. Sides alternate, pair by pair; the
ratio is seconds of an update with whole batches over seconds with parts, with its 95 % interval (Student's t over pairs).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from runnel.eval.statistics import mean_interval

SETTINGS: dict[str, Any] = {
    "task": f"{Path(__file__).with_name('skewed_task.py')}:make_task",
    "launcher": "local",
    "num_prompts": 8,
    "group_size": 4,
    "max_tokens": 192,
    "lm": {"layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "inner": 256},
    "engine": {"num_slots": 8},
    "placement": {"threads": 1},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 0},
    "record": {"groups_every": 0},
    "track": (),
}
SKIPPED = 4
"""Updates at the start that are not counted: processes compile and warm up."""


def seconds_of_an_update(out: Path, name: str, *, in_parts: bool, updates: int, seed: int) -> tuple[float, float]:
    """Median seconds between two updates, and the mean length of the last completions."""
    settings = {**SETTINGS, "learner": {"lr": 0.0, "in_parts": in_parts}}
    if in_parts:
        settings.pop("record")
    run = rl.train("grpo", out=str(out), name=name, total_updates=updates, seed=seed, progress=False, **settings)
    rows = run.rows()
    times = [row["time"]["wall_s"] for row in rows]
    gaps = [b - a for a, b in zip(times[SKIPPED:], times[SKIPPED + 1 :], strict=False)]
    return statistics.median(gaps), rows[-1]["metrics"]["completion_length"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--out", type=Path, default=None, help="write the pairs as JSON")
    asked = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(asked.pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            found = {
                parts: seconds_of_an_update(
                    Path(folder), f"{pair}-{parts}", in_parts=parts, updates=asked.updates, seed=pair + 1
                )
                for parts in order
            }
            pairs.append({"whole_s": found[False][0], "parts_s": found[True][0], "mean_length": found[True][1]})
            print(f"pair {pair}: whole {found[False][0]:.3f} s, in parts {found[True][0]:.3f} s an update", flush=True)
    middle, half = mean_interval(np.log([[pair["whole_s"] / pair["parts_s"]] for pair in pairs]))
    ratio, low, high = (math.exp(float(x[0])) for x in (middle, middle - half, middle + half))
    print(f"whole / in parts: {ratio:.3f} ({low:.3f} to {high:.3f}), {len(pairs)} pairs")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"pairs": pairs, "ratio": ratio, "low": low, "high": high}, indent=1) + "\n")


if __name__ == "__main__":
    main()
