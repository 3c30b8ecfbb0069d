"""Language models beside their peers: GRPO, decoding and optimiser steps, on two cores or on one GPU.

python -m benchmarks.llm.run --list
python -m benchmarks.llm.run --row grpo --row decode --pairs 3
python -m benchmarks.llm.run --device cuda --row learn --pairs 2 --our-python python --peer-python python
python -m benchmarks.llm.run --row grpo --quick             # does it run at all? its numbers mean nothing
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import venvs
from benchmarks.harness import Entry
from benchmarks.harness import main as measure
from benchmarks.llm.rows import DEVICES, HERE, ROWS, Row

QUICK = ("--pairs", "1", "--idle-limit", "0")
SHORT = ("--updates", "1")
PREPARE = "import sys; sys.path.insert(0, sys.argv[1]); import work; work.model_folder(sys.argv[2], half=sys.argv[3] == 'cuda')"


def main(argv: Sequence[str] | None = None) -> int:
    """What is not known here goes to the harness: --pairs, --measure, --peer, --python, --idle-limit, and what follows --."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="which rows: those of two cores, or of one GPU")
    parser.add_argument("--row", action="append", help="this row (may be given again), or all")
    parser.add_argument("--list", action="store_true", help="the rows of both devices, their peers and measures")
    parser.add_argument("--quick", action="store_true", help="one pair, one timed update, no waiting; to a temporary folder")
    parser.add_argument("--our-python", help="Python that has runnel, in place of its own virtual environment")
    parser.add_argument("--peer-python", help="Python of all peers that --python SIDE=PYTHON does not name")
    parser.add_argument("--out", help="folder in which each row gets a folder (default: benchmarks/results)")
    args, rest = parser.parse_known_args(argv)
    if args.list:
        print(list_rows())
        return 0
    rows = ROWS[args.device]
    names = list(rows) if args.row == ["all"] else (args.row or [])
    if not names or not set(names) <= set(rows):
        print(f"--device {args.device} has the rows {', '.join(rows)}, or all; see --list", file=sys.stderr)
        return 2
    keep_paths()
    out = args.out or (tempfile.mkdtemp(prefix="quick-") if args.quick else "")
    worst = 0
    for name in names:
        row = rows[name]
        more = interpreters(row.entry, args.our_python, args.peer_python)
        prepare(row, args.device, [*more, *rest])
        line = harness_line(rest, more, quick=args.quick, out=str(Path(out) / row.entry.name) if out else "")
        worst = max(worst, measure(row.entry, line))
    return worst


def harness_line(rest: Sequence[str], more: Sequence[str], *, quick: bool, out: str) -> list[str]:
    """The arguments for the harness: its own before `--`, the scripts' after it. What the user gave comes last, and wins."""
    split = rest.index("--") if "--" in rest else len(rest)
    mine = [*(QUICK if quick else ()), *(("--out", out) if out else ()), *more, *rest[:split]]
    return [*mine, "--", *(SHORT if quick else ()), *rest[split + 1 :]]


def interpreters(entry: Entry, ours: str | None, peers: str | None) -> list[str]:
    """`--python SIDE=PYTHON` for each side that is to run in a Python that is there already."""
    line = []
    for side in entry.sides:
        given = ours if side.script.name == "ours.py" or side is entry.sides[0] else peers
        if given:
            line += ["--python", f"{side.name}={find(given)}"]
    return line


def find(python: str) -> str:
    """A path, or a name on the PATH, as a path that does not depend on where one stands."""
    found = shutil.which(python)
    if found is None:
        raise SystemExit(f"there is no Python at {python!r}")
    return str(Path(found).absolute())


def keep_paths() -> None:
    """Measurements run in folders of their own: a relative PYTHONPATH must still lead to the same place."""
    found = os.environ.get("PYTHONPATH", "")
    if found:
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in found.split(os.pathsep) if p)


def prepare(row: Row, device: str, line: Sequence[str]) -> None:
    """Write the model's folder before anything is timed. What goes wrong here goes wrong in the measurements too, and shows."""
    if not row.shape:
        return
    ours = row.entry.sides[0]
    given = [text.partition("=")[2] for text in line if text.startswith(f"{ours.name}=")]
    try:
        python = given[-1] if given else str(venvs.ensure(ours.venv, ours.requirements))
    except venvs.InstallError:
        return
    subprocess.run([python, "-c", PREPARE, str(HERE), row.shape, device], check=False)


def list_rows() -> str:
    lines = []
    for device, rows in ROWS.items():
        for name, row in rows.items():
            peers = ", ".join(s.name for s in row.entry.sides[1:])
            lines.append(f"--device {device} --row {name:8} {row.entry.title}\n{'':12}beside {peers}")
            lines += [f"{'':12}- {m.name}: {m.title}" for m in row.entry.measures]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
