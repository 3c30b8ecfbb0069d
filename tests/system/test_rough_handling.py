"""What users do to run folders: resume them twice at once, with other settings, on another launcher, or read them meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.run.checkpoint import Checkpoints

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "total_updates": 4,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "eval": {"episodes": 0},
    "name": "run",
}


def files(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (run / "metrics.jsonl", run / "config.json")}


def balanced(run: rl.Run) -> bool:
    accounts = run.rows("end")[-1]["streams"].values()
    return all(
        a["dispatched"] == a["consumed"] + sum(a["dropped"].values()) + sum(a["cancelled"].values()) + a["in_flight"]
        for a in accounts
    )


def test_a_run_that_is_being_trained_cannot_be_resumed_beside(tmp_path: Path) -> None:
    refused: list[str] = []

    def meddle(row: dict[str, Any]) -> None:
        with pytest.raises(rl.ConfigError, match="another process is training it") as caught:
            rl.resume(tmp_path / "run", total_updates=50)
        refused.append(str(caught.value))

    run = rl.train("ppo", out=str(tmp_path), on_checkpoint=meddle, **{**TINY, "checkpoint": {"every": 2}})
    assert refused
    assert [r["version"] for r in run.rows()] == [1, 2, 3, 4]
    assert rl.resume(run.path, total_updates=6).version == 6


def test_a_spent_budget_is_refused_before_the_folder_is_touched(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    before = files(run.path)
    with pytest.raises(rl.ConfigError, match="spent its budget"):
        rl.resume(run.path)
    assert files(run.path) == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mlp": {"hidden": (7,)}}, "mlp.hidden = [7]"),
        ({"num_actors": 2}, "num_actors = 2 (was 1)"),
        ({"num_envs": 4}, "num_envs = 4 (was 2)"),
        ({"staleness": {"mode": "window"}}, "staleness.mode = 'window' (was 'sync')"),
        ({"env": "Acrobot-v1"}, "env = 'Acrobot-v1' (was 'CartPole-v1')"),
    ],
)
def test_settings_that_do_not_fit_the_checkpoint_are_named_and_not_kept(
    settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    config = files(run.path)["config.json"]
    with pytest.raises(rl.CheckpointError) as caught:
        rl.resume(run.path, total_updates=8, **settings)
    assert told in str(caught.value)
    assert files(run.path)["config.json"] == config
    assert rl.load(run.path).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert rl.resume(run.path, total_updates=6).version == 6


def test_a_run_keeps_its_seed(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    with pytest.raises(rl.ConfigError, match="a run keeps its seed"):
        rl.resume(run.path, total_updates=8, seed=2)


def test_a_resume_that_fails_to_start_across_processes_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    before = Checkpoints(run.path / "checkpoints").finished()
    with pytest.raises(rl.WorkerFailure, match="actor-0") as caught:
        rl.resume(run.path, total_updates=8, launcher="local", num_envs=4)
    assert any("num_envs = 4 (was 2)" in note for note in caught.value.__notes__)
    assert Checkpoints(run.path / "checkpoints").finished() == before


def test_a_run_changes_its_launcher_and_back(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), launcher="local", **TINY)
    run = rl.resume(run.path, launcher="inproc", total_updates=6)
    assert balanced(run)
    run = rl.resume(run.path, launcher="local", total_updates=8)
    assert run.version == 8
    assert balanced(run)


def test_a_policy_loads_while_the_run_removes_old_checkpoints(tmp_path: Path) -> None:
    wrong: list[Exception] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                Checkpoints(tmp_path / "run" / "checkpoints").newest_params()
            except Exception as error:
                wrong.append(error)

    reader = threading.Thread(target=read)

    def begin(row: dict[str, Any]) -> None:
        if row["version"] == 1:
            reader.start()

    settings = {**TINY, "checkpoint": {"every": 1, "keep": 1}, "total_updates": 60}
    rl.train("ppo", out=str(tmp_path), on_checkpoint=begin, **settings)
    over.set()
    reader.join()
    assert wrong == []
