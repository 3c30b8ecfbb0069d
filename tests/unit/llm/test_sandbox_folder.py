"""Folders of sandboxes: what a killed process leaves is swept by the next; nothing else is."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from runnel.llm.sandbox.folder import sandbox_folder, sweep, sweep_once
from runnel.llm.sandbox.run import SandboxConfig, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("runnel-sandbox-*"))


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_what_a_killed_process_leaves_goes_with_the_next_start(temporary, without):
    pid = os.fork()
    if pid == 0:
        code = "import os\nos.mkdir('a')\nopen('a/b', 'w').write('x')\nimport time\ntime.sleep(60)"
        run_python(code, config=SandboxConfig(wall_s=60.0), without=without)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (list(temporary.glob("*/a/b")) if without else left_in(temporary)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert left_in(temporary)
    while left_in(temporary):  # a child that was about to start shares the lock until it has started
        sweep_once.cache_clear()
        assert run_python("print(1)").stdout == "1\n"
        assert time.monotonic() < deadline


def test_a_folder_in_use_stays(temporary):
    with sandbox_folder() as folder:
        Path(folder, "x").write_text("x")
        assert sweep(str(temporary)) == 0
        assert Path(folder, "x").exists()
    assert left_in(temporary) == []


def test_a_number_of_a_process_that_is_in_use_again_keeps_nothing(temporary):
    """The owner is known by its lock: this folder has none, whoever runs under whatever number."""
    (temporary / f"runnel-sandbox-{os.getpid()}").mkdir()
    assert sweep(str(temporary)) == 1
    assert left_in(temporary) == []


def test_links_are_neither_followed_nor_removed_with_what_they_point_to(temporary):
    (temporary / "precious").mkdir()
    (temporary / "precious/file").write_text("keep")
    (temporary / "runnel-sandbox-link").symlink_to("precious")
    (temporary / "runnel-sandbox-file").write_text("keep")
    stale = temporary / "runnel-sandbox-stale"
    (stale / "deep").mkdir(parents=True)
    (stale / "to-folder").symlink_to("../precious")
    (stale / "deep/to-file").symlink_to("../../precious/file")
    assert sweep(str(temporary)) == 1
    assert not stale.exists()
    assert (temporary / "precious/file").read_text() == "keep"
    assert left_in(temporary) == [temporary / "runnel-sandbox-file", temporary / "runnel-sandbox-link"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="root alone can give a folder away")
def test_folders_of_others_stay(temporary):
    for name, user in (("other", 12345), ("lent", 1_900_000_123)):
        (temporary / f"runnel-sandbox-{name}").mkdir()
        os.chown(temporary / f"runnel-sandbox-{name}", user, user)
    assert sweep(str(temporary)) == 1
    assert left_in(temporary) == [temporary / "runnel-sandbox-other"]


def test_sweeps_beside_starts_take_nothing_that_is_in_use(temporary):
    ended = threading.Event()
    swept = []

    def sweep_on() -> None:
        while not ended.is_set():
            swept.append(sweep(str(temporary)))

    sweepers = [threading.Thread(target=sweep_on) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(60):
            with sandbox_folder() as folder:
                Path(folder, "x").write_text("x")
                assert Path(folder, "x").exists()
    finally:
        ended.set()
        for sweeper in sweepers:
            sweeper.join()
    assert left_in(temporary) == []
    assert len(swept) > 2


def test_a_folder_that_was_swept_before_it_was_held_is_made_anew(temporary, monkeypatch):
    made = []
    real = tempfile.mkdtemp

    def made_and_swept(*args, **kwargs):
        made.append(real(*args, **kwargs))
        if len(made) == 1:
            assert sweep(str(temporary)) == 1
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with sandbox_folder() as folder:
        assert folder == made[1]
        assert os.path.isdir(folder)
