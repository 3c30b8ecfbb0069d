"""One run of one recipe with one seed; prints one JSON line. `run.py` starts it in a process of its own.

A run that was broken off goes on from its newest checkpoint.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import runnel as rl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("settings", help="JSON object of the recipe's fields")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="the run's own folder; its name is the run's")
    args = parser.parse_args()
    print(json.dumps(scores(finish(args.recipe, json.loads(args.settings), seed=args.seed, folder=args.folder))))


def finish(recipe: str, settings: dict[str, Any], *, seed: int, folder: Path) -> rl.Run:
    """Train, or go on where a former attempt was broken off; one that left no checkpoint starts anew."""
    if folder.is_dir():
        if any((folder / "checkpoints").glob("*/manifest.json")):
            return rl.resume(folder)
        shutil.rmtree(folder)
    return rl.train(recipe, seed=seed, track=(), out=str(folder.parent), name=folder.name, **settings)


def scores(run: rl.Run) -> dict[str, Any]:
    """What entries may ask for. A run that was stopped by its evaluation is solved; one that spent its budget is not."""
    last, end = run.rows()[-1], run.rows("end")[-1]
    solved = run.status == "stopped"
    return {
        "status": run.status,
        "steps": run.steps,
        "updates": run.version,
        "train_s": run.train_s,
        "wall_s": end["time"]["wall_s"],
        "solve_steps": run.steps if solved else None,
        "solve_s": end["time"]["wall_s"] if solved else None,
        "train_return": last["metrics"].get("return"),
        "eval_return": None if run.eval is None else run.eval["mean"],
    }


if __name__ == "__main__":
    main()
