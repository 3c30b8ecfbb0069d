"""Pools of sessions: their bounds, their end with all that they started, and the tool `python`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from sandbox_forms import FEW_S, LIMITS, all_end, processes_of

from runnel.core.calls.pool import CallPool, CallSpec
from runnel.core.contracts.chat import ToolFailure
from runnel.core.errors import ConfigError, DataError
from runnel.llm.sandbox.run import run_python
from runnel.llm.sandbox.session import SandboxSession, SessionConfig, SessionPool
from runnel.llm.sandbox.tool import python_tool, shared_pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's")


def test_nothing_is_left_when_a_session_closes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with SessionPool(LIMITS, warm=0) as own:
        session = own.take()
        session.run("import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\nopen('f', 'w')")
        pids = processes_of(session)
        assert pids
        assert list(tmp_path.iterdir())
        session.close()
        session.close()
        assert not list(tmp_path.iterdir())
        assert all_end(pids)
        with pytest.raises(DataError, match="closed"):
            session.run("1")


def test_a_session_ends_even_if_a_fork_of_this_process_has_its_descriptors():
    with SessionPool(LIMITS, warm=0) as pool:
        session = pool.take()
        pids = processes_of(session)
        fork = os.fork()
        if fork == 0:
            signal.pause()
        try:
            session.close()
            assert all_end(pids)
        finally:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)


def test_sessions_leave_no_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with SessionPool(LIMITS, warm=1) as pool, pool.take() as session:
            assert session.run("import os\nos._exit(0)").status == "died"
            assert session.run("1").status == "ok"
    assert len(os.listdir("/proc/self/fd")) <= before + 6  # the compiled modules, which all share


def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    program = """
        import os, signal, sys, tempfile
        tempfile.tempdir = sys.argv[1]
        from runnel.llm.sandbox.session import SessionPool
        pool = SessionPool(warm=2)
        session = pool.take()
        if os.fork() == 0:
            signal.pause()
        print(pool._zygote._process.pid, flush=True)
        session.run("while True: pass")
    """
    # the program's fork keeps all descriptors open: their end alone is not what ends the sandbox
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        try:
            zygote = int(parent.stdout.readline())
            children = descendants(zygote)
            assert len(children) >= 3
            parent.kill()
            assert all_end([zygote, *children])
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    try:
        found = [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]
    except OSError:
        return []
    return found + [p for child in found for p in descendants(child)]


def test_sessions_end_neither_with_their_thread_nor_with_the_next():
    """The kernel would tell a child of its parent's end when the thread ends that started it."""
    with SessionPool(LIMITS, warm=1) as pool:
        taken: list[SandboxSession] = []
        starter = threading.Thread(target=lambda: taken.append(pool.take()))
        starter.start()
        starter.join()
        with taken[0] as session:
            session.run("x = 3")
            time.sleep(0.1)
            assert session.run("x").value == "3"


def test_a_pool_is_bounded_and_waits():
    with SessionPool(LIMITS, warm=0, most=1) as pool:
        first = pool.take()
        with pytest.raises(TimeoutError, match="1 sessions were open"):
            pool.take(timeout_s=0.05)
        threading.Timer(0.1, first.close).start()
        with pool.take(timeout_s=20.0) as second:
            assert second.run("1").value == "1"
    with pytest.raises(DataError, match="pool of sessions is closed"):
        pool.take()


def test_a_closed_pool_ends_its_sessions():
    with SessionPool(LIMITS, warm=1) as pool:
        session = pool.take()
        pids = processes_of(session)
    assert all_end(pids)
    with pytest.raises(DataError, match="this session is closed"):
        session.run("1")


