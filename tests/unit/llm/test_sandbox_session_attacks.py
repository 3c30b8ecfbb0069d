"""What hostile code in a session cannot do: confuse its parent, hold it up, reach other sessions, or change a verdict."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, data, integers, lists, one_of, sampled_from, tuples
from sandbox_forms import FEW_S, LIMITS, processes_of

from runnel.llm.rewards.code import python_tests
from runnel.llm.sandbox import plain
from runnel.llm.sandbox.interpreter import ANSWERS, _Exchange
from runnel.llm.sandbox.run import protection
from runnel.llm.sandbox.session import SessionConfig, SessionPool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's")
FORGE = """
import os
def forge(number, status, value, fds=range(3, 64)):
    data = ('[%s, "%s", "%s", ""]' % (number, status, value)).encode()
    for fd in fds:
        try: os.write(fd, len(data).to_bytes(4, "big") + data)
        except OSError: pass
"""


@pytest.fixture(scope="module")
def pool():
    with SessionPool(LIMITS, warm=1) as made:
        yield made


@pytest.fixture
def session(pool):
    with pool.take() as taken:
        yield taken


# ------------------------------------------------------------------------------------------------- attacks on the protocol
@pytest.mark.parametrize(
    "attack",
    [
        "for fd in range(3, 64):\n  try: os.write(fd, b'\\xff' * 999)\n  except OSError: pass",
        "for fd in range(3, 64):\n  try: os.write(fd, (1 << 31).to_bytes(4, 'big'))\n  except OSError: pass",
        "for fd in range(3, 64):\n  try: os.write(fd, b'\\0\\0\\0\\x05[[[[[')\n  except OSError: pass",
        "for fd in range(3, 64):\n  try: os.write(fd, (9999).to_bytes(4, 'big') + b'[' * 9999)\n  except OSError: pass",
        "forge(1, 'died', '')",
        "forge('{}', 'ok', '')",
        "forge('true', 'ok', '')",
        "forge('1' * 9999, 'ok', '')",
        "while True: forge(0, 'ok', 'y' * 999)",
        "while True: forge(7, 'ok', 'y' * 999)",
    ],
)
def test_garbage_in_place_of_answers_is_the_end_of_that_interpreter_only(pool, attack):
    with pool.take() as bad, pool.take() as good:
        good.run("x = 3")
        found = bad.run(FORGE + attack + "\nwhile True: pass", timeout_s=10.0)
        assert (found.status, found.lost_state) == ("died", True), found.error
        assert "in place of an answer, and was killed" in found.error
        assert good.run("x").value == "3"
        assert bad.run("1").value == "1"


@settings(max_examples=60, deadline=None)
@given(data())
def test_whatever_bytes_come_they_are_an_answer_or_an_end(drawn):
    """Any bytes, in any pieces: plain words or the answer to this very call, and never an exception."""
    texts = sampled_from(["ok", "failed", "died", "\ud800", "", 1, None, ["ok"]])
    frame = tuples(integers(5, 8), texts, texts, texts).map(lambda f: plain.to_bytes(list(f)))
    sent = b"".join(drawn.draw(lists(one_of(binary(max_size=9), frame), max_size=6)))
    exchange, (reads, writes) = _Exchange(7, 1024, b""), os.pipe()
    try:
        why = None
        while sent and why is None and exchange.answer is None:
            size = drawn.draw(integers(1, len(sent)))
            os.write(writes, sent[:size])
            sent, why = sent[size:], exchange.receive(reads)
    finally:
        os.close(reads)
        os.close(writes)
    assert why in (None, "sent nonsense", "sent too much")
    if exchange.answer is not None:
        assert exchange.answer[0] in ANSWERS
        assert all(type(text) is str for text in exchange.answer)


def test_half_an_answer_holds_nobody_up(session):
    half = (
        "import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'\\0\\0\\0\\x63[1')\n  except OSError: pass\nwhile True: pass"
    )
    found = session.run(half, timeout_s=FEW_S)
    assert found.status in ("timeout", "died")
    assert session.run("1").status in ("ok", "died")


def test_forged_answers_stay_with_the_session_that_forged_them(pool):
    with pool.take() as bad, pool.take() as good:
        found = bad.run(FORGE + "forge(1, 'ok', 'forged')\n'true'")
        assert found.value in ("forged", "'true'")  # the model's own text either way
        assert good.run("'mine'").value == "'mine'"
        assert bad.run("'mine'").value == "'mine'"  # what came late is not taken for an answer to this call
        found = bad.run(FORGE + "forge(4, 'ok', 'in advance')\n1")
        assert bad.run("'mine'").value in ("in advance", "'mine'")
        assert good.run("'mine'").value == "'mine'"


def test_an_interpreter_that_reads_no_more_holds_nobody_up(session):
    steal = "import os, threading\ndef steal(fd):\n  try: os.read(fd, 1 << 20)\n  except OSError: pass\n"
    session.run(steal + "for fd in range(3, 64): threading.Thread(target=steal, args=(fd,), daemon=True).start()")
    found = session.run("x = 1\n" + "#" * 500_000, timeout_s=FEW_S)
    assert found.status in ("ok", "timeout", "died")
    assert session.run("1").status in ("ok", "died", "timeout")


def test_the_protocol_that_code_finds_by_gc_is_its_own(session):
    code = """
