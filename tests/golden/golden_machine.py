"""The kind of machine that golden runs were recorded on: everything that the last bit of a number depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from threadpoolctl import ThreadpoolController

THEIRS = ("numpy.libs", "scipy.libs")
"""Folders of the BLAS libraries that count; other packages may have loaded their own."""


@cache
def machine() -> dict[str, str]:
    """What the last bit of a number depends on."""
    cpu = dict(line.split("\t: ", 1) for line in _cpu_lines() if "\t: " in line)
    flags = sorted(f for f in cpu.get("flags", "").split() if f.startswith(("avx", "amx", "fma", "sse4")))
    packages = ("torch", "numpy", "numba", "scipy", "gymnasium", "transformers", "peft")
    chosen = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_L2_SIZE", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": ", ".join(cpu.get(k, "") for k in ("vendor_id", "model name", "cpu family", "model", "stepping")),
        "flags": " ".join(flags),
        "torch kernels": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in packages},
        "environment": " ".join(f"{name}={os.environ[name]}" for name in chosen if name in os.environ),
    }


def _blas() -> str:
    """The libraries that numpy and (through SciPy) Numba multiply by, and for which processor each believes to be."""
    import scipy.linalg.cython_blas  # noqa: F401  (loads it)

    found = [x for x in ThreadpoolController().select(user_api="blas").info() if Path(x["filepath"]).parent.name in THEIRS]
    return ", ".join(sorted({f"{x['internal_api']} {x['version']} {x.get('architecture', '')}" for x in found}))


def _cpu_lines() -> list[str]:
    """Those of the first core."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    return [line.replace("\t", "").replace(":", "\t:", 1) for line in lines]


def unlike(here: Mapping[str, str], recorded: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Fields of two machines that differ: (recorded, here). Empty: every bit is compared."""
    assert here.keys() == recorded.keys(), "what was recorded does not say on what; record it again"
    return {k: (recorded[k], here[k]) for k in here if here[k] != recorded[k]}
