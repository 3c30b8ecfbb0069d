"""Confines the calling process by the Linux kernel: resource limits, another user, Landlock, seccomp. No step needs root.

It uses ctypes and cheap imports, because it is loaded in the sandbox's own process, in milliseconds. A step that fails raises;
code that runs afterwards cannot undo a step. References: landlock(7), seccomp(2), capabilities(7).
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
    """Raise an `OSError` if a call of the C library has failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# ---------------------------------------------------------------------------------------------------------------- limits
def set_limits(*, cpu_s: int, memory_mb: int, file_mb: int, threads: int) -> None:
    """Limit CPU time, address space, size of a file, open files and threads; forbid core dumps."""
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
    """Let the kernel kill this process when its parent ends."""
    # as in core/process.py, which cannot be imported here: this program has no access to the package's files
    ok(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def hide() -> None:
    """Hide the memory and files of this process, and of processes forked from it, from other processes of the same user."""
    ok(LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


# ----------------------------------------------------------------------------------------------------------- privileges
HEADER = struct.pack("Ii", 0x20080522, 0)
NEEDED = (1 << 0) | (1 << 1) | (1 << 5) | (1 << 6) | (1 << 7)
"""Capabilities to change the folder's owner and remove it later, to kill another user's processes, to become that user."""
USERS, DYNAMIC = 1_900_000_000, (61_184, 65_519)
"""User ids that nobody has: ids above all that systemd assigns, and, for containers without such ids, systemd's range for
services that own no files. Not `nobody`: it owns files on network file systems, and all sandboxes would share that user."""


def find_user(number: int, readable: list[str], folder: str) -> int:
    """Choose a user id for process `number` that can read Python's files, and make it the owner of `folder`. Only for root."""
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
    """Become this user temporarily, to test whether it can read all it must; then make it the owner of the folder."""
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
    """Become this user permanently, in no other group."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """Drop all capabilities (those in the own user namespace too), and forbid to gain any by running a program."""
    ok(LIBC.capset(HEADER, bytes(24)))
    ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


# -------------------------------------------------------------------------------------------------------------- Landlock
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ = (1 << 2) | (1 << 3)
"""Reading files and listing folders."""
FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file-system rights in each version of Landlock."""
SPECIAL_FILES = (1 << 6) | (1 << 9) | (1 << 10) | (1 << 11)
"""Rights to create devices, sockets and named pipes."""


def landlock_version() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    return max(int(LIBC.syscall(CREATE_RULESET, None, 0, 1)), 0)


def restrict_files(readable: list[str], writable: list[str]) -> int:
    """Allow only these paths, and all below them, to be opened from now on; returns Landlock's version."""
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
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # a path that cannot be opened needs no rule
        return
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14)
    ok(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0))
    os.close(fd)


# --------------------------------------------------------------------------------------------------------------- seccomp
OWN_PID = struct.pack("I", 0x7FFFFFFF)
"""The placeholder in a filter for the id of the process that installs it (`PID` in `calls.py`)."""


def filter_syscalls(program: bytes) -> None:
    """Allow only the system calls of the filter `program` (`calls.py`) from now on."""
    if not program:
        raise OSError(errno.ENOSYS, f"system calls of {os.uname().machine} are not known here")
    program = program.replace(OWN_PID, struct.pack("I", os.getpid()))
    memory = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(memory))
    ok(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    ok(LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0))
