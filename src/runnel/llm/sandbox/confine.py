"""Confinement of the calling process by the Linux kernel: resource limits, another user, Landlock, seccomp. None needs root.

Through ctypes, and with imports that are cheap: this loads in the sandbox's own process, in milliseconds. A step that does not
take hold raises; none can be undone by the code that runs afterwards. References: landlock(7), seccomp(2), capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SIGKILL = 9


def ok(result: int) -> None:
    """Raise what a call of the C library failed with."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
    # As in core/process.py, which cannot be imported here: this program has no package, and sees none of its files.
    ok(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def hide() -> None:
    """Let no process of the same user look into this one's memory and files; what is forked from it is hidden, too."""
    ok(LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


# ----------------------------------------------------------------------------------------------------------- privileges
HEADER = struct.pack("Ii", 0x20080522, 0)
NEEDED = (1 << 0) | (1 << 1) | (1 << 5) | (1 << 6) | (1 << 7)
"""To give the folder away and remove it later, to end processes of another user, and to become that user."""
USERS, DYNAMIC = 1_900_000_000, (61_184, 65_519)
"""Ids that nobody has: above all that systemd gives away, and, in containers that have no such ids, its range for services that
own no files. Not `nobody`: it owns files on network file systems, and all sandboxes would be one user."""


def find_user(number: int, readable: list[str], folder: str) -> int:
    """An id for the process of this number that can read Python's files and reach `folder`, which it is given. For root."""
    effective = ctypes.create_string_buffer(24)
    ok(LIBC.capget(HEADER, effective))
    if int.from_bytes(effective.raw[:4], "little") & NEEDED != NEEDED:
        raise OSError(errno.EPERM, "root has not all of its capabilities here")
    first, last = DYNAMIC
    try:
        return _lend(USERS + number, readable, folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the id does not exist in this container
            raise
    return _lend(first + number % (last - first), readable, folder)


def _lend(user: int, readable: list[str], folder: str) -> int:
    """Be this user for a moment, to see whether it can read what it must; then give it the folder."""
    paths = [p for p in readable if os.path.exists(p)]
    groups = os.getgroups()
    os.setgroups([])
    try:
        os.setegid(user)
        os.seteuid(user)
        closed = [p for p in paths if not os.access(p, os.R_OK | os.X_OK * os.path.isdir(p), effective_ids=True)]
        closed += [] if os.access(os.path.dirname(folder), os.X_OK, effective_ids=True) else [folder]
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
    if closed:
        raise OSError(errno.EACCES, f"another user could not read {closed[0]}")
    os.chown(folder, user, user)
    return user


def become(user: int) -> None:
    """This user from now on, in no other group."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """No capabilities (those of the own user namespace either), and none to be gained by running a program."""
    ok(LIBC.capset(HEADER, bytes(24)))
    ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


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
    ok(ruleset)
    for path, allowed in [(p, READ) for p in readable] + [(p, rights & ~SPECIAL_FILES) for p in writable]:
        _allow(ruleset, path, allowed)
    ok(LIBC.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # what cannot be reached needs no rule
        return
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14)
    ok(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0))
    os.close(fd)


# --------------------------------------------------------------------------------------------------------------- seccomp
OWN_PID = struct.pack("I", 0x7FFFFFFF)
"""What stands in a filter for the process that installs it."""


def filter_syscalls(program: bytes) -> None:
    """From now on only system calls that `program` allows (`calls.py`)."""
    if not program:
        raise OSError(errno.ENOSYS, f"system calls of {os.uname().machine} are not known here")
    program = program.replace(OWN_PID, struct.pack("I", os.getpid()))
    memory = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(memory))
    ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    ok(LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0))
