"""A program that tries to get out of the sandbox, mostly by numbers of system calls: `os` may refuse what the kernel does not.

Each attempt is (name, system call, arguments), and what comes back is the call's own result and error. Attempts that would do
harm where they succeed ask for what is so already: the same mode, the same owner, the same flags, signal 0.
"""

from __future__ import annotations

import os
import platform

NUMBERS = {  # asm/unistd_64.h, asm-generic/unistd.h
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fremovexattr": (199, 16),
    "truncate": (76, 45), "mknodat": (259, 33), "flock": (73, 32), "ioctl": (16, 29),
    "fcntl": (72, 25), "openat": (257, 56), "name_to_handle_at": (303, 264), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "io_setup": (206, 0), "io_uring_setup": (425, 425), "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "pidfd_open": (434, 434), "process_vm_readv": (310, 270),
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_getaffinity": (204, 123), "sched_getscheduler": (145, 120),
    "setpriority": (141, 140), "getpriority": (140, 141), "ioprio_get": (252, 31), "getpgid": (121, 155), "getsid": (124, 156),
    "get_robust_list": (274, 100), "kcmp": (312, 272), "ptrace": (101, 117), "clock_gettime": (228, 113), "keyctl": (250, 219),
    "add_key": (248, 217), "memfd_create": (319, 279), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "bpf": (321, 280), "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97), "setns": (308, 268), 
    "mount": (165, 40), "fsopen": (430, 430), "open_tree": (428, 428), "chroot": (161, 51), "personality": (135, 92),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206),
    "sendmsg": (46, 211), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "prctl": (157, 167), "seccomp": (317, 277), "setresuid": (117, 147), "setpgid": (109, 154),
    "mlock": (149, 228), "mincore": (27, 232), "signalfd4": (289, 74),
}  # fmt: skip

PROGRAM = """
import ctypes, json, os, struct
libc = ctypes.CDLL(None, use_errno=True)
numbers, outside, host, uid, gid = {setting!r}
victim, listener = outside + "/victim", outside + "/listener"
done = {{}}

def call(name, *args, at=0):
    if numbers[name] < 0:
        return -1
    ctypes.set_errno(0)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return libc.syscall(ctypes.c_long(numbers[name] + at), *wide)

def attempt(what, name, *args, **kwargs):
    got = call(name, *args, **kwargs)
    if numbers[name] >= 0:
        done[what] = 0 if got >= 0 else ctypes.get_errno()
    return got

def held(what, step):
    try:
        step()
        done[what] = 0
    except OSError as error:
        done[what] = error.errno

FD, room = -100, ctypes.create_string_buffer(4096)
library = os.open(os.__file__, os.O_RDONLY)
shelf = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
mode = os.stat(os.__file__).st_mode & 0o7777
name, key = victim.encode(), b"user.runnel"
now = os.stat(os.__file__)
same = struct.pack("qqqq", *divmod(now.st_atime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
"""

