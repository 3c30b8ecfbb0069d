"""Short seeded runs in process, against what they gave when they were last looked at: a refactor changes none of it.

Bits differ between CPUs, so numbers are compared to a relative 1e-3; counts and sample ids exactly. After a change that is
meant to change learning, look at the difference and write the new numbers: `python tests/golden/test_golden_runs.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from tiny_slices import SLICES, settings

import runnel as rl

FILE = Path(__file__).with_name("golden_runs.json")
EXACT = ("version", "steps", "tokens", "sample_ids")
NOISE = ("mismatch/kl", "approx_kl", "kl", "loss/policy")
"""Differences of nearly equal numbers: their relative error says nothing."""


def rows(name: str, out: Path) -> list[dict[str, Any]]:
    budget = {"total_steps": 230} if name == "dqn" else {"total_updates": 5}
    recipe, tiny = settings(name, eval={"episodes": 0}, checkpoint={"every": 0})
    tiny = {k: v for k, v in tiny.items() if not k.startswith("total_")} | budget
    found = rl.train(recipe, out=str(out), **tiny).rows()
    return [{**{k: row[k] for k in EXACT}, "metrics": row["metrics"]} for row in found]


@pytest.mark.parametrize("name", list(SLICES))
def test_a_seeded_run_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    expected, found = json.loads(FILE.read_text())[name], rows(name, tmp_path)
    assert len(found) == len(expected)
    assert all(row["metrics"]["grad_norm"] > 0 for row in found), "an update that takes no step pins nothing down"
    for new, old in zip(found, expected, strict=True):
        assert {k: new[k] for k in EXACT} == {k: old[k] for k in EXACT}
        assert new["metrics"].keys() == old["metrics"].keys()
        for key, value in old["metrics"].items():
            tolerance = 1e-4 if key in NOISE else 1e-6
            assert new["metrics"][key] == pytest.approx(value, rel=1e-3, abs=tolerance), (new["version"], key)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        FILE.write_text(json.dumps({name: rows(name, Path(scratch) / name) for name in SLICES}, indent=1) + "\n")
