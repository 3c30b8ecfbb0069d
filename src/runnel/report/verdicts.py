"""Compares groups of runs: scores by task and seed, aggregates, curves, and a verdict on every pair.

`runnel.eval` computes the numbers (aggregates, profiles, compare). This file takes the scores from runs, and puts the results
into tables and figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from runnel.core.errors import ConfigError
from runnel.eval.aggregates import aggregate, plain_means
from runnel.eval.comparisons import Comparison, compare_all
from runnel.eval.profiles import performance_profile
from runnel.eval.reference import Range, find_ranges, normalised
from runnel.eval.statistics import FEW_SEEDS, Array, few_seeds, iqm, resamples
from runnel.report.budgets import short_of, unequal
from runnel.report.collect import Collected, few, seed_of, task_of
from runnel.report.conversations import group_table
from runnel.report.curves import return_name
from runnel.report.efficiency import efficiency
from runnel.report.sentences import sentence
from runnel.report.tables import BANDS, Cell, Figure, Table, as_series
from runnel.track.evals import read_evals
from runnel.track.history import History, is_number
from runnel.track.numbers import short

How = Literal["last", "eval", "mean", "train"]
HOWS: dict[str, str] = {
    "last": "the last evaluation of the run",
    "eval": "the last `runnel eval` of the run",
    "mean": "the mean of all evaluations of the run, which rewards learning early",
    "train": "the mean training return of the last tenth of the run",
}
NUM_THRESHOLDS = 100
Ranges = Mapping[str, Range]
"""The range of each task whose scores are normalised."""


@dataclass
class Verdicts:
    """The result of a comparison over seeds: sentences, notices, tables and figures."""

    names: list[str]
    tasks: list[str]
    unit: str
    sentences: list[str]
    notices: list[str]
    tables: list[Table]
    figures: list[Figure]
    comparisons: dict[tuple[str, str], Comparison]
    """By the names of both groups."""
    others: Sequence[Table] = ()
    """What is not about scores: how conversations went, if there were any."""


@dataclass(frozen=True)
class Scored:
    """The scores of one group: for each task its runs, and their scores in the same order."""

    name: str
    runs: Mapping[str, Sequence[History]]
    raw: Mapping[str, Array]

    def scaled(self, tasks: Iterable[str], ranges: Ranges) -> list[Array]:
        """The scores on some tasks as they are compared."""
        return [normalised(self.raw[task], ranges.get(task)) for task in tasks]


def make_verdicts(
    collected: Collected,
    *,
    scores: How = "last",
    normalise: str | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Verdicts:
    """Compare the groups. With `normalise` None, scores of several tasks are normalised, and those of a single task are not."""
    if scores not in HOWS:
        raise ConfigError("scores", scores, f"use one of {', '.join(HOWS)}")
    notices = list(collected.notices)
    groups = [_scored(group.name, group.by_task(), scores, notices) for group in collected.groups]
    groups = [group for group in groups if group.raw]
    if not groups:
        other = "choose another by --scores, or train with --eval.episodes above 0"
        fix = "measure them first: runnel eval RUN [RUN ...]" if scores == "eval" else other
        raise ConfigError("scores", scores, f"no run has a score by {HOWS[scores]}; {fix}")
    tasks, every = _shared(groups), sorted({task for group in groups for task in group.raw})
    notices += _task_notices(groups, tasks)
    known = find_ranges(every, normalise or "auto", ranges)
    used, unit = _choose_ranges(groups, tasks, known, normalise, notices)
    notices += _seed_notices(groups)
    ended_early = [text for group in groups for runs in group.runs.values() for text in short_of(runs)]
    notices += [f"These runs did not spend their budget: {few(ended_early)}."] if ended_early else []
    found = _comparisons(groups, used)
    pairs = {(groups[i].name, groups[j].name): c for (i, j), c in found.items()}
    aggregates = _aggregates(groups, used, known, tasks, unit)
    curves = efficiency([(g.name, {t: g.runs[t] for t in (tasks or g.runs)}) for g in groups], used, unit)
    talks = group_table({group.name: group.runs for group in collected.groups})
    return Verdicts(
        names=[g.name for g in groups],
        tasks=tasks or every,
        unit=unit,
        sentences=_sentences(groups, used, found, unit),
        notices=notices,
        tables=[aggregates, _pairs(pairs), _by_task(groups), _every_score(groups, used)],
        figures=[*([curves] if curves else []), _profile(groups, used, tasks, unit)],
        comparisons=pairs,
        others=[talks] if talks.rows else [],
    )


def score_of(run: History, how: How) -> float | None:
    """The score of a run; None if it has no finite one."""
    if how == "eval":
        rows, _ = read_evals(run.folder.path)
        return float(rows[-1]["mean"]) if rows and is_number(rows[-1].get("mean")) else None
    if how == "train":
        values = run.curve(return_name(run))[1]
        values = values[-max(1, len(values) // 10) :]
    else:
        values = run.evaluation()[1]
        values = values[-1:] if how == "last" else values[np.isfinite(values)]
    return float(values.mean()) if len(values) and np.isfinite(values).all() else None


def _scored(name: str, by_task: Mapping[str, Sequence[History]], how: How, notices: list[str]) -> Scored:
    runs: dict[str, list[History]] = {}
    raw: dict[str, list[float]] = {}
    without = []
    for task, members in by_task.items():
        for run in members:
            score = score_of(run, how)
            if score is None:
                without.append(run.name)
            else:
                runs.setdefault(task, []).append(run)
                raw.setdefault(task, []).append(score)
    if without:
        notices.append(f"{name}: without a finite score by {HOWS[how]}, and left out: {few(without)}.")
    return Scored(name, runs, {task: np.array(values) for task, values in raw.items()})


def _choose_ranges(
    groups: Sequence[Scored], shared: Sequence[str], known: dict[str, Range], normalise: str | None, notices: list[str]
) -> tuple[Ranges, str]:
    """The ranges by which scores are normalised, and the name of the result."""
    tasks = list(shared) or sorted({task for group in groups for task in group.raw})
    missing = [task for task in tasks if task not in known]
    if not missing and (len(tasks) > 1 or normalise not in (None, "none")):
        return known, "normalised score"
    if len(tasks) == 1:
        if normalise not in (None, "none", "auto"):
            raise ConfigError("normalise", normalise, f"it does not know {few(missing)}; add --range TASK=LOW:HIGH")
        return {}, "return"
    if normalise == "none":
        notices.append("Scores of tasks are averaged as they are (--normalise none): the task with the largest weighs most.")
        return {}, "return"
    if normalise not in (None, "auto"):
        raise ConfigError("normalise", normalise, f"it does not know {few(missing)}; add --range TASK=LOW:HIGH for them")
    notices.append(
        f"No table knows {few(missing)}, so scores of each task are scaled by the lowest and highest seen here (0 and 1); such "
        "numbers mean nothing outside this comparison. --range TASK=LOW:HIGH sets what 0 and 1 stand for."
    )
    return {task: _seen(groups, task) for task in tasks}, "score between the lowest and highest seen"


def _seen(groups: Sequence[Scored], task: str) -> Range:
    values = np.concatenate([group.raw[task] for group in groups if task in group.raw])
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low, low + 1.0)


def _shared(groups: Sequence[Scored]) -> list[str]:
    """The tasks that all groups have scores on."""
    return [task for task in groups[0].raw if all(task in group.raw for group in groups)]


def _task_notices(groups: Sequence[Scored], tasks: Sequence[str]) -> list[str]:
    if not tasks:
        has = "; ".join(f"{group.name}: {few(list(group.raw))}" for group in groups)
        return [f"There is no task that all groups were trained on ({has}); each is shown on its own tasks."]
    lost = sorted({task for group in groups for task in group.raw} - set(tasks))
    return [f"Not every group was trained on {few(lost)}; aggregates are over {few(list(tasks))}."] if lost else []


def _seed_notices(groups: Sequence[Scored]) -> list[str]:
    notices = []
    for group in groups:
        counts = [len(values) for values in group.raw.values()]
        if min(counts) == 1:
            notices.append(f"{group.name} has only one seed: it has no interval, and nothing can be decided. Run at least 4.")
        elif min(counts) < FEW_SEEDS:
            narrow = "bootstrap intervals (IQM, differences, bands) are too narrow"
            if not resamples(counts):
                narrow = "no bootstrap interval (IQM, differences, bands) is shown: it would be their minimum and maximum"
            notices.append(f"{group.name} has {min(counts)} seeds, {few_seeds(min(counts))}; {narrow}.")
        if min(counts) != max(counts):
            span = f"{min(counts)} to {max(counts)}"
            notices.append(f"{group.name} has {span} seeds a task; a task with more weighs more in the IQM.")
    return notices


def _comparisons(groups: Sequence[Scored], ranges: Ranges) -> dict[tuple[int, int], Comparison]:
    """Compare every pair on the tasks that both have. If all groups share tasks, p-values are corrected for all pairs
    together."""
    if everyone := _shared(groups):
        return compare_all([group.scaled(everyone, ranges) for group in groups])
    found: dict[tuple[int, int], Comparison] = {}
    for (i, first), (j, second) in combinations(enumerate(groups), 2):
        if shared := _shared([first, second]):
            found[i, j] = compare_all([first.scaled(shared, ranges), second.scaled(shared, ranges)])[0, 1]
    return found


def _sentences(groups: Sequence[Scored], ranges: Ranges, found: Mapping[tuple[int, int], Comparison], unit: str) -> list[str]:
    lines = [_alone(groups[0], ranges, unit)] if len(groups) == 1 else []
    for (i, first), (j, second) in combinations(enumerate(groups), 2):
        shared = _shared([first, second])
        if not shared:
            lines.append(f"{first.name} and {second.name} cannot be compared: no task has runs of both.")
            continue
        ends = [float(iqm(np.concatenate(group.scaled(shared, ranges)))) for group in (first, second)]
        said = sentence(first.name, second.name, found[i, j], ends=(ends[0], ends[1]), unit=unit, num_tasks=len(shared))
        lines.append(" ".join(filter(None, [said, unequal(first.name, second.name, (first.runs, second.runs))])))
    return lines


def _alone(group: Scored, ranges: Ranges, unit: str) -> str:
    """The sentence about a single group."""
    scores = group.scaled(group.raw, ranges)
    found, num = aggregate(scores, ["iqm"])["iqm"], sum(map(len, scores))
    sure = f" (95 % interval {short(found.low)} to {short(found.high)})" if min(map(len, scores)) > 1 else ""
    return (
        f"{group.name}: IQM of {unit} {short(found.value)}{sure} over {num} runs; there is no second group to compare it with."
    )


def _aggregates(groups: Sequence[Scored], ranges: Ranges, known: Mapping[str, Range], tasks: Sequence[str], unit: str) -> Table:
    rows: list[list[Cell]] = []
    gap = all(task in known for group in groups for task in (tasks or group.raw))
    for group in groups:
        own = list(tasks or group.raw)
        found = aggregate(group.scaled(own, ranges), ["iqm", "median" if len(own) > 1 else "run_median", "mean"])
        if gap:
            found |= aggregate(group.scaled(own, known), ["optimality_gap"])
        counts = [len(group.raw[task]) for task in own]
        sure = found if resamples(counts) else plain_means(group.scaled(own, ranges))
        cells = [interval if name in sure else interval.value for name, interval in found.items()]
        rows.append([group.name, len(own), sum(counts), *cells])
    head = ["group", "tasks", "runs", "IQM", "median", "mean", *(["optimality gap"] if gap else [])]
    note = f"{unit.capitalize()}; in brackets the 95 % interval: of a stratified bootstrap over seeds"
    note += "." if len(tasks) > 1 else ", for a mean that of Student's t."
    note += " Median: over tasks, of their means." if len(tasks) > 1 else ""
    note += " Optimality gap: how far normalised scores stay below 1, less is better." if gap else ""
    return Table("aggregates", "Over all tasks and seeds", head, rows, note)


def _pairs(found: Mapping[tuple[str, str], Comparison]) -> Table:
    rows: list[list[Cell]] = []
    for (first, second), c in found.items():
        both = (c.difference, c.probability)
        cells: list[Cell] = [i if c.has_intervals else i.value for i in both]
        rows.append([first, second, *cells, c.p_value, "yes" if c.decided else "no", c.seeds_needed])
    head = ["first", "second", "difference of IQM", "probability of improvement", "p", "decided", "seeds needed"]
    corrected = ", corrected by Holm for all pairs" if len(rows) > 1 else ""
    note = f"First less second. p: rank test over runs, within tasks{corrected}."
    return Table("comparisons", "Pairs", head, rows, note)


def _by_task(groups: Sequence[Scored]) -> Table:
    rows: list[list[Cell]] = []
    for task in sorted({task for group in groups for task in group.raw}):
        for group in groups:
            if task in group.raw:
                values = group.raw[task]
                found = aggregate([values], ["mean", "iqm"])
                cells: list[Cell] = [found["mean"] if len(values) > 1 else found["mean"].value, found["iqm"].value]
                rows.append([task, group.name, len(values), *cells, float(values.min()), float(values.max())])
    head = ["task", "group", "seeds", "mean", "IQM", "lowest", "highest"]
    note = "Returns as they are; the 95 % interval is that of the mean over seeds (Student's t)."
    return Table("tasks", "Task by task", head, rows, note)


def _every_score(groups: Sequence[Scored], ranges: Ranges) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        for task, runs in group.runs.items():
            (scores,) = group.scaled([task], ranges)
            for run, raw, score in zip(runs, group.raw[task].tolist(), scores.tolist(), strict=True):
                rows.append([group.name, task_of(run), seed_of(run), run.name, raw, *([score] if ranges else [])])
    head = ["group", "task", "seed", "run", "return", *(["score"] if ranges else [])]
    return Table("scores", "Every run", head, rows)


def _profile(groups: Sequence[Scored], ranges: Ranges, tasks: Sequence[str], unit: str) -> Figure:
    own = [group.scaled(tasks or group.raw, ranges) for group in groups]
    values = np.concatenate([row for rows in own for row in rows])
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.5
    at = np.linspace(low - margin, high + margin, NUM_THRESHOLDS)
    series = []
    for group, rows in zip(groups, own, strict=True):
        series.append(as_series(group.name, performance_profile(rows, at), rows))
    note = f"For each score the share of runs above it. {BANDS} A line above another everywhere is better throughout."
    return Figure("profile", "Performance profile", series, unit, "share of runs above", note)