FILES = """
for bits in (0o777, 0o4755):
    attempt(f"chmod {bits:o}", "chmod", name, bits)
    attempt(f"fchmodat {bits:o}", "fchmodat", FD, name, bits)
    attempt(f"fchmodat2 {bits:o}", "fchmodat2", FD, name, bits, 0)
for flag in (0, 0o10000000):  # O_PATH, by which Landlock lets anything be opened
    held(f"os.chmod of a descriptor, {flag}", lambda: os.chmod(f"/proc/self/fd/{os.open(victim, flag)}", 0o777))
held("os.chmod", lambda: os.chmod(victim, 0o666))
held("os.utime", lambda: os.utime(victim, (1, 1)))
held("os.setxattr", lambda: os.setxattr(victim, key, b"1"))
attempt("chown", "chown", name, uid, gid)
attempt("lchown", "lchown", name, uid, gid)
attempt("fchownat", "fchownat", FD, name, uid, gid, 0)
attempt("utime", "utime", name, bytes(16))
attempt("utimes", "utimes", name, bytes(32))
attempt("futimesat", "futimesat", FD, name, bytes(32))
attempt("utimensat", "utimensat", FD, name, bytes(32), 0)
attempt("setxattr", "setxattr", name, key, b"1", 1, 0)
attempt("lsetxattr", "lsetxattr", name, key, b"1", 1, 0)
attempt("truncate", "truncate", name, 0)
attempt("open and truncate", "openat", FD, name, 0o1000, 0)
attempt("x32 chmod", "chmod", name, 0o777, at=0x40000000)
attempt("make a pipe outside", "mknodat", FD, (outside + "/new").encode(), 0o10644, 0)
# Python's own files may be read, and belong to whoever installed it
attempt("chmod of the library", "chmod", os.__file__.encode(), mode)
attempt("fchmod of the library", "fchmod", library, mode)
attempt("fchown of the library", "fchown", library, uid, gid)
attempt("utimensat of the library", "utimensat", library, None, same, 0)
attempt("attribute of the library", "fremovexattr", library, key)  # there is none
attempt("truncation of the library", "openat", FD, os.__file__.encode(), 0o1000 | 0o200000, 0)  # a folder: fails in any case
attempt("lock of the library", "flock", library, 1 | 4)
attempt("lease on the library", "fcntl", library, 1024, 0)
if attempt("flags of the library, read", "ioctl", library, 0x80086601, room) == 0:
    attempt("flags of the library", "ioctl", library, 0x40086602, room)
attempt("dnotify of the library", "fcntl", shelf, 1026, 2)
attempt("handle of a file", "name_to_handle_at", FD, name, struct.pack("II128x", 128, 0), room, 0)
"""

WATCHERS = """
attempt("inotify", "inotify_init1", 0)
attempt("fanotify", "fanotify_init", 0, 0)
attempt("asynchronous input", "io_setup", 1, bytes(8))
attempt("io_uring", "io_uring_setup", 1, bytes(120))
attempt("userfaultfd", "userfaultfd", 1)
attempt("perf", "perf_event_open", struct.pack("IIQ104x", 1, 120, 0), 0, -1, -1, 0)
attempt("bpf", "bpf", 0, struct.pack("IIII112x", 2, 4, 4, 1), 128)
attempt("keyring", "keyctl", 1, b"runnel", 0, 0, 0)
attempt("key", "add_key", b"user", b"runnel", b"x", 1, -2)
attempt("program in memory", "memfd_create", b"x", 0)
attempt("shared memory", "shmget", 0, 0, 0)
attempt("message queue", "msgget", 0x72756E, 0)
attempt("semaphore", "semget", 0, -1, 0)
attempt("named queue", "mq_open", b"runnel-attempt", 0, 0, None)
attempt("personality", "personality", 0x0040000)
attempt("locked memory", "mlock", room, 1)
attempt("pages in memory", "mincore", None, 0, room)
attempt("descriptor of signals", "signalfd4", -1, bytes(8), 8, 0)
attempt("terminal input", "ioctl", 0, 0x5412, b"x")
attempt("hidden no more", "prctl", 4, 1, 0, 0, 0)
attempt("outlive the parent", "prctl", 1, 0, 0, 0, 0)
attempt("another filter", "seccomp", 2, 0, None)
attempt("other user", "setresuid", os.getuid(), os.getuid(), os.getuid())
attempt("other group of processes", "setpgid", 0, 0)
"""

