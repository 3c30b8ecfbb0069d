"""Writes report.html: one run, or several side by side, in one file that opens without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runnel.core.errors import ConfigError
from runnel.eval.reference import Range
from runnel.report.accounts import accounting, accounting_table, imbalances
from runnel.report.budgets import COUNTS
from runnel.report.collect import Collected
from runnel.report.comparison import GOOD, comparison_page, csv_folder, run_rows
from runnel.report.conversations import conversation_tables, run_table
from runnel.report.curves import Charts, by_label, make_charts, return_name
from runnel.report.league import league_of
from runnel.report.page import definitions, fact, fold, notices, page, section, text, tree
from runnel.report.page import table as html_table
from runnel.report.plans import predicted_rates
from runnel.report.plots import NUM_COLORS
from runnel.report.tables import Cell, Table, write_csv
from runnel.report.talks import conversations_html
from runnel.report.verdicts import How, Verdicts, make_verdicts
from runnel.track.files import replace_file, writing
from runnel.track.folder import Row
from runnel.track.history import History, as_table, is_number, load_history, share_axis
from runnel.track.numbers import seconds, short
from runnel.track.results import tables_in

NUM_SAMPLES = 6


def write_report(run_dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one run (into its folder) or of several (beside the first). Returns its path.

    The numbers of its tables and figures are written beside it as CSV: `report_csv/` for `report.html`.
    """
    if not run_dirs:
        raise ConfigError("run", [], "give at least one run folder")
    runs = [load_history(path) for path in run_dirs]
    first = runs[0].folder
    default = first.report if len(runs) == 1 else first.path.resolve().parent / "comparison.html"
    target = Path(out) if out is not None else default
    by = by_label(runs)
    share_axis(runs)
    charts = make_charts(runs, by)
    html = _single(runs[0], target, charts) if len(runs) == 1 else comparison_page(runs, target, charts, by_label=by)
    _write(target, html)
    _write_numbers(runs, charts, csv_folder(target))
    return target


def write_comparison(
    collected: Collected,
    out: Path | str,
    *,
    scores: How = "last",
    normalise: str | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Verdicts:
    """Write the report of groups of runs, compared over their seeds. Returns the verdicts."""
    verdicts = make_verdicts(collected, scores=scores, normalise=normalise, ranges=ranges)
    by = collected.lines()
    runs = [run for members in by.values() for run in members]
    share_axis(runs)
    target, charts = Path(out), make_charts(runs, by)
    _write(target, comparison_page(runs, target, charts, by_label=by, verdicts=verdicts))
    _write_numbers(runs, charts, csv_folder(target))
    for table in (*verdicts.tables, *verdicts.others):
        write_csv(csv_folder(target), table.name, table.csv_rows())
    for figure in verdicts.figures:
        write_csv(csv_folder(target), figure.name, figure.csv_rows())
    return verdicts


def _write(target: Path, html: str) -> None:
    with writing(target, "the report"):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, html.encode(errors="replace"))


def _write_numbers(runs: Sequence[History], charts: Charts, folder: Path) -> None:
    """Write all charts as one long table, and each table of the page."""
    write_csv(folder, "curves", charts.csv_rows())
    tables = [run_rows(runs), accounting_table(runs)]
    if len(runs) == 1:
        tables += [_evaluations(runs[0]), *_result_tables(runs[0]), *league_of(runs[0].folder)[0]]
        tables += [*conversation_tables(runs[0]), _stages(runs[0]), predicted_rates(runs[0])]
    else:
        tables.append(run_table(runs))
    for part in tables:
        if part.rows:
            write_csv(folder, part.name, part.csv_rows())


def _evaluations(run: History) -> Table:
    keys = ("version", "steps", "tokens", "mean", "low", "high", "num")
    rows = [[row[key] if is_number(row.get(key)) else None for key in keys] for row in run.evals]
    return Table("evaluations", "Evaluations", keys, rows)


def _result_tables(run: History) -> list[Table]:
    tables = []
    for found in tables_in(run.evals):
        rows: list[list[Cell]] = [[name, *values] for name, values in zip(found.rows, found.values, strict=True)]
        name = re.sub(r"\W+", "-", found.title).strip("-").lower()
        tables.append(Table(f"table-{name}", found.title, ["", *found.columns], rows))
    return tables


