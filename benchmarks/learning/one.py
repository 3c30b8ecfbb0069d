"""One run of one recipe with one seed; prints one JSON line. `run.py` starts it in a process of its own."""

from __future__ import annotations

import argparse
import json
from typing import Any

import runnel as rl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("settings", help="JSON object of the recipe's fields")
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    run = rl.train(args.recipe, seed=args.seed, track=(), out="runs", **settings(args.settings))
    print(json.dumps(scores(run)))


def settings(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def scores(run: rl.Run) -> dict[str, Any]:
    """What entries may ask for. A run that was stopped by its evaluation is solved; one that spent its budget is not."""
    last = run.rows()[-1]
    solved = run.status == "stopped"
    return {
        "status": run.status,
        "steps": run.steps,
        "updates": run.version,
        "train_s": run.train_s,
        "solve_steps": run.steps if solved else None,
        "solve_s": run.train_s if solved else None,
        "train_return": last["metrics"].get("return"),
        "eval_return": None if run.eval is None else run.eval["mean"],
    }


if __name__ == "__main__":
    main()
