"""Functions that executors call in tests, sync and async. They are loaded by the path of this file, in worker processes too.

What a function remembers between calls is in files, because a worker process may be another one at the next call.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np

from runnel.core.errors import DataError


def add(one, two=0, *, bonus=0):
    return {"sum": one + two + bonus}


async def add_async(one, two=0, *, bonus=0):
    await asyncio.sleep(0)
    return add(one, two, bonus=bonus)


def broken(word):
    raise ValueError(f"no {word}")


async def broken_async(word):
    await asyncio.sleep(0)
    broken(word)


def refused(folder):
    _count(folder)
    raise DataError("that is no number")


async def refused_async(folder):
    refused(folder)


def late(folder, num_failures):
    """Fails so many times, then works."""
    tries = _count(folder)
    if tries <= num_failures:
        raise ValueError(f"not yet: {tries}")
    return tries


async def late_async(folder, num_failures):
    return late(folder, num_failures)


def held(folder, name, times=1):
    """The first `times` calls say that they have begun, and wait for the file `over`. Returns its name."""
    (Path(folder) / f"{name}.began").touch()
    tries = _count(folder, name)
    while tries <= times and not (Path(folder) / "over").exists():
        time.sleep(0.002)
    return name


async def held_async(folder, name, times=1):
    (Path(folder) / f"{name}.began").touch()
    tries = _count(folder, name)
    while tries <= times and not (Path(folder) / "over").exists():
        await asyncio.sleep(0.002)
    return name


def _count(folder, name="tries"):
    with (Path(folder) / name).open("a") as file:
        file.write(".")
    return (Path(folder) / name).stat().st_size


def pid():
    return os.getpid()


def die():
    os._exit(4)


def odd(kind):
    """Values that JSON does not know, but that can be written plainly."""
    return {"array": np.arange(3), "generator": (i for i in range(3)), "set": {1}, "number": np.float32(0.5)}[kind]


def strange():
    return object()
