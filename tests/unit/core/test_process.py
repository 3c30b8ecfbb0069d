"""Child processes: deadlines, sessions, how an end is told, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from runnel.core.process import ChildProcess, ChildProgram, fork, last_text


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20.0
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize(
    ("code", "exit_code", "how"),
    [
        ("", 0, "exited with code 0"),
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "was killed by signal SIGSEGV"),
        ("os.kill(os.getpid(), 40)", -40, "was killed by signal 40"),
    ],
)
def test_how_a_program_ended_is_told(code: str, exit_code: int, how: str) -> None:
    child = ChildProgram([sys.executable, "-c", f"import os, signal, sys; {code}"])
    assert child.wait(20.0)
    assert (child.code, child.how()) == (exit_code, how)
    assert child.end() == exit_code
    child.signal(signal.SIGKILL)  # to nobody


def test_a_program_that_does_not_end_in_time_is_killed() -> None:
    child = ChildProgram(["sleep", "60"])
    assert not child.wait(0.01)
    assert not child.ended()
    assert child.how() == "has not ended"
    assert child.end(0.05) == -signal.SIGKILL
    assert child.how() == "was killed by signal SIGKILL"


def test_what_the_leader_of_a_session_has_started_ends_with_it() -> None:
    """Also if the leader has ended by then."""
    for end in ("wait", "exit 3"):
        with tempfile.TemporaryFile() as out:
            child = ChildProgram(["sh", "-c", f"sleep 60 & echo $!; {end}"], stdout=out, new_session=True)
            while not last_text(out).endswith("\n"):
                time.sleep(0.01)
            child.end()
            assert gone(int(last_text(out)))


def test_a_fork_says_with_its_code_whether_it_failed(capfd: pytest.CaptureFixture[str]) -> None:
    children: list[ChildProcess] = [fork(lambda: None), fork(lambda: 1 // 0), fork(lambda: time.sleep(60))]
    assert [child.end(patience) for child, patience in zip(children, (20.0, 20.0, 0.0), strict=True)] == [0, 1, -9]
    assert "ZeroDivisionError" in capfd.readouterr().err


PARENT = """
import os, sys, time
from runnel.core.process import fork
child = fork(lambda: time.sleep(60))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends children with their parent")
def test_a_fork_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=dict(os.environ)) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert gone(child)


def test_the_end_of_a_file_is_read_and_its_position_stays(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xffabc" * 100)
    with (tmp_path / "log").open("rb") as file:
        assert last_text(file, 5) == "c\ufffdabc"
        assert file.tell() == 0