def _league(run: History) -> str:
    """Members, ratings and pay-offs of a run of self-play."""
    tables, warnings = league_of(run.folder)
    return notices(warnings) + "".join(table.html() for table in tables)


def _stages(run: History) -> Table:
    rows: list[list[Cell]] = [[w, s, spent] for w, stages in run.stage_seconds().items() for s, spent in stages.items()]
    return Table("time", "Where the time goes", ["worker", "stage", "seconds"], rows)


# ---------------------------------------------------------------------------------------------------------------- one run
def _single(run: History, target: Path, charts: Charts) -> str:
    return page(
        f"{run.label} – runnel",
        [
            _header(run),
            section("Learning", charts.html()),
            section("Evaluation tables", "".join(table.html() for table in _result_tables(run))),
            section("League", _league(run)),
            section("Conversations", *(table.html() for table in conversation_tables(run)), conversations_html(run)),
            section("Where the time goes", _time(run), predicted_rates(run).html()),
            section("Sample accounting", accounting([run])),
            section("Completions", _samples(run)),
            section("Messages", _events(run)),
            section("How to run it again", _origin(run)),
            section("Configuration", fold("resolved configuration", tree(run.config), opened=True) if run.config else ""),
            f"<footer>{text(run.folder.path)} · the numbers of every table and figure lie as CSV in "
            f"{text(csv_folder(target).name)}/ · written by runnel</footer>",
        ],
    )


def _header(run: History) -> str:
    seed = f"seed {run.info['seed']} · " if "seed" in run.info else ""
    facts = [_headline(run), *_facts(run)]
    return (
        f'<header><h1>{text(run.label)}<span class="status {GOOD.get(run.status, "warn")}">{text(run.status)}</span></h1>'
        f'<p class="soft">{text(seed)}{text(run.info.get("created", ""))}</p>'
        f'<div class="facts">{"".join(facts)}</div>{notices([*run.failures, *run.collapses], bad=True)}{notices(run.problems)}'
        f"{notices(imbalances(run), bad=True)}</header>"
    )


def _headline(run: History) -> str:
    """The last evaluation. If there is none, the last training return, labelled as such: it is no substitute."""
    if run.evals:
        row = run.evals[-1]
        return fact(short(row.get("mean")), _eval_words(row), lead=True)
    name = return_name(run)
    values = run.curve(name)[1]
    known = values[np.isfinite(values)]
    if not len(known):
        return fact("–", "no evaluation yet", lead=True)
    return fact(short(float(known[-1])), f"last training {name}; no evaluation yet", lead=True)


def _eval_words(row: Row) -> str:
    words = "evaluation"
    if is_number(row.get("low")) and is_number(row.get("high")):
        words += f", 95 % interval {short(row['low'])} to {short(row['high'])}"
    return words + (f", {row['num']:,} episodes" if is_number(row.get("num")) else "")


def _facts(run: History) -> list[str]:
    last = run.last
    facts = [fact(f"{last[key]:,}", label) for key, label in COUNTS if is_number(last.get(key)) and last[key]]
    if run.wall_s() is not None:
        facts.append(fact(seconds(run.wall_s()), "wall time"))
    train_s = run.end.get("time", {}).get("train_s")
    if is_number(train_s):
        facts.append(fact(seconds(train_s), "training"))
    for key, label in (("steps_per_s", "steps/s, median"), ("tokens_per_s", "tokens/s, median")):
        values = run.rate(key)[1]
        if len(values):
            facts.append(fact(short(round(float(np.nanmedian(values)))), label))
    return facts


def _time(run: History) -> str:
    workers = run.stage_seconds()
    longest = max((sum(stages.values()) for stages in workers.values()), default=0.0)
    idle = run.idle_shares()
    parts = [_worker_bar(worker, stages, longest, idle.get(worker)) for worker, stages in sorted(workers.items())]
    rest = {worker: f"waits {share:.0%}" for worker, share in sorted(idle.items()) if worker not in workers}
    return "".join(parts) + definitions(rest)


