"""The filter of system calls, run by an interpreter of its instructions, for both architectures on either; its numbers against
the kernel's headers."""

from __future__ import annotations

import errno
import importlib
import re
import struct
import sys
from pathlib import Path

import pytest
import sandbox_attempts as attempts

from runnel.llm.sandbox import calls, confine

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
ALL = {**calls._ALLOWED, **calls._MARKS}
PID = 4711


def answer(machine: str, number: int, *args: int, marks: bool = True, arch: int = 0) -> int:
    """What the kernel would do: 0 to allow, or the error. After bpf(4); the instructions that are used, and no others."""
    code = calls.program(marks=marks, machine=machine).replace(confine.OWN_PID, struct.pack("I", PID))
    words = [a & (1 << 64) - 1 for a in (*args, *(0,) * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch or AUDIT[machine], 0, *words)
    steps, at, value = list(struct.iter_unpack("HBBI", code)), 0, 0
    while True:
        op, yes, no, k = steps[at]
        at += 1
        if op == 0x06:
            assert k == 0x7FFF0000 or k >> 16 == 0x0005  # to allow or to fail: never to kill
            return k & 0xFFFF
        if op == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif op == 0x54:
            value &= k
        else:
            at += yes if {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[op] else no


def number(machine: str, name: str) -> int | None:
    """The number of an allowed call, or of one that is attempted."""
    column = list(AUDIT).index(machine)
    found = (ALL.get(name) or attempts.NUMBERS[name])[column]
    return None if found in (None, -1) else found


def from_header(machine: str) -> dict[str, int]:
    path = Path("/usr/include") / HEADERS[machine]
    if not path.exists():
        pytest.skip("the kernel's headers are not installed")
    found = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())}
    return {**found, "newfstatat": found.get("newfstatat", found.get("fstatat", -1))}


@pytest.mark.parametrize("machine", AUDIT)
def test_numbers_are_those_of_the_kernel(machine):
    known = from_header(machine)
    for name in {**ALL, **attempts.NUMBERS}:
        found = number(machine, name)
        assert found == known.get(name, found), name
    first, last = calls._ATTRIBUTES[list(AUDIT).index(machine)]
    assert [n for n in known if "xattr" in n and known[n] < 400] == [n for n in known if first <= known[n] <= last]


@pytest.mark.parametrize("machine", AUDIT)
def test_only_what_is_named_is_allowed(machine):
    named = {number(machine, name) for name in ALL}
    marks = {number(machine, name) for name in calls._MARKS}
    for each in range(600):
        if each not in named:
            assert answer(machine, each) in ((errno.EPERM, errno.ENOTSUP) if each < 424 else (errno.ENOSYS,))
        if each in marks:
            assert (answer(machine, each), answer(machine, each, marks=False)) == (0, errno.EPERM)
    for far in (1000, 0x40000000, 0x40000000 | 90, 0x7FFFFFFF, -1):
        assert answer(machine, far) == errno.ENOSYS
    for other in (0x40000003, 0x40000028, 0xC00000F3, next(a for m, a in AUDIT.items() if m != machine)):
        assert {answer(machine, n, arch=other) for n in (0, 1, 20, 90, 450)} == {errno.ENOSYS}


THREAD = 0x3D0F00
RULES = [
    ("clone", (THREAD,), (THREAD | 1 << 22,), (17,), (0x4111,), (THREAD | 1 << 28,), (THREAD | 0x2000,), (THREAD | 0x20000,)),
    ("tgkill", (PID, 5, 6), None, (0, 5, 6), (PID + 1, 5, 9), (-1, 1, 9), (1, 1, 9)),
    ("prlimit64", (0,), (PID,), (1,), (PID + 1,), (-1,)),
    ("sched_getaffinity", (0,), (PID,), (1,)),
    ("getpgid", (0,), (PID,), (1,)),
    ("getsid", (0,), (PID,), (1,)),
    ("clock_gettime", (0,), (7,), ((~PID << 3) | 2,), (-1,), (1 << 31,)),
    ("prctl", (15,), (16,), (1,), (4,), (22,), (38,), (35,)),
    ("ioctl", (0, 0x5401), (0, 0x541B), (0, 0x5412), (0, 0x40086602), (0, 0x80086601), (0, 0x5401 << 8)),
    ("fcntl", (0, 1030), (0, 6), (0, 8), (0, 10), (0, 15), (0, 1024), (0, 1026), (0, 1031), (0, 1033)),
    ("openat", (0, 0, 0o1101), (0, 0, 0o2000000), (0, 0, 0o1000), (0, 0, 0o2001000)),
    ("socketpair", (1, 1), (1, 0o2004001), (1, 2), (1, 5), (1, 0o2000002), (2, 1), (40, 1), (16, 3)),
    ("sendto", (3, 0, 0, 0, 0, 0), None, (3, 0, 0, 0, 1, 0), (3, 0, 0, 0, 1 << 40, 0), (3, 0, 0, 0, 1 << 32, 16)),
]  # fmt: skip


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_arguments_that_count(machine, rule):
    name, first, second, *refused = rule
    call = number(machine, name)
    assert call is not None
    assert answer(machine, call, *first) == 0
    assert second is None or answer(machine, call, *second) == 0
    assert [answer(machine, call, *args) for args in refused] == [errno.EPERM] * len(refused)
    # The kernel reads an int from the lower half of an argument: what is in the upper half changes nothing.
    if name != "sendto":
        wide = [a + (7 << 32) for a in first]
        assert answer(machine, call, *wide) == 0


def test_a_jump_reaches_no_further_than_the_kernel_allows():
    for machine in AUDIT:
        steps = list(struct.iter_unpack("HBBI", calls.program(marks=True, machine=machine)))
        assert len(steps) < 4096
        for at, (op, yes, no, _) in enumerate(steps):
            assert at + 1 + max(yes, no) < len(steps) or op == 0x06


def test_the_number_of_the_process_stands_nowhere_else():
    assert struct.pack("I", calls.PID) == confine.OWN_PID
    for machine in AUDIT:
        code = calls.program(marks=True, machine=machine)
        places = [at for at in range(len(code)) if code.startswith(confine.OWN_PID, at)]
        assert places
        assert all(at % 8 == 4 for at in places)


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_the_way_to_a_file_is_laid_without_leaving_the_new_root(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "confine", confine)
    mounts = importlib.import_module("runnel.llm.sandbox.mounts")
    there, root = tmp_path / "there", tmp_path / "root"
    (there / "lib/deep").mkdir(parents=True)
    (there / "lib/file").write_text("x")
    root.mkdir()
    (there / "near").symlink_to("lib/../lib")
    (there / "far").symlink_to(there / "near/deep")
    laid: set[str] = set()
    before = sorted(there.rglob("*"))
    assert mounts.lay(str(there / "far"), str(root), laid) == str(there / "lib/deep")
    assert mounts.lay(str(there / "near/file"), str(root), laid) == str(there / "lib/file")
    assert mounts.lay(str(there / "far/../file"), str(root), laid) == str(there / "lib/file")
    inside = Path(f"{root}{there}")
    assert (inside / "lib/deep").is_dir()
    assert (inside / "lib/file").read_text() == ""
    assert (inside / "near").readlink() == Path("lib/../lib")
    assert (inside / "far").readlink() == there / "near/deep"
    assert sorted(there.rglob("*")) == before
    assert (there / "lib/file").read_text() == "x"
