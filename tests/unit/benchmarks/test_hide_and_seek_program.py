"""The program of hide-and-seek's stages on a tiny world: cut, stored, brought back and ended, it is the run that was never cut;
its stages are runs of their own, which play."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning import detector_figure, hide_and_seek, keeping, seeds, stages
from benchmarks.learning.hide_and_seek_worlds import TINY
from benchmarks.learning.seatings import hiders_and_seekers, played
from benchmarks.learning.seeds import How, Row

import runnel as rl
from runnel.envs.device.detectors import detectors
from runnel.run import registry

SETTINGS: Row = {
    **TINY,
    "num_envs": 4,
    "total_steps": 4 * 80 * 4,
    "net": {"hidden": (8,), "entities": "attention"},
    "ppo": {**TINY["ppo"], "num_minibatches": 2, "num_epochs": 1},
}
ENTRY = hide_and_seek.Entry("toy", "ippo", SETTINGS, least=hide_and_seek.LEAST)


class CutAt:
    """A `Watch` that ends the run at a version, whatever the clock says."""

    version = 3

    def __init__(self, limit_s: float) -> None:
        assert limit_s == 225.0, "a quarter of 300 s is left to judge"
        self.cut = False

    def __call__(self, row: dict[str, Any]) -> bool:
        self.cut = row["progress"] < 1.0 and row["version"] == self.version
        return not self.cut


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run in one piece, of its first part, and of the second, on a machine that has only what was stored."""
    found: dict[str, Any] = {"store": tmp_path_factory.mktemp("store")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hide_and_seek, "EPISODES", 16)
        patch.setattr(seeds, "RUNS", tmp_path_factory.mktemp("whole"))
        found["whole"] = hide_and_seek.train(ENTRY, 1, How())
        patch.setattr(seeds, "RUNS", found["store"].parent / "first")
        how = How(limit_s=300.0, store=found["store"])
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(seeds, "Watch", CutAt)
            found["first"] = hide_and_seek.train(ENTRY, 1, how)
        shutil.rmtree(seeds.RUNS)
        patch.setattr(seeds, "RUNS", found["store"].parent / "second")
        found["second"] = hide_and_seek.train(ENTRY, 1, how)
        (found["run"],) = (seeds.RUNS / "hide-and-seek").iterdir()
    return found


def test_a_run_in_pieces_is_the_run_in_one(rows: dict[str, Any]) -> None:
    """A cut at version 3 lies in a window of 2 updates: the curve, the claims and the table of the whole run are the same."""
    assert rows["first"]["cut"]
    assert [p["version"] for p in rows["first"]["curve"]] == [2]
    assert "cut" not in rows["second"]
    assert rows["second"]["steps"] == SETTINGS["total_steps"]
    for name in ("at_random", "curve", "claims", "missing"):
        assert rows["second"][name] == rows["whole"][name], name
    assert [p["version"] for p in rows["second"]["curve"]] == [2, 4]
    assert rows["second"]["wall_s"] > rows["first"]["wall_s"]
    assert "chase" in rows["whole"]["claims"], "random seekers are ahead in this world, and this entry does not mind"
    assert rows["second"]["cross"] == rows["whole"]["cross"]
    assert rows["second"]["missing"]["stage"] == "fort"
    assert 0 < rows["whole"]["checkpoint_mb"] < 16


def test_the_stage_that_is_kept_is_the_version_of_the_claim_and_plays(rows: dict[str, Any]) -> None:
    """It is a run, whose policy matches judge as the cross-table does."""
    stage = rows["run"] / keeping.KEPT / "chase"
    assert keeping.kept_version(stage) == rows["second"]["claims"]["chase"]["version"] == rows["second"]["versions"]["chase"]
    world = hiders_and_seekers(SETTINGS["env"], {**SETTINGS["env_kwargs"]})
    found = played(world, {"hider": str(stage), "seeker": "random"}, episodes=96, seed=5)["hider_return"]
    players = {"stage": str(stage), "other": "random"}
    match = rl.match(players, SETTINGS["env"], kwargs=SETTINGS["env_kwargs"], episodes=96, seed=7)
    (games,) = (g for g in match.games if dict(zip(match.seats, g.players, strict=True))["hider"] == "stage")
    returns = games.returns[:, list(match.seats).index("hider")]
    assert abs(float(found.mean()) - returns.mean()) < 4 * np.hypot(float(found.std()), returns.std()) / 96**0.5


def test_what_is_stored_is_one_file_with_the_newest_checkpoint(rows: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / rows["run"].name
    assert keeping.unpack(run, rows["store"])
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["000000004"]
    assert rl.load(run / keeping.KEPT / "chase").agents
    assert not keeping.unpack(run, rows["store"]), "what is there is left alone"
    assert not keeping.unpack(tmp_path / "other", rows["store"])


def test_the_table_and_the_figure_tell_what_came_and_what_did_not(rows: dict[str, Any], tmp_path: Path) -> None:
    row = {"key": "toy", "seed": 1, "settings": SETTINGS, **rows["second"], "device_s": 90.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hide_and_seek, "OUT", tmp_path)
        text = hide_and_seek.table([], [row])
    first = rows["second"]["claims"]["chase"]["steps"]
    assert f"| toy | 1 | {first:,} | not | not | not | not |" in text
    assert "Fort building did not come within 1,280 steps; tried: `{'env': 'tensor:HideAndSeek'" in text
    assert "| 1.5 |" in text, "minutes of the GPU"
    svg = (tmp_path / "detectors-toy.svg").read_text()
    assert svg.count("<svg") == 1
    assert detector_figure.names_of(row)[-1] == "num_ramp_lock_prep"


def test_windows_before_a_better_one_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checkpoint that ends the best window so far is copied; one between two windows never is."""
    copied: list[tuple[str, str]] = []
    monkeypatch.setattr(keeping, "keep", lambda run, checkpoint, into: copied.append((checkpoint.name, into.name)))
    signs = stages.Signs(dict.fromkeys(detectors("ramp"), 1.0))
    keeper = keeping.Keeper(tmp_path / "none", 2, lambda points: stages.claims(points, signs))
    for version, paid in enumerate([5, 5, 3, 3, 8, 8], start=1):
        numbers = dict.fromkeys(detectors("ramp"), 0.0)
        metrics = {f"episode/{k}": x for k, x in (numbers | {"seeker_return": paid, "hider_return": -paid}).items()}
        keeper.update({"version": version, "steps": version, "metrics": metrics})
        keeper.checkpoint({"version": version, "path": str(tmp_path / str(version))})
    assert copied == [("2", "chase"), ("6", "chase")]


def test_every_entry_makes_a_run() -> None:
    """All settings are known and fit each other, and none is without use."""
    for entry in hide_and_seek.ENTRIES:
        loaded = registry.load_recipe(entry.recipe)
        few = {"num_layouts": 16} if "num_layouts" in entry.settings.get("env_kwargs", {}) else {}
        settings = {**entry.settings, "env_kwargs": {**entry.settings.get("env_kwargs", {}), **few}}
        experiment = registry.build(entry.recipe, registry.configure(loaded, settings))
        experiment.check()
        assert entry.every > 0
    assert {"grid", "quadrant", "plain-quadrant", "wide-quadrant", "arena"} <= {entry.key for entry in hide_and_seek.ENTRIES}
