"""Run folders of any number and length, as a board meets them: made quickly, with the rows that a PPO run writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

METRICS = ("loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "return", "episode_length")
VARIANTS = 8


def make_runs(root: Path, *, num_runs: int, num_rows: int) -> None:
    """`num_runs` folders, in groups of five seeds; every eighth has values of its own, the rest are copies of those."""
    first: list[Path] = []
    for number in range(num_runs):
        folder = root / f"made-{number:04d}"
        folder.mkdir(parents=True)
        write_plain(folder, group=number // 5, seed=number % 5 + 1)
        if number < VARIANTS:
            write_metrics(folder / "metrics.jsonl", num_rows=num_rows, seed=number)
            first.append(folder)
        else:
            shutil.copyfile(first[number % VARIANTS] / "metrics.jsonl", folder / "metrics.jsonl")


def write_plain(folder: Path, *, group: int, seed: int) -> None:
    config = {"seed": seed, "out": "runs", "name": "", "tags": [], "ppo": {"lr": 1e-4 * (group + 1)}}
    (folder / "config.json").write_text(json.dumps(config))
    info = {"recipe": "ppo", "subject": "Made-v0", "seed": seed, "created": f"2030-01-01T{group % 24:02d}:{seed:02d}:00"}
    (folder / "run.json").write_text(json.dumps(info))


def write_metrics(path: Path, *, num_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_rows, len(METRICS)))
    curve = 500 * (1 - np.exp(-np.arange(num_rows) / (num_rows / 4)))
    with path.open("w") as file:
        for i in range(num_rows):
            done, score = i + 1, round(curve[i] + 20 * noise[i, 5], 4)
            metrics = {name: round(noise[i, j], 6) for j, name in enumerate(METRICS[:-2])}
            counts = {"dispatched": 8 * done, "consumed": 8 * done, "dropped": {}, "cancelled": {}, "in_flight": 0, "queued": 0}
            time = {"wall_s": 0.1 * i, "steps_per_s": 2560.0, "stages": {"trainer/update": 0.05}, "idle": {"trainer": 0.5}}
            row = {"kind": "update", "version": done, "steps": 256 * done, "tokens": 0, "progress": done / num_rows}
            row |= {
                "metrics": metrics | {"return": score, "episode_length": score},
                "streams": {"trajectories": counts},
                "time": time,
            }
            file.write(json.dumps(row) + "\n")
        file.write('{"kind": "end", "status": "finished", "time": {"wall_s": 1.0}}\n')
