"""Runs of the small learners that are stopped and resumed give what the uninterrupted run gives, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

REPLAY: dict[str, Any] = {
    "env": "runnel.envs.toy:PointMass",
    "total_steps": 120,
    "min_fill": 40,
    "num_steps": 4,
    "log_every": 1,
    "net": {"hidden": (8,)},
}
SMALL = {"num_steps": 16, "total_updates": 6, "num_envs": 2}
RUNS: dict[str, dict[str, Any]] = {
    "stream_ac": {"total_updates": 60, "log_every": 1},
    "stream_q": {"total_updates": 60, "log_every": 1},
    "drm": {**REPLAY, "drm": {"batch_size": 8, "perturb_every": 7, "awake_below": 0.9}},
    "mex": {**REPLAY, "td3": {"batch_size": 8, "eta": 0.1}},
    "cip": {**REPLAY, "sac": {"batch_size": 8, "fit_rows": 40, "fit_every": 7, "cause_threshold": 1.0, "empowerment": 0.1}},
    "soap": {**SMALL, "env": "runnel.envs.toy:Recall"},
    "gbrl": SMALL,
    "sqirl": {"num_steps": 64, "total_updates": 6, "sqirl": {"horizon": 5, "depth": 2, "num_epochs": 2}},
}


def learned(run: rl.Run) -> list[dict[str, Any]]:
    return [{k: row[k] for k in ("version", "steps", "metrics", "sample_ids")} for row in run.rows()]


@pytest.mark.parametrize("recipe", list(RUNS))
def test_stopped_and_resumed_is_bit_identical(recipe: str, tmp_path: Path) -> None:
    common: dict[str, Any] = {**RUNS[recipe], "track": (), "out": str(tmp_path), "vector": {"backend": "serial"}}
    common["eval"] = {"episodes": 0}
    whole = rl.train(recipe, **common, name="whole")
    middle = whole.version // 2
    half = rl.train(recipe, **common, name="half", on_update=lambda row: row["version"] < middle)
    assert half.status == "stopped"
    assert learned(rl.resume(half.path)) == learned(whole)
