"""Runs on disk without training: a score, a task, a seed, some settings."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

from runnel.track.folder import RunFolder


def made_run(
    root: Path,
    score: float,
    *,
    recipe: str = "ppo",
    task: str = "CartPole-v1",
    seed: int = 1,
    name: str = "",
    status: str = "finished",
    created: int = 0,
    num_evals: int = 5,
    **config,
) -> RunFolder:
    """A run whose evaluations rise linearly to `score` over 1,000 steps."""
    folder = RunFolder.create(root, name or f"{recipe}-{task.replace('/', '_')}-{seed}")
    folder.write_config({"seed": seed, "env": task, "tags": [], "out": str(root), "vector": {"backend": f"b{seed}"}, **config})
    when = datetime(2030, 1, 1) + timedelta(seconds=created)
    folder.write_run_info(recipe=recipe, subject=task, command="runnel train", seed=seed, created=when)
    rows = []
    for i in range(1, num_evals + 1):
        at = {"version": i, "steps": 1000 * i // num_evals}
        rows.append({"kind": "update", **at, "metrics": {"return": score * i / num_evals}, "time": {"wall_s": float(i)}})
        mean = score * i / num_evals
        rows.append({"kind": "eval", **at, "mean": mean, "low": mean - 1, "high": mean + 1, "num": 4, "returns": [mean] * 4})
    if status:
        rows.append({"kind": "end", "status": status, "time": {"wall_s": 9.0}})
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(folder.metrics, (1e9, 1e9))  # long ago: nobody trains it on another machine
    return folder


def made_group(root: Path, scores: list[float], *, first_seed: int = 1, **settings) -> list[RunFolder]:
    """A run for each score, on seeds from `first_seed` on."""
    return [made_run(root, score, seed=first_seed + i, **settings) for i, score in enumerate(scores)]
