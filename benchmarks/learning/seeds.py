"""Learners, each trained once for every seed, with a file for each result: several processes may work side by side
(`--at-once`), and what was cut (`--minutes`) goes on where it was."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks import machine, venvs
from benchmarks.learning.one import Watch, finish

import runnel as rl

Row = dict[str, Any]
RUNS = venvs.ROOT / "runs"
PLAIN: Row = {"progress": False, "checkpoint": {"every": 0}, "eval": {"episodes": 0}}
"""What all runs have: nothing but training."""
SPENT = "spent.json"
"""The seconds that a run has taken, in its folder."""


@dataclass(frozen=True)
class How:
    """Where runs are made, and for how long at most."""

    device: str = "cpu"
    limit_s: float = math.inf


class Entry(Protocol):
    """What is trained: its name, and its settings."""

    @property
    def key(self) -> str: ...

    @property
    def settings(self) -> Row: ...


E = TypeVar("E", bound=Entry)


def main(
    out: Path,
    entries: Sequence[E],
    train: Callable[[E, int, How], Row],
    table: Callable[[Sequence[Row], Sequence[Row]], str],
    anchors: Callable[[], list[Row]] | None = None,
) -> None:
    """The command: train the seeds that have no whole result with these settings, and write the table of all that was run.

    `train` gives the row of an entry and a seed (by `trained`); `anchors` the rows of players that do not learn, played once;
    `table` the text of anchors and rows, where each row has its entry's `key`.
    """
    args = _arguments(entries)
    end = time.monotonic() + 60.0 * args.minutes
    out.mkdir(parents=True, exist_ok=True)
    fixed = _anchor_rows(out / "anchors.json", anchors)
    chosen = [] if args.table else [e for e in entries if any(fnmatch.fnmatch(e.key, p) for p in args.only)]
    jobs = [(entry, seed) for seed in args.seeds for entry in chosen if not _is_whole(_path(out, entry, seed), entry)]
    if args.at_once > 1:
        with ThreadPoolExecutor(args.at_once) as pool:  # its threads only wait for the processes that they start
            list(pool.map(lambda job: _start(*job, args.device, end), jobs))
    else:
        for entry, seed in jobs:
            if (left := end - time.monotonic()) > 0:
                _write(out, entry, seed, How(args.device, left), train)
    rows = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*-[0-9]*.json"))]
    text = table(fixed, sorted(rows, key=lambda row: row["seed"]))
    (out / "table.md").write_text(text + "\n", "utf-8")
    print(text)


def _arguments(entries: Sequence[Entry]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", default=["*"], help=f"names, such as {entries[0].key!r}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--table", action="store_true", help="only write the table of what was run again")
    parser.add_argument("--device", default="cpu", help="the device of the learner and its networks")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; the next call goes on")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side, each in a process of its own")
    return parser.parse_args()


def _path(out: Path, entry: Entry, seed: int) -> Path:
    return out / f"{entry.key.replace(':', '').replace(',', '').replace(' ', '-')}-{seed}.json"


def _is_whole(path: Path, entry: Entry) -> bool:
    """Whether there is a result with these settings, trained to its end."""
    if not path.is_file():
        return False
    row = json.loads(path.read_text("utf-8"))
    return bool(row["settings"] == json.loads(json.dumps(entry.settings))) and not row.get("cut", False)


def _write(out: Path, entry: E, seed: int, how: How, train: Callable[[E, int, How], Row]) -> None:
    """Train, and write the result; under its name it is never seen in parts."""
    facts = {"key": entry.key, "seed": seed, "code": machine.commit(venvs.ROOT), "machine": machine.facts()}
    row = {**facts, "device": how.device, **train(entry, seed, how), "settings": entry.settings}
    path = _path(out, entry, seed)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row, indent=1) + "\n", "utf-8")
    part.replace(path)
    print(json.dumps({k: x for k, x in row.items() if k not in ("code", "machine", "settings")}), flush=True)


def _start(entry: Entry, seed: int, device: str, end: float) -> None:
    """The same command for one entry and one seed, in a process of its own; what it says of a failure is told."""
    minutes = (end - time.monotonic()) / 60
    if minutes <= 0:
        return
    command = [sys.executable, "-m", sys.modules["__main__"].__spec__.name, "--only", entry.key, "--seeds", str(seed)]
    command += ["--device", device, *([] if math.isinf(minutes) else ["--minutes", f"{minutes:.2f}"])]
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    said = done.stdout.partition("\n")[0] if done.returncode == 0 else done.stderr[-2000:]
    print(f"{entry.key}, seed {seed}: {said}", flush=True)


def trained(name: str, recipe: str, settings: Row, seed: int, how: How) -> tuple[rl.Run, Row]:
    """Train, or go on with a run that was cut; its steps, and the seconds that it took altogether."""
    folder = RUNS / f"{name}-{seed}-{zlib.crc32(json.dumps(settings, default=str).encode()):08x}"
    watch, wall, cpu = Watch(how.limit_s), time.monotonic(), time.process_time()
    run = finish(recipe, {**PLAIN, **settings, "device": how.device}, seed=seed, folder=folder, watch=watch)
    if run.interrupted:
        raise KeyboardInterrupt  # a run that was stopped from outside has measured nothing
    spent = folder / SPENT
    before = json.loads(spent.read_text("utf-8")) if spent.is_file() else {"wall_s": 0.0, "cpu_s": 0.0}
    after = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
    found = {key: round(before[key] + seconds, 1) for key, seconds in after.items()}
    spent.write_text(json.dumps(found), "utf-8")
    return run, {"steps": run.steps, **found, **({"cut": True} if watch.cut else {})}


def _anchor_rows(path: Path, anchors: Callable[[], list[Row]] | None) -> list[Row]:
    if anchors is None:
        return []
    if not path.is_file():
        path.write_text(json.dumps(anchors(), indent=1) + "\n", "utf-8")
    found: list[Row] = json.loads(path.read_text("utf-8"))
    return found
