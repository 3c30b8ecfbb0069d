"""The program inside the sandbox: confines itself, says what took hold, then runs the code it was given.

Started by a few lines of `python -I -S -B` (`run.py`), which have all modules of the child in compiled form. Three processes:
this one waits; the second is pid 1 of a new namespace, so that everything in there ends with it; the third is confined and
runs the code. Where there are tests, a fourth runs them, as confined as the third: the code's process never holds their text,
nor the pipe on which verdicts are told. Few imports: they are most of its time (that is why it is told its order as a Python
literal, and writes its own JSON).
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


def attempt(took: dict[str, str], name: str, step: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Do one step of the confinement; note "" for success or the reason why not."""
    try:
        step(*args, **kwargs)
        took[name] = ""
    except (OSError, ValueError) as error:
        took[name] = str(error)


def broken(took: dict[str, str]) -> dict[str, str]:
    """The promises that cannot be kept, each with the reason."""
    held = {name for name, reason in took.items() if not reason}
    why = {name: f"{name}: {took.get(name, 'not tried')}" for name in ("namespaces", "landlock", "seccomp")}
    either = f"{why['namespaces']}; {why['seccomp']}"
    out = {name: took.get(name, "not tried") for name in ("limits", "privileges") if name not in held}
    if not held >= {"landlock", "seccomp"}:  # one for content and names of files, the other for their modes and owners
        out["files"] = "; ".join(why[name] for name in ("landlock", "seccomp") if name not in held)
    if not held & {"namespaces", "seccomp"}:
        out["network"] = either
    if "seccomp" not in held and ("namespaces" not in held or os.getuid() == 0):  # the kernel counts no processes of root
        out["processes"] = either
    return out


def main(config_fd: int, status_fd: int, checks_fd: int, alive_fd: int) -> None:
    """Confine and run, as told on `config_fd`; tests, if any, are on `checks_fd`. `alive_fd` is open while anything runs."""
    confine.die_with_parent()
    config = read_literal(config_fd)
    took: dict[str, str] = {}
    attempt({}, "oom", be_first_to_go)
    isolate(config, took)
    confine.die_with_parent()  # again: trying another user has ended that
    if os.getppid() != config["parent"]:  # it has ended already
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        second(config, took, status_fd, checks_fd)
    os.close(checks_fd)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


def isolate(config: dict[str, Any], took: dict[str, str]) -> None:
    """Namespaces, a root of its own, and for root another user to run the code as: whichever can be had."""
    number, folder, size_mb = os.getpid(), config["folder"], config["scratch_mb"]
    if "namespaces" not in config["without"]:
        attempt(took, "namespaces", mounts.enter_namespaces)
    if took.get("namespaces") == "":
        attempt(took, "root", mounts.enter_root, folder, config["readable"], size_mb, stdin=config["stdin"].encode())
        took["scratch"] = ""  # a part of the root
        if took["root"]:
            attempt(took, "scratch", mounts.mount_scratch, folder, size_mb)
    config["user"] = 0
    if os.getuid() == 0 and "user" not in config["without"]:
        attempt(took, "user", lambda: config.update(user=confine.find_user(number, config["probe"], folder)))


def read_literal(fd: int) -> Any:
    """What the parent wrote: a literal of its own."""
    with os.fdopen(fd, encoding="utf-8") as file:
        return eval(file.read(), {"__builtins__": {}})


def second(config: dict[str, Any], took: dict[str, str], status_fd: int, checks_fd: int) -> None:
    """Pid 1: waits for the code's process, tells how it ended, and takes all that is left with it."""
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
    """Confine this process for good; returns the promises that cannot be kept."""
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
        # Modes and times of files are left to code that sees none but its own, and others that nobody can change.
        name = "marks" if took.get("root") == "" else "plain"
        attempt(took, "seccomp", confine.filter_syscalls, bytes.fromhex(config["filters"][name]))
    return broken(took)


def third(config: dict[str, Any], took: dict[str, str], status_fd: int, link: tuple[int, ...] | None) -> None:
    """The code's process."""
    feed_stdin(config["stdin"], made=took.get("root") == "")
    ask = make_link(link, trusted=False) if link else None
    problems = restrict(config, took)
    tell(status_fd, took=took, broken=problems)
    os.close(status_fd)  # from here on nothing that is written counts
    if problems and config["strict"]:
        os._exit(REFUSED)
    os._exit(run(config["code"], ask))


def fourth(config: dict[str, Any], took: dict[str, str], status_fd: int, checks_fd: int, link: tuple[int, ...]) -> None:
    """The tests' process: its verdicts are the only ones."""
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
    """This side's end of the conversation between code and tests; the ends of the other are closed."""
    to_code, from_tests, to_tests, from_code = link
    mine, others = ((to_tests, from_tests), (to_code, from_code)) if trusted else ((to_code, from_code), (to_tests, from_tests))
    for fd in others:
        os.close(fd)
    end: Link = __import__("link").Link(*mine, trusted=trusted)
    return end


def be_first_to_go() -> None:
    """Where the machine itself runs out of memory, this process and those that it starts are the ones to end."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def feed_stdin(text: str, *, made: bool) -> None:
    """Give the code its standard input, of any size; `made` says that a file of its own root has it."""
    if not made:
        with open("stdin", "w") as file:
            file.write(text)
    fd = os.open(mounts.STDIN if made else "stdin", os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    if not made:
        os.unlink("stdin")


def run(code: str, link: Link | None) -> int:
    """Run the code, as a main program or, where tests ask for its names, as a module; returns the exit code."""
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
    """Write what is left of the output; False where the code has closed or replaced it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return False
    return True


def execute(code: str, name: str, names: dict[str, Any]) -> int:
    """0, or the exit code of what went wrong, with its traceback on stderr."""
    try:
        exec(compile(code, name, "exec", dont_inherit=True), names)  # our own `from __future__` is not the code's
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
