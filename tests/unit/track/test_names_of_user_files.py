"""Files of one's own appear by their name, wherever a person reads it, and not by the path that finds them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.board.library import Library
from runnel.cli.main import main
from runnel.report.collect import collect
from runnel.track.folder import RunFolder
from runnel.track.history import load_history

ENV = """
from runnel.envs.toy import PointMass


class Own(PointMass):
    pass
"""
RECIPE = "from runnel.recipes.ppo import Config, build\n"
TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 1,
    "eval.episodes": 1,
    "track": (),
    "ppo.num_minibatches": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("somewhere")
    (folder / "own_env.py").write_text(ENV)
    (folder / "own_recipe.py").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> rl.Run:
    return rl.train(str(folder / "own_recipe.py"), env=f"{folder / 'own_env.py'}:Own", out=str(folder / "runs"), **TINY)


def test_in_the_folder_the_view_and_the_labels(run: rl.Run, folder: Path) -> None:
    assert run.path.name.startswith("own_recipe-own_env.py_Own-1-")
    info = RunFolder(run.path).read_run_info()
    assert info["subject"] == "own_env.py:Own"
    assert info["recipe"] == str(folder / "own_recipe.py"), "which finds it again"
    assert load_history(run.path).label == "own_recipe.py own_env.py:Own"
    library = Library(folder / "runs", cache=folder / "cache")
    library.refresh()
    (line,) = library.lines()
    assert (line["label"], line["recipe"], line["subject"]) == (
        "own_recipe.py own_env.py:Own",
        "own_recipe.py",
        "own_env.py:Own",
    )
    library.close()


def test_runs_made_before_and_settings_too(run: rl.Run, folder: Path, tmp_path: Path) -> None:
    old, other = tmp_path / "runs" / "old", tmp_path / "runs" / "other"
    for path, network in ((old, "/somewhere/net.py:first"), (other, "/somewhere/net.py:second")):
        shutil.copytree(run.path, path)
        found = RunFolder(path)
        found.change_run_info(subject=f"{folder / 'own_env.py'}:Own")
        found.write_config({**found.read_config(), "network": network})
    collected = collect([str(tmp_path / "runs")])
    told = " ".join(group.name for group in collected.groups)
    assert "network=net.py:first" in told
    assert "/somewhere" not in told
    assert str(folder) not in told
    assert set(collected.lines()) == {group.name for group in collected.groups}, "it is one task"


def test_two_files_of_one_name_are_told(run: rl.Run, tmp_path: Path) -> None:
    for seed, place in ((1, "/a"), (2, "/b")):
        path = tmp_path / "runs" / f"run-{seed}"
        shutil.copytree(run.path, path)
        found = RunFolder(path)
        found.change_run_info(seed=seed)
        found.write_config({**found.read_config(), "seed": seed, "env": f"{place}/own_env.py:Own"})
    (told,) = collect([str(tmp_path / "runs")]).notices
    assert told == "own_env.py:Own counts as one task, and is 2 files: /a/own_env.py:Own, /b/own_env.py:Own."


def test_in_the_report(run: rl.Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run.path), "--over", "seeds"]) == 0
    assert str(folder) not in capsys.readouterr().out.replace(str(run.path.parent), "")
    page = (run.path.parent / "comparison.html").read_text()
    head = page.partition("resolved configuration")[0]
    assert "own_env.py:Own" in head
