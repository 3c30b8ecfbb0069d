"""`runnel doctor`: what this machine has, and the command that installs what it lacks."""

from __future__ import annotations

import platform
import sys

import torch

from runnel.cli.arguments import make_parser
from runnel.cli.extras import Extra, extras_of, parts_of
from runnel.core.errors import ConfigError
from runnel.flow.transports.shm import free_shared_memory
from runnel.llm.sandbox.run import protection
from runnel.run.wiring import available_cores


def doctor(args: list[str]) -> int:
    """Print a line per part; the exit code is 1 if a required one is missing."""
    make_parser("doctor", "What this machine has and lacks for runnel.").parse_args(args)
    good = sys.version_info >= (3, 11)
    _line("python", platform.python_version() + ("" if good else "  too old: install Python 3.11 or newer"), good)
    _line("cores", str(available_cores()), True)
    for name in _devices():
        _line("device", name, True)
    free = free_shared_memory()
    enough = free >= 1 << 28
    advice = "" if enough else "  little for --launcher local: close other programs"
    _line("shared memory", f"{free / 2**30:.1f} GiB free{advice}", enough)
    whole = _packages()
    _sandbox()
    return int(not whole or not good)


def _packages() -> bool:
    """Print the requirements of runnel, then its extras; returns whether all requirements are met."""
    needed = parts_of()
    if not needed:
        _line("runnel", "is not installed as a package, so its needs are not known: pip install -e .", False)
    for part in needed:
        _line(part.name, part.version if part.good else f"{_lack(part)}: pip install runnel", part.good)
    for extra in extras_of():
        parts = [part for part in parts_of(extra) if part not in needed]
        lacks = [_lack(part) for part in parts if not part.good]
        have = ", ".join(str(part) for part in parts if part.good)
        fix = f'{"; ".join(lacks)} (optional): pip install "runnel[{extra}]"'
        _line(f"[{extra}]", fix if lacks else have, not lacks, optional=True)
    return bool(needed) and all(part.good for part in needed)


def _lack(part: Extra) -> str:
    return f"{part} is too old" if part.version else f"no {part.name}"


def _sandbox() -> None:
    """Print what confines generated code on this machine."""
    try:
        found = protection()
    except ConfigError as error:
        _line("sandbox", f"generated code cannot be run: {error}", False, optional=True)
        return
    names = [name for name, reason in found.items() if not reason]
    _line("sandbox", f"generated code is confined by {', '.join(names) or 'nothing'}", bool(names), optional=True)
    for name, reason in found.items():
        if reason:
            _line("sandbox", f"without {name}: {reason}", False, optional=True)


def _devices() -> list[str]:
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def _line(name: str, text: str, good: bool, *, optional: bool = False) -> None:
    mark = "ok" if good else ("--" if optional else "!!")
    print(f"{mark:2}  {name:14} {text}")
