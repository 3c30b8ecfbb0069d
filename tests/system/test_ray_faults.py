"""A run over Ray that is told to stop, or whose cluster loses its head: what can be saved is saved, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray_cluster import is_alive, wait_until
from test_faults import last_row, newest

import runnel as rl
from runnel.run.launchers.guard import children, descendants

TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "launcher": "ray",
    "num_envs": 2,
    "num_steps": 8,
    "vector": {"backend": "serial"},
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "total_updates": 1_000_000,
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 0},
    "name": "run",
}


def test_sigterm_ends_a_run_over_ray_with_a_checkpoint(tmp_path: Path) -> None:
    """Ray's init puts a handler of its own in place, which would end the run at once."""

    def on_update(row: dict[str, Any]) -> None:
        if row["version"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    run = rl.train("ppo", out=str(tmp_path), on_update=on_update, **TINY)
    assert (run.status, newest(run.path)["version"]) == ("stopped", run.version)
    assert last_row(run.path)["status"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before
    assert rl.resume(run.path, launcher="inproc", total_updates=run.version + 2).status == "finished"


def test_a_run_whose_head_is_killed_is_saved_and_says_how_to_go_on(tmp_path: Path) -> None:
    started: list[int] = []
    before = descendants(children(os.getpid()))  # what other tests have left to be forked from

    def on_update(row: dict[str, Any]) -> None:
        if row["version"] == 3:
            started.extend(descendants(children(os.getpid())).keys() - before.keys())
            (head,) = [pid for pid in started if Path(f"/proc/{pid}/comm").read_text().strip() == "gcs_server"]
            os.kill(head, signal.SIGKILL)

    with pytest.raises(rl.core.ClusterLost, match=r"the head of the Ray cluster \(127\.0\.0\.2:\d+\) is gone") as caught:
        rl.train("ppo", out=str(tmp_path), on_update=on_update, **TINY)
    path = tmp_path / "run"
    version = newest(path)["version"]
    (note,) = caught.value.__notes__
    assert f"saved at version {version}" in note
    assert f"runnel resume {path}" in note
    row = last_row(path)
    assert (row["kind"], row["status"]) == ("end", "failed")
    assert (path / "report.html").is_file()
    assert wait_until(lambda: not any(map(is_alive, started)), 5.0), "Ray's helpers would wait for their head for a minute"
    assert not ray.is_initialized()
    assert rl.resume(path, launcher="inproc", total_updates=version + 2).status == "finished"
