"""c4.py NAME SEED STEPS MINUTES DEVICE JSON: a variant of Connect Four's entry: train, judge, write /tmp/c4/NAME.json."""

import json
import os
import sys
import time

import torch
from benchmarks.learning import boards as b
from benchmarks.learning.one import Watch, finish
from pathlib import Path

import runnel as rl

name, seed, steps, minutes, device, over = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5], json.loads(sys.argv[6])
torch.set_num_threads(int(os.environ.get("THREADS", "1")))
entry = next(e for e in b.ENTRIES if e.key == "connect four")
settings = {**entry.settings, "total_steps": steps, "env": entry.board.env, "progress": False, "checkpoint": {"every": 0}, "eval": {"episodes": 0}}
for key, value in over.items():
    settings[key] = {**settings[key], **value} if isinstance(value, dict) and isinstance(settings.get(key), dict) else value
watch, begin = Watch(60 * minutes), time.monotonic()
run = finish("selfplay", {**settings, "device": device}, seed=seed, folder=Path(f"/tmp/c4/runs/{name}"), watch=watch)
wall = time.monotonic() - begin
found = b.judge(entry, run.path)
row = {"name": name, "over": over, "seed": seed, "steps": run.steps, "of": steps, "wall_s": round(wall, 1), "steps_per_s": round(run.steps / run.train_s), **found}
Path(f"/tmp/c4/{name}.json").write_text(json.dumps(row))
print(json.dumps(row), flush=True)
