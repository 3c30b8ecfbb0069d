"""Namespaces of the sandbox, with a root folder of their own: it has Python's files, read-only, and one folder to write in.

No other file has a name there: none of the user, no /proc, no socket. References: user_namespaces(7), chroot(2),
mount_setattr(2).
"""

from __future__ import annotations

import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from runnel.llm.sandbox.confine import LIBC, ok
else:
    from confine import LIBC, ok
NEW_USER, NEW_NET, NEW_PID, NEW_IPC, NEW_UTS, NEW_NS = 0x10000000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, DETACH = 2, 4, 4096, 16384, 1 << 18, 2
STDIN = "/dev/stdin"
"""Usually a link into /proc. In the new root it is a file, because many programs open it by this name."""
SET_ATTRIBUTES, HERE, RECURSIVE, READ_ONLY, NO_SUID = 442, -100, 0x8000, 1, 2


def enter_namespaces() -> None:
    """Enter namespaces without network and other processes, with mounts of their own. The next fork is pid 1.

    Root needs no user namespace for this, and without one it can become another user later.
    """
    uid, gid = os.getuid(), os.getgid()
    own = NEW_NET | NEW_PID | NEW_IPC | NEW_UTS | NEW_NS
    if uid != 0 or LIBC.unshare(own) != 0:
        ok(LIBC.unshare(NEW_USER | own))
        for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    ok(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))  # later mounts are not visible outside


def mount_scratch(folder: str, size_mb: int) -> None:
    """Mount a file system in memory over `folder`: its total size is limited, and it disappears with the namespace."""
    _mount_memory(folder, f"size={size_mb}m,nr_inodes=1024,mode=0700")
    os.chdir(folder)


def _mount_memory(folder: str, options: str) -> None:
    ok(LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode()))


def enter_root(folder: str, readable: list[str], size_mb: int, *, stdin: bytes) -> None:
    """Enter a new root that has only `readable` and `STDIN`, read-only, and `folder`, a file system in memory.

    All have their old names there. It is entered by chroot, which a process without capabilities and without an open folder of
    the old root cannot leave. Unmounting the old root instead would wait for all cores: milliseconds on a busy machine.
    """
    _mount_memory(folder, f"size={len(stdin) + (1 << 20)},nr_inodes=4096,mode=0755")
    mask = os.umask(0o022)  # so that any user can enter the folders that are made here
    try:
        shown: list[str] = []
        laid: set[str] = set()
        for path in sorted(readable, key=len):
            _show(path, folder, shown, laid)
        scratch = lay(folder, folder, laid)
        with open(folder + STDIN, "xb") as file:
            file.write(stdin)
        attributes = struct.pack("QQQQ", READ_ONLY | NO_SUID, 0, 0, 0)
        ok(LIBC.syscall(SET_ATTRIBUTES, HERE, folder.encode(), RECURSIVE, attributes, len(attributes)))
        _mount_memory(f"{folder}{scratch}", f"size={size_mb}m,nr_inodes=1024,mode=0700")
        os.chroot(folder)
    except OSError:
        LIBC.umount2(folder.encode(), DETACH)
        raise
    finally:
        os.umask(mask)
    os.chdir(scratch)


def _show(path: str, root: str, shown: list[str], laid: set[str]) -> None:
    """Mount a folder or file, with all mounts below it, under `root` at its own path."""
    if _below(path, shown) or not os.path.exists(path):
        return
    real = lay(path, root, laid)
    if not _below(real, shown):
        ok(LIBC.mount(real.encode(), f"{root}{real}".encode(), None, MS_BIND | MS_REC, None))
        shown.append(real)


def _below(path: str, shown: list[str]) -> bool:
    return any(f"{path}/".startswith(f"{other}/") for other in shown)


def lay(path: str, root: str, laid: set[str]) -> str:
    """Make the folders and links that lead to `path` under `root`, except those in `laid`; returns the path that they lead to.

    No link is followed under `root`: it would lead out of it, because the new root is not entered yet.
    """
    there, parts = "", path.split("/")
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            there = os.path.dirname(there).rstrip("/")
            continue
        there = f"{there}/{part}"
        if there in laid:
            continue
        mode = os.lstat(there).st_mode
        if stat.S_ISLNK(mode):
            target = os.readlink(there)
            _make(os.symlink, target, root + there)
            parts = target.split("/") + parts
            there = "" if target.startswith("/") else os.path.dirname(there).rstrip("/")
        else:
            _make(os.mkdir if stat.S_ISDIR(mode) else os.mknod, root + there)
            laid.add(there)
    return there


def _make(make: Callable[..., None], *args: str) -> None:
    try:
        make(*args)
    except OSError as error:  # for a path that exists, older kernels may report a read-only file system instead
        if not os.path.lexists(args[-1]):
            raise error
