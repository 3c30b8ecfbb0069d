"""Who holds a run: asked without a lock, so that nobody who asks is in the way of who starts."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runnel.board.library import Library
from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.track import locks
from runnel.track.folder import RunFolder
from runnel.track.locks import LOCK, Holder, holder_of, locked_files


def made(path: Path, *rows: dict[str, Any]) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    folder.info.write_text(json.dumps({"recipe": "ppo", "command": "runnel train ppo"}))
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def began_on(folder: RunFolder, host: str) -> None:
    (folder.path / LOCK).write_text(json.dumps({"pid": os.getpid(), "host": host, "boot": "x", "place": "another boot"}))


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["ps", str(folder)]) == 0
    return capsys.readouterr().out


def test_who_asks_is_never_in_the_way_of_who_starts(tmp_path: Path) -> None:
    folder, done, asked = made(tmp_path / "run"), threading.Event(), 0

    def ask() -> None:
        nonlocal asked
        while not done.is_set():
            folder.is_held()
            asked += 1

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        while asked < 200 or time.monotonic() - began < 0.2:
            with folder.held():
                time.sleep(0)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert asked >= 200
    assert not folder.is_held()


def test_a_run_is_held_while_it_is_and_says_by_whom(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    assert folder.holder() == Holder("nobody")
    with folder.held():
        assert folder.holder() == Holder("here", os.uname().nodename)
        with pytest.raises(ConfigError, match="another process is training it"), folder.held():
            pass
        assert folder.is_held(), "who was refused has changed nothing"
        (lock,) = [k for k in locked_files() or () if k.inode == os.stat(folder.path / LOCK).st_ino]
        assert lock.pid == os.getpid()
        assert holder_of(folder.path, {lock._replace(device=(0, 0), pid=1)}).state == "nobody", "another disk's file"
        assert holder_of(folder.path, {lock._replace(device=(0, 0))}).state == "here", "an overlay"
        assert holder_of(folder.path, None).state == "here", "a system without a list of locks"
    assert folder.holder() == Holder("nobody")
    assert (folder.path / LOCK).read_bytes() == b""


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    with folder.held():
        left = (folder.path / LOCK).read_bytes()
    (folder.path / LOCK).write_bytes(left)
    assert folder.holder() == Holder("nobody")


def test_nothing_outlives_a_machine_that_was_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_machine", lambda: "m1")
    folder = made(tmp_path / "run")
    with folder.held():
        said = json.loads((folder.path / LOCK).read_text())
    for changed, state in (({"boot": "old"}, "nobody"), ({"boot": "old", "machine": "m2"}, "unknown"), ({}, "unknown")):
        (folder.path / LOCK).write_text(json.dumps({**said, "place": "another", **changed}))
        assert folder.holder().state == state, "of the same boot it is another container"


@pytest.mark.parametrize("odd", ["a link to nowhere", "a fifo", "not JSON", "a list"])
def test_a_lock_that_cannot_be_read_or_written_does_not_stop_a_list_of_runs(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path / "run", {"kind": "end", "status": "finished"})
    lock = folder.path / LOCK
    if odd == "a link to nowhere":
        lock.symlink_to(tmp_path / "no" / "such" / "file")
    elif odd == "a fifo":
        os.mkfifo(lock)
    else:
        lock.write_text("x" if odd == "not JSON" else "[1]")
    assert " finished " in listed(tmp_path, capsys)


def test_a_lock_that_cannot_be_written_refuses_a_start_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "run")
    (folder.path / LOCK).symlink_to(tmp_path / "no" / "such" / "file")
    with pytest.raises(ConfigError, match=r"run = '.*run': \.lock is a link.*; remove it"), folder.held():
        pass

    def denied(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(locks, "open_append", denied)
    with pytest.raises(ConfigError, match=r"run = '.*run': its \.lock cannot be written \(Permission denied\)"), folder.held():
        pass


def test_what_another_machine_trains_is_told_as_far_as_it_can_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path / "run", {"kind": "update", "version": 1, "progress": 0.5})
    began_on(folder, "far")
    assert folder.holder() == Holder("unknown", "far")
    assert not folder.is_held()
    assert " running on far " in listed(tmp_path, capsys)
    os.utime(folder.metrics, (1e9, 1e9))
    assert " unknown on far " in listed(tmp_path, capsys)
    library = Library(tmp_path, cache=tmp_path / "cache")
    library.refresh()
    (line,) = library.lines()
    assert line["status"] == "unknown"
    assert library.runs["run"].elsewhere(library.held) == [
        "it was started on far; whether it still runs cannot be seen from here"
    ]
    library.close()
    assert main(["stop", str(folder.path)]) == 0, "whoever trains it reads its orders"
    assert "it was started on far; the order lies in its folder" in capsys.readouterr().err
    assert folder.read_orders(0)[0] == [{"op": "stop"}]
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"kind": "end", "status": "interrupted"}) + "\n")
    assert " stopped " in listed(tmp_path, capsys)
    assert main(["stop", str(folder.path)]) == 2
