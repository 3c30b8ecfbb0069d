"""What runnel's recipes reach over seeds, with intervals and references: a queue that can be broken off and started again.

python -m benchmarks.learning.run --only ppo-cartpole 'sac-*' --seeds 1 2 3
python -m benchmarks.learning.run --only 'ppo-minatar-*' --background     # goes on after the terminal is closed
python -m benchmarks.learning.run --status                                # what was run, and what was not

The Python that runs this trains the recipes, each run in a process of its own. A seed that has a result with the same settings
and with today's defaults is skipped; one that was broken off or cut (`--limit-s`) goes on from its newest checkpoint; one that
another queue is at is left to it.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import machine, venvs
from benchmarks.harness import RESULTS, run_once
from benchmarks.learning import report
from benchmarks.learning.entries import ENTRIES, Learning
from benchmarks.learning.settings import changed, learned, same_learning, settings_today
from benchmarks.results import number

Row = dict[str, Any]
ONE = Path(__file__).with_name("one.py")
RUNS = venvs.ROOT / "runs" / "learning"
OUT = RESULTS / "learning"
GRACE_S = 900.0
"""For starting, the last evaluation and the last checkpoint of a run whose time is up; then it is killed."""


def choose(patterns: Sequence[str]) -> list[Learning]:
    """Entries whose name matches a pattern, in the order of the file."""
    return [e for e in ENTRIES if any(fnmatch.fnmatch(e.name, p) for p in patterns)]


def known(entry: Learning, seed: int, out: Path) -> Row | None:
    """The result of this seed with these settings and today's defaults, whole or cut."""
    row = report.read_seed(out / entry.name / f"seed-{seed}.json")
    if row is None or "error" in row or not same_learning(row["settings"], entry.settings) or changed(row, entry):
        return None
    return row


def is_done(entry: Learning, seed: int, out: Path) -> bool:
    """Whether this seed was trained to its end with these settings."""
    row = known(entry, seed, out)
    return row is not None and not report.is_cut(row)


def run_name(entry: Learning, seed: int) -> str:
    """Other settings, or other defaults, are another run: what they left behind must not be gone on with."""
    settings = json.dumps([entry.settings, settings_today(entry)])
    return f"{entry.name}-seed-{seed}-{zlib.crc32(settings.encode()):08x}"


@contextmanager
def claim(name: str, runs: Path) -> Iterator[bool]:
    """Whether nobody else is at this run; the kernel gives the claim back however the process ends."""
    runs.mkdir(parents=True, exist_ok=True)
    with open(runs / f"{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def train_seed(entry: Learning, seed: int, *, out: Path = OUT, runs: Path = RUNS, limit_s: float = math.inf) -> str:
    """Train one seed, for `limit_s` seconds at most, and keep its result. Returns a line for the log."""
    name = run_name(entry, seed)
    with claim(name, runs) as mine:
        if not mine:
            return f"{name}: another queue is at it"
        if is_done(entry, seed, out):
            return f"{name}: done before"
        code, made = machine.commit(venvs.ROOT), datetime.now().astimezone().isoformat(timespec="seconds")
        limit_s = min(limit_s, entry.limit_s)
        arguments = [entry.recipe, json.dumps(entry.settings), "--seed", str(seed), "--folder", str(runs / name)]
        row = run_once(sys.executable, ONE, [*arguments, "--limit-s", str(limit_s)], limit_s=limit_s + GRACE_S)
        if "config" in row:
            row["config"] = learned(row["config"])
        facts = {"seed": seed, "made": made, "code": code, "machine": machine.facts(), "settings": entry.settings}
        former = known(entry, seed, out)
        if former is None or row.get("steps", 0) >= former["steps"]:  # else the former attempt came further
            report.write_seed(out / entry.name / f"seed-{seed}.json", {**row, **facts})
            report.write(entry, out)
    shown = row.get("error") or ", ".join(f"{s.key} {number(row[s.key])}" for s in entry.scores)
    return f"{name}: {shown}" + (f" (cut at {row['steps']:,} steps)" if report.is_cut(row) else "")


def work(
    todo: Sequence[tuple[Learning, int]], *, jobs: int, out: Path, runs: Path, limit_s: float = math.inf, pin: bool = False
) -> None:
    """All of the queue, `jobs` runs at a time; with `pin` each has a core of its own."""
    cores = cycle(sorted(os.sched_getaffinity(0)) if pin else [])

    def start() -> None:
        os.sched_setaffinity(0, {next(cores)})  # of this thread, and so of the processes that it starts

    with ThreadPoolExecutor(jobs, initializer=start if pin else None) as pool:
        for line in pool.map(lambda item: train_seed(*item, out=out, runs=runs, limit_s=limit_s), todo):
            print(f"{datetime.now():%H:%M:%S} {line}", flush=True)


def detach(argv: Sequence[str], runs: Path) -> None:
    """The same command in a process of its own, at low priority, with its words in a file."""
    runs.mkdir(parents=True, exist_ok=True)
    log = runs / f"queue-{datetime.now():%Y%m%d-%H%M%S}.log"
    command = ["nice", "-n", "10", sys.executable, "-m", "benchmarks.learning.run", *(a for a in argv if a != "--background")]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=venvs.ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    print(f"process {process.pid} works through the queue; its log is {log}")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if a reference was not reached by what was asked for."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(argv)
    out, entries = Path(args.out), choose(args.only)
    if not entries:
        print(f"nothing is called {' or '.join(args.only)}; there are: {', '.join(e.name for e in ENTRIES)}", file=sys.stderr)
        return 2
    if args.background:
        detach(argv, RUNS)
        return 0
    entries = [replace(e, settings={**e.settings, **json.loads(args.set)}) for e in entries]
    if not args.status:
        todo = [(e, s) for e in entries for s in args.seeds or range(1, e.seeds + 1)]
        work(todo, jobs=args.jobs, out=out, runs=RUNS, limit_s=args.limit_s, pin=args.pin)
    print(report.write_all(out))
    judged = [s for e in entries for s in report.judge_entry(e, report.read_seeds(e.name, out))]
    return int(not args.status and any(s["reached"] is False for s in judged))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of entries (all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds (each entry's own number of them)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--pin", action="store_true", help="a core of its own for each job")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="cut a run after so many seconds: evaluate and save it")
    parser.add_argument("--background", action="store_true", help="go on without this terminal")
    parser.add_argument("--status", action="store_true", help="train nothing; say what was run and what was not")
    parser.add_argument("--set", default="{}", help='JSON of more settings for the recipe, such as {"total_steps": 20000}')
    parser.add_argument("--out", default=str(OUT), help=f"folder of the results ({OUT.relative_to(venvs.ROOT)})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
