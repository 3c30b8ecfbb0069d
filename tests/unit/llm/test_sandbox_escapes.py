"""Ways out of the sandbox, each by the number of its system call too: none may be open, with namespaces or without them."""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
import stat
import sys
from pathlib import Path

import pytest
import sandbox_attempts as attempts
import sandbox_forms as forms
import sandbox_programs as programs

from runnel.core.errors import ConfigError
from runnel.llm.sandbox.confine import USERS
from runnel.llm.sandbox.run import SandboxConfig, protection, run_python

KNOWN = ("x86_64", "aarch64")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's"),
    pytest.mark.skipif(platform.machine() not in KNOWN, reason="numbers of system calls"),
]
PARTS = {name: getattr(attempts, name) for name in ("FILES", "WATCHERS", "PROCESSES", "SOCKETS")}
ROOMY = SandboxConfig(wall_s=20.0, cpu_s=20, memory_mb=512)
HAS_ROOT = sys.platform == "linux" and protection().get("root") == ""
"""Whether the kernel lets the sandbox have a root of its own here."""
NOT_ALLOWED = {errno.EPERM, errno.ENOSYS}
HARMLESS = {"pair of streams"}
"""What stays allowed: a pair of connected streams, by which asyncio wakes itself."""


class Outside:
    """A folder that the code has no business with, and what can be seen of a change in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.victim = folder, folder / "victim"
        self.victim.write_text("keep")
        self.victim.chmod(0o640)
        os.utime(self.victim, (1e9, 1e9))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind(str(folder / "listener"))
        self.listener.setblocking(False)
        self.before = self.look()

    def look(self) -> tuple[object, ...]:
        found = self.victim.stat()
        marks = (found.st_mode, found.st_uid, found.st_gid, found.st_mtime, found.st_ctime, found.st_size)
        return (*marks, os.listxattr(self.victim), sorted(os.listdir(self.folder)))

    def heard(self) -> list[tuple[bytes, int]]:
        """Messages that came, each with how many descriptors came along."""
        found = []
        while True:
            try:
                data, extra, *_ = self.listener.recvmsg(10, 64)
            except BlockingIOError:
                return found
            found.append((data, len(extra)))
            for _, _, fds in extra:
                os.close(int.from_bytes(fds[:4], sys.byteorder))


@pytest.fixture
def outside(tmp_path_factory):
    box = Outside(tmp_path_factory.mktemp("o"))
    yield box
    box.listener.close()


@pytest.fixture(params=forms.FORMS)
def form(request):
    """The form of the sandbox: a program of its own, or a session."""
    return request.param


def attempt(form: str, part: str, outside: Outside, *, without: tuple[str, ...]) -> dict[str, int]:
    """Each attempt with the error it got, 0 for none."""
    code = attempts.program(PARTS[part], str(outside.folder), os.getpid())
    config = SandboxConfig(wall_s=20.0, memory_mb=256, allow_weaker=bool(without))
    result = forms.run(form, code, config=config, without=without)
    assert result.status == "ok", result.stderr
    return json.loads(result.stdout)


def test_the_attempts_are_real(form, outside):
    """Without confinement they get through; so the tests below can fail."""
    off = ("namespaces", "landlock", "seccomp", "user")
    files = attempt(form, "FILES", outside, without=off)
    assert {name for name, code in files.items() if code == 0} >= {"fchmodat 4755", "utimensat", "truncate", "os.setxattr"}
    assert outside.look() != outside.before
    sockets = attempt(form, "SOCKETS", outside, without=off)
    assert sockets["descriptor passed out"] == 0
    assert outside.heard() == [(b"out", 0), (b"\0", 1)]
    through = {part: attempt(form, part, outside, without=off) for part in ("WATCHERS", "PROCESSES")}
    assert not {through["WATCHERS"][name] for name in ("inotify", "asynchronous input", "hidden no more")} & NOT_ALLOWED
    assert not {through["PROCESSES"][name] for name in ("signal", "group of another", "process")} & NOT_ALLOWED


@pytest.mark.parametrize("without", [(), ("namespaces",)])
@pytest.mark.parametrize("part", PARTS)
def test_every_attempt_is_refused_with_an_ordinary_error(form, part, without, outside):
    got = attempt(form, part, outside, without=without)
    allowed = NOT_ALLOWED | ({errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOTSUP} if part == "FILES" else set())
    named = got.pop("files of another", None)  # names, those in /proc too, are hidden by a root of its own alone
    assert named in (None, 0 if without or not HAS_ROOT else errno.ENOENT)
    through = {name: errno.errorcode.get(code, code) for name, code in got.items() if code not in allowed}
    assert set(through) <= HARMLESS, through
    assert outside.look() == outside.before
    assert outside.heard() == []


@pytest.mark.skipif(not HAS_ROOT, reason="needs namespaces")
@pytest.mark.parametrize("part", ["FILES", "SOCKETS"])
def test_a_root_of_its_own_holds_without_the_filter(form, part, outside):
    attempt(form, part, outside, without=("seccomp",))
    assert outside.look() == outside.before
    assert outside.heard() == []


@pytest.mark.skipif(not HAS_ROOT, reason="needs namespaces")
def test_the_root_cannot_be_left_even_without_the_filter(form, outside):
    """The usual way out of a chroot needs the right to enter another, which a new user namespace would give."""
    code = f"""
