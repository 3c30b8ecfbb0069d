"""A trainer whose ranks keep a part of a language model each, as a whole run: the curve of one, any number on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from tiny_slices import content, settings
from torch.testing import assert_close

import runnel as rl


def test_a_run_in_parts_is_the_run_of_one_and_goes_on_in_any_number(tmp_path: Path) -> None:
    """Two ranks with shards up to version 5, then one without, against one rank all the way."""
    recipe, tiny = settings("grpo", launcher="local", deterministic=True, eval={"episodes": 0}, checkpoint={"every": 5})
    common: dict[str, Any] = {**tiny, "grpo": {"kl_coef": 0.1}}
    learner = common.pop("learner")
    del common["total_updates"], common["placement"]
    one = {"learner": learner, "placement": {"threads": 1}}
    whole = rl.train(recipe, out=str(tmp_path / "one"), total_updates=8, **one, **common)
    parts = {"learner": {**learner, "shard": True}, "placement": {"threads": 1, "trainers": 2}}
    run = rl.train(recipe, out=str(tmp_path / "two"), total_updates=5, **parts, **common)
    names = {p.name for p in (run.path / "checkpoints" / "000000005").glob("worker-trainer*")}
    assert {"worker-trainer.safetensors", "worker-trainer-1.safetensors"} <= names, "each rank saves its part"
    run = rl.resume(run.path, total_updates=8, placement={"trainers": 1}, learner={"shard": False})
    assert (run.status, run.version) == ("finished", 8)
    (_, mine), (_, expected) = (content(one.path, by_arrival=False) for one in (run, whole))
    assert_close(load(mine), load(expected), rtol=1e-4, atol=1e-6)
    for found, row in zip(run.rows(), whole.rows(), strict=True):
        assert found["metrics"]["grad_norm"] == pytest.approx(row["metrics"]["grad_norm"], rel=1e-3), row["version"]
