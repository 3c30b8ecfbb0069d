"""The charts of a report: which curves of one or several runs share a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runnel.eval.statistics import FEWEST_SEEDS
from runnel.report.page import fold
from runnel.report.plots import NUM_COLORS, Series, smoothed
from runnel.report.tables import Figure
from runnel.track.frame import RETURN_KEYS
from runnel.track.history import Curve, History, across, newest_per_seed

TITLES = {
    "kl": "KL to the behaviour policy",
    "entropy": "Entropy",
    "episode_length": "Episode length",
    "return": "Return",
    "ess": "Effective sample size (share)",
    "version_span": "Versions inside a sample, at most",
    "mismatch/kl": "Mismatch of engine and learner (KL)",
    "steps_per_s": "Steps/s",
    "tokens_per_s": "Tokens/s",
}
RATES = ("steps_per_s", "tokens_per_s")
LEADING = (*RETURN_KEYS, "kl", "entropy", "episode_length", "ess", "version_span", "mismatch/kl")
STALENESS = {
    "staleness/mean": "mean",
    "staleness/max": "max",
    "staleness/in_flight": "mean in flight",
    "staleness/in_queue": "mean in queue",
}
PER_RUN = ("seed", "seeds", "out", "name", "tags", "track", "sinks", "record", "trace", "control", "checkpoint", "stop_on")
MOST_TOLD = 12
"""Changes of settings that are listed below the large picture."""
MOST_FAINT = 30
"""With more runs than this, single runs are not drawn behind their mean: nobody could tell them apart."""
MEANS = "Means over seeds. Bands: their 95 % interval by Student's t, of at least 3 seeds, cut to the range of the lines."
By = Mapping[str, Sequence[History]]
"""Groups of runs, by label."""


def return_name(run: History) -> str:
    """The metric of a run that says how well it does during training."""
    names = run.metric_names()
    return next((key for key in RETURN_KEYS if key in names), RETURN_KEYS[0])


def by_label(runs: Sequence[History]) -> dict[str, list[History]]:
    """Groups of runs whose configurations differ only in seed and folder, by label. Two groups of one label also get a run's
    name."""
    found: dict[str, list[History]] = {}
    for run in runs:
        same = {key: value for key, value in run.config.items() if key not in PER_RUN}
        found.setdefault(run.label + json.dumps(same, sort_keys=True), []).append(run)
    labels = [members[0].label for members in found.values()]
    return {
        label if labels.count(label) == 1 else f"{label} ({members[0].name})": members
        for label, members in zip(labels, found.values(), strict=True)
    }


def axis_label(runs: Sequence[History]) -> str:
    """What the horizontal axis counts."""
    return "steps" if runs[0].axis == "steps" else "updates"


def score_figure(runs: Sequence[History], by: By | None = None) -> Figure:
    """Return and evaluation in one large picture."""
    name, note = return_name(runs[0]), ""
    if len(runs) == 1:
        series, title = _score_series(runs[0], name), name.capitalize()
    elif all(run.evals for run in runs):
        series, title = overlay(runs, lambda run: run.evaluation(), by=by, smooth=False), "Evaluation"
    else:
        series, title = overlay(runs, lambda run: run.curve(name), by=by), name.capitalize()
    if len(runs) > 1 and any(s.low is not None for s in series):
        note = MEANS
    return Figure("score", title, series, axis_label(runs), note=note)


@dataclass(frozen=True)
class Charts:
    """The pictures of a report: the large one, the small ones that are shown, and the others, which are folded away."""

    score: Figure
    first: Sequence[Figure]
    rest: Sequence[Figure]

    def html(self) -> str:
        """All pictures as HTML."""
        more = f'<div class="grid">{"".join(f.html(large=False) for f in self.rest)}</div>' if self.rest else ""
        shown = "".join(f.html(large=False) for f in self.first)
        return self.score.html() + (f'<div class="grid">{shown}</div>' if shown else "") + fold(f"{len(self.rest)} more", more)

    def csv_rows(self) -> list[list[str]]:
        """All pictures in one long table. Single runs behind their mean are listed only for the large picture."""
        small = [row for chart in (*self.first, *self.rest) for row in chart.csv_rows(faint=False)[1:]]
        return self.score.csv_rows() + small


def make_charts(runs: Sequence[History], by: By | None = None) -> Charts:
    """The charts of one or several runs. `by` gives the groups; default: those of `by_label`."""
    first, rest = _metric_figures(runs, by)
    score = score_figure(runs, by)
    if len(runs) == 1 and (changes := runs[0].changes):
        moments = [at for at, _ in changes]
        score, *first = (replace(f, moments=moments) for f in (score, *first))
        rest = [replace(f, moments=moments) for f in rest]
        told = "; ".join(f"{axis_label(runs)} {at:,.0f}: {text}" for at, text in changes[:MOST_TOLD])
        score = replace(score, note=f"Dashed: changes of settings. {told}{'; ...' if len(changes) > MOST_TOLD else ''}")
    return Charts(score, first, rest)


def _metric_figures(runs: Sequence[History], by: By | None) -> tuple[list[Figure], list[Figure]]:
    """First the losses, the leading metrics, staleness and rates; then all other metrics."""
    names = list(dict.fromkeys(name for run in runs for name in run.metric_names()))
    in_score = set(RETURN_KEYS) if len(runs) == 1 or not all(run.evals for run in runs) else set()
    losses = [n for n in names if n.startswith("loss")]
    leading = sorted((n for n in names if n in LEADING and n not in in_score), key=LEADING.index)
    rest = [n for n in names if n not in losses and n not in LEADING and n not in STALENESS]
    charts = [_metric_chart(runs, name, by) for name in [*losses, *leading]]
    if any(name in names for name in STALENESS):
        charts.append(_staleness_chart(runs, by))
    charts += [_metric_chart(runs, key, by) for key in RATES if any(len(run.rate(key)[0]) for run in runs)]
    return charts, [_metric_chart(runs, n, by) for n in rest]


def overlay(
    runs: Sequence[History], curve: Callable[[History], Curve], *, by: By | None = None, smooth: bool = True
) -> list[Series]:
    """A line for each group: a single run, or the mean over seeds with its interval, and each run faint behind it."""
    series = []
    for number, (label, members) in enumerate((by or by_label(runs)).items()):
        color = number % NUM_COLORS
        curves = [curve(run) for run in members]
        once = newest_per_seed(members)
        if len(members) == 1:
            series.append(Series(label, *curves[0], smooth=smooth, color=color))
            continue
        if len(runs) <= MOST_FAINT:
            curves = [(x, smoothed(y)) for x, y in curves] if smooth else curves
            series += [Series(run.name, *points, faint=True, color=color) for run, points in zip(members, curves, strict=True)]
        counted = [points for run, points in zip(members, curves, strict=True) if any(run is found for found in once)]
        x, mean, low, high = across(counted)
        name = f"{label}, mean of {len(once)}" if len(once) > 1 else label
        band = (low, high) if len(once) >= FEWEST_SEEDS else (None, None)
        series.append(Series(name, x, mean, low=band[0], high=band[1], color=color))
    return series


def _score_series(run: History, name: str) -> list[Series]:
    series = [Series(f"training {name}", *run.curve(name), smooth=True)]
    if run.evals:
        low, high = run.evaluation("low")[1], run.evaluation("high")[1]
        series.append(Series("evaluation, 95 % interval over episodes", *run.evaluation(), low=low, high=high, marks=True))
    return series


def _metric_chart(runs: Sequence[History], name: str, by: By | None) -> Figure:
    """A metric, or one of `RATES`."""

    def curve(run: History) -> Curve:
        return run.rate(name) if name in RATES else run.curve(name)

    title = TITLES.get(name, name)
    one = [Series(title if name in RATES else name, *curve(runs[0]), smooth=True)]
    return Figure(name, title, one if len(runs) == 1 else overlay(runs, curve, by=by), axis_label(runs))


def _staleness_chart(runs: Sequence[History], by: By | None) -> Figure:
    """The age of the training data in versions, also by where it arose if the run reports it. For several runs, only the
    largest."""
    if len(runs) == 1:
        known = [name for name in STALENESS if name in runs[0].metric_names()]
        series = [Series(STALENESS[name], *runs[0].curve(name)) for name in known]
        return Figure("staleness", "Staleness (versions)", series, axis_label(runs))
    series = overlay(runs, lambda run: run.curve("staleness/max"), by=by, smooth=False)
    return Figure("staleness", "Largest staleness (versions)", series, axis_label(runs))
