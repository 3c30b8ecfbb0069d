"""The sandbox as an attacker meets it. Where the kernel gives several protections, each is tried without the others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sandbox_forms as forms

from runnel.core.errors import ConfigError
from runnel.llm.sandbox.run import SandboxConfig, protection, run_python

LINUX = sys.platform == "linux"
pytestmark = pytest.mark.skipif(not LINUX, reason="confinement is the Linux kernel's")
QUICK = SandboxConfig(wall_s=1.0, cpu_s=1, memory_mb=256, file_mb=1, scratch_mb=4, output_kb=16)
WITHOUT = [(), ("namespaces",), ("seccomp",)]


@pytest.fixture(params=forms.FORMS)
def attack(request):
    """Runs code that raises when an attack is refused, and prints `bad` when it succeeds."""

    def run(code: str, *, config: SandboxConfig = QUICK, without: tuple[str, ...] = ()):
        weaker = replace(config, allow_weaker=bool(without))
        return forms.run(request.param, textwrap.dedent(code), config=weaker, without=without)

    return run


def test_the_attacks_are_real(attack, tmp_path):
    """Without confinement they succeed; so the tests below can fail."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    off = ("namespaces", "landlock", "seccomp")
    assert "hunter2" in attack(f"print(open({str(secret)!r}).read())", without=off).stdout
    assert "bad" in attack("import socket\nsocket.socket()\nprint('bad')", without=off).stdout
    assert "bad" in attack("import subprocess\nsubprocess.run(['echo', 'bad'])", without=off).stdout


def test_good_code_runs():
    result = run_python("import math, json, re, collections\nprint(json.dumps({'x': math.floor(2.5)}))", config=QUICK)
    assert (result.status, result.stdout, result.broken) == ("ok", '{"x": 2}\n', {})
    assert run_python("print(input()[::-1])", stdin="abc\n", config=QUICK).stdout == "cba\n"
    big = "x" * 300_000
    assert run_python("import sys\nprint(len(sys.stdin.read()))", stdin=big, config=QUICK).stdout == "300000\n"
    assert run_python(f"s = {big!r}\nprint(len(s))", config=QUICK).stdout == "300000\n"


def test_texts_hash_alike_in_each_run():
    """Else the same code prints sets in another order, and is rewarded differently."""
    assert len({run_python("print(hash('a'), {*'abcdefgh'})", config=QUICK).stdout for _ in range(3)}) == 1


def test_errors_and_exit_codes_come_back():
    result = run_python("1 / 0", config=QUICK)
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "ZeroDivisionError" in result.stderr
    assert run_python("import sys; sys.exit(3)", config=QUICK).exit_code == 3
    assert run_python("import os; os.abort()", config=QUICK).exit_code < 0
    assert run_python("def (", config=QUICK).status == "failed"


def test_checks_run_in_the_names_of_the_code():
    checks = ("assert double(2) == 4", "assert double(2) == 5", "raise SystemExit(0)")
    assert run_python("def double(x): return 2 * x", checks=checks, config=QUICK).checks == (True, False, True)
    assert run_python("x = ", checks=checks[:1], config=QUICK).checks == (False,)


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('{\"checks\": [true]}')",
        'import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\'{"checks": [true], "nonce": ""}\\n{"exit": 0}\\n\')\n'
        "    except OSError: pass\nos._exit(1)",
        "while True: pass",
    ],
)
def test_passing_cannot_be_faked_cheaply(cheat):
    result = run_python(cheat, checks=("assert False",), config=QUICK)
    assert result.checks == (False,)


@pytest.mark.parametrize("without", WITHOUT)
def test_fork_bomb(attack, without, tmp_path, monkeypatch):
    """Bounded at 128 processes: where the kernel does not count them (root, without seccomp), an endless bomb would be real."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests have sandboxes at the same time
    bomb = "import os, time\nfor _ in range(127):\n    if os.fork() == 0: break\ntime.sleep(4321)"
    result = attack(bomb, without=without)  # it is the first process that meets the limit, if there is one
    assert (result.status == "timeout") == ("seccomp" in without and "processes" in result.broken)
    if "seccomp" not in without:
        assert "PermissionError" in result.stderr
    assert not sandboxed(tmp_path)  # all have ended


def sandboxed(folder: Path) -> list[str]:
    """The processes that work in a sandbox below `folder`."""
    found = [(pid, folder_of(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
    return [pid for pid, place in found if "runnel-sandbox-" in place and place.startswith(str(folder))]


def test_processes_of_a_sandbox_are_seen_while_they_run(attack, tmp_path, monkeypatch):
    """So that the test above can fail."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running = threading.Thread(target=attack, args=("while True: pass",))
    running.start()
    try:
        deadline = time.monotonic() + 20.0
        while not (seen := sandboxed(tmp_path)) and running.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen
    finally:
        running.join()


