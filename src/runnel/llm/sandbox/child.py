"""The program inside the sandbox: confines itself, says what took hold, then runs the code it was given.

Started by its path with `python -I -S -B` (`run.py`). Three processes: this one waits; the second is pid 1 of a new namespace,
so that everything in there ends with it; the third is confined and runs the code. Few imports: they are most of its time (that
is why it is told its order as a Python literal, and writes its own JSON).
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

    from runnel.llm.sandbox import confine
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import confine

    sys.path.pop(0)
REFUSED = 71


def tell(fd: int, **facts: object) -> None:
    """A line of JSON for the parent."""
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


def attempt(took: dict[str, str], name: str, step: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Do one step of the confinement; note "" for success or the reason why not."""
    try:
        step(*args, **kwargs)
        took[name] = ""
    except (OSError, ValueError) as error:
        took[name] = str(error)


def broken(took: dict[str, str]) -> dict[str, str]:
    """The promises that cannot be kept, each with the reason."""
    held = {name for name, reason in took.items() if not reason}
    either = "; ".join(f"{n}: {took.get(n, 'not tried')}" for n in ("namespaces", "seccomp"))
    out = {} if "limits" in held else {"limits": took.get("limits", "not tried")}
    if "landlock" not in held:
        out["files"] = f"landlock: {took.get('landlock', 'not tried')}"
    if not held & {"namespaces", "seccomp"}:
        out["network"] = either
    if "seccomp" not in held and ("namespaces" not in held or os.getuid() == 0):  # the kernel counts no processes of root
        out["processes"] = either
    return out


def main(config_fd: int, status_fd: int) -> None:
    """Confine and run, as told on `config_fd`."""
    confine.die_with_parent()
    with os.fdopen(config_fd, encoding="utf-8") as file:
        config = eval(file.read(), {"__builtins__": {}})  # the parent's own literal
    took: dict[str, str] = {}
    skip = set(config["without"])
    if "namespaces" not in skip:
        attempt(took, "namespaces", confine.enter_namespaces)
    if took.get("namespaces") == "":
        attempt(took, "scratch", confine.mount_scratch, config["folder"], config["scratch_mb"])
    pid = os.fork()
    if pid == 0:
        second(config, took, skip, status_fd)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


def second(config: dict[str, Any], took: dict[str, str], skip: set[str], status_fd: int) -> None:
    """Pid 1: waits for the code's process, tells how it ended, and takes all that is left with it."""
    confine.die_with_parent()
    pid = os.fork()
    if pid == 0:
        third(config, took, skip, status_fd)
    found = 0
    while found != pid:
        found, status = os.wait()
    tell(status_fd, exit=os.waitstatus_to_exitcode(status))
    os._exit(0)


def third(config: dict[str, Any], took: dict[str, str], skip: set[str], status_fd: int) -> None:
    """Confine this process for good, then run the code."""
    os.setsid()
    attempt({}, "oom", be_first_to_go)
    feed_stdin(config["stdin"])
    sys.path[:] = config["path"]
    attempt(took, "limits", confine.set_limits, **config["limits"])
    attempt(took, "privileges", confine.drop_privileges)
    confine.die_with_parent()
    if "landlock" not in skip:
        attempt(took, "landlock", confine.restrict_files, config["readable"], [config["folder"]])
    if "seccomp" not in skip:
        attempt(took, "seccomp", confine.forbid_syscalls)
    problems = broken(took)
    tell(status_fd, took=took, broken=problems)
    if problems and config["strict"]:
        os._exit(REFUSED)
    os._exit(run(config["code"], config["checks"], lambda **facts: tell(status_fd, nonce=config["nonce"], **facts)))


def be_first_to_go() -> None:
    """Where the machine itself runs out of memory, this process is the one to end."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def feed_stdin(text: str) -> None:
    """Give the code its standard input, of any size."""
    with open("stdin", "w+") as file:
        file.write(text)
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.unlink("stdin")


def run(code: str, checks: list[str], report: Callable[..., None]) -> int:
    """Run the code as a main program, then each check in its names; returns the exit code."""
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    sys.argv, sys.stdin = ["solution.py"], io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    names = main_module.__dict__
    status = execute(code, "solution.py", names)
    if checks:
        report(checks=[status == 0 and execute(check, "check.py", names) == 0 for check in checks])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # the code may have closed or replaced them
        return status or 1
    return status


def execute(code: str, name: str, names: dict[str, Any]) -> int:
    """0, or the exit code of what went wrong, with its traceback on stderr."""
    try:
        exec(compile(code, name, "exec"), names)
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
    """The traceback on stderr, where the code has left anything to print it with."""
    try:
        import traceback

        traceback.print_exc()
    except BaseException:
        os.write(2, b"failed, without a traceback\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