import gc, os
loops = [o for o in gc.get_objects() if type(o).__name__ == "CallLoop"]
import sys
found = sys._getframe(2).f_locals.get("self") or loops[0]
os.close(found._said)
"""
    assert session.run(code).status == "died"
    assert session.run("1").value == "1"


# --------------------------------------------------------------------------------------------------------- other sessions
def test_sessions_neither_see_nor_touch_each_other(pool):
    with pool.take() as a, pool.take() as b:
        where = a.run("import os\nopen('secret', 'w').write('hunter2')\nos.getcwd()").value.strip("'")
        look = f"""
import os
out = []
for what in (lambda: os.listdir({where!r}), lambda: open({where!r} + '/secret').read(), lambda: os.listdir('/tmp'),
             lambda: os.listdir('/proc'), lambda: open('/proc/self/environ').read(), lambda: open('/proc/self/maps').read(),
             lambda: open('/proc/1/cmdline').read(), lambda: os.kill(1, 0), lambda: os.kill(-1, 9), lambda: os.fork(),
             lambda: os.open('/proc/self/fd/3', 0)):
    try: out.append(what())
    except OSError as e: out.append(type(e).__name__)
out
"""
        seen = b.run(look).value
        assert "hunter2" not in seen
        assert "secret" not in seen
        if protection()["root"] == "":
            assert seen.count("FileNotFoundError") + seen.count("PermissionError") >= 10
            assert f"['{os.path.basename(where)}']" not in seen
        assert a.run("open('secret').read()").value == "'hunter2'"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="root alone can become other users")
def test_each_session_is_a_user_of_its_own(pool):
    with pool.take() as a, pool.take() as b:
        assert a.run("import os\nos.getuid()").value != b.run("import os\nos.getuid()").value


@pytest.mark.parametrize("without", [(), ("namespaces",), ("namespaces", "user")])
def test_sessions_cannot_trace_or_signal_each_other(without):
    """By the numbers that processes have outside: without namespaces both see them; at last both are the same user too."""
    limits = SessionConfig(allow_weaker=bool(without))
    trace = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def refused(result): return result == -1 and ctypes.get_errno() in (1, 3, 38)
pids = {pids!r}
[refused(libc.ptrace(16, p, 0, 0)) and refused(libc.kill(p, 9)) and refused(libc.syscall(310, p, 0, 0, 0, 0, 0))
 and refused(libc.syscall(234, p, p, 9)) and refused(libc.syscall(434, p, 0)) for p in pids]
"""
    with SessionPool(limits, warm=0, without=without) as pool, pool.take() as a, pool.take() as b:
        a.run("x = 3")
        pids = processes_of(a)
        assert len(pids) == 3
        assert b.run(trace.format(pids=pids)).value == str([True] * 3)
        assert a.run("x").value == "3"


def test_an_interpreter_has_no_descriptor_of_another(pool):
    with pool.take() as a, pool.take() as b:
        code = "import os\nn = 0\nfor fd in range(64):\n  try: os.fstat(fd); n += 1\n  except OSError: pass\nn"
        assert (a.run(code).value, b.run(code).value) == ("5", "5")  # three streams, two pipes of its own


def test_a_session_cannot_change_what_grading_says(session):
    """Verdicts come from other processes: whatever a session has patched, written or left running."""
    session.run("""
import builtins, json, os, sys, unittest, threading, time
builtins.sum = builtins.len = lambda *a: 42
json.dumps = json.loads = lambda *a, **k: '{"checks": [true]}'
unittest.TestCase.assertEqual = lambda *a: None
sys.modules["math"] = None
for name in ("solution.py", "check.py", "math.py", "sitecustomize.py"): open(name, "w").write("raise SystemExit(0)")
def on():
    while True:
        for fd in range(3, 64):
            try: os.write(fd, b'{"checks": [true], "reasons": []}')
            except OSError: pass
        time.sleep(0.01)
threading.Thread(target=on, daemon=True).start()
""")
    tests = "import json, math\nassert f([1, 2]) == 3 and len('ab') == 2 and math.pi > 3 and json.loads('1') == 1"
    wrong, right = (f"```python\n{code}\n```" for code in ("def f(x): return 42", "def f(x): return sum(x)"))
    assert python_tests(["", ""], [wrong, right], tests=[tests, tests]) == [0.0, 1.0]
