"""report.html: everything about one run, or several side by side, in one file that opens without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.records import Accounting
from runnel.track.curves import axis_label, groups, metric_grid, return_name, score_figure
from runnel.track.history import History, is_number, load_history, mean_interval
from runnel.track.numbers import num_bytes, seconds, short
from runnel.track.page import definitions, fact, fold, notices, page, section, table, text, tree
from runnel.track.plots import NUM_COLORS

GOOD = {"finished": "good", "stopped": "good", "failed": "bad", "interrupted": "warn", "unfinished": "warn"}
NUM_SAMPLES = 6


def write_report(run_dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one run (into its folder) or of several (beside the first), and return its path."""
    if not run_dirs:
        raise ConfigError("run", [], "give at least one run folder")
    runs = [load_history(path) for path in run_dirs]
    first = runs[0].folder
    default = first.report if len(runs) == 1 else first.path.resolve().parent / "comparison.html"
    target = Path(out) if out is not None else default
    html = _single(runs[0]) if len(runs) == 1 else _several(runs, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".new")
    temporary.write_text(html, encoding="utf-8", errors="replace")
    temporary.replace(target)
    return target


# ---------------------------------------------------------------------------------------------------------------- one run
def _single(run: History) -> str:
    return page(
        f"{run.label} – runnel",
        [
            _header(run),
            section("Learning", score_figure([run]), metric_grid([run])),
            section("Where the time goes", _time(run)),
            section("Sample accounting", _accounting([run])),
            section("Completions", _samples(run)),
            section("Messages", _events(run)),
            section("How to run it again", _origin(run)),
            section("Configuration", fold("resolved configuration", tree(run.config), opened=True) if run.config else ""),
            f"<footer>{text(run.folder.path)} · written by runnel</footer>",
        ],
    )


def _header(run: History) -> str:
    seed = f"seed {run.info['seed']} · " if "seed" in run.info else ""
    facts = [_headline(run), *_facts(run)]
    return (
        f'<header><h1>{text(run.label)}<span class="status {GOOD.get(run.status, "warn")}">{text(run.status)}</span></h1>'
        f'<p class="soft">{text(seed)}{text(run.info.get("created", ""))}</p>'
        f'<div class="facts">{"".join(facts)}</div>{notices(run.problems)}{notices(_imbalances(run), bad=True)}</header>'
    )


def _headline(run: History) -> str:
    """The last evaluation; training returns are no substitute, and are labelled as what they are."""
    if run.evals:
        row = run.evals[-1]
        return fact(short(row.get("mean")), _eval_words(row), lead=True)
    name = return_name(run)
    values = run.curve(name)[1]
    known = values[np.isfinite(values)]
    if not len(known):
        return fact("–", "no evaluation yet", lead=True)
    return fact(short(float(known[-1])), f"last training {name}; no evaluation yet", lead=True)


def _eval_words(row: Mapping[str, Any]) -> str:
    words = "evaluation"
    if is_number(row.get("low")) and is_number(row.get("high")):
        words += f", 95 % interval {short(row['low'])} to {short(row['high'])}"
    return words + (f", {row['num']:,} episodes" if is_number(row.get("num")) else "")


def _facts(run: History) -> list[str]:
    last = run.last
    facts = [fact(f"{last[key]:,}", label) for key, label in _COUNTS if is_number(last.get(key)) and last[key]]
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


_COUNTS = (("steps", "environment steps"), ("tokens", "tokens"), ("version", "updates"))


def _time(run: History) -> str:
    workers = run.stage_seconds()
    longest = max((sum(stages.values()) for stages in workers.values()), default=0.0)
    idle = run.idle_shares()
    parts = [_worker_bar(worker, stages, longest, idle.get(worker)) for worker, stages in sorted(workers.items())]
    rest = {worker: f"{share:.0%} idle" for worker, share in sorted(idle.items()) if worker not in workers}
    return "".join(parts) + definitions(rest)