PROCESSES = """
attempt("signal", "kill", host, 0)
attempt("signal to all", "kill", -1, 0)
attempt("signal to a thread", "tkill", host, 0)
attempt("signal to a group", "tgkill", host, host, 0)
attempt("queued signal", "rt_sigqueueinfo", host, 0, struct.pack("iii116x", 0, 0, -1))
attempt("pidfd", "pidfd_open", host, 0)
part = struct.pack("QQ", ctypes.addressof(room), 1)
attempt("memory of another", "process_vm_readv", host, part, 1, part, 1, 0)
attempt("limits of another", "prlimit64", host, 7, None, room)
attempt("cores of another", "sched_getaffinity", host, 128, room)
attempt("cores, set", "sched_setaffinity", host, 128, b"\\xff" * 128)
attempt("scheduler of another", "sched_getscheduler", host)
attempt("priority of another", "getpriority", 0, host)
attempt("priority, set", "setpriority", 0, host, 0)
attempt("disk priority of another", "ioprio_get", 1, host)
attempt("group of another", "getpgid", host)
attempt("session of another", "getsid", host)
attempt("locks of another", "get_robust_list", host, room, room)
attempt("comparison with another", "kcmp", host, host, 0, 0, 0)
attempt("trace", "ptrace", 0x4206, host, 0, 0)
attempt("clock of another", "clock_gettime", ((~host) << 3) | 2, room)
read, write = os.pipe()
attempt("owner of a pipe", "fcntl", read, 8, host)
attempt("signal of a pipe", "fcntl", read, 10, 9)
held("files of another", lambda: os.stat(f"/proc/{host}"))
attempt("process", "clone", 17, 0, 0, 0, 0)
if os.getpid() != me: os._exit(0)
attempt("process in a new user namespace", "clone", 0x10000000 | 17, 0, 0, 0, 0)
if os.getpid() != me: os._exit(0)
attempt("clone3", "clone3", struct.pack("QQQQQQQQ", 0, 0, 0, 0, 17, 0, 0, 0), 64)
if os.getpid() != me: os._exit(0)
attempt("join a namespace", "setns", read, 0)
attempt("mount", "mount", b"none", b"/", None, 1 << 18, None)
attempt("file system", "fsopen", b"tmpfs", 0)
attempt("tree", "open_tree", FD, b"/", 1)
attempt("root", "chroot", b"/")
attempt("new user namespace", "unshare", 0x10000000)
"""

SOCKETS = """
address = struct.pack("H", 1) + listener.encode() + bytes(1)
pair = (ctypes.c_int * 2)()
for family in (1, 2, 10, 16, 17, 38, 40):
    attempt(f"socket of family {family}", "socket", family, 2 if family != 38 else 5, 0)
for kind in (2, 5, 2 | 0o4000 | 0o2000000):
    if attempt(f"socketpair of type {kind}", "socketpair", 1, kind, 0, pair) == 0 and kind == 2:
        attempt("send to a path", "sendto", pair[0], b"out", 3, 0, address, len(address))
        attempt("bind", "bind", pair[1], struct.pack("H", 1), 2)
        attempt("connect to a path", "connect", pair[0], address, len(address))
        where = struct.pack("QQ", ctypes.addressof(room), 1)
        where = ctypes.create_string_buffer(where)
        rights = ctypes.create_string_buffer(struct.pack("QiiI4x", 20, 1, 1, library))
        message = struct.pack("QQQQQQQ", 0, 0, ctypes.addressof(where), 1, ctypes.addressof(rights), 24, 0)
        attempt("descriptor passed out", "sendmsg", pair[0], message, 0)
attempt("socketpair of family 40", "socketpair", 40, 1, 0, pair)
streams = attempt("pair of streams", "socketpair", 1, 1, 0, pair)
if streams == 0:
    attempt("stream connected to a path", "connect", pair[0], address, len(address))
    attempt("stream bound to a path", "bind", pair[0], struct.pack("H", 1) + b"sock" + bytes(1), 7)
    attempt("stream's message", "sendmsg", pair[0], struct.pack("QQQQQQQ", 0, 0, 0, 0, 0, 0, 0), 0)
    attempt("stream, to an address", "sendto", pair[0], b"out", 3, 0, address, len(address))
"""
END = "\nprint(json.dumps(done))\n"


def program(part: str, outside: str, host: int) -> str:
    """The attempts of one part, on files in `outside` and on the process `host`."""
    column = ("x86_64", "aarch64").index(platform.machine())
    numbers = {name: both[column] for name, both in NUMBERS.items()}
    start = PROGRAM.format(setting=(numbers, outside, host, os.getuid(), os.getgid()))
    return start + "me = os.getpid()\n" + part + END
