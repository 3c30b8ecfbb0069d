"""The program inside the sandbox: it confines itself, reports which mechanisms work, then runs the given code.

A few lines (`PROGRAM` in `run.py`) start it, with all its modules in compiled form. There are three processes: this one waits;
the second is pid 1 of a new namespace, so that all processes in it end with it; the third is confined and runs the code.
If there are tests, a fourth process runs them, as confined as the third: the code's process never has their text, nor the pipe
for verdicts. Imports are most of the start, so there are few: the order is a Python literal, and JSON is written by hand.
"""

from __future__ import annotations

import io
import os
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from runnel.llm.sandbox import confine, mounts
    from runnel.llm.sandbox.link import Link
else:
    import confine
    import mounts
REFUSED = 71


def tell(fd: int, **facts: object) -> None:
    """Write a line of JSON for the parent."""
    os.write(fd, to_json(facts).encode() + b"\n")


def to_json(value: object) -> str:
    """Nested dicts and lists of strings, numbers and truth values as JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(k)}: {to_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json, value)) + "]"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return str(value).lower()


def attempt(took: dict[str, str], name: str, step: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Do one step of the confinement; store "" in `took` for success, else the reason."""
    try:
        step(*args, **kwargs)
        took[name] = ""
    except (OSError, ValueError) as error:
        took[name] = str(error)


def broken(took: dict[str, str]) -> dict[str, str]:
    """The promises (see `run.py`) that cannot be kept, each with the reason."""
    held = {name for name, reason in took.items() if not reason}
    why = {name: f"{name}: {took.get(name, 'not tried')}" for name in ("namespaces", "landlock", "seccomp")}
    either = f"{why['namespaces']}; {why['seccomp']}"
    out = {name: took.get(name, "not tried") for name in ("limits", "privileges") if name not in held}
    if not held >= {"landlock", "seccomp"}:  # the first protects contents and names of files, the second modes and owners
        out["files"] = "; ".join(why[name] for name in ("landlock", "seccomp") if name not in held)
    if not held & {"namespaces", "seccomp"}:
        out["network"] = either
    if "seccomp" not in held and ("namespaces" not in held or os.getuid() == 0):  # the kernel does not limit processes of root
        out["processes"] = either
    return out


def main(config_fd: int, status_fd: int, checks_fd: int, alive_fd: int) -> None:
    """Confine and run the code of the order in `config_fd`; tests, if any, are in `checks_fd`. `alive_fd` stays open while any
    process of the sandbox runs: the parent waits for its end."""
    confine.die_with_parent()
    config = read_literal(config_fd)
    took: dict[str, str] = {}
    attempt({}, "oom", be_first_to_go)
    isolate(config, took)
    confine.die_with_parent()  # again: a change of the user id has reset it
    if os.getppid() != config["parent"]:  # the parent has ended already
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        second(config, took, status_fd, checks_fd)
    os.close(checks_fd)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


def isolate(config: dict[str, Any], took: dict[str, str]) -> None:
    """Enter namespaces and a new root folder, and if this is root choose another user for the code: each if it is possible."""
    number, folder, size_mb = os.getpid(), config["folder"], config["scratch_mb"]
    if "namespaces" not in config["without"]:
        attempt(took, "namespaces", mounts.enter_namespaces)
    if took.get("namespaces") == "":
        attempt(took, "root", mounts.enter_root, folder, config["readable"], size_mb, stdin=config["stdin"].encode())
        took["scratch"] = ""  # the new root includes it
        if took["root"]:
            attempt(took, "scratch", mounts.mount_scratch, folder, size_mb)
    config["user"] = 0
    if os.getuid() == 0 and "user" not in config["without"]:
        attempt(took, "user", lambda: config.update(user=confine.find_user(number, config["probe"], folder)))


def read_literal(fd: int) -> Any:
    """The Python literal that the parent wrote. (Only the parent can write it, so `eval` is safe.)"""
    with os.fdopen(fd, encoding="utf-8") as file:
        return eval(file.read(), {"__builtins__": {}})


def second(config: dict[str, Any], took: dict[str, str], status_fd: int, checks_fd: int) -> None:
    """Pid 1: waits for the code's process and reports its exit code. When pid 1 ends, the kernel ends all other processes."""
    confine.die_with_parent()
    confine.hide()
    link = (*os.pipe(), *os.pipe()) if config["tested"] else None
    pid = os.fork()
    if pid == 0:
        os.close(checks_fd)
        third(config, took, status_fd, link)
    waits = {pid}
    if link is not None:
        tester = os.fork()
        if tester == 0:
            fourth(config, dict(took), status_fd, checks_fd, link)
        waits.add(tester)
        for fd in link:
            os.close(fd)
    os.close(checks_fd)
    code = 0
    while waits:
        found, status = os.wait()
        waits.discard(found)
        code = os.waitstatus_to_exitcode(status) if found == pid else code
    tell(status_fd, exit=code)
    os._exit(0)


