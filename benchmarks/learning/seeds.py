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
from benchmarks.learning import keeping
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
    """Where runs are made, for how long at most, how many share the device, and where they are stored between two calls."""

    device: str = "cpu"
    limit_s: float = math.inf
    at_once: int = 1
    store: Path | None = None


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
    only: Sequence[str] = ("*",),
) -> None:
    """The command: train the seeds that have no whole result with these settings, and write the table of all that was run.

    `train` gives the row of an entry and a seed (by `trained`); `anchors` the rows of players that do not learn, played once;
    `table` the text of anchors and rows, where each row has its entry's `key`. `only`: what is trained unless asked otherwise.
    """
    args = _arguments(entries, only)
    end = time.monotonic() + 60.0 * args.minutes
    out.mkdir(parents=True, exist_ok=True)
    fixed = _anchor_rows(out / "anchors.json", anchors)
    chosen = [] if args.table else [e for e in entries if any(fnmatch.fnmatch(e.key, p) for p in args.only)]
    jobs = [(entry, seed) for seed in args.seeds for entry in chosen if not _is_whole(_path(out, entry, seed), entry)]
    if args.at_once > 1:
        with ThreadPoolExecutor(args.at_once) as pool:  # its threads only wait for the processes that they start
            list(pool.map(lambda job: _start(*job, args, end), jobs))
    else:
        for entry, seed in jobs:
            if (left := end - time.monotonic()) > 0:
                _write(out, entry, seed, How(args.device, left, args.beside, args.store), train)
    rows = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*-[0-9]*.json"))]
    text = table(fixed, sorted(rows, key=lambda row: row["seed"]))
    (out / "table.md").write_text(text + "\n", "utf-8")
    print(text)


def _arguments(entries: Sequence[Entry], only: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", default=only, help=f"names or patterns: {', '.join(e.key for e in entries)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--table", action="store_true", help="only write the table of what was run again")
    parser.add_argument("--device", default="cpu", help="the device of the learner and its networks")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; the next call goes on")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side, each in a process of its own")
    text = "folder in which each run is one file when the command ends, and from which runs that are not here go on"
    parser.add_argument("--store", type=Path, default=None, help=text)
    parser.add_argument("--beside", type=int, default=1, help="how many runs share the device (--at-once gives it)")
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


def _start(entry: Entry, seed: int, args: argparse.Namespace, end: float) -> None:
    """The same command for one entry and one seed, in a process of its own; what it says of a failure is told."""
    minutes = (end - time.monotonic()) / 60
    if minutes <= 0:
        return
    command = [sys.executable, "-m", sys.modules["__main__"].__spec__.name, "--only", entry.key, "--seeds", str(seed)]
    command += ["--device", args.device, *([] if math.isinf(minutes) else ["--minutes", f"{minutes:.2f}"])]
    command += ["--beside", str(args.at_once), *([] if args.store is None else ["--store", str(args.store)])]
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    said = done.stdout.partition("\n")[0] if done.returncode == 0 else done.stderr[-2000:]
    print(f"{entry.key}, seed {seed}: {said}", flush=True)


def trained(
    name: str,
    recipe: str,
    settings: Row,
    seed: int,
    how: How,
    keeper: Callable[[Path], keeping.Keeper] | None = None,
) -> tuple[rl.Run, Row]:
    """Train, or go on with a run that was cut; its steps, and the seconds that it took altogether. `keeper` makes what watches
    the run in a folder."""
    folder = RUNS / f"{name}-{seed}-{zlib.crc32(json.dumps(settings, default=str).encode()):08x}"
    watch, wall, cpu = Watch(how.limit_s), time.monotonic(), time.process_time()
    if how.store is not None:
        keeping.unpack(folder, how.store)
    kept = None if keeper is None else keeper(folder)

    def update(row: rl.Event) -> bool:
        if kept is not None:
            kept.update(row)
        return watch(row)

    given = {**PLAIN, **settings, "device": how.device}
    run = finish(recipe, given, seed=seed, folder=folder, watch=update, on_checkpoint=kept and kept.checkpoint)
    if run.interrupted:
        raise KeyboardInterrupt  # a run that was stopped from outside has measured nothing
    spent = folder / SPENT
    before = json.loads(spent.read_text("utf-8")) if spent.is_file() else {}
    wall = time.monotonic() - wall
    after = {"wall_s": wall, "cpu_s": time.process_time() - cpu}
    if how.device != "cpu":
        after["device_s"] = wall / how.at_once  # side by side, runs share the device
    found = {key: round(before.get(key, 0.0) + seconds, 1) for key, seconds in after.items()}
    spent.write_text(json.dumps(found), "utf-8")
    if how.store is not None:
        keeping.pack(folder, how.store)
    return run, {"steps": run.steps, **found, **({"cut": True} if watch.cut else {})}


def _anchor_rows(path: Path, anchors: Callable[[], list[Row]] | None) -> list[Row]:
    if anchors is None:
        return []
    if not path.is_file():
        path.write_text(json.dumps(anchors(), indent=1) + "\n", "utf-8")
    found: list[Row] = json.loads(path.read_text("utf-8"))
    return found
