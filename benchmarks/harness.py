"""Runs runnel and peers side by side: each in its own virtual environment, in turns, on a machine that is otherwise idle.

An entry (`classic/rows.py` has some) names its sides (a script, its requirements, its own settings) and its measures
(arguments, and which number of the answer counts). A measurement is one process that prints one JSON line. Turns go A B A
B ..., so that a machine that slows down slows both. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, results, venvs

RESULTS = Path(__file__).with_name("results")
OURS = "runnel"
Row = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One of those compared: its name, the script that measures it, what its virtual environment needs."""

    name: str
    script: Path
    requirements: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """The settings at which this side is at its best; those of the measure come after, and win."""
    venv: str = ""
    """Name of the virtual environment, `.venv-<venv>`; the side's own name if empty."""


@dataclass(frozen=True)
class Recorded:
    """A peer that cannot be run here: its figure from another day, on a machine where `anchor` had `anchor_value`.

    It is scaled by what the anchor gives in this run. Without an anchor it stands as it was recorded.
    """

    name: str
    value: float
    anchor: str = ""
    anchor_value: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Measure:
    """One comparison: the scripts get `arguments` and `--seed 1`, `--seed 2`, ...; `value` is the number that counts."""

    name: str
    title: str
    value: str
    unit: str
    more_is_better: bool
    arguments: tuple[str, ...]
    repeats: int
    limit_s: float
    columns: tuple[str, ...] = ()
    """Numbers of the answer that the table of single runs shows."""
    sides: tuple[str, ...] = ()
    """Only these sides; empty: all."""
    recorded: tuple[Recorded, ...] = ()
    must: float | None = None
    """The ratio to the fastest peer that is asked for, where one is."""
    aim: float | None = None
    of: str = ""
    """Another number of the runs of this measure: where that one is chosen too, nothing is run again."""

    def includes(self, side: Side) -> bool:
        return not self.sides or side.name in self.sides


@dataclass(frozen=True)
class Entry:
    """A benchmark: the first side is runnel, the others are peers."""

    name: str
    title: str
    sides: tuple[Side, ...]
    measures: tuple[Measure, ...]
    notes: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """Packages, beside the common ones, whose versions the table names."""


@dataclass(frozen=True)
class Options:
    """How carefully to measure."""

    idle_limit_s: float = 180.0
    idle_cores: float = machine.IDLE_CORES
    sample_s: float = 1.0
    """Seconds over which the load is looked at."""