def _worker_bar(worker: str, stages: Mapping[str, float], longest: float, idle: float | None) -> str:
    total = sum(stages.values())
    bars, keys = [], []
    for i, (stage, spent) in enumerate(sorted(stages.items(), key=lambda item: -item[1])):
        style = f"background:var(--c{i % NUM_COLORS})"
        bars.append(
            f'<i style="{style};width:{100 * spent / max(longest, 1e-12):.2f}%" title="{text(stage)} {spent:.2f} s"></i>'
        )
        keys.append(f'<span><i style="{style}"></i>{text(stage)} {spent / max(total, 1e-12):.0%} · {_span(spent)}</span>')
    waiting = f'<br><span class="soft small">idle {idle:.0%}</span>' if idle is not None else ""
    return (
        f'<div class="worker chart"><div>{text(worker)}{waiting}</div><div class="stack">{"".join(bars)}</div>'
        f'<div class="keys">{"".join(keys)}</div></div>'
    )


def _span(spent: float) -> str:
    return f"{spent:.2g} s" if spent < 10 else seconds(spent)


def _accounting(runs: Sequence[History]) -> str:
    rows = []
    for run in runs:
        where = [] if len(runs) == 1 else [text(run.name)]
        rows += [[*where, text(name), *_accounting_cells(counts)] for name, counts in _streams(run).items()]
    if not rows:
        return ""
    first = ["stream"] if len(runs) == 1 else ["run", "stream"]
    head = [*first, "dispatched", "= consumed", "+ dropped", "+ cancelled", "+ in flight", "steps or tokens", "adds up"]
    return table(head, rows, numbers=range(len(first), len(head) - 1))


def _streams(run: History) -> dict[str, Accounting]:
    return {str(name): _counts(found) for name, found in run.streams().items() if isinstance(found, Mapping)}


def _counts(found: Mapping[str, Any]) -> Accounting:
    numbers = {
        key: int(found[key]) for key in ("dispatched", "consumed", "in_flight", "queued", "steps") if is_number(found.get(key))
    }
    return Accounting(**numbers, dropped=_reasons(found.get("dropped")), cancelled=_reasons(found.get("cancelled")))


def _imbalances(run: History) -> list[str]:
    return [
        f"stream {name} does not add up: {counts.balance:,} rows are unaccounted for"
        for name, counts in _streams(run).items()
        if counts.balance != 0
    ]


def _accounting_cells(known: Accounting) -> list[str]:
    if known.balance == 0:
        verdict = '<span class="good">✓ yes</span>'
    else:
        verdict = f'<span class="bad">✗ {known.balance:,} rows unaccounted for</span>'
    lost = [_reason_cell(known.dropped), _reason_cell(known.cancelled)]
    queued = f'<br><span class="soft small">in queue {known.queued:,}</span>' if known.queued else ""
    flying = f"{known.in_flight:,}{queued}"
    return [f"{known.dispatched:,}", f"{known.consumed:,}", *lost, flying, f"{known.steps:,}", verdict]


def _reasons(found: Any) -> dict[str, int]:
    return {str(k): int(v) for k, v in found.items() if is_number(v)} if isinstance(found, Mapping) else {}


def _reason_cell(reasons: Mapping[str, int]) -> str:
    detail = "".join(f'<br><span class="soft small">{text(k)} {v:,}</span>' for k, v in sorted(reasons.items()))
    return f"{sum(reasons.values()):,}{detail}"


def _samples(run: History) -> str:
    """What the model wrote: at the last evaluation, and over training from first to last."""
    evaluated = [s for s in (run.evals[-1].get("samples", []) if run.evals else []) if _is_sample(s)]
    trained = [s for s in run.samples if _is_sample(s)]
    parts = []
    if evaluated:
        parts += ["<h3>At the last evaluation</h3>", *map(_sample, evaluated[: 2 * NUM_SAMPLES])]
    if trained:
        parts.append(
            fold(f"First in training ({len(trained):,} kept in samples.jsonl)", "".join(map(_sample, trained[:NUM_SAMPLES])))
        )
        parts.append(
            fold("Last in training", "".join(map(_sample, trained[NUM_SAMPLES:][-NUM_SAMPLES:])), opened=not evaluated)
        )
    return "".join(parts)


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, Mapping) and "completion" in sample


def _sample(sample: Mapping[str, Any]) -> str:
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
        rows.append(
            [
                seconds(when) if is_number(when) else "–",
                f'<span class="{style}">{text(level)}</span>',
                text(row.get("text", "")),
            ]
        )
    return table(["at", "level", "message"], rows)