import ctypes, os
os.mkdir("d")
print(ctypes.CDLL(None).unshare(0x10000000))
try: os.chroot("d")
except PermissionError: print("refused")
for _ in range(20): os.chdir("..")
print(os.path.exists({str(outside.victim)[1:]!r}), os.path.exists("etc/passwd"))
"""
    weaker = SandboxConfig(wall_s=20.0, memory_mb=256, allow_weaker=True)
    assert forms.run(form, code, config=weaker, without=("seccomp",)).stdout == "-1\nrefused\nFalse False\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the second way into the kernel is that of x86")
def test_calls_of_another_architecture_are_refused_not_killed(form):
    code = """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, prot=7)
        page.write(bytes.fromhex("b814000000cd80c3"))  # getpid, as a program of 32 bits asks for it
        print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
    """
    result = forms.run(form, "\n".join(line.strip() for line in code.splitlines()), config=ROOMY)
    assert result.stdout == f"{-errno.ENOSYS}\n" or result.exit_code == -11  # a kernel without such programs: SIGSEGV


@pytest.mark.skipif(not HAS_ROOT, reason="needs namespaces")
def test_nothing_of_the_outside_is_in_sight(form, outside):
    paths = ["/etc/passwd", "/proc/self", "/sys", "/usr/bin", str(outside.victim), str(Path.home() / ".ssh"), sys.executable]
    code = f"import os\nprint([p for p in {paths!r} if os.path.lexists(p)], os.listdir('.'))"
    assert forms.run(form, code, config=ROOMY).stdout == "[] []\n"


OPEN_FILES = """
import os, stat
for fd in range(64):
    try: found = os.fstat(fd)
    except OSError: continue
    if not stat.S_ISFIFO(found.st_mode): print(fd, found.st_size, found.st_uid == os.getuid())
"""


def test_no_file_of_the_outside_is_left_open(form):
    assert forms.run(form, OPEN_FILES, config=ROOMY).stdout in ("0 0 False\n", "0 0 True\n")


def test_no_file_of_the_outside_is_left_open_to_code_with_input_or_tests():
    code = OPEN_FILES
    assert run_python(code, stdin="abc", config=ROOMY).stdout in ("0 3 False\n", "0 3 True\n")
    code += "def f(): return 1"
    assert run_python(code, checks=("assert f() == 1",), config=ROOMY).stdout in ("0 0 False\n", "0 0 True\n")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="root alone can become another user")
def test_root_runs_code_as_a_user_that_nobody_is(form):
    code = "import os\nprint(os.getresuid(), os.getresgid(), os.getgroups())\nopen('x', 'w').write('x')"
    first, second = (forms.run(form, code, config=ROOMY) for _ in range(2))
    assert first.protection["user"] == ""
    assert first.stdout != second.stdout
    user = int(first.stdout[1:].split(",")[0])
    assert user > USERS
    assert first.stdout == f"{(user,) * 3} {(user,) * 3} []\n"
    checks = ("import os\nassert os.getuid() == user()", "assert open('x').read() == 'x'")
    shared = "import os\ndef user(): return os.getuid()\nopen('x', 'w').write('x')"
    assert run_python(shared, checks=checks, config=ROOMY).checks == (True, True)
    library = Path(os.__file__).parent
    readable = all(stat.S_IXOTH & folder.stat().st_mode for folder in (library, *library.parents))
    bare = forms.run(form, "import json, os\nprint(os.getuid() > 0)", config=ROOMY, without=("namespaces",))
    assert bare.stdout == f"{readable}\n"
    assert bare.protection["user"] == "" if readable else "could not read" in bare.protection["user"]


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_ordinary_programs_run(form, without):
    chosen = ["ALWAYS", "(copies,)"][: 1 if without or not HAS_ROOT else 2]
    run = f"\nfor each in {' + '.join(chosen)}:\n    each()\nprint('all')\n"
    result = forms.run(form, Path(programs.__file__).read_text() + run, config=ROOMY, without=without)
    beside = {"program": "", "session": "on stderr\n"}  # a session's two streams are one
    assert (result.stdout, result.status) == (f"{beside[form]}all\n", "ok"), result.stderr


def test_modes_and_times_cannot_be_changed_where_others_could_be_reached(form):
    for line in ("os.chmod('x', 0o600)", "os.utime('x')", "os.chown('x', os.getuid(), -1)"):
        result = forms.run(form, f"import os\nopen('x', 'w')\n{line}", config=ROOMY, without=("namespaces",))
        assert "PermissionError: [Errno 1] Operation not permitted" in result.stderr


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_standard_input_has_its_name(without):
    text = "aé\n" * 100_000
    code = "import sys\nprint(len(open('/dev/stdin').read()), len(open(0, closefd=False).read()), len(sys.stdin.read()))"
    assert run_python(code, stdin=text, config=ROOMY, without=without).stdout == "300000 300000 0\n"


def test_without_the_filter_code_is_refused(form):
    with pytest.raises(ConfigError, match=r"cannot keep its promises: files \(seccomp: not tried\)"):
        forms.run(form, "print(1)", config=ROOMY, without=("seccomp",))
    with pytest.raises(ConfigError, match=r"files \(seccomp: not tried\); network"):
        forms.run(form, "print(1)", config=ROOMY, without=("seccomp", "namespaces"))
