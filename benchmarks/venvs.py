"""Virtual environments of the sides of a comparison: `.venv-<name>` in the repository, made when first needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
STAMP = "benchmark.json"
_VERSIONS = (
    "import importlib.metadata as m, json, platform;"
    "print(json.dumps({'python': platform.python_version(),"
    " **{d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}}))"
)


class InstallError(Exception):
    """A side could not be installed; the message is what pip said last."""


def ensure(name: str, requirements: Sequence[str], *, root: Path = ROOT) -> Path:
    """The Python of `.venv-<name>`, with `requirements` installed under the constraints. Raises `InstallError`.

    A stamp inside remembers what was asked for: the same request installs nothing, another one runs pip again. A requirement
    with a version of its own (`gymnasium==0.29.1`, for a peer that works with no other) wins over the constraint on it.
    """
    folder = root / f".venv-{name}"
    python, stamp = folder / "bin" / "python", folder / STAMP
    constraints = constraints_for(requirements)
    wanted = {"requirements": list(requirements), "constraints": constraints}
    if python.is_file() and stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        return python
    stamp.unlink(missing_ok=True)
    print(f"installing {', '.join(requirements)} into {folder.name} ...", file=sys.stderr, flush=True)
    if not python.is_file():
        _call([sys.executable, "-m", "venv", str(folder)], root)
    limits = folder / CONSTRAINTS.name
    limits.write_text(constraints)
    _call([str(python), "-m", "pip", "install", "--quiet", "--constraint", str(limits), *requirements], root)
    stamp.write_text(json.dumps(wanted, indent=1) + "\n")
    return python


def constraints_for(requirements: Sequence[str]) -> str:
    """The common constraints without those that a requirement sets itself."""
    own = {r.partition("==")[0].partition("[")[0] for r in requirements if "==" in r}
    return "".join(line for line in CONSTRAINTS.read_text().splitlines(True) if line.partition("==")[0] not in own)


def _call(command: Sequence[str], root: Path) -> None:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise InstallError((errors[-1] if errors else f"exit code {done.returncode}").removeprefix("ERROR: "))


def versions(python: Path) -> dict[str, Any]:
    """Python's own version and that of every package installed beside it."""
    done = subprocess.run([str(python), "-c", _VERSIONS], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
