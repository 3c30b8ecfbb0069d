"""The parameters with the best evaluation are kept beside the newest checkpoints, through kills and resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import CheckpointError, DiskFullError
from runnel.report.card import best_evidence
from runnel.run import api
from runnel.run import best as best_module
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints, read_params
from runnel.track.folder import RunFolder
from runnel.track.history import load_history

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 5,
    "eval.every": 1,
    "eval.episodes": 2,
    "checkpoint.every": 1,
    "checkpoint.keep": 5,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
    "ppo.lr": 0.05,
}


def offered(folder: Path, *means: float) -> BestParams:
    """The best of versions 1, 2, ... with these evaluations; the parameters of a version are its number."""
    best = BestParams(folder)
    for version, mean in enumerate(means, start=1):
        assert best.offer(version, [mean - 1, mean + 1], {"w": torch.full((2,), float(version))}) == ""
    return best


def versions(best: BestParams) -> list[int]:
    return [kept.version for kept in best.kept()]


def test_the_highest_mean_is_kept_and_of_several_the_newest(tmp_path: Path) -> None:
    best = offered(tmp_path / "best", 5.0, 9.0, 7.0, 9.0, float("nan"), 8.0)
    assert versions(best) == [1, 2, 4], "what did not do better is never written"
    params, kept = best.load()
    assert (params.version, kept.version, kept.mean) == (4, 4, 9.0)
    assert torch.equal(params.params["w"], torch.full((2,), 4.0))
    assert str(kept) == "version 4, evaluation mean 9"


def test_older_ones_stay_as_long_as_a_run_may_go_back_to_them(tmp_path: Path) -> None:
    best = offered(tmp_path / "best", 1.0, 2.0, 3.0, 4.0, 5.0)
    best.prune([2, 4])
    assert versions(best) == [2, 4, 5]
    best.cut(4)
    assert versions(best) == [2, 4]
    best.cut(3)
    assert best.load()[0].version == 2
    best.cut(0)
    with pytest.raises(CheckpointError, match="the run was not evaluated yet"):
        best.load()


def test_a_damaged_one_is_not_given_out(tmp_path: Path) -> None:
    best = offered(tmp_path / "best", 1.0, 2.0)
    file = best.kept()[-1].path / "params.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged"):
        best.load()


def test_a_full_disk_costs_the_best_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise DiskFullError("no room")

    best = offered(tmp_path / "best", 1.0)
    monkeypatch.setattr(best_module, "write_parts", full)
    told = best.offer(2, [5.0], {"w": torch.ones(1)})
    assert told == "version 2 did best, and is not kept: no room"
    assert [p.name for p in (tmp_path / "best").iterdir()] == ["000000001"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return rl.train("ppo", out=str(tmp_path_factory.mktemp("runs")), **TINY)


def best_row(run: Path, until: float = float("inf")) -> dict[str, Any]:
    """What metrics.jsonl says was best."""
    rows = [r for r in RunFolder(run).read_rows()[0] if r["kind"] == "eval" and r["version"] <= until]
    return max(rows, key=lambda r: (r["mean"], r["version"]))


def test_a_run_keeps_what_did_best(run: rl.Run) -> None:
    row, folder = best_row(run.path), RunFolder(run.path)
    assert run.best == {"version": row["version"], "mean": row["mean"]}
    kept = BestParams(folder.best)
    for path in Checkpoints(folder.checkpoints).finished():
        then, found = best_row(run.path, until=int(path.name)), kept.best(int(path.name))
        assert found is not None
        assert (found.version, found.mean) == (then["version"], then["mean"]), "each checkpoint has the best of its time"
        theirs = read_params(folder.checkpoints / f"{found.version:09d}")
        assert all(torch.equal(theirs[name], value) for name, value in read_params(found.path).items())


def test_load_evaluate_and_export_take_it(
    run: rl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, obs = best_row(run.path), torch.randn(64, 4).numpy()
    assert (rl.load(run.path, best=True).act(obs) == run.policy(best=True).act(obs)).all()
    assert main(["eval", str(run.path), "--best", "--episodes", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["best"]) == (row["version"], True)
    assert main(["eval", str(run.path), "--best", "--episodes", "3"]) == 0
    assert f"version {row['version']} (the best)" in capsys.readouterr().out
    assert best_evidence(load_history(run.path))["source"] == "the last evaluation during training", "reports: the newest"
    told: dict[str, Any] = {}
    monkeypatch.setattr(api, "export_policy", lambda policy, folder, format, about: told.update(about) or folder)
    assert main(["export", str(run.path), str(tmp_path / "graph"), "--best"]) == 0
    assert told["version"] == row["version"]


def test_a_resume_forgets_what_was_cut(run: rl.Run, tmp_path: Path) -> None:
    """Go back to an older checkpoint: the best is the one of then, and going on finds the same again."""
    again = tmp_path / "again"
    shutil.copytree(run.path, again)
    folder = RunFolder(again)
    for path in Checkpoints(folder.checkpoints).finished()[2:]:
        shutil.rmtree(path)
    seen: list[Any] = []

    def on_update(row: dict[str, Any]) -> None:
        seen.append((row["version"], BestParams(folder.best).best()))

    resumed = rl.resume(again, on_update=on_update)
    assert [version for version, _ in seen] == [3, 4, 5]
    for version, found in seen:
        then = best_row(run.path, until=version)
        assert (found.version, found.mean) == (then["version"], then["mean"])
    assert resumed.best == run.best


def test_without_it_nothing_is_kept(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **{**TINY, "checkpoint.best": False})
    assert run.best is None
    assert not RunFolder(run.path).best.exists()
    with pytest.raises(CheckpointError, match=r"checkpoint\.best off"):
        rl.load(run.path, best=True)
