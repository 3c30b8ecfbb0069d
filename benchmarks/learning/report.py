"""Results of learning runs: one file a seed, a page for each entry, and one table of what was run and what was not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.learning.entries import ENTRIES, LAST, Learning, Score
from benchmarks.learning.settings import about_stale
from benchmarks.results import number, table

import runnel as rl
from runnel.report.plots import Series, curve_svg

Row = dict[str, Any]
CURVES = "curves.svg"


def read_seed(path: Path) -> Row | None:
    if not path.is_file():
        return None
    row: Row = json.loads(path.read_text(encoding="utf-8"))
    return row


def read_seeds(name: str, out: Path) -> list[Row]:
    """Results of an entry, in the order of the seeds."""
    rows = [read_seed(path) for path in (out / name).glob("seed-*.json")]
    return sorted((r for r in rows if r is not None), key=lambda r: r["seed"])


def write_seed(path: Path, row: Row) -> None:
    """Whole or not at all: a queue may be broken off at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def is_cut(row: Row) -> bool:
    """Whether a run's time was up before its budget was spent."""
    return bool(row.get("status") == "cut")


def judge(score: Score, runs: Sequence[Row]) -> Row:
    """Mean over seeds with its 95 % bootstrap interval, interquartile mean, and whether the reference was reached.

    Reached: the interval's upper end is not below the reference less its own spread; of a limit, that four of five seeds keep
    it. Runs without a value are counted, and keep a reference from being reached; while some are cut, what they have not
    reached is open.
    """
    values = [run[score.key] for run in runs if "error" not in run and run[score.key] is not None]
    row: Row = {**asdict(score), "values": values, "num": len(runs), "num_known": len(values)}
    if not values:
        failed = None if score.reference is None or not runs else False
        return {**row, "mean": None, "low": None, "high": None, "iqm": None, "reached": failed}
    s = rl.eval.summarise(values)
    reached = None
    if score.reference is not None:
        reached = len(values) == len(runs) and s.high >= score.reference - score.spread
        if not reached and any(is_cut(run) for run in runs):
            reached = None
    if score.limit is not None:
        reached = 5 * sum(value <= score.limit for value in values) >= 4 * len(runs)
    return {**row, "mean": s.mean, "low": s.low, "high": s.high, "iqm": s.iqm, "reached": reached}


def judge_entry(entry: Learning, runs: Sequence[Row]) -> list[Row]:
    return [judge(score, runs) for score in entry.scores]


def _goal(s: Row) -> str:
    if s["limit"] is not None:
        return f"at most {number(s['limit'])}"
    return "" if s["reference"] is None else number(s["reference"]) + (f" ± {number(s['spread'])}" if s["spread"] else "")


def _verdict(s: Row) -> str:
    return "" if s["reached"] is None else "yes" if s["reached"] else "no"


def _interval(s: Row) -> str:
    return f"{number(s['low'])} - {number(s['high'])}" if s["num_known"] else "-"


def page(entry: Learning, runs: Sequence[Row]) -> str:
    """One entry: its scores, and the single runs behind them."""
    header = ["", "mean", "95 % interval", "IQM", "seeds", "reference", "reached"]
    rows = [
        [
            s["title"],
            number(s["mean"]),
            _interval(s),
            number(s["iqm"]),
            f"{s['num_known']} of {s['num']}",
            _goal(s),
            _verdict(s),
        ]
        for s in judge_entry(entry, runs)
    ]
    sources = "\n".join(f'- Reference of "{s.title}": {s.source}.' for s in entry.scores if s.source)
    settings = "Recipe `{}` with `{}`.".format(entry.recipe, json.dumps(runs[-1]["settings"] if runs else entry.settings))
    if stale := about_stale(runs, entry):
        settings += f" Stale: measured with {stale}, which is not what the recipe begins with today."
    figure = f"![curves]({CURVES})" if any(r.get("curve") for r in runs) else ""
    parts = (f"# {entry.title}", settings, table(header, rows), sources, figure, _runs(entry, runs))
    return "\n\n".join(p for p in parts if p) + "\n"


def _runs(entry: Learning, runs: Sequence[Row]) -> str:
    keys = [s.key for s in entry.scores]
    header = ["seed", *keys, "steps", "wall (s)", "commit", "made", "machine"]
    rows = []
    for r in runs:
        values = ["failed: " + r["error"]] + ["-"] * (len(keys) + 1) if "error" in r else [number(r[k]) for k in keys]
        values += [] if "error" in r else [f"{r['steps']:,}" + (" (cut)" if is_cut(r) else ""), number(r["wall_s"])]
        m = r["machine"]
        rows.append([str(r["seed"]), *values, _commit(r), r["made"], f"{m['cores']} cores, {m['cpu']}"])
    return table(header, rows) if rows else ""


def _commit(row: Row) -> str:
    code = row["code"]
    return (code["commit"] or "unknown")[:12] + (" with changes" if code["dirty"] else "")


def overview(out: Path) -> str:
    """Every entry on one line: its first score, or that it was not run."""
    header = ["entry", "score", "seeds", "mean", "95 % interval", "reference", "reached", "hours", "commit"]
    rows = []
    for entry in ENTRIES:
        runs = read_seeds(entry.name, out)
        s = judge(entry.scores[0], runs)
        cut = [r["steps"] for r in runs if is_cut(r)]
        ran = f"{s['num_known']} of {entry.seeds}" if runs else "not run"
        ran += f", {len(cut)} cut at {min(cut):,} steps or more" if cut else ""
        stale = about_stale(runs, entry)
        ran += f", stale: measured with {stale}" if stale else ""
        hours = number(sum(r.get("wall_s", 0.0) for r in runs) / 3600.0) if runs else "-"
        commits = ", ".join(dict.fromkeys(_commit(r) for r in runs)) or "-"
        rows.append([entry.name, s["title"], ran, number(s["mean"]), _interval(s), _goal(s), _verdict(s), hours, commits])
    why = "Each line: the first score of an entry over the seeds that have run; its folder has the rest."
    return f"# What was run, and what was not\n\n{why}\n\n{table(header, rows)}\n"


def draw(entry: Learning, runs: Sequence[Row], path: Path) -> None:
    """Returns in training over steps, one line a seed."""
    known = [r for r in runs if r.get("curve")]
    lines = [Series(f"seed {r['seed']}", [x for x, _ in r["curve"]], [y for _, y in r["curve"]]) for r in known]
    if lines:
        curve_svg(lines, path, title=entry.title.replace("`", ""), x_label="steps", y_label=LAST)


def write(entry: Learning, out: Path) -> None:
    """The page of one entry, and its curves."""
    folder, runs = out / entry.name, read_seeds(entry.name, out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page(entry, runs), encoding="utf-8")
    draw(entry, runs, folder / CURVES)


def write_all(out: Path) -> str:
    """The table over all entries; returns it."""
    text = overview(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text, encoding="utf-8")
    return text