def restrict(config: dict[str, Any], took: dict[str, str]) -> dict[str, str]:
    """Confine this process irrevocably; returns the promises that cannot be kept."""
    os.setsid()
    sys.path[:] = config["path"]
    attempt(took, "limits", confine.set_limits, **config["limits"])
    if config["user"]:
        confine.become(config["user"])
    attempt(took, "privileges", confine.drop_privileges)
    confine.die_with_parent()
    if "landlock" not in config["without"]:
        readable = config["readable"] + [mounts.STDIN] * (took.get("root") == "")
        attempt(took, "landlock", confine.restrict_files, readable, [config["folder"], *config["writable"]])
    if "seccomp" not in config["without"]:
        # modes and times of files: allowed only where the code sees its own files and read-only ones
        name = "marks" if took.get("root") == "" else "plain"
        attempt(took, "seccomp", confine.filter_syscalls, bytes.fromhex(config["filters"][name]))
    return broken(took)


def third(config: dict[str, Any], took: dict[str, str], status_fd: int, link: tuple[int, ...] | None) -> None:
    """The code's process."""
    feed_stdin(config["stdin"], made=took.get("root") == "")
    ask = make_link(link, trusted=False) if link else None
    problems = restrict(config, took)
    tell(status_fd, took=took, broken=problems)
    os.close(status_fd)  # before the code runs, so that it cannot write a false status
    if problems and config["strict"]:
        os._exit(REFUSED)
    os._exit(run(config["code"], ask))


def fourth(config: dict[str, Any], took: dict[str, str], status_fd: int, checks_fd: int, link: tuple[int, ...]) -> None:
    """The tests' process. Only this process can report verdicts."""
    confine.hide()
    checks = read_literal(checks_fd)
    ask = make_link(link, trusted=True)
    if restrict(config, took) and config["strict"]:
        os._exit(REFUSED)
    passed, reasons = __import__("check").judge(ask, checks)
    tell(status_fd, checks=passed, reasons=reasons)
    flush()
    os._exit(0)


def make_link(link: tuple[int, ...], *, trusted: bool) -> Link:
    """This process's end of the connection between code and tests; the other process's ends are closed here."""
    to_code, from_tests, to_tests, from_code = link
    mine, others = ((to_tests, from_tests), (to_code, from_code)) if trusted else ((to_code, from_code), (to_tests, from_tests))
    for fd in others:
        os.close(fd)
    end: Link = __import__("link").Link(*mine, trusted=trusted)
    return end


def be_first_to_go() -> None:
    """If the machine runs out of memory, let the kernel kill this process and its children first."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def feed_stdin(text: str, *, made: bool) -> None:
    """Open the code's standard input, of any size; `made`: a file in the new root has it already."""
    if not made:
        with open("stdin", "w") as file:
            file.write(text)
    fd = os.open(mounts.STDIN if made else "stdin", os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    if not made:
        os.unlink("stdin")


def run(code: str, link: Link | None) -> int:
    """Run the code, as a main program or, if tests use its names, as a module; returns the exit code."""
    name = "__main__" if link is None else "solution"
    module = type(sys)(name)
    sys.modules["__main__"] = sys.modules[name] = module
    sys.argv, sys.stdin = ["solution.py"], io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    status = execute(code, "solution.py", module.__dict__)
    if link is not None:
        link.send(["ready"] if status == 0 else ["failed"])
        if status == 0:
            link.serve()
    return status if flush() else status or 1


def flush() -> bool:
    """Flush the output; False if that fails because the code has closed or replaced it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return False
    return True


def execute(code: str, name: str, names: dict[str, Any]) -> int:
    """Execute `code`: 0, or after an error its exit code, with a traceback on stderr."""
    try:
        exec(compile(code, name, "exec", dont_inherit=True), names)  # `dont_inherit`: not this module's `from __future__`
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except MemoryError:
        os.write(2, b"MemoryError\n")
        return 1
    except BaseException:
        show_traceback()
        return 1
    return 0


def show_traceback() -> None:
    """Print the traceback on stderr, if the code has not broken what prints it."""
    try:
        import traceback

        traceback.print_exc()
    except BaseException:
        os.write(2, b"failed, without a traceback\n")
