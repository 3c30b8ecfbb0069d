"""What the in-process launcher leaves behind when a worker fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes_run import CountingSampler, Measure, experiment

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.core.errors import NonFiniteError
from runnel.data.replay import ReplayStore
from runnel.graphs.experiment import Experiment
from runnel.run.checkpoint import Checkpoints, read_part
from runnel.run.launchers import inproc
from runnel.run.ledger import Ledger
from runnel.run.session import Session
from runnel.run.wiring import place
from runnel.track.folder import RunFolder


def session_of(e: Experiment, path: Path) -> Session:
    folder, clock = RunFolder(path), ManualClock()
    return Session(e, place(e), folder, Ledger(folder, clock), Checkpoints(folder.checkpoints), clock)


class FailingMeasure(Measure):
    def run(self, clients: Any, *, round_index: int, progress: Any = None) -> Any:
        raise RuntimeError("no display")


def test_an_evaluator_that_fails_leaves_a_checkpoint_of_the_version_that_it_was_to_measure(tmp_path: Path) -> None:
    """The trainer updated in the same round, so the checkpoint and the metrics must both say so."""
    e = experiment()
    assert e.evaluation is not None
    e = replace(e, evaluation=replace(e.evaluation, make=FailingMeasure))
    session = session_of(e, tmp_path)
    with pytest.raises(RuntimeError, match="no display") as error:
        inproc.launch(session)
    assert "raised by worker 'evaluator'" in error.value.__notes__[0]
    path, manifest, _ = session.checkpoints.newest()
    assert manifest["left_out"] == ["evaluator"]
    assert manifest["version"] == read_part(path, "worker-trainer")["version"] == 2
    rows = [r for r in session.folder.read_rows()[0] if r["kind"] == "update"]
    assert [r["version"] for r in rows] == [1, 2]


def test_an_actor_that_fails_is_left_out_and_its_rows_are_cancelled(tmp_path: Path) -> None:
    class Failing(CountingSampler):
        def step(self, clients: Any, writers: Any) -> int:
            if self.count >= 107.0:
                raise RuntimeError("simulator crashed")
            return super().step(clients, writers)

    e = experiment()
    e = replace(e, actors=(e.actors[0], replace(e.actors[1], make=lambda incarnation: Failing(1))))
    session = session_of(e, tmp_path)
    with pytest.raises(RuntimeError, match="simulator crashed"):
        inproc.launch(session)
    path, manifest, _ = session.checkpoints.newest()
    assert manifest["left_out"] == ["actor-1"]
    assert not (path / "worker-actor-1.json").exists()


def test_bad_numbers_leave_the_last_checkpoint_alone(tmp_path: Path) -> None:
    class Failing(CountingSampler):
        def step(self, clients: Any, writers: Any) -> int:
            if self.count >= 107.0:
                raise NonFiniteError("obs", 3)
            return super().step(clients, writers)

    e = experiment()
    e = replace(e, actors=(e.actors[0], replace(e.actors[1], make=lambda incarnation: Failing(1))))
    session = session_of(e, tmp_path)
    with pytest.raises(NonFiniteError):
        inproc.launch(session)
    assert session.checkpoints.finished() == []


DQN: dict[str, Any] = {
    "track": (),
    "num_steps": 10,
    "update_ratio": 0.1,
    "eval": {"episodes": 0},
    "dqn": {"batch_size": 16},
    "replay": {"capacity": 1000},
    "min_fill": 100,
    "total_steps": 200,
}


def test_a_buffer_that_fails_leaves_the_last_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh buffer would be empty while the stream says that it holds rows: the run goes on from before the failure."""
    insert, num = ReplayStore.insert, [0]

    def fail(self: ReplayStore, segment: Any) -> int:
        num[0] += 1
        if num[0] == 15:
            raise RuntimeError("disk on fire")
        return insert(self, segment)

    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "insert", fail)
        with pytest.raises(RuntimeError, match="disk on fire"):
            rl.train("dqn", out=str(tmp_path), name="x", checkpoint={"every": 3}, **DQN)
    _, manifest, _ = Checkpoints(tmp_path / "x" / "checkpoints").newest()
    assert (manifest["version"], manifest["left_out"]) == (3, [])
    assert rl.resume(tmp_path / "x").status == "finished"


def test_a_replay_run_ends_where_its_last_segment_pays_for_no_update(tmp_path: Path) -> None:
    """210 steps at 0.05 updates each: the last segment of 10 completes the budget, but no update tells the trainer."""
    run = rl.train("dqn", out=str(tmp_path), **{**DQN, "update_ratio": 0.05, "total_steps": 210})
    assert run.status == "finished"