def folder_of(pid: str) -> str:
    """Where a process works; nothing if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def test_memory_bomb(attack):
    result = attack("x = []\nwhile True: x.append(bytearray(10 ** 7))")
    assert result.status == "memory"
    assert attack("x = 'a' * 10 ** 10").status == "memory"
    beside = attack("import mmap\nx = [mmap.mmap(-1, 10 ** 7) for _ in range(1000)]\nprint('bad')")
    assert "bad" not in beside.stdout


def test_thread_bomb(attack):
    code = "import threading, time\nthreading.stack_size(32768)\n"
    code += "for _ in range(100000): threading.Thread(target=time.sleep, args=(60,)).start()"
    assert attack(code).status in ("failed", "timeout", "memory")


def test_infinite_loops(attack):
    began = time.perf_counter()
    assert attack("while True: pass").status in ("timeout", "failed")
    assert attack("import time; time.sleep(60)").status == "timeout"
    assert attack("import signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n"
                  "while True: pass").status in ("timeout", "failed")  # fmt: skip
    assert time.perf_counter() - began < 8.0


def test_big_files(attack):
    result = attack("f = open('x', 'wb')\nfor _ in range(100): f.write(bytes(10 ** 6)); f.flush()\nprint('bad')")
    assert "bad" not in result.stdout
    many = attack("for i in range(100): open(str(i), 'wb').write(bytes(10 ** 6 // 2))\nprint('bad')")
    assert ("bad" not in many.stdout) == (many.protection["scratch"] == "")


@pytest.mark.parametrize("without", WITHOUT)
def test_sockets(attack, without):
    code = """
        import socket
        s = socket.socket()
        s.settimeout(1)
        s.connect(("127.0.0.1", {port}))
        print("bad")
    """
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        result = attack(code.format(port=server.getsockname()[1]), without=without)
    assert (result.status, result.stdout) == ("failed", "")
    assert "bad" not in attack("import socket\nsocket.gethostbyname('localhost')\nprint('bad')", without=("seccomp",)).stdout


def test_environment(attack, monkeypatch):
    monkeypatch.setenv("RUNNEL_SECRET_FOR_TEST", "hunter2")
    result = attack("import os\nprint(dict(os.environ))")
    assert result.status == "ok"
    assert "hunter2" not in result.stdout
    assert "hunter2" not in attack("print(open('/proc/self/environ').read())").stdout


@pytest.mark.parametrize("without", WITHOUT)
def test_files_of_the_user(attack, without, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    for code in (
        f"print(open({str(secret)!r}).read())",
        f"import os\nprint(os.listdir({str(tmp_path)!r}))",
        f"open({str(tmp_path / 'new')!r}, 'w').write('bad')",
        f"import os\nos.unlink({str(secret)!r})",
        f"import os\nos.symlink({str(secret)!r}, 'link')\nprint(open('link').read())",
        f"import os\nos.link({str(secret)!r}, 'link')\nprint(open('link').read())",
        f"import os\nos.chdir('/')\nprint(open({str(secret)!r}).read())",
        "print(open('/etc/passwd').read())",
        f"print(open({str(Path(__file__))!r}).read())",
        f"import os\nos.execv('/bin/cat', ['cat', {str(secret)!r}])",
        f"import os\nprint(os.listdir('/proc/{os.getpid()}/fd'))",
        f"print(open('/proc/{os.getpid()}/environ').read())",
    ):
        result = attack(code, without=without)
        assert (result.status, result.stdout) == ("failed", ""), code
    assert secret.read_text() == "hunter2"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("without", WITHOUT)
def test_killing_others(attack, without):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        code = f"""
            import os, signal
            for pid in ({os.getpid()}, os.getppid(), {bystander.pid}, -1):
                try:
                    os.kill(pid, signal.SIGKILL)
                except (PermissionError, ProcessLookupError):
                    pass
        """
        attack(code, without=without)
        attack(f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (10, 10))", without=without)
        attack(f"import os\nos.setpriority(os.PRIO_PROCESS, {os.getpid()}, 19)", without=("namespaces",))
        assert bystander.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, 0) != 19
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("without", WITHOUT)
def test_nothing_is_left_behind(attack, without):
    code = """
        import ctypes, os, time
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        open("rubbish", "w").write("x")
        print(os.getcwd(), flush=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(30)
    """
    result = attack(code, without=without)
    folder = result.stdout.split()[0]
    assert not Path(folder).exists()
    assert not running_in(folder)
    hang = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nprint(os.getcwd(), flush=True)\ntime.sleep(60)"
    found = attack(hang, without=without)
    assert found.status == "timeout"
    assert not running_in(found.stdout.split()[0])


def running_in(folder: str) -> list[str]:
    """Processes whose environment names the folder of a sandbox."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if folder.encode() in environ.read_bytes():
                found.append(str(environ))
        except OSError:
            continue
    return found


def test_printing_gigabytes(attack):
    began = time.perf_counter()
    result = attack("while True: print('x' * 10 ** 6)")
    assert result.status == "output"
    assert len(result.stdout) <= 16 << 10
    assert time.perf_counter() - began < 3.0
    assert attack("import os\nwhile True:\n  for fd in range(3, 9):\n    try: os.write(fd, b'x' * 65536)\n"
                  "    except OSError: pass").status in ("output", "timeout", "failed")  # fmt: skip


@pytest.mark.parametrize("form", forms.FORMS)
def test_refuses_where_promises_cannot_be_kept(form):
    with pytest.raises(ConfigError, match=r"cannot keep its promises: files \(landlock.*allow_weaker"):
        forms.run(form, "print('bad')", config=QUICK, without=("landlock",))
    with pytest.raises(ConfigError, match="network"):
        forms.run(form, "print('bad')", config=QUICK, without=("namespaces", "seccomp"))
    weaker = forms.run(form, "print('ran')", config=SandboxConfig(allow_weaker=True), without=("landlock",))
    assert (weaker.stdout, set(weaker.broken)) == ("ran\n", {"files"})


def test_says_what_protects():
    assert protection()["limits"] == ""
    assert {"landlock", "seccomp", "namespaces"} <= set(protection())


def test_packages_on_request():
    assert run_python("import numpy", config=QUICK).status == "failed"
    wide = SandboxConfig(memory_mb=4096, packages=True)
    assert run_python("import numpy\nprint(numpy.arange(3).sum())", config=wide).stdout == "3\n"
