"""Disks that take nothing more: full, read-only, not ours. One error says where, which checkpoint stands and how to go on."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes_run import experiment
from test_recovery_from_checkpoint import ScriptedHost, local, session_of, told

import runnel as rl
from runnel.cli.main import main
from runnel.core.clock import ManualClock
from runnel.core.disk import refused
from runnel.core.errors import ConfigError, DataError, DiskError, DiskFullError
from runnel.data.memory import AHEAD, Memory
from runnel.flow.workers.evaluator import EvaluatorWorker
from runnel.run import api
from runnel.run.checkpoint import Checkpoints
from runnel.run.launchers import inproc
from runnel.run.launchers.child import LossyFile
from runnel.run.launchers.member import tell_error
from runnel.run.launchers.supervisor import Supervisor
from runnel.track.folder import RunFolder
from runnel.track.groups import GroupFile
from runnel.track.sinks.jsonl import JsonlSink

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "vector": {"backend": "serial"},
    "total_updates": 100_000,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 4},
    "name": "run",
}


# -------------------------------------------------------------------------------------------------------- a disk of 300 KiB
@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small file system, which `remount` changes; skipped where nobody may mount one."""
    place = tmp_path / "disk"
    place.mkdir()

    def remount(options: str) -> Path:
        found = subprocess.run(["mount", "-o", f"remount,{options}", str(place)], capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return place

    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(place)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield remount
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_run_on_a_full_disk_ends_in_one_sentence_and_goes_on_once_there_is_room(
    disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk("size=300k")
    with pytest.raises(
        DiskFullError, match=r"^disk full at .*/run/\S+ \(0\.0 GiB are left\)\. Once it can be written: "
    ) as caught:
        rl.train("ppo", out=str(out), **TINY)
    stands = Checkpoints(out / "run" / "checkpoints").newest()[0]
    assert f"checkpoint {stands.name} stands; go on with `runnel resume {out / 'run'}`" in str(caught.value)
    assert "report" not in capsys.readouterr().err
    assert (out / "run" / "metrics.jsonl").read_bytes().endswith(b"\n"), "no half row is left"
    before = files(out / "run")
    fill(out / "fill")
    with pytest.raises(ConfigError, match=r"out = .*: disk full at .*; free some, or give another place"):
        rl.train("ppo", out=str(out), **{**TINY, "name": "other"})
    assert not (out / "other").exists()
    assert main(["resume", str(out / "run")]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.startswith("runnel: DiskFullError: disk full at ")
    assert f"checkpoint {stands.name} stands; go on with `runnel resume {out / 'run'}`" in said
    assert files(out / "run") == before, "nothing is lost, nothing is left"
    (out / "fill").unlink()
    disk("size=8m")
    version = int(stands.name)
    assert rl.resume(out / "run", total_updates=version + 3).status == "finished"
    assert [row["version"] for row in RunFolder(out / "run").read_rows()[0] if row["kind"] == "update"] == list(
        range(1, version + 4)
    )


def test_a_read_only_disk_refuses_a_resume_and_can_be_read(
    disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk("size=8m")
    run = rl.train("ppo", out=str(out), **{**TINY, "total_updates": 4})
    disk("ro")
    try:
        assert main(["resume", str(run.path), "--total-updates", "8"]) == 2
        said = capsys.readouterr().err
        assert (len(said.splitlines()), "its .lock cannot be written (Read-only file system)" in said) == (1, True)
        assert main(["ps", str(out)]) == 0
        assert " finished " in capsys.readouterr().out
        assert rl.load(run.path).act([0.0] * 4) in (0, 1)
        with pytest.raises(ConfigError, match=r"out = .*no folder can be made there \(Read-only file system\)"):
            rl.train("ppo", out=str(out), **TINY)
    finally:
        disk("rw")


# ---------------------------------------------------------------------------------------------------------------- in words
@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, DiskFullError, r"disk full at /runs/a/metrics.jsonl \(\d+\.\d GiB are left\)"),
        (errno.EDQUOT, DiskFullError, r"disk full at /runs/a/metrics.jsonl \(your quota is spent\)"),
        (errno.EROFS, DiskError, "the disk of /runs/a/metrics.jsonl is read-only"),
        (errno.EACCES, DiskError, r"/runs/a/metrics.jsonl may not be written \(Permission denied\)"),
    ],
)
def test_what_a_disk_refuses_is_told_by_path(number: int, kind: type[DiskError], text: str) -> None:
    found = refused(OSError(number, os.strerror(number), "/runs/a/metrics.jsonl"), "/runs/a")
    assert type(found) is kind
    assert re.fullmatch(text, str(found))


def test_what_is_no_fault_of_the_disk_stays_what_it_is() -> None:
    assert refused(ValueError("x"), "/runs") is None
    assert refused(OSError(errno.ENOENT, "no such file", "/runs/x"), "/runs") is None
    assert refused(PermissionError(errno.EACCES, "denied", "/dev/joystick"), "/runs") is None, "of the user's own code"


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


# ------------------------------------------------------------------------------------------------------------- injected
class FullFile(io.FileIO):
    """Takes 10 bytes more, and nothing after them."""

    left = 10

    def write(self, data: Any) -> int:
        if not FullFile.left:
            full()
        num = super().write(bytes(data)[: FullFile.left])
        FullFile.left -= num
        return num


def test_a_row_that_does_not_fit_leaves_no_half_of_it(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.row({"a": 1})
    FullFile.left = 10
    sink._file = FullFile(tmp_path / "metrics.jsonl", "a+")
    with pytest.raises(DiskFullError, match=r"disk full at .*metrics.jsonl"):
        sink.row({"a": "b" * 100})
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1}\n'


def test_after_the_disk_has_refused_a_row_nothing_more_is_raised(tmp_path: Path) -> None:
    session = session_of(experiment(), tmp_path)
    session.ledger.note("fine")
    FullFile.left = 0
    session.ledger._metrics._file = FullFile(tmp_path / "metrics.jsonl", "a+")
    with pytest.raises(DiskFullError):
        session.ledger.note("lost")
    session.ledger.note("lost too")
    session.ledger.end("failed", 1.0)
    session.ledger.close()
    assert told(session) == ["fine"]


def test_a_checkpoint_that_cannot_even_be_begun_costs_no_more_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment()
    session = session_of(replace(e, config=replace(e.config, checkpoint=replace(e.config.checkpoint, every=8))), tmp_path)
    make, made = Path.mkdir, list[str]()

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        made.append(path.name)
        if path.name == ".writing-000000016":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert inproc.launch(session) == "finished"
    assert ".writing-000000016" in made
    assert [p.name for p in session.checkpoints.finished()] == ["000000008", "000000020"]
    assert any("is read-only" in text and text.endswith("; checkpoint 000000008 stands") for text in told(session))


def test_a_worker_that_failed_is_told_though_the_rest_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(experiment(), tmp_path)

    def broken(*_: Any, **__: Any) -> Any:
        raise DataError("the simulator lost its mind")

    monkeypatch.setattr("fakes_run.CountingSampler.step", broken)
    monkeypatch.setattr(JsonlSink, "row", lambda sink, row: (_ for _ in ()).throw(DiskFullError("disk full at x")))
    monkeypatch.setattr("runnel.run.checkpoint._write", full)
    with pytest.raises(DataError, match="lost its mind") as caught:
        inproc.launch(session)
    assert any("could not be saved: disk full at x" in note for note in caught.value.__notes__)


def test_videos_and_groups_are_not_worth_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(experiment(), tmp_path)
    monkeypatch.setattr(GroupFile, "add", full)
    monkeypatch.setattr("runnel.track.media.EpisodeFiles.add", full)
    session.ledger.add([{"kind": "group", "version": 0, "worker": "x"}, {"kind": "video", "version": 0, "worker": "x"}])
    assert [text.partition(" (")[0] for text in told(session)] == [
        f"a group of version 0 was not kept: disk full at {tmp_path}",
        f"a video of version 0 was not kept: disk full at {tmp_path}",
    ]


def test_a_video_without_room_for_its_frames_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client = type("Client", (), {"version": 3})()
    worker = EvaluatorWorker("evaluator", ManualClock(), evaluation=None, client=client, every=1)  # type: ignore[arg-type]
    worker._record(type("TraceWriter", (), {"run": full})())
    (event,) = worker.drain()
    assert event["level"] == "warning"
    assert event["text"].startswith("no video of version -1 was recorded: disk full at ")


def test_an_error_of_the_disk_in_a_child_process_comes_as_one_sentence(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    line = type("Line", (), {"send": lambda self, message: sent.append(message)})()
    tell_error(line, "buffer", OSError(errno.ENOSPC, "No space left on device", "/big/replay"))
    assert (sent[0]["type"], sent[0]["text"].partition(" (")[0]) == ("DiskFullError", "disk full at /big/replay")
    supervisor = Supervisor(local(tmp_path), ScriptedHost(), {})
    supervisor.start()
    with pytest.raises(DiskFullError, match=r"^disk full at /big/replay") as caught:
        supervisor._hear(supervisor.children["trainer"], sent[0])
    assert [note.partition(";")[0] for note in caught.value.__notes__] == [f"run folder: {tmp_path}"], "and no traceback"


def test_what_a_process_prints_is_not_worth_a_run(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with Path("/dev/full").open("wb", buffering=0) as device:
        with pytest.raises(OSError, match="No space"):
            device.write(b"x")
        print("lost", file=io.TextIOWrapper(LossyFile(device.fileno(), "w", closefd=False), write_through=True), flush=True)


def test_a_mapped_replay_memory_says_that_its_disk_is_full_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(1 << 30, mmap_bytes=0, folder=str(tmp_path))
    array, other = (memory.zeros((4, AHEAD // 2), np.dtype(np.uint8)) for _ in range(2))
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, size: taken.append((start, size)))
    for num in (1, 1, 2, 3, 4, 4):
        memory.will_fill(array, num)
    assert taken == [(0, AHEAD), (AHEAD, AHEAD)], "some room ahead, once"
    monkeypatch.setattr(os, "posix_fallocate", full)
    memory.will_fill(array, 4)
    with pytest.raises(DiskFullError, match=rf"finds no room: disk full at {tmp_path} .* set replay.mmap_dir"):
        memory.will_fill(other, 1)
    memory.will_fill(np.zeros(1), 1)  # not one of its own


def test_what_was_set_aside_on_a_disk_can_be_written_after_others_have_filled_it(disk: Callable[[str], Path]) -> None:
    """Without it, the kernel would kill the process at the first page that finds no room."""
    place = disk("size=40m")
    memory = Memory(1, mmap_bytes=0, folder=str(place))
    array = memory.zeros((4, AHEAD), np.dtype(np.uint8))
    memory.will_fill(array, 1)
    fill(place / "fill")
    array[0] = 1
    with pytest.raises(DiskFullError, match=r"the replay memory finds no room: disk full at .*/disk \(0.0 GiB are left\)"):
        memory.will_fill(array, 2)


def test_orders_and_reports_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    monkeypatch.setattr("runnel.track.folder.open_append", full)
    with pytest.raises(DiskFullError, match="the order 'stop' was not given: disk full at"):
        folder.add_order({"op": "stop"})
    monkeypatch.setattr("runnel.run.api.write_report", full)
    api._report(folder)
    said = capsys.readouterr().err
    assert said.startswith(f"runnel: warning: the report was not written: disk full at {tmp_path}")
    assert f"`runnel report {tmp_path}` writes it later" in said
    assert sys.exc_info() == (None, None, None)
