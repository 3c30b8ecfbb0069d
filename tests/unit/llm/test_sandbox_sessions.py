"""Sessions: what a call gives and what stays, how calls and interpreters end, whose output it is."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time

import pytest
from sandbox_forms import FEW_S, LIMITS

from runnel.llm.sandbox import interpreter
from runnel.llm.sandbox.session import SessionConfig, SessionPool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's")


@pytest.fixture(scope="module")
def pool():
    with SessionPool(LIMITS, warm=1) as made:
        yield made


@pytest.fixture
def session(pool):
    with pool.take() as taken:
        yield taken


def test_names_imports_and_files_stay_between_calls(session):
    session.run("import math\nx = math.factorial(5)\ndef twice(n): return 2 * n\nopen('f', 'w').write('kept')")
    assert session.run("twice(x)").value == "240"
    assert session.run("open('f').read()").value == "'kept'"


@pytest.mark.parametrize(
    ("code", "stdout", "value"),
    [
        ("1 + 1", "", "2"),
        ("x = 1", "", ""),
        ("None", "", ""),
        ("print('a')", "a\n", ""),
        ("print('a'); 'b'", "a\n", "'b'"),
        ("for i in range(2): print(i)", "0\n1\n", ""),
        ("'a doc string'", "", "'a doc string'"),
        ("1;", "", "1"),
        ("", "", ""),
        ("import sys\nprint('o')\nprint('e', file=sys.stderr)\nprint('o')", "o\ne\no\n", ""),
        ("import sys\nsys.exit()", "", ""),
        ("print('ä\\ud800')", "ä?\n", ""),
        ("'\\ud800'", "", "'\\ud800'"),
        ("class C:\n  def __repr__(s): return '\\ud800'\nC()", "", "?"),
    ],
)
def test_a_call_gives_what_a_prompt_shows(session, code, stdout, value):
    found = session.run(code)
    assert (found.status, found.stdout, found.value, found.error) == ("ok", stdout, value, "")


def test_values_are_those_of_pythons_own_prompt(session):
    """Beside another implementation: the interactive interpreter."""
    lines = ["2 ** 70", "[1, 'a']", "None", "x = 3", "x", "print('p')", "'\\n'", "{1: 2}.items()", "1 / 4"]
    theirs = subprocess.run(
        [sys.executable, "-I", "-i", "-c", "import sys; sys.ps1 = sys.ps2 = ''"],
        input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    ours = "".join(f"{text}\n" for text in (session.run(line).text for line in lines) if text)
    assert ours.strip() == theirs.stdout.strip()


def test_errors_are_short_and_name_no_folder_of_the_host(session):
    session.run("def f(n):\n    return 1 / n")
    found = session.run("import json\n\nf(0)")
    assert found.status == "failed"
    assert found.error.splitlines()[0] == "Traceback (most recent call last):"
    assert found.error.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert 'File "<call 2>", line 3, in <module>\n    f(0)\n' in found.error
    assert 'File "<call 1>", line 2, in f\n    return 1 / n\n' in found.error
    deep = session.run("json.loads('{')").error
    assert 'File "json/decoder.py"' in deep
    assert sys.base_prefix not in deep
    assert len(session.run("def g(n): return g(n + 1)\ng(0)").error) < 4100
    assert len(session.run("raise ValueError('x' * 10 ** 6)").error) < 4100
    assert session.run("def (").error.endswith("SyntaxError: invalid syntax")
    assert session.run("open('nothing/here')").error.endswith(
        "FileNotFoundError: [Errno 2] No such file or directory: 'nothing/here'"
    )
    assert "runnel-sandbox" not in session.run("import os\nopen(os.getcwd() + '/nothing')").error


def test_orders_of_sets_are_the_same_in_all_sessions(pool):
    """Conversations are resumed by making their calls again: texts hash alike in each interpreter."""
    code = "list({str(i) for i in range(50)})"
    with pool.take() as first, SessionPool(LIMITS, warm=0) as other, other.take() as second:
        assert first.run(code).value == second.run(code).value


# ------------------------------------------------------------------------------------------------------- how a call ends
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n  try: x = 1\n  except Exception: pass",
        "import time\ntime.sleep(60)",
        "import threading\nthreading.Event().wait()",
        "class C:\n  def __repr__(s):\n    while True: pass\nC()",
        "class E(Exception):\n  def __str__(s):\n    while True: pass\nraise E",
        "try:\n  while True: pass\nexcept BaseException: y = 1",
    ],
)
def test_a_call_that_takes_too_long_is_interrupted_and_forgets_nothing(session, code):
    session.run("x = 3")
    found = session.run(code, timeout_s=FEW_S)
    assert (found.status, found.lost_state) == ("timeout", False)
    assert found.error == "the call was interrupted after 0.3 s"
    assert session.run("x").value in ("3", "1")


@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
        "import signal\nfor s in range(1, 32):\n  try: signal.signal(s, print)\n  except OSError: pass\nwhile True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
        "sum(range(10 ** 12))",  # one instruction of the interpreter: no signal is looked at meanwhile
    ],
)
def test_what_cannot_be_interrupted_is_killed_and_the_loss_is_told(session, code, monkeypatch):
    monkeypatch.setattr(interpreter, "GRACE_S", 0.2)  # none of these will ever answer
    session.run("x = 3\nopen('f', 'w')")
    found = session.run(code, timeout_s=FEW_S)
    assert (found.status, found.lost_state) == ("timeout", True)
    assert "could not be interrupted" in found.error
    assert "All variables and files are lost; the next call starts anew." in found.error
    again = session.run("import os\nos.listdir('.'), 'x' in globals()")
    assert (again.value, again.lost_state) == ("([], False)", False)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\nos._exit(3)", "exited with code 3"),
        ("import signal\nsignal.raise_signal(signal.SIGKILL)", "was killed by signal SIGKILL"),
        ("import ctypes\nctypes.string_at(0)", "was killed by signal SIGSEGV"),
        ("import os\nos.closerange(0, 64)", "exited with code 1|was killed by signal SIGKILL"),  # whichever is first
        (
            "import os\nos.close(1)\nwhile True:\n  for fd in range(2, 64):\n    try: os.close(fd)\n    except OSError: pass",
            "killed",
        ),
        (
            "import threading, os\nthreading.Timer(0.05, os._exit, (4,)).start()\nimport time\ntime.sleep(9)",
            "exited with code 4",
        ),
    ],
)
def test_an_interpreter_that_ends_is_replaced_and_the_loss_is_told(session, code, why):
    session.run("x = 3")
    found = session.run(code, timeout_s=10.0)
    assert (found.status, found.lost_state) == ("died", True), found.error
    assert re.search(why, found.error), found.error
    assert session.run("'x' in globals()").value == "False"


def test_code_is_not_run_if_the_interpreter_has_ended_since_the_last_call(session):
    session.run("import threading, os\nthreading.Timer(0.05, os._exit, (5,)).start()")
    deadline = time.monotonic() + 20
    while not session._interpreter.has_ended() and time.monotonic() < deadline:
        time.sleep(0.01)
    found = session.run("open('made', 'w')")
    assert (found.status, found.lost_state) == ("died", True)
    assert "exited with code 5 since the last call; this code was not run" in found.error
    assert session.run("import os\nos.listdir('.')").value == "[]"


def test_deep_recursion_and_exits_are_ordinary_errors(session):
    session.run("x = 3")
    assert session.run("def f(): return f()\nf()").error.endswith("RecursionError: maximum recursion depth exceeded")
    assert session.run("import sys\nsys.exit(2)").error == "SystemExit: 2"
    assert session.run("input()").error.endswith("EOFError: EOF when reading a line")
    assert session.run("import atexit\natexit.register(print, 'late')\nx").value.endswith("3")
    assert session.run("raise KeyboardInterrupt").error.endswith("KeyboardInterrupt")
    assert session.run("class E(Exception):\n  def __str__(s): raise s\nraise E").status == "failed"
    assert session.run("import traceback\ntraceback.format_exception = None\n1 / 0").error == "an error that has no traceback"
    assert session.run("x").value == "3"


def test_memory_is_limited_for_the_session(session):
    session.run("x = 3")
    assert session.run("y = 'a' * 10 ** 10").status == "memory"
    assert session.run("z = []\nwhile True: z.append(bytearray(10 ** 6))").status == "memory"
    assert session.run("len(bytearray(10 ** 8))").status == "memory"  # what was kept still counts
    assert session.run("del z\nlen(bytearray(10 ** 8)), x").value == "(100000000, 3)"


def test_a_session_that_has_used_its_time_runs_no_more():
    with SessionPool(SessionConfig(cpu_s=1, wall_s=20.0), warm=0) as pool, pool.take() as session:
        assert session.run("1").status == "ok"
        found = session.run("while True: pass")
        assert (found.status, found.lost_state) == ("died", True)
        assert "was killed by signal SIGXCPU" in found.error
        assert "this session has used its 1 s of CPU time, and runs no more code" in found.error
        again = session.run("1")
        assert (again.status, again.value) == ("died", "")
        assert again.error == "this session has used its 1 s of CPU time, and runs no more code"


def test_time_of_a_lost_interpreter_counts():
    code = "import time\nwhile time.process_time() < 1.05: pass"
    with SessionPool(SessionConfig(cpu_s=2, wall_s=20.0), warm=0) as pool, pool.take() as session:
        assert session.run(code).status == "ok"
        assert session.run("import os\nos._exit(0)").status == "died"
        assert 1.0 < session._cpu_s < 2.0
        assert session.run("import resource\nresource.getrlimit(resource.RLIMIT_CPU)").value == "(1, 2)"


# ------------------------------------------------------------------------------------------------------------------ output
def test_printing_too_much_is_interrupted_and_forgets_nothing(session):
    session.run("x = 3")
    for code in ("while True: print('y' * 99)", "print('y' * 10 ** 6)\nimport time\ntime.sleep(60)"):
        found = session.run(code)
        assert (found.status, found.lost_state, len(found.stdout)) == ("output", False, 4096)
        assert found.error == "the call was interrupted: it printed more than 4 KB"
    long = session.run("'y' * 10 ** 6")
    assert (long.status, len(long.value), long.error) == (
        "output", 4096, "the value has 1000002 characters; the first 4096 are shown"
    )  # fmt: skip
    assert session.run("x").value == "3"


def test_printing_without_end_past_all_care_is_killed(session):
    found = session.run("import os\nwhile True: os.write(1, b'y' * 65536)")
    assert (found.status, found.lost_state, len(found.stdout)) == ("output", True, 4096)
    assert session.run("1").value == "1"


def test_replaced_and_closed_streams_do_not_last(session):
    session.run("import sys, io\nsys.stdout = io.StringIO()\nprint('hidden')")
    assert session.run("print('seen')").stdout == "seen\n"
    session.run("sys.stdout.close()")
    assert session.run("print('seen')").stdout == "seen\n"
    session.run("sys.stdout = None\nsys.stdin = None\nsys.__stdout__ = None")
    assert session.run("print('seen')").stdout == "seen\n"
    session.run("sys.stdout.detach()")
    assert session.run("print('seen')").status == "ok"
    session.run("import os\nos.close(1)")
    assert session.run("1").value == "1"


def test_what_threads_print_between_calls_is_dropped(session):
    session.run(
        """
        import threading
        go, gone = threading.Event(), threading.Event()
        def late():
            go.wait()
            print('late', flush=True)
            gone.set()
        threading.Thread(target=late, daemon=True).start()
    """.replace("\n        ", "\n")
    )
    found = session.run("print('mine', flush=True)\ngo.set()\ngone.wait()\n1")
    assert (found.stdout, found.value) == ("mine\nlate\n", "1")  # while a call runs, it is that call's
    session.run(
        """
        more = threading.Event()
        def later():
            more.wait()
            import os
            os.write(1, b'between')
            gone.set()
        gone.clear()
        threading.Thread(target=later, daemon=True).start()
        threading.Timer(0.05, more.set).start()
    """.replace("\n        ", "\n")
    )
    printed = select.poll()
    printed.register(session._interpreter._fds[2], select.POLLIN)
    assert printed.poll(60_000)
    assert session.run("gone.wait()\nprint('mine')").stdout == "mine\n"


def test_threads_that_print_on_do_not_hold_up_later_calls(session):
    flood = "import threading, os\ndef on():\n  while True: os.write(1, b'y' * 999)\n"
    session.run(flood + "for _ in range(3): threading.Thread(target=on, daemon=True).start()")
    for _ in range(3):
        found = session.run("'mine'", timeout_s=10.0)
        assert found.value == "'mine'" or found.status in ("output", "timeout")
