"""What runnel's recipes reach over seeds, with intervals and references: JSON and a table.

python -m benchmarks.learning.run cartpole reverse

The Python that runs this trains the recipes, each run in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, venvs
from benchmarks.harness import RESULTS, run_once
from benchmarks.learning.entries import ENTRIES, Learning, Score
from benchmarks.results import number, table

import runnel as rl

Row = dict[str, Any]
ONE = Path(__file__).with_name("one.py")


def train_seeds(entry: Learning) -> list[Row]:
    """One finished run for each seed."""
    runs = []
    for seed in range(1, entry.seeds + 1):
        arguments = [entry.recipe, json.dumps(entry.settings), "--seed", str(seed)]
        beside = machine.Neighbours()
        row = run_once(sys.executable, ONE, arguments, limit_s=entry.limit_s)
        runs.append({**row, "seed": seed, "others": beside.cores()})
        shown = row.get("error") or ", ".join(f"{s.key} {number(row[s.key])}" for s in entry.scores)
        print(f"{entry.name} {seed}/{entry.seeds}: {shown}", file=sys.stderr, flush=True)
    return runs


def judge(score: Score, runs: Sequence[Row]) -> Row:
    """Mean over seeds with its 95 % bootstrap interval, interquartile mean, and whether the reference was reached.

    Reached: the interval's upper end is not below the reference less its own spread. Runs without a value are counted,
    and keep a reference from being reached.
    """
    values = [run[score.key] for run in runs if "error" not in run and run[score.key] is not None]
    row: Row = {**asdict(score), "values": values, "num": len(runs), "num_known": len(values)}
    if not values:
        return {
            **row,
            "mean": None,
            "low": None,
            "high": None,
            "iqm": None,
            "reached": None if score.reference is None else False,
        }
    s = rl.summarise(values)
    reached = None
    if score.reference is not None:
        reached = len(values) == len(runs) and s.high >= score.reference - score.spread
    return {**row, "mean": s.mean, "low": s.low, "high": s.high, "iqm": s.iqm, "reached": reached}


def run_entry(entry: Learning) -> Row:
    runs = train_seeds(entry)
    return {
        "name": entry.name,
        "title": entry.title,
        "recipe": entry.recipe,
        "settings": entry.settings,
        "scores": [judge(score, runs) for score in entry.scores],
        "runs": runs,
    }


def markdown(result: Mapping[str, Any]) -> str:
    m, c = result["machine"], result["code"]
    rows = []
    for s in result["scores"]:
        goal = "" if s["reference"] is None else number(s["reference"]) + (f" ± {number(s['spread'])}" if s["spread"] else "")
        verdict = "" if s["reached"] is None else "yes" if s["reached"] else "no"
        interval = f"{number(s['low'])} - {number(s['high'])}" if s["num_known"] else "-"
        rows.append(
            [s["title"], number(s["mean"]), interval, number(s["iqm"]), f"{s['num_known']} of {s['num']}", goal, verdict]
        )
    header = ["", "mean", "95 % interval", "IQM", "seeds", "reference", "reached"]
    sources = [f'- Reference of "{s["title"]}": {s["source"]}.' for s in result["scores"] if s["source"]]
    errors = [f"- Seed {r['seed']} failed: {r['error']}." for r in result["runs"] if "error" in r]
    which = f"commit {(c['commit'] or 'unknown')[:12]}{' with local changes' if c['dirty'] else ''}"
    head = f"{result['made']}; {m['cores']} cores, {m['cpu']}; {which}."
    parts = [f"# {result['title']}", head, table(header, rows), "\n".join(sources + errors)]
    return "\n\n".join(p for p in parts if p) + "\n"


def write(result: Row, folder: Path) -> None:
    """`result.json` and `table.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if a reference was not reached."""
    names = [entry.name for entry in ENTRIES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entry", nargs="+", choices=[*names, "all"], help="what to train")
    parser.add_argument("--seeds", type=int, help="seeds of each entry")
    parser.add_argument("--set", default="{}", help='JSON of more settings for the recipe, such as {"total_steps": 20000}')
    parser.add_argument("--out", help=f"folder of the results (default: {RESULTS / 'learning'})")
    args = parser.parse_args(argv)
    missed = 0
    for entry in ENTRIES:
        if not {entry.name, "all"} & set(args.entry):
            continue
        entry = replace(entry, seeds=args.seeds or entry.seeds, settings={**entry.settings, **json.loads(args.set)})
        facts = {"made": datetime.now().astimezone().isoformat(timespec="seconds"), "machine": machine.facts()}
        result = {
            **run_entry(entry),
            **facts,
            "code": machine.commit(venvs.ROOT),
            "versions": venvs.versions(Path(sys.executable)),
        }
        write(result, Path(args.out or RESULTS / "learning") / entry.name)
        print(markdown(result))
        missed += any(s["reached"] is False for s in result["scores"])
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