# ------------------------------------------------------------------------------------------------------------- measuring
def last_json(text: str) -> Row | None:
    """The last line of `text` that is a JSON object; libraries may print before it."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            return found if isinstance(found, dict) else None
    return None


def run_once(python: Path | str, script: Path, arguments: Sequence[str], *, limit_s: float) -> Row:
    """One measurement in a process of its own: the JSON that it prints, or `{"error": ...}`."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        try:
            done = subprocess.run(
                [str(python), str(script), *arguments], cwd=folder, capture_output=True, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {limit_s:g} s"}
    row = last_json(done.stdout)
    if done.returncode == 0 and row is not None:
        return row
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return {"error": f"exit code {done.returncode}: {said[-1] if said else 'said nothing'}"}


def measure_once(python: Path | str, side: Side, measure: Measure, *, seed: int, options: Options) -> Row:
    """Wait for an idle machine, measure once, and record the load before and beside it."""
    idle = machine.wait_idle(
        options.idle_limit_s, most=options.idle_cores, sample=lambda: machine.sample_load(options.sample_s)
    )
    beside = machine.Neighbours()
    arguments = [*side.arguments, *measure.arguments, "--seed", str(seed)]
    row = run_once(python, side.script, arguments, limit_s=measure.limit_s)
    machine.reap_orphans()
    others = beside.cores()
    command = shlex.join([_shown(Path(python)), _shown(side.script), *arguments])
    warnings = [idle.warning] if idle.warning else []
    if others is not None and others > options.idle_cores:
        warnings.append(f"{others:.2f} cores were busy with something else")
    row |= {"seed": seed, "command": command, "load_before": idle.load, "waited_s": idle.waited_s}
    return {**row, "others": others, "warnings": warnings}


def _shown(path: Path) -> str:
    return str(path.relative_to(venvs.ROOT)) if path.is_relative_to(venvs.ROOT) else str(path)


def take_turns(entry: Entry, measure: Measure, pythons: dict[str, Path], options: Options) -> dict[str, list[Row]]:
    """All measurements of one measure: every side once, then every side again."""
    runs: dict[str, list[Row]] = {name: [] for name in pythons}
    for seed in range(1, measure.repeats + 1):
        for side in entry.sides:
            if side.name not in pythons or not measure.includes(side):
                continue
            row = measure_once(pythons[side.name], side, measure, seed=seed, options=options)
            runs[side.name].append(row)
            shown = row.get("error") or f"{results.number(row.get(measure.value))} {measure.unit}"
            print(f"{measure.name} {seed}/{measure.repeats} {side.name}: {shown}", file=sys.stderr, flush=True)
    return runs


# --------------------------------------------------------------------------------------------------------------- result
def compare_sides(entry: Entry, measure: Measure, runs: dict[str, list[Row]], problems: dict[str, str]) -> Row:
    """One measure of the result: each side with its runs and summary, and runnel's ratio to each peer.

    A run without a value (not solved, failed) counts as the worst. A side all of whose runs failed has a problem instead.
    """
    sides: dict[str, Row] = {}
    values: dict[str, list[float | None]] = {}
    for side in entry.sides:
        if not measure.includes(side):
            continue
        rows = runs.get(side.name, [])
        problem = problems.get(side.name, "")
        if not problem and rows and all("error" in row for row in rows):
            problem = f"failed: {rows[-1]['error']}"
        values[side.name] = [None if "error" in row else row[measure.value] for row in rows]
        summary = results.summarise(values[side.name], more_is_better=measure.more_is_better)
        sides[side.name] = {"problem": problem, "summary": summary, "runs": rows}
    ours = entry.sides[0].name
    ratios = {}
    for peer in entry.sides[1:]:
        if not measure.includes(peer):
            continue
        disturbed = any(row["warnings"] for name in (ours, peer.name) for row in runs.get(name, []))
        ratios[peer.name] = results.compare(
            values[ours], values[peer.name], more_is_better=measure.more_is_better, disturbed=disturbed
        )
    records = [_from_record(r, measure, sides, ours) for r in measure.recorded]
    return {**asdict(measure), "sides": sides, "ratios": ratios, "recorded": records}


def _from_record(record: Recorded, measure: Measure, sides: dict[str, Row], ours: str) -> Row:
    """A recorded figure as this machine would give it, judged by the anchor, and runnel's ratio to that."""
    anchor = sides[record.anchor]["summary"]["median"] if record.anchor in sides else None
    scale = None if record.anchor and anchor is None else anchor / record.anchor_value if anchor is not None else 1.0
    value = None if scale is None else record.value * scale
    known = results.ratio(sides[ours]["summary"]["median"], value, more_is_better=measure.more_is_better)
    beside = [ours, record.anchor] if record.anchor in sides else [ours]
    disturbed = any(row["warnings"] for name in beside for row in sides[name]["runs"])
    return {**asdict(record), "scale": scale, "scaled": value, "ratio": known, "disturbed": disturbed}


def collect_warnings(measures: Sequence[Row]) -> list[str]:
    """One line for each run that the machine, or the run itself, had something to say about."""
    lines = []
    names = [measure["name"] for measure in measures]
    for measure in measures:
        if measure["of"] in names:
            continue
        for name, side in measure["sides"].items():
            for run in side["runs"]:
                said = [*run["warnings"], *([f"failed: {run['error']}"] if "error" in run else [])]
                lines += [f"{measure['name']}, {name}, seed {run['seed']}: {text}" for text in said]
    return lines


def write(result: Row, folder: Path) -> None:
    """`result.json`, `table.md` and `ratios.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(results.markdown(result), encoding="utf-8")
    bars = [
        (f"{m['title']} vs {peer}" if len(m["ratios"]) > 1 else m["title"], r)
        for m in result["measures"]
        for peer, r in m["ratios"].items()
    ]
    peers = ", ".join(dict.fromkeys(peer for m in result["measures"] for peer in m["ratios"]))
    (folder / "ratios.svg").write_text(results.ratio_chart(f"{OURS} against {peers}", bars), encoding="utf-8")


def install(entry: Entry, given: dict[str, Path]) -> tuple[dict[str, Path], dict[str, str]]:
    """The Python of each side, and for a side that does not install what is wrong with it."""
    pythons, problems = {}, {}
    for side in entry.sides:
        try:
            name = side.venv or side.name
            pythons[side.name] = given.get(side.name) or given.get(name) or venvs.ensure(name, side.requirements)
        except venvs.InstallError as error:
            problems[side.name] = f"not installed: {error}"
            print(f"{side.name} does not install, the run goes on without it: {error}", file=sys.stderr)
    return pythons, problems


def run(entry: Entry, *, given: dict[str, Path], options: Options) -> Row:
    """Install, measure in turns, and put the result together."""
    pythons, problems = install(entry, given)
    runs: dict[str, dict[str, list[Row]]] = {}
    for m in entry.measures:
        runs[m.name] = runs[m.of] if m.of in runs else take_turns(entry, m, pythons, options)
    measures = [compare_sides(entry, m, runs[m.name], problems) for m in entry.measures]
    lines = [f"{name}: {problem}" for name, problem in problems.items()] + collect_warnings(measures)
    return {
        "entry": entry.name,
        "title": entry.title,
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "code": machine.commit(venvs.ROOT),
        "versions": {name: venvs.versions(python) for name, python in pythons.items()},
        "packages": list(entry.packages),
        "options": asdict(options),
        "measures": measures,
        "notes": list(entry.notes),
        "warnings": lines,
    }


# --------------------------------------------------------------------------------------------------------- command line
def main(entry: Entry, argv: Sequence[str] | None = None) -> int:
    """The command line of an entry. Returns 1 if runnel itself gave no number."""
    args = _parser(entry).parse_args(argv)
    machine.adopt_orphans()
    chosen = [m for m in entry.measures if not args.measure or m.name in args.measure]
    measures = tuple(replace(m, repeats=args.pairs or m.repeats, arguments=(*m.arguments, *args.extra)) for m in chosen)
    given = {name: Path(path).absolute() for name, path in (text.split("=", 1) for text in args.python)}
    options = Options(idle_limit_s=args.idle_limit, idle_cores=args.idle_cores)
    sides = tuple(s for s in entry.sides if s is entry.sides[0] or not args.peer or s.name in args.peer)
    result = run(replace(entry, measures=measures, sides=sides), given=given, options=options)
    folder = Path(args.out) if args.out else RESULTS / entry.name
    write(result, folder)
    print((folder / "table.md").read_text(encoding="utf-8"))
    print(f"written to {folder}", file=sys.stderr)
    return int(any(m["sides"][entry.sides[0].name]["problem"] for m in result["measures"]))


def _parser(entry: Entry) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=entry.title)
    names, sides = [m.name for m in entry.measures], ", ".join(s.name for s in entry.sides)
    parser.add_argument("--measure", action="append", choices=names, help="only this measure (may be given again)")
    parser.add_argument(
        "--peer", action="append", choices=[s.name for s in entry.sides[1:]], help="only this peer, beside runnel"
    )
    parser.add_argument("--pairs", "--repeats", type=int, help="measurements of each side, each with its own seed")
    parser.add_argument("--out", help=f"folder of the result (default: {RESULTS / entry.name})")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="SIDE=PYTHON",
        help=f"use this Python for a side ({sides}) instead of its own virtual environment",
    )
    parser.add_argument("--idle-limit", type=float, default=Options.idle_limit_s, help="longest wait for an idle machine, in s")
    parser.add_argument(
        "--idle-cores", type=float, default=Options.idle_cores, help="cores that others may use on an idle machine"
    )
    parser.add_argument("extra", nargs="*", help="after --: more arguments for both scripts, such as --window 2")
    return parser
