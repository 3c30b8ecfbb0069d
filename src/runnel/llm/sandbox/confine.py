"""Confinement of the calling process by the Linux kernel, without root: namespaces, Landlock, seccomp, resource limits.

Through ctypes, and with imports that are cheap: this loads in the sandbox's own process, in milliseconds. A step that does not
take hold raises; none can be undone by the code that runs afterwards. References: landlock(7), seccomp(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_NET, NEW_PID, NEW_IPC, NEW_UTS, NEW_NS = 0x10000000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x00020000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18
CLONE_THREAD = 0x10000
SIGKILL = 9


def _ok(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# ------------------------------------------------------------------------------------------------------------ namespaces
def enter_namespaces() -> None:
    """A user namespace, and with it no network, no other processes in sight, and mounts of our own. The next fork is pid 1."""
    uid, gid = os.getuid(), os.getgid()
    _ok(LIBC.unshare(NEW_USER | NEW_NET | NEW_PID | NEW_IPC | NEW_UTS | NEW_NS))
    for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_scratch(folder: str, size_mb: int) -> None:
    """A file system in memory over `folder`: its total size is bounded, and it goes with the namespace."""
    _ok(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    options = f"size={size_mb}m,nr_inodes=1024,mode=0700".encode()
    _ok(LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options))
    os.chdir(folder)


# ---------------------------------------------------------------------------------------------------------------- limits
def set_limits(*, cpu_s: int, memory_mb: int, file_mb: int, threads: int) -> None:
    """Bounds of CPU time, address space, size of a file, open files and threads; no core dumps."""
    pairs = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (memory_mb << 20, memory_mb << 20),
        resource.RLIMIT_FSIZE: (file_mb << 20, file_mb << 20),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_NPROC: (threads, threads),
        resource.RLIMIT_CORE: (0, 0),
    }
    for what, values in pairs.items():
        resource.setrlimit(what, values)


def die_with_parent() -> None:
    """Be killed by the kernel when the parent ends."""
    _ok(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def hide(on: bool = True) -> None:
    """Let no process of the same user look into this one's memory and files; what is forked from it is hidden, too."""
    _ok(LIBC.prctl(PR_SET_DUMPABLE, int(not on), 0, 0, 0))


def drop_privileges() -> None:
    """No capabilities (those of the own user namespace either), and none to be gained by running a program."""
    header, empty = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _ok(LIBC.syscall(syscalls()["capset"], header, empty))
    _ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


# -------------------------------------------------------------------------------------------------------------- Landlock
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ = (1 << 2) | (1 << 3)
"""Reading files and listing folders."""
FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""File-system rights that each version of Landlock knows."""
SPECIAL_FILES = (1 << 6) | (1 << 9) | (1 << 10) | (1 << 11)
"""Making devices, sockets and pipes with a name."""


def landlock_version() -> int:
    """0 where the kernel has no Landlock."""
    return max(int(LIBC.syscall(CREATE_RULESET, None, 0, 1)), 0)


def restrict_files(readable: list[str], writable: list[str]) -> int:
    """From now on only these paths, and what lies below them, can be opened; returns Landlock's version."""
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    rights = (1 << FS_BITS.get(version, 16)) - 1
    net, scoped = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    attributes = struct.pack("QQQ", rights, net, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = LIBC.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    _ok(ruleset)
    for path, allowed in [(p, READ) for p in readable] + [(p, rights & ~SPECIAL_FILES) for p in writable]:
        _allow(ruleset, path, allowed)
    _ok(LIBC.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    if not os.path.isdir(path):
        rights &= (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14)
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    _ok(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0))
    os.close(fd)


# --------------------------------------------------------------------------------------------------------------- seccomp
_SAME = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447, "process_mrelease": 448,
}  # fmt: skip
_NUMBERS = {
    "x86_64": {
        "socket": 41, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "tkill": 200, "tgkill": 234,
        "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "execveat": 322, "ptrace": 101, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "unshare": 272, "setns": 308, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319,
        "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "add_key": 248, "request_key": 249,
        "keyctl": 250, "prlimit64": 302, "setpriority": 141, "sched_setaffinity": 203, "sched_setscheduler": 144,
        "sched_setparam": 142, "sched_setattr": 314, "ioprio_set": 251, "migrate_pages": 256, "move_pages": 279,
        "fanotify_init": 300, "open_by_handle_at": 304, "personality": 135, "capset": 126, "prctl": 157,
    },
    "aarch64": {
        "socket": 198, "clone": 220, "execve": 221, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "execveat": 281, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
        "kcmp": 272, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "memfd_create": 279, "shmget": 194, "shmat": 196, "msgget": 186,
        "semget": 190, "mq_open": 180, "add_key": 217, "request_key": 218, "keyctl": 219, "prlimit64": 261,
        "setpriority": 140, "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118,
        "sched_setattr": 274, "ioprio_set": 30, "migrate_pages": 238, "move_pages": 239, "fanotify_init": 262,
        "open_by_handle_at": 265, "personality": 92, "capset": 91, "prctl": 167,
    },
}  # fmt: skip
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CONDITIONAL = ("clone", "clone3", "tgkill", "prlimit64", "capset", "prctl")
"""Allowed with some arguments, answered in another way, or harmless."""
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, ANY_BIT, RETURN, AT_LEAST = 0x20, 0x15, 0x45, 0x06, 0x35


def syscalls() -> dict[str, int]:
    """Numbers of the system calls that are spoken of here."""
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"system calls of {machine} are not known here")
    return {**_NUMBERS[machine], **_SAME}


def forbid_syscalls() -> None:
    """From now on: no processes, no programs, no sockets, no signals or limits for others, no memory beside the limits.

    Threads are allowed. What is forbidden fails with EPERM, so that Python raises PermissionError.
    """
    program = b"".join(struct.pack("HBBI", *step) for step in _filter(syscalls(), os.getpid()))
    memory = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(memory))
    _ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _ok(LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0))


def _filter(numbers: dict[str, int], pid: int) -> list[tuple[int, int, int, int]]:
    """A classic BPF program over (number, architecture, arguments); a jump counts the steps that it leaves out."""
    arch, no = _ARCH[os.uname().machine], FAIL | errno.EPERM
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    steps += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, no)]  # the x32 calls of x86_64
    for name, number in numbers.items():
        if name not in _CONDITIONAL:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, no)]
    steps += [(EQUAL, 0, 1, numbers["clone3"]), (RETURN, 0, 0, FAIL | errno.ENOSYS)]  # its flags cannot be seen: use clone
    steps += [(EQUAL, 0, 4, numbers["clone"]), (LOAD, 0, 0, 16), (ANY_BIT, 0, 1, CLONE_THREAD)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, no)]
    steps += [(EQUAL, 0, 4, numbers["prctl"]), (LOAD, 0, 0, 16), (EQUAL, 0, 1, PR_SET_PDEATHSIG)]  # it dies with its parent
    steps += [(RETURN, 0, 0, no), (RETURN, 0, 0, ALLOW)]
    for name, own in (("tgkill", (pid,)), ("prlimit64", (0, pid))):
        inner = [(EQUAL, len(own) - i, 0, value) for i, value in enumerate(own)]
        steps += [
            (EQUAL, 0, len(inner) + 3, numbers[name]),
            (LOAD, 0, 0, 16),
            *inner,
            (RETURN, 0, 0, no),
            (RETURN, 0, 0, ALLOW),
        ]
    return [*steps, (RETURN, 0, 0, ALLOW)]
