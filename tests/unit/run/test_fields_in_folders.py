"""Settings of every recipe that say where output goes, and when a run saves or stops: what files, the console or the process
show. They are read by the code around a run, which is one for all recipes, so one recipe shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_fields_of_environments import IN_FOLDERS

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.run.registry import configure, load_recipe
from runnel.run.tracing import open_recorder
from runnel.track.folder import RunFolder

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 3,
    "eval.episodes": 1,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
}
VIDEOS = {"record.videos": 1, "eval.every": 1, "record.max_steps": 2}
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "name": ("other", {}),
    "tags": (("a",), {}),
    "log_every": (2, {}),
    "track": (("csv",), {}),
    "trace": (True, {}),
    "eval.stop_return": (-1e9, {"eval.every": 1}),
    "stop_on": ("collapse", {"ppo.lr": 10.0, "total_updates": 22}),
    "checkpoint.every": (1, {}),
    "checkpoint.keep": (1, {"checkpoint.every": 1}),
    "checkpoint.best": (False, {}),
    "record.keep": (1, VIDEOS),
}
SHOWN = {"out", "init_from", "trace_mb", "control", "placement.threads"}
"""By a test of their own below."""


def left(out: Path, **settings: Any) -> dict[str, Any]:
    """What a run leaves, without what time touches."""
    run = rl.train("ppo", out=str(out), **{**TINY, **settings})
    files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    rows = [{k: v for k, v in row.items() if k != "time"} for row in run.rows()]
    return {"files": files, "rows": rows, "status": run.status, "tags": RunFolder(run.path).read_config()["tags"]}


def test_equal_runs_leave_the_same(tmp_path: Path) -> None:
    given = {**VIDEOS, "checkpoint.every": 1}
    assert left(tmp_path / "before", **given) == left(tmp_path / "after", **given)


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_what_a_run_leaves(name: str, tmp_path: Path) -> None:
    value, given = CHANGES[name]
    assert left(tmp_path / "before", **given) != left(tmp_path / "after", **given, **{name: value})


def test_a_run_starts_from_another_in_the_folder_that_it_is_told(tmp_path: Path) -> None:
    first = rl.train("ppo", out=str(tmp_path / "a"), **TINY)
    assert first.path.parent == tmp_path / "a"
    fresh, warm = (
        rl.train("ppo", out=str(tmp_path / name), **TINY, init_from=start).rows()[0]["metrics"]
        for name, start in (("b", ""), ("c", str(first.path)))
    )
    assert fresh["loss/total"] == first.rows()[0]["metrics"]["loss/total"] != warm["loss/total"]


def test_threads_and_control_are_there_while_a_run_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for control in (False, True):
        settings = {**TINY, "placement.threads": 2 if control else 1, "control": control}
        rl.train(
            "ppo", out=str(tmp_path / str(control)), on_update=lambda row: seen.append(torch.get_num_threads()), **settings
        )
        assert ("control token" in capsys.readouterr().err) == control
    assert seen == [1, 1, 1, 2, 2, 2]


def test_a_trace_is_as_large_as_it_may_be(tmp_path: Path) -> None:
    config = configure(load_recipe("ppo"), {"trace": True, "trace_mb": 3})
    (tmp_path / "trace").mkdir()
    recorder = open_recorder(config, tmp_path, "main", ManualClock())
    assert recorder is not None
    assert recorder._max_bytes == 3 << 20
    recorder.close()


def test_every_setting_that_files_show_is_here() -> None:
    assert {*CHANGES, *SHOWN} == set(IN_FOLDERS)
