"""A second trainer, and a transform that reads without holding anybody back, in processes of their own: frozen and killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_faults import last_row, newest
from test_restarts import kill, once, told
from tiny_slices import settings

import runnel as rl


def train(out: Path, on_update: Callable[[dict[str, Any]], None], *, every: int = 10, launcher: str = "local") -> rl.Run:
    recipe, tiny = settings("guided", launcher=launcher, total_updates=60, eval={"episodes": 0}, checkpoint={"every": every})
    return rl.train(recipe, out=str(out), on_update=on_update, **tiny)


def accounts(run: rl.Run) -> dict[str, Any]:
    """The accounts of all readers, which add up; every version of the run was trained once."""
    assert (run.status, run.version) == ("finished", 60)
    assert [r["version"] for r in run.rows()] == list(range(1, 61))
    found: dict[str, Any] = last_row(run.path)["streams"]
    assert set(found) == {"trajectories", "trajectories:labels", "labels"}
    for account in found.values():
        gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
        assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]
    return found


def test_a_frozen_lossy_reader_never_slows_training(tmp_path: Path) -> None:
    """From version 12 to 38 its process stands still, and the trainer makes all these versions meanwhile."""
    stands, goes = once(12, kill("labels", signal.SIGSTOP)), once(38, kill("labels", signal.SIGCONT))

    def on_update(row: dict[str, Any]) -> None:
        stands(row)
        goes(row)

    run = train(tmp_path, on_update, every=0)
    found = accounts(run)
    assert "was lost" not in told(run)
    skipped = found["trajectories:labels"]["dropped"]["skipped"]
    assert skipped >= 20 * 2 * 4, "two segments of four rows in each update"
    assert found["trajectories"]["consumed"] == 60 * 2 * 4


def test_a_lossy_reader_that_is_killed_is_started_again(tmp_path: Path) -> None:
    run = train(tmp_path, once(15, kill("labels")))
    accounts(run)
    assert "worker 'labels' was killed by signal SIGKILL" in told(run)
    assert newest(run.path)["epoch"] == 0, "the run did not go back to a checkpoint"


@pytest.mark.parametrize(
    ("every", "launcher"), [(10, "ray"), (0, "local")], ids=["from its checkpoint, over Ray", "from nothing"]
)
def test_a_second_trainer_that_is_killed_takes_back_its_own_work_alone(every: int, launcher: str, tmp_path: Path) -> None:
    """The leader goes on: no version of the run is made twice. What the lost one had trained on since its checkpoint is
    counted, and it goes on with the next number of its versions."""
    lose = kill("taste")
    if launcher == "ray":
        pytest.importorskip("ray")
        from ray_cluster import our_actors  # not above: the other tests need no Ray

        def lose() -> None:
            os.kill(our_actors()["taste"]["pid"], signal.SIGKILL)

    run = train(tmp_path, once(25, lose), every=every, launcher=launcher)
    found = accounts(run)
    assert re.search(r"worker 'taste' (was killed by signal SIGKILL|on node \w+ was lost)", told(run))
    assert "worker 'taste': its learner is that of version" in told(run)
    assert newest(run.path)["epoch"] == 0
    lost = found["labels"]["dropped"]["lost_with_trainer"]
    assert lost > 0 if every == 0 else lost >= 0
    told_lost = re.search(r"its learner is that of version (\d+), (\d+) rows that it had trained on since are lost", told(run))
    assert told_lost is not None
    assert int(told_lost[2]) == lost
    assert (int(told_lost[1]) == 0) == (every == 0)
    metrics = run.rows()[-1]["metrics"]
    assert metrics["taste/version"] > 25, "versions of the second trainer only grow"
    assert {"taste/loss", "taste/accuracy"} <= metrics.keys()