def _worker_bar(worker: str, stages: Mapping[str, float], longest: float, idle: float | None) -> str:
    total = sum(stages.values())
    bars, keys = [], []
    for i, (stage, spent) in enumerate(sorted(stages.items(), key=lambda item: -item[1])):
        style, width = f"background:var(--c{i % NUM_COLORS})", 100 * spent / max(longest, 1e-12)
        bars.append(f'<i style="{style};width:{width:.2f}%" title="{text(stage)} {spent:.2f} s"></i>')
        keys.append(f'<span><i style="{style}"></i>{text(stage)} {spent / max(total, 1e-12):.0%} · {_span(spent)}</span>')
    waiting = f'<br><span class="soft small">waits {idle:.0%}</span>' if idle is not None else ""
    return (
        f'<div class="worker chart"><div>{text(worker)}{waiting}</div><div class="stack">{"".join(bars)}</div>'
        f'<div class="keys">{"".join(keys)}</div></div>'
    )


def _span(spent: float) -> str:
    return f"{spent:.2g} s" if spent < 10 else seconds(spent)


def _samples(run: History) -> str:
    """Completions of the model: at the last evaluation, and the first and the last ones in training."""
    evaluated = [s for s in (run.evals[-1].get("samples", []) if run.evals else []) if _is_sample(s)]
    trained = [s for s in run.samples if _is_sample(s)]
    parts = []
    if evaluated:
        parts += ["<h3>At the last evaluation</h3>", *map(_sample, evaluated[: 2 * NUM_SAMPLES])]
    if trained:
        first, last = ("".join(map(_sample, some)) for some in (trained[:NUM_SAMPLES], trained[NUM_SAMPLES:][-NUM_SAMPLES:]))
        parts.append(fold(f"First in training ({len(trained):,} kept in samples.jsonl)", first))
        parts.append(fold("Last in training", last, opened=not evaluated))
    return "".join(parts)


def _is_sample(sample: object) -> bool:
    return isinstance(sample, Mapping) and "completion" in sample


def _sample(sample: Row) -> str:
    reward = sample.get("reward")
    shown = f'<span class="reward">reward {short(reward)}</span>' if is_number(reward) else ""
    version = f' <span class="soft small">version {text(sample["version"])}</span>' if "version" in sample else ""
    return (
        f'<div class="sample">{shown}<span class="soft small">prompt</span>{version}<pre>{text(sample.get("prompt", ""))}</pre>'
        f'<span class="soft small">completion</span><pre>{text(sample["completion"])}</pre></div>'
    )


def _events(run: History) -> str:
    if not run.events:
        return ""
    rows = []
    for row in run.events[-200:]:
        level = str(row.get("level", "info"))
        style = {"warning": "warn", "error": "bad"}.get(level, "soft")
        when = row.get("time", {}).get("wall_s")
        shown = f'<span class="{style}">{text("collapse" if row.get("what") == "collapse" else level)}</span>'
        rows.append([seconds(when) if is_number(when) else "–", shown, text(row.get("text", ""))])
    return html_table(["at", "level", "message"], rows)


def _origin(run: History) -> str:
    from rich.filesize import decimal

    git, made_with = as_table(run.info.get("git")), as_table(run.info.get("versions"))
    changes = " with uncommitted changes" if git.get("dirty") else ""
    state = f"{git['commit']}{changes}" if git.get("commit") else "not in a repository"
    items = {"seed": run.info.get("seed"), "git": state, "python": run.info.get("python"), "platform": run.info.get("platform")}
    versions = ", ".join(f"{k} {v}" for k, v in made_with.items())
    checkpoints = [[text(name), decimal(size)] for name, size in run.folder.checkpoint_sizes()]
    command, graph = run.info.get("command"), run.info.get("graph")
    return "".join(
        [
            f'<p><pre class="box">{text(command)}</pre></p>' if command else "",
            definitions({k: v for k, v in {**items, "versions": versions}.items() if v not in (None, "")}),
            f'<h3>Workers and streams</h3><pre class="box wide">{text(graph)}</pre>' if graph else "",
            f"<h3>Checkpoints</h3>{html_table(['name', 'size'], checkpoints, numbers=(1,))}" if checkpoints else "",
        ]
    )