def test_a_pool_whose_process_was_killed_starts_it_again():
    with SessionPool(LIMITS, warm=1) as pool, pool.take() as session:
        session.run("x = 3")
        os.kill(pool._zygote._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while not session._interpreter.has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert session.run("x").lost_state
        assert session.run("1").value == "1"
        with pool.take() as other:
            assert other.run("2").value == "2"


def test_signals_of_schedulers_leave_sessions_to_the_run():
    with SessionPool(LIMITS, warm=0) as pool, pool.take() as session:
        session.run("x = 3")
        before = pool._zygote
        os.killpg(before._process.pid, signal.SIGTERM)
        with pool.take() as other:
            assert other.run("1").value == "1"
        assert pool._zygote is before
        assert session.run("x").value == "3"


def test_settings_are_used_or_refused():
    for name, value in (("wall_s", 0.0), ("cpu_s", 0), ("memory_mb", 1), ("output_kb", 0), ("threads", 0)):
        with pytest.raises(ConfigError, match=f"sandbox.{name}"):
            SessionPool(SessionConfig(**{name: value}))
    with pytest.raises(ConfigError, match="warm, most"):
        SessionPool(most=0)
    soft, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY:
        with pytest.raises(ConfigError, match="open files"):
            SessionPool(most=limit)
    if limit == resource.RLIM_INFINITY or limit >= 4096:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limit))
            SessionPool(most=500)  # needs more than that, and may have it
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2500
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limit))
    with pytest.raises(ConfigError, match=r"ended before it was confined(.|\n)*no_such_module"):
        SessionPool(SessionConfig(preload=("no_such_module",))).take()
    with SessionPool(LIMITS, warm=0) as pool, pool.take() as session:
        assert session.run("#" * (1 << 20) + "\n1").error.startswith("the code has 1048578 characters")
        with pytest.raises(DataError, match="time of a call"):
            session.run("1", timeout_s=0.0)


def test_modules_are_imported_ahead():
    with SessionPool(SessionConfig(preload=("fractions",)), warm=0) as pool, pool.take() as session:
        assert session.run("import sys\n'fractions' in sys.modules").value == "True"


# ---------------------------------------------------------------------------------------------------------- tool, verdicts
def test_the_tool_answers_with_text_and_counts_failures_by_kind():
    with SessionPool(LIMITS, warm=0) as pool:
        tool = python_tool(pool=pool)
        assert (tool.name, tool.lane, tool.parameters["required"]) == ("python", "thread", ["code"])
        one, other = tool.open(), tool.open()
        assert one.call({"code": "x = 20"}) == "(no output)"
        assert one.call({"code": "print('a')\n2 * x"}) == "a\n40"
        kinds = {
            "print('b')\nx / 0": "raised",
            "'a' * 10 ** 10": "raised",
            "print('y' * 10 ** 6)": "too_long",
            "import os\nos._exit(0)": "died",
        }
        for code, kind in kinds.items():
            with pytest.raises(ToolFailure) as failure:
                one.call({"code": code})
            assert failure.value.kind == kind
        with pytest.raises(ToolFailure, match=r"^b\nTraceback(.|\n)*NameError: name 'x' is not defined"):
            other.call({"code": "print('b')\nx"})
        with pytest.raises(ToolFailure, match="needs `code`") as failure:
            other.call({"code": 3})
        assert failure.value.kind == "arguments"
        one.close()
        other.close()
        with pytest.raises(ToolFailure, match="over"):
            tool.open().close() or closed(tool).call({"code": "1"})


def closed(tool):
    made = tool.open()
    made.close()
    return made


def test_a_tool_that_takes_too_long_fails_with_its_kind():
    with SessionPool(SessionConfig(wall_s=FEW_S), warm=0) as pool:
        made = python_tool(pool=pool).open()
        with pytest.raises(ToolFailure, match=r"interrupted after 0\.3 s") as failure:
            made.call({"code": "while True: pass"})
        assert failure.value.kind == "timeout"


def test_tools_with_the_same_limits_share_a_pool():
    config = SessionConfig(wall_s=7.0)
    assert shared_pool(config) is shared_pool(SessionConfig(wall_s=7.0))
    made = python_tool(config).open()
    assert made.call({"code": "1"}) == "1"
    made.close()
    shared_pool(config).close()


def test_descriptors_beyond_those_that_select_knows_hold_nobody_up():
    """A process with many sessions has some: what grades, and what calls functions, still works."""
    soft, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < 4096:
        pytest.skip("this process may not have so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), limit))
    taken = [os.dup(0) for _ in range(1100)]
    try:
        assert run_python("print(6 * 7)").stdout == "42\n"
        pool = CallPool([CallSpec("in a thread", time.sleep), CallSpec("elsewhere", "math:sqrt")])
        pool.submit("in a thread", 0.01)
        pool.submit("elsewhere", 9.0)
        assert [outcome.value for outcome in pool.wait_all()] == [None, 3.0]
        pool.close()
    finally:
        for fd in taken:
            os.close(fd)


def test_a_machine_that_cannot_confine_is_refused_when_the_tool_is_opened():
    with SessionPool(LIMITS, without=("landlock",)) as pool, pytest.raises(ConfigError, match="cannot keep its promises"):
        python_tool(pool=pool).open()