def _origin(run: History) -> str:
    git = run.info.get("git") or {}
    state = (
        f"{git['commit']}{' with uncommitted changes' if git.get('dirty') else ''}"
        if git.get("commit")
        else "not in a repository"
    )
    items = {"seed": run.info.get("seed"), "git": state, "python": run.info.get("python"), "platform": run.info.get("platform")}
    versions = ", ".join(f"{k} {v}" for k, v in (run.info.get("versions") or {}).items())
    checkpoints = [[text(name), num_bytes(size)] for name, size in run.folder.checkpoint_sizes()]
    command, graph = run.info.get("command"), run.info.get("graph")
    return "".join(
        [
            f'<p><pre class="box">{text(command)}</pre></p>' if command else "",
            definitions({k: v for k, v in {**items, "versions": versions}.items() if v not in (None, "")}),
            f'<h3>Workers and streams</h3><pre class="box wide">{text(graph)}</pre>' if graph else "",
            f"<h3>Checkpoints</h3>{table(['name', 'size'], checkpoints, numbers=(1,))}" if checkpoints else "",
        ]
    )


# ------------------------------------------------------------------------------------------------------------ several runs
def _several(runs: Sequence[History], target: Path) -> str:
    by_label = groups(runs)
    title = next(iter(by_label)) if len(by_label) == 1 else "Comparison"
    problems = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    wrong = [f"{run.name}: {problem}" for run in runs for problem in _imbalances(run)]
    facts = [_group_fact(label, members, lead=i == 0) for i, (label, members) in enumerate(by_label.items())]
    return page(
        f"{title} – runnel",
        [
            f'<header><h1>{text(title)}</h1><p class="soft">{len(runs)} runs</p>'
            f'<div class="facts">{"".join(facts)}</div>{notices(problems)}{notices(wrong, bad=True)}</header>',
            section("Learning", score_figure(runs), metric_grid(runs)),
            section("Runs", _run_table(runs, target)),
            section("Sample accounting", _accounting(runs)),
            section("Configurations", *(fold(run.name, tree(run.config)) for run in runs)),
            "<footer>written by runnel</footer>",
        ],
    )


def _group_fact(label: str, members: Sequence[History], *, lead: bool) -> str:
    finals = np.array([run.evals[-1]["mean"] for run in members if run.evals and is_number(run.evals[-1].get("mean"))])
    if not len(finals):
        return fact("–", f"{label}: no evaluation yet", lead=lead)
    mean, half = mean_interval(finals)
    spread = f"95 % interval {short(float(mean - half))} to {short(float(mean + half))}"
    words = f", mean over {len(finals)} runs, {spread}" if len(finals) > 1 else ""
    return fact(short(float(mean)), f"{label}: last evaluation{words}", lead=lead)


def _run_table(runs: Sequence[History], target: Path) -> str:
    rows = []
    for run in runs:
        row = run.evals[-1] if run.evals else {}
        interval = (
            f"{short(row['low'])} to {short(row['high'])}" if is_number(row.get("low")) and is_number(row.get("high")) else "–"
        )
        rates = run.rate("steps_per_s")[1] if run.axis == "steps" else run.rate("tokens_per_s")[1]
        rows.append(
            [
                _link(run, target),
                f'<span class="{GOOD.get(run.status, "warn")}">{text(run.status)}</span>',
                text(run.info.get("seed", "–")),
                short(row.get("mean")),
                interval,
                f"{run.last.get(run.axis) or 0:,}",
                seconds(run.wall_s()),
                short(round(float(np.nanmedian(rates)))) if len(rates) else "–",
            ]
        )
    head = ["run", "status", "seed", "evaluation", "95 % interval", axis_label(runs), "wall time", "per second"]
    return table(head, rows, numbers=(2, 3, 4, 5, 6, 7))


def _link(run: History, target: Path) -> str:
    if not run.folder.report.is_file():
        return text(run.name)
    path = Path(os.path.relpath(run.folder.report.resolve(), target.resolve().parent)).as_posix()
    return f'<a href="{text(path)}">{text(run.name)}</a>'
