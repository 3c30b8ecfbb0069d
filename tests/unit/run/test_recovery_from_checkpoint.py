"""A run that has lost its learner: which moment it goes on from, and what its supervisor does when more is lost on the way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes_run import experiment

from runnel.core.clock import ManualClock
from runnel.core.errors import DiskFullError, WorkerFailure
from runnel.core.framing import Message
from runnel.graphs.experiment import Experiment
from runnel.run.checkpoint import MANIFEST, Checkpoints, read_parts, write_parts
from runnel.run.launchers import inproc
from runnel.run.launchers.groups import RunLost
from runnel.run.launchers.supervisor import Supervisor
from runnel.run.ledger import Ledger
from runnel.run.session import Session
from runnel.run.wiring import place
from runnel.track.folder import RunFolder


def session_of(e: Experiment, path: Path) -> Session:
    path.mkdir(exist_ok=True)
    folder, clock = RunFolder(path), ManualClock()
    ledger = Ledger(folder, clock)
    return Session(e, place(e), folder, ledger, Checkpoints(folder.checkpoints), clock, beginning=ledger.snapshot())


def trained(path: Path, every: int) -> Session:
    """A run of 20 updates with a checkpoint at each `every`th."""
    e = experiment()
    session = session_of(replace(e, config=replace(e.config, checkpoint=replace(e.config.checkpoint, every=every))), path)
    inproc.launch(session)
    return session


def damage(checkpoint: Path) -> None:
    path = checkpoint / "worker-trainer.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def told(session: Session) -> list[str]:
    return [row["text"] for row in session.folder.read_rows()[0] if row["kind"] == "event"]


def versions(session: Session) -> list[int]:
    return [row["version"] for row in session.folder.read_rows()[0] if row["kind"] == "update"]


# ------------------------------------------------------------------------------------------------------------ checkpoints
def test_a_damaged_newest_checkpoint_takes_the_run_to_the_one_before(tmp_path: Path) -> None:
    session = trained(tmp_path, 8)
    damage(session.checkpoints.finished()[-1])
    session.go_back("worker 'trainer' was lost")
    assert (session.ledger.version, versions(session)[-1], session.epoch) == (16, 16, 1)
    assert session.resume_from is not None
    assert session.resume_from.name == "000000016"
    assert any("fell back to checkpoint 000000016" in text for text in told(session))


def test_a_run_whose_only_checkpoint_is_damaged_starts_over_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = trained(tmp_path, 0)
    (only,) = session.checkpoints.finished()
    damage(only)
    session.go_back("worker 'trainer' was lost")
    assert (session.ledger.version, versions(session), session.epoch) == (0, [], 1)
    assert (session.resume_from, session.states) == (None, None)
    assert session.checkpoints.finished() == []
    assert (session.checkpoints.folder / f"damaged-{only.name}-1").is_dir(), "it is kept, for a person to look at"
    first, second = told(session)
    assert "started again from version 0" in first
    assert "is damaged: worker-trainer.json" in first
    assert second == "worker 'trainer' was lost; going on from version 0"
    assert "started again from version 0" in capsys.readouterr().err
    inproc.launch(session)
    assert versions(session) == list(range(1, 21)), "every version once"


def test_a_run_that_was_resumed_can_start_over_too(tmp_path: Path) -> None:
    """What stands in its files from before the resume goes as well: it is of a past that is no more."""
    trained(tmp_path, 8).ledger.close()
    session = session_of(experiment(), tmp_path)
    session.beginning = session.ledger.nothing()
    session.restore(*session.checkpoints.newest())
    assert versions(session) == list(range(1, 21))
    for checkpoint in session.checkpoints.finished():
        damage(checkpoint)
    session.go_back("worker 'trainer' was lost")
    assert (session.ledger.version, versions(session), session.epoch) == (0, [], 2)


def test_a_part_that_the_manifest_does_not_name_is_not_read(tmp_path: Path) -> None:
    """Its worker was killed while it wrote."""
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.begin(3)
    files = write_parts(path, {"worker-a": {"x": 1}})
    (path / "worker-b.json").write_text('{"x": ')
    done = checkpoints.finish(path, {"version": 3, "files": files})
    assert (done / MANIFEST).exists()
    assert read_parts(done) == {"worker-a": {"x": 1}}


# ------------------------------------------------------------------------------------------------------------- supervisor
SAVED = ("worker-trainer", "stream-play", "channel-policy")


class ScriptedProcess:
    """A process that answers every order at once, until it is told to die at one."""

    def __init__(self, group: str, dies_at: str = "") -> None:
        self.group, self.line, self._dies_at = group, self, dies_at
        self.closed = False
        self.orders: list[Message] = []
        self.words: list[Message] = [{"op": "ready"}]
        self.gone = ""
        self.full = [""] * 9
        """What it says of the disk when it saves."""

    def send(self, message: Message) -> None:
        self.orders.append(message)
        if message["op"] == self._dies_at:
            self.gone = "was lost"
        answers = {"start": "started", "pause": "paused", "save": "saved"}
        if not self.gone and message["op"] in answers:
            full = self.full.pop(0) if message["op"] == "save" else ""
            files = self.save(message) if message["op"] == "save" else {}
            said: Message = {"files": files, "streams": {}, "full": full, "kept": {}, "told": [], "live": {}, "next": {}}
            self.words.append({"op": answers[message["op"]], **said})

    def save(self, message: Message) -> dict[str, str]:
        """The parts that no checkpoint may lack."""
        names = [*SAVED, "params"] if self.group == "trainer" else []
        return write_parts(Path(message["path"]), {name: {} for name in names if message["whole"] or name == "params"})

    def receive(self) -> list[Message]:
        found, self.words = self.words, []
        return found

    def waits(self) -> bool:
        return False

    def died(self) -> str:
        return self.gone

    def stack(self) -> str:
        return ""

    def end(self, timeout_s: float) -> None: ...


class ScriptedHost:
    """`dies_at`: by group, the order at which its first process dies."""

    def __init__(self, **dies_at: str) -> None:
        self.dies_at = {name.replace("_", "-"): order for name, order in dies_at.items()}
        self.handles: list[ScriptedProcess] = []
        self.failure: WorkerFailure | None = None

    def lost(self) -> str:
        return ""

    def open(self, groups: Collection[str]) -> None:
        if self.failure is not None:
            raise self.failure

    def start(self, group: str, order: Message) -> ScriptedProcess:
        self.handles.append(ScriptedProcess(group, self.dies_at.pop(group, "")))
        return self.handles[-1]

    def wait(self, handles: Collection[Any], timeout_s: float) -> None: ...

    def output(self) -> str:
        return ""

    def close(self) -> None: ...


def local(path: Path, **settings: Any) -> Session:
    return session_of(experiment(launcher="local", **settings), path)


def test_one_that_is_lost_while_a_checkpoint_is_restored_takes_the_run_back_again(tmp_path: Path) -> None:
    """Its segments are in the streams that are restored, and nobody else knows of them: it cannot simply be started again."""
    session = local(tmp_path)
    session.started = True  # the run was at work before
    with pytest.raises(RunLost, match="worker 'actor-1' was lost"):
        Supervisor(session, ScriptedHost(actor_1="start"), {}).start()
    host = ScriptedHost()
    supervisor = Supervisor(session, host, {})
    supervisor.start()
    next(s for s in host.handles if s.group == "actor-1").gone = "was lost"
    supervisor._watch()
    assert [s.group for s in host.handles].count("actor-1") == 2, "at work, it is started again"


def test_a_node_that_goes_while_a_run_comes_back_is_one_more_loss(tmp_path: Path) -> None:
    session, host = local(tmp_path), ScriptedHost()
    host.failure = WorkerFailure("actor-0", "was lost with its node")
    with pytest.raises(WorkerFailure):
        Supervisor(session, host, {}).start()
    session.started = True
    with pytest.raises(RunLost, match="was lost with its node"):
        Supervisor(session, host, {}).start()
    with pytest.raises(WorkerFailure):
        Supervisor(session, host, {"actor-0": [float("inf")] * 9}).start()


def test_who_misses_another_node_is_not_at_fault(tmp_path: Path) -> None:
    host = ScriptedHost()
    supervisor = Supervisor(local(tmp_path), host, {})
    supervisor.start()
    actor = next(s for s in host.handles if s.group == "actor-0")
    error = {
        "op": "error",
        "worker": "actor-0",
        "type": "PeerLost",
        "text": "fetch of 'play' was not answered",
        "traceback": "",
    }
    actor.words.append(error)
    supervisor._listen(0.0)
    assert [s.group for s in host.handles].count("actor-0") == 2
    trainer = next(s for s in host.handles if s.group == "trainer")
    assert trainer.orders[-1] == {"op": "abandon", "workers": ["actor-0"]}


def test_a_run_that_goes_on_from_a_checkpoint_does_not_start_from_another_run_again(tmp_path: Path) -> None:
    """`init_from` is for version 0: a learner that was restored keeps what it has learned."""
    other = trained(tmp_path / "other", 0)
    session = local(tmp_path / "run", init_from=str(other.folder.path))
    for path, wanted in ((None, str(other.checkpoints.finished()[0])), (other.checkpoints.finished()[0], "")):
        session.resume_from = path
        host = ScriptedHost()
        Supervisor(session, host, {}).start()
        assert {order["init_from"] for handle in host.handles for order in handle.orders if order["op"] == "start"} == {wanted}


def test_a_group_without_room_for_its_part_costs_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    session, host = local(tmp_path), ScriptedHost()
    supervisor = Supervisor(session, host, {})
    supervisor.start()
    trainer = next(s for s in host.handles if s.group == "trainer")
    trainer.full[:3] = ["", "the disk is full", "the disk is full"]
    supervisor._barrier()
    supervisor._barrier()
    assert [p.name for p in session.checkpoints.finished()] == ["000000000"]
    assert [p.name for p in session.checkpoints.folder.glob(".writing-*")] == []
    assert "the disk is full; checkpoint 000000000 stands" in told(session)
    supervisor._barrier(last=True)
    assert [o["whole"] for o in trainer.orders if o["op"] == "save"] == [True, True, True, False]
    assert session.checkpoints.newest(("params",))[1]["whole"] is False
    trainer.full[:2] = ["the disk is full"] * 2
    with pytest.raises(DiskFullError, match="the disk is full"):
        supervisor._barrier(last=True)
