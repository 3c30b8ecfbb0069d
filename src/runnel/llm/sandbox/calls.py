"""The system calls that the sandbox allows, as a filter for the kernel. Every other call is refused.

Landlock controls which files are opened, created, renamed and removed. It does not control their modes, owners, times,
attributes, locks and watchers, nor other processes and sockets: this filter does. Numbers are those of asm/unistd_64.h (x86_64)
and asm-generic/unistd.h (aarch64). References: seccomp(2), bpf(4) for the classic instructions.
"""

from __future__ import annotations

import errno
import struct

_ALLOWED = {
    # open files
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "lseek": (8, 62),
    "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None),
    "pipe2": (293, 59), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "fallocate": (285, 47),
    "fadvise64": (221, 223), "sendfile": (40, 71), "copy_file_range": (326, 285), "ioctl": (16, 29), "fcntl": (72, 25),
    # files by name; Landlock decides which ones
    "open": (2, None), "openat": (257, 56), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "getdents64": (217, 61), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "umask": (95, 166),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "msync": (26, 227), "brk": (12, 214),
    # threads, and signals to itself
    "clone": (56, 220), "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "set_tid_address": (218, 96),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "exit": (60, 93),
    "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "pause": (34, None), "tgkill": (234, 131),
    # waiting and time
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103),
    "alarm": (37, None),
    # about itself
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getrusage": (98, 165), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "prlimit64": (302, 261), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
    "prctl": (157, 167),
    # a pair of streams of its own, by which asyncio wakes itself
    "socketpair": (53, 199), "sendto": (44, 206), "recvfrom": (45, 207), "getsockname": (51, 204), "getpeername": (52, 205),
    "getsockopt": (55, 209), "shutdown": (48, 210),
}  # fmt: skip
_MARKS = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Modes and times of files. `shutil.copy` needs them, but a filter does not know whose file a call is about. They are therefore
allowed only to a process that sees no files except its own and read-only ones."""
_ATTRIBUTES = ((188, 199), (5, 16))
"""All calls for extended attributes. They fail as on a file system without attributes, which `shutil.copy2` expects."""
_NEWEST = 424
"""From this number on, the C library can work without a call if the error says that the kernel does not have it."""
_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

ALLOW, FAIL = 0x7FFF0000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
YES, NO, NONE = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)
Step = tuple[int, int, int, int]
"""An instruction: its code, the steps to skip if the comparison is true and if it is false, its value."""

THREAD = 0x10000
UNUSUAL = 0xFE000000 | 0x20000 | 0x3000 | 0x80
"""Flags of clone that make namespaces, trace, or return a descriptor: the C library makes no thread with them."""
TERMINAL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Requests of ioctl: whether it is a terminal, its size, bytes to read, blocking or not, closing when a program is started."""
DESCRIPTOR = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""Commands of fcntl: copies, flags, record locks (for sqlite). Not: owners that get signals, leases, notifications."""
NAME = (15, 16)
"""Options of prctl: set and get a thread's name."""
TRUNCATE, ACCESS = 0o1000, 0o3
UNIX, STREAM, KIND = 1, 1, 0xF
CLOCKS = 32
"""From this number on, clocks belong to other processes and to devices."""


PID = 0x7FFFFFFF
"""A placeholder in a filter: a process replaces it with its own process id. It is no valid process id."""
MACHINES = tuple(_ARCH)


def program(*, marks: bool, machine: str) -> bytes:
    """The filter for a process: classic BPF over number, architecture and arguments. A refused call fails with an error; the
    process is not killed.

    With `marks`, modes and times of files can be changed.
    """
    column, arch = _ARCH[machine]
    rules, (first, last) = _rules(), _ATTRIBUTES[column]
    answers = {number: [(RETURN, 0, 0, FAIL | errno.ENOTSUP)] for number in range(first, last + 1)}
    for name, numbers in {**_ALLOWED, **(_MARKS if marks else {})}.items():
        if (number := numbers[column]) is not None:
            answers[number] = rules.get(name, [YES])
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), NONE, (LOAD, 0, 0, 0), *_search(_spans(answers))]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _spans(answers: dict[int, list[Step]]) -> list[tuple[int, list[Step]]]:
    """Ranges of equal answers, each with its first number. The last range has no end, so it includes x86_64's x32 calls."""
    end = max(*answers, _NEWEST) + 2
    each = [answers.get(number, [NO] if number < _NEWEST else [NONE]) for number in range(end)]
    return [(number, answer) for number, answer in enumerate(each) if number == 0 or answer != each[number - 1]]


def _search(spans: list[tuple[int, list[Step]]]) -> list[Step]:
    """A binary search. At its installation the kernel runs a filter for each number; a linear search would take 1 ms then."""
    if len(spans) == 1:
        return spans[0][1]
    middle = len(spans) // 2
    below, above = _search(spans[:middle]), _search(spans[middle:])
    return [(AT_LEAST, len(below), 0, spans[middle][0]), *below, *above]


def _rules() -> dict[str, list[Step]]:
    """Conditions on the arguments of calls, for those that are not allowed with all arguments."""
    own = _one_of(0, (0, PID))
    clock = [_argument(0), (AT_LEAST, 0, 1, CLOCKS), NO, YES]
    return {
        "clone": [_argument(0), (ANY_BIT, 1, 0, UNUSUAL), (ANY_BIT, 1, 0, THREAD), NO, YES],
        "tgkill": _one_of(0, (PID,)),
        "prlimit64": own,
        "sched_getaffinity": own,
        "getpgid": own,
        "getsid": own,
        "clock_gettime": clock,
        "clock_getres": clock,
        "clock_nanosleep": clock,
        "prctl": _one_of(0, NAME),
        "ioctl": _one_of(1, TERMINAL),
        "fcntl": _one_of(1, DESCRIPTOR),
        "open": _opening(1),
        "openat": _opening(2),
        "socketpair": [_argument(0), (EQUAL, 0, 3, UNIX), _argument(1), (AND, 0, 0, KIND), (EQUAL, 1, 0, STREAM), NO, YES],
        # without an address: both halves of the pointer are zero
        "sendto": [_argument(4), (EQUAL, 0, 2, 0), _argument(4, high=True), (EQUAL, 1, 0, 0), NO, YES],
    }


def _argument(index: int, *, high: bool = False) -> Step:
    """Load one half of an argument. The low half is enough for an int, because the kernel reads no more of it."""
    return (LOAD, 0, 0, 16 + 8 * index + 4 * high)


def _one_of(index: int, values: tuple[int, ...]) -> list[Step]:
    """Allow the call if the argument has one of these values."""
    return [_argument(index), *((EQUAL, len(values) - i, 0, v) for i, v in enumerate(values)), NO, YES]


def _opening(index: int) -> list[Step]:
    """Refuse to open a file for reading and to truncate it at once: Landlock before version 3 treats that as reading."""
    return [_argument(index), (AND, 0, 0, TRUNCATE | ACCESS), (EQUAL, 0, 1, TRUNCATE), NO, YES]
