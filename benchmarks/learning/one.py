"""One run of one recipe with one seed; prints one JSON line. `run.py` starts it in a process of its own.

A run that was broken off goes on from its newest checkpoint, and one that has ended only says again what it reached.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runnel as rl

CURVE_POINTS = 200
ENDED = "scores.json"


class Watch:
    """A callback that ends a run once `limit_s` seconds are over; it is then `cut`, and can be gone on with."""

    def __init__(self, limit_s: float) -> None:
        self._end, self.cut = time.monotonic() + limit_s, False

    def __call__(self, row: dict[str, Any]) -> bool:
        self.cut = row["progress"] < 1.0 and time.monotonic() >= self._end
        return not self.cut


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("settings", help="JSON object of the recipe's fields")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="the run's own folder; its name is the run's")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="evaluate, save and end after so many seconds")
    args = parser.parse_args()
    ended = args.folder / ENDED
    if ended.is_file():
        print(ended.read_text(encoding="utf-8"))
        return
    watch = Watch(args.limit_s)
    run = finish(args.recipe, json.loads(args.settings), seed=args.seed, folder=args.folder, watch=watch)
    text = json.dumps(scores(run, cut=watch.cut))
    if not watch.cut:
        ended.write_text(text, encoding="utf-8")
    print(text)


def finish(
    recipe: str,
    settings: dict[str, Any],
    *,
    seed: int,
    folder: Path,
    watch: Callable[[rl.Event], object],
    on_checkpoint: Callable[[rl.Event], object] | None = None,
) -> rl.Run:
    """Train, or go on where a former attempt was broken off; one that left no checkpoint starts anew. `watch` is called after
    every update, and ends the run where it returns False."""
    given: dict[str, Any] = {"on_update": watch, "on_checkpoint": on_checkpoint}
    if folder.is_dir():
        if any((folder / "checkpoints").glob("*/manifest.json")):
            return rl.resume(folder, **given)
        shutil.rmtree(folder)
    return rl.train(recipe, seed=seed, track=(), out=str(folder.parent), name=folder.name, **given, **settings)


def scores(run: rl.Run, *, cut: bool = False) -> dict[str, Any]:
    """What entries may ask for. A run that its evaluation ended is solved; one that spent its budget is not."""
    rows, end = run.rows(), run.rows("end")[-1]
    solved = run.status == "solved"
    of_training = rows[-1]["metrics"] if rows else {}
    of_evaluation = run.eval["extra"] if run.eval is not None else {}
    costs = {f"train_{k}": v for k, v in of_training.items() if k.startswith("cost/")}
    costs |= {f"eval_{k}": v for k, v in of_evaluation.items() if k.startswith("cost/")}
    return {
        "status": "cut" if cut else run.status,
        "steps": run.steps,
        "updates": run.version,
        "train_s": run.train_s,
        "wall_s": end["time"]["wall_s"],
        "solve_steps": run.steps if solved else None,
        "solve_s": end["time"]["wall_s"] if solved else None,
        "train_return": of_training.get("return"),
        "eval_return": None if run.eval is None else run.eval["mean"],
        **costs,
        "curve": curve(rows),
        "config": json.loads((run.path / "config.json").read_text(encoding="utf-8")),
    }


def curve(rows: list[dict[str, Any]], num_points: int = CURVE_POINTS) -> list[list[float]]:
    """Steps, and the mean return of the last 100 training episodes then; at most `num_points`, the last one among them."""
    known = [[row["steps"], round(row["metrics"]["return"], 3)] for row in rows if "return" in row["metrics"]]
    stride = max(1, math.ceil(len(known) / num_points))
    return known[::-1][::stride][::-1]


if __name__ == "__main__":
    main()
