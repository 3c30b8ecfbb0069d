"""The load of a machine, read from a /proc whose numbers are known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.track.load import Load

PAGE = os.sysconf("SC_PAGE_SIZE")


def process(proc: Path, pid: int, parent: int, ticks: int, pages: int, shared: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} (a (odd) name) S {parent} 0 0 0 -1 0 0 0 0 0 {ticks} 2 0 0 20 0 1 0 5 0 0\n")
    (folder / "statm").write_text(f"999999 {pages} {shared} 1 0 7 0\n")


def machine(proc: Path, busy: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 5000 60 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 400000 kB\nBuffers: 1 kB\nCached: 1 kB\n")


def test_a_run_has_its_own_processes_and_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("runnel.track.load.time.monotonic", lambda: now[0])
    monkeypatch.setattr("runnel.track.load.os.sysconf", lambda name: {"SC_CLK_TCK": 100, "SC_PAGE_SIZE": PAGE}[name])
    machine(tmp_path, 1000)
    process(tmp_path, 40, 1, 500, 100, 60)
    process(tmp_path, 41, 40, 100, 50, 30)
    process(tmp_path, 99, 1, 9000, 1000, 0)
    load = Load(proc=tmp_path, root=40)
    assert load.look() is None, "there is nothing yet to compare with"
    now[0] += 2.0
    machine(tmp_path, 1300)
    process(tmp_path, 40, 1, 600, 100, 60)
    process(tmp_path, 41, 40, 120, 50, 30)
    process(tmp_path, 45, 41, 38, 20, 0)
    process(tmp_path, 99, 1, 9500, 1000, 0)
    found = load.look()
    assert found is not None
    assert found["cores"] == pytest.approx((100 + 20 + 38 + 2) / 200), "a new child brings all that it has used"
    assert found["machine_cores"] == pytest.approx(300 / 200)
    assert found["total_memory_gb"] == pytest.approx(1.024)
    assert found["machine_memory_gb"] == pytest.approx(0.614, abs=1e-3)
    assert found["num_cores"] == os.cpu_count()
    now[0] += 2.0
    (tmp_path / "41" / "stat").unlink()
    again = load.look()
    assert again is not None
    assert again["cores"] == 0.0, "a process that ends takes nothing away"


def test_memory_that_is_shared_counts_once(tmp_path: Path) -> None:
    machine(tmp_path, 0)
    for pid in (1, 2, 3):
        process(tmp_path, pid, 1 if pid > 1 else 0, 0, 2_000_000, 1_500_000)
    load = Load(proc=tmp_path, root=1)
    load.look()
    found = load.look()
    assert found is not None
    assert found["memory_gb"] == pytest.approx((3 * 500_000 + 1_500_000) * PAGE / 1e9, abs=1e-3)


def test_without_proc_there_is_no_load(tmp_path: Path) -> None:
    load = Load(proc=tmp_path / "nothing")
    assert (load.look(), load.look()) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_and_its_child_are_seen() -> None:
    load = Load()
    load.look()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = load.look()
    finally:
        child.communicate(b"\n")
    assert found is not None
    assert 0.001 < found["memory_gb"] < found["total_memory_gb"]
