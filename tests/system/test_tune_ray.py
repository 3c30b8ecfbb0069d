"""Trials on a Ray cluster: the same study, and a process of Ray's that dies costs its trial only."""

from __future__ import annotations

from pathlib import Path

from ray_cluster import local_ray
from test_tune import BOWL, FAST, TOY

from runnel import tune


def test_trials_on_ray(tmp_path: Path) -> None:
    options = {**BOWL, "sampler": "grid", "grid_points": 3, "pruner": "median", "workers": 2, "on": "ray"}
    with local_ray():
        study = tune.search(TOY, space={"rate": "0.1..0.3"}, out=tmp_path / "study", options=options, trouble="die", **FAST)
    assert sorted(t["state"] for t in study.trials) == ["complete", "complete", "failed"]
    (lost,) = [t for t in study.trials if t["state"] == "failed"]
    assert "its process was lost" in lost["error"]
    for trial in study.trials:
        if trial["state"] == "complete":  # reports stop short of the end, where the value itself follows
            assert [step for step, _ in trial["steps"]] == list(range(2, 40, 2))
