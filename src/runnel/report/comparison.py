"""The page that compares several runs, with verdicts over seeds if the user wants them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runnel.eval.aggregates import Interval
from runnel.report.accounts import accounting, imbalances
from runnel.report.collect import seed_of
from runnel.report.conversations import run_table
from runnel.report.curves import Charts, axis_label
from runnel.report.page import fact, fold, notices, page, section, text, tree
from runnel.report.page import table as html_table
from runnel.report.tables import Cell, Table
from runnel.report.verdicts import Verdicts
from runnel.track.history import History, is_number, newest_per_seed
from runnel.track.numbers import seconds, seeds_words, short

GOOD = {"finished": "good", "solved": "good", "failed": "bad", "collapsed": "bad"}
MOST_CONFIGS = 20
"""Most configurations that are written out. Of runs that share one, only the first is shown."""


def comparison_page(
    runs: Sequence[History],
    target: Path,
    charts: Charts,
    *,
    by_label: Mapping[str, Sequence[History]],
    verdicts: Verdicts | None = None,
) -> str:
    """The page of runs in groups, with the verdicts of their comparison over seeds."""
    title = next(iter(by_label)) if len(by_label) == 1 else "Comparison"
    problems = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    wrong = [f"{run.name}: {problem}" for run in runs for problem in (*run.failures, *run.collapses, *imbalances(run))]
    facts = [_group_fact(label, members, lead=i == 0) for i, (label, members) in enumerate(by_label.items())]
    summary = f'<div class="facts">{"".join(facts)}</div>'
    if verdicts:
        lines = "".join(f'<p class="verdict">{text(line)}</p>' for line in verdicts.sentences)
        summary = lines + notices(verdicts.notices)
    return page(
        f"{title} – runnel",
        [
            f'<header><h1>{text(title)}</h1><p class="soft">{len(runs)} runs</p>'
            f"{summary}{notices(problems)}{notices(wrong, bad=True)}</header>",
            *(_statistics(verdicts) if verdicts else []),
            section("Learning", charts.html()),
            section("Runs", _run_table(runs, target)),
            section("Conversations", *(table.html() for table in (verdicts.others if verdicts else [run_table(runs)]))),
            section("Sample accounting", accounting(runs)),
            section("Configurations", *_configs(by_label)),
            f"<footer>The numbers of every table and figure lie as CSV in {text(csv_folder(target).name)}/ · "
            "written by runnel</footer>",
        ],
    )


def csv_folder(target: Path) -> Path:
    """The folder of a report's CSV files, beside it: `report_csv/` for `report.html`."""
    return target.with_name(target.stem + "_csv")


def run_rows(runs: Sequence[History]) -> Table:
    """A table with a line for each run."""
    rows: list[list[Cell]] = []
    for run in runs:
        row = run.evals[-1] if run.evals else {}
        known = all(is_number(row.get(key)) for key in ("mean", "low", "high"))
        score: Cell = Interval(row["mean"], row["low"], row["high"]) if known else None
        rates = run.rate("steps_per_s" if run.axis == "steps" else "tokens_per_s")[1]
        rate = float(np.nanmedian(rates)) if len(rates) else None
        rows.append([run.name, run.status, seed_of(run), score, int(run.last.get(run.axis) or 0), run.wall_s(), rate])
    head = ["run", "status", "seed", "evaluation", axis_label(runs), "wall seconds", "per second"]
    return Table("runs", "Runs", head, rows)


def _statistics(verdicts: Verdicts) -> list[str]:
    *tables, scores = verdicts.tables
    return [
        section("Over seeds", *(table.html() for table in tables), fold("every run", scores.html())),
        section("Curves", *(figure.html() for figure in verdicts.figures)),
    ]


def _group_fact(label: str, members: Sequence[History], *, lead: bool) -> str:
    last = [run.evals[-1].get("mean") for run in newest_per_seed(members) if run.evals]
    finals = [float(mean) for mean in last if mean is not None and is_number(mean)]
    if not finals:
        return fact("–", f"{label}: no evaluation yet", lead=lead)
    number, words = seeds_words(finals)
    return fact(number, f"{label}: last evaluation" + (f", {words}" if len(finals) > 1 else ""), lead=lead)


def _run_table(runs: Sequence[History], target: Path) -> str:
    rows = []
    for run, (_, _, seed, score, steps, wall, rate) in zip(runs, run_rows(runs).rows, strict=True):
        mean, interval = "–", "–"
        if isinstance(score, Interval):
            mean, interval = short(score.value), f"{short(score.low)} to {short(score.high)}"
        status = f'<span class="{GOOD.get(run.status, "warn")}">{text(run.status)}</span>'
        spent = [f"{steps:,}", seconds(wall if isinstance(wall, float) else None)]
        speed = short(round(rate)) if isinstance(rate, float) else "–"
        rows.append([_link(run, target), status, text("–" if seed is None else seed), mean, interval, *spent, speed])
    head = ["run", "status", "seed", "evaluation", "95 % interval", axis_label(runs), "wall time", "per second"]
    return html_table(head, rows, numbers=(2, 3, 4, 5, 6, 7))


def _configs(by_label: Mapping[str, Sequence[History]]) -> list[str]:
    """One configuration for each group: its runs differ only in their seed."""
    shown = [fold(f"{label} ({members[0].name})", tree(members[0].config)) for label, members in by_label.items()]
    rest = len(shown) - MOST_CONFIGS
    return [*shown[:MOST_CONFIGS], *([f"<p>{rest} more are in the runs' config.json.</p>"] if rest > 0 else [])]


def _link(run: History, target: Path) -> str:
    if not run.folder.report.is_file():
        return text(run.name)
    path = Path(os.path.relpath(run.folder.report.resolve(), target.resolve().parent)).as_posix()
    return f'<a href="{text(path)}">{text(run.name)}</a>'
