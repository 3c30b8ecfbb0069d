"""Reads a run back from its folder: metrics as columns, time by stage, and the mean of several runs with its interval."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.eval.statistics import mean_interval
from runnel.track.collapse import open_collapses
from runnel.track.folder import Row, RunFolder, Settings, read_rows
from runnel.track.status import failure_of, read_end, status_of

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Positions and values."""
Columns = dict[str, tuple[list[int], list[float]]]
"""By name: the numbers of the rows that have a value, and these values."""


@dataclass
class History:
    """All that a report needs of one run. Damaged files lead to sentences in `problems`, never to an exception."""

    folder: RunFolder
    config: Row
    info: Row
    updates: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    end: Row = field(default_factory=dict)
    samples: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    drawn_over: str = ""
    """The axis that the run shares with others in a picture; empty for its own axis."""

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def status(self) -> str:
        """One of `runnel.track.status.STATUSES`. The `end` row counts first: a run that writes its own report is still held."""
        word = str(self.end.get("status") or "")
        return word or status_of({}, held=self.folder.is_held(), changed=self.folder.changed())

    @property
    def failures(self) -> list[str]:
        """Why the run failed; empty for a run that did not."""
        why = failure_of(self.end, self.events)
        return [why] if why else []

    @property
    def collapses(self) -> list[str]:
        """The messages about collapses that are not over."""
        return [str(row.get("text", "")) for row in open_collapses(self.events)]

    @property
    def label(self) -> str:
        return run_label(self.info, self.folder)

    @property
    def axis(self) -> str:
        """The key of the horizontal axis: `steps` if the run counts them, else `version`."""
        counts = any(row.get("steps") for row in self.updates + self.evals)
        return self.drawn_over or ("steps" if counts else "version")

    @property
    def changes(self) -> list[tuple[float, str]]:
        """Changes of live settings: the position on the axis, and in words."""
        rows = [r for r in self.events if r.get("what") == "setting" and is_number(r.get("version"))]
        known = [r for r in self.updates if is_number(r.get("version")) and is_number(r.get(self.axis))]

        def place(version: float) -> float:
            return max((float(r[self.axis]) for r in known if r["version"] <= version), default=0.0)

        return [(place(r["version"]), f"{r.get('name')} = {r.get('value')!r}") for r in rows]

    @property
    def last(self) -> Row:
        return self.updates[-1] if self.updates else {}

    def curve(self, name: str) -> Curve:
        """The values of a metric over the axis."""
        at, values = self._columns.get(name, ([], []))
        y = np.array(values, dtype=np.float64)
        return self._positions[at], np.where(np.isfinite(y), y, np.nan)

    @cached_property
    def _columns(self) -> Columns:
        """All metrics, collected in one pass: a run may have 100,000 rows."""
        return _columns_of((row.get("metrics", {}) for row in self.updates), gaps=True)

    @cached_property
    def _positions(self) -> Floats:
        """The position of each update on the axis."""
        axis = self.axis
        return np.array([row.get(axis) or 0 for row in self.updates], dtype=np.float64)

    def rate(self, name: str) -> Curve:
        """A number of the `time` part, such as `steps_per_s`, over the axis."""
        points = [(row, row.get("time", {}).get(name)) for row in self.updates]
        return self._curve([(row, value) for row, value in points if is_number(value) and value > 0])

    def evaluation(self, name: str = "mean") -> Curve:
        return self._curve([(row, row.get(name)) for row in self.evals])

    def metric_names(self) -> list[str]:
        """All metrics that have at least one finite value, in order of appearance."""
        return [name for name, (_, values) in self._columns.items() if any(map(math.isfinite, values))]

    def stage_seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by worker and stage over the whole run (`trainer/update` is stage `update` of worker `trainer`)."""
        out: dict[str, dict[str, float]] = {}
        for key, (_, seconds) in _columns_of(row.get("time", {}).get("stages", {}) for row in self.updates).items():
            worker, _, stage = key.partition("/")
            out.setdefault(worker, {})[stage or "all"] = sum(seconds)
        return out

    def idle_shares(self) -> dict[str, float]:
        """The share of time that each worker waited over the whole run (`waiting_share`)."""
        wall = np.array([_number(row.get("time", {}).get("wall_s")) for row in self.updates])
        found = _columns_of(row.get("time", {}).get("idle", {}) for row in self.updates)
        return {w: waiting_share(wall, np.array(at, np.intp), np.array(shares)) for w, (at, shares) in found.items()}

    def streams(self) -> Row:
        """The last account of each stream."""
        return dict(as_table(self.end.get("streams") or self.last.get("streams")))

    def wall_s(self) -> float | None:
        """Wall time of the run in seconds, if its rows say it."""
        rows = [self.end] if self.end else self.updates[-1:] + self.evals[-1:]
        spent = [row.get("time", {}).get("wall_s") for row in rows]
        return max((float(s) for s in spent if is_number(s)), default=None)

    def _curve(self, points: Sequence[tuple[Row, object]]) -> Curve:
        axis = self.axis  # once: the property looks at every row
        x = np.array([row.get(axis) or 0 for row, _ in points], dtype=np.float64)
        y = np.array([value if is_number(value) else np.nan for _, value in points], dtype=np.float64)
        return x, y


def _columns_of(rows: Iterable[Row], *, gaps: bool = False) -> Columns:
    """The columns of a table that is given by rows. With `gaps`, a value that is no number becomes NaN; else it is left out."""
    found: Columns = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            if gaps or is_number(value):
                at, values = found.setdefault(str(name), ([], []))
                at.append(number)
                values.append(_number(value))
    return found


def waiting_share(wall: Floats, rows: NDArray[np.intp], shares: Floats) -> float:
    """The share of time that a worker waited, as reports and the board show it: the mean over rows, weighted by their duration.

    `wall` holds the wall times of all rows `[n]`, `rows` the indices of those that mention the worker, `shares` their values.

    >>> waiting_share(np.array([1.0, 2.0, 10.0]), np.array([0, 1, 2]), np.array([1.0, 1.0, 0.0]))
    0.2
    """
    spans = np.clip(np.diff(wall, prepend=0.0), 0.0, None)[rows]
    spans = np.where(np.isfinite(spans), spans, 0.0)
    return float((shares * spans).sum() / spans.sum()) if spans.sum() > 0 else float(shares.mean())


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number, and not a bool."""
    # compared with the largest float, since `math.isfinite` raises for an integer beyond it
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(value: object) -> float:
    """The number, or NaN for what is none."""
    if type(value) is float:  # nearly always: a long run has millions
        return value
    return float(value) if is_number(value) else math.nan


def load_history(path: Path | str) -> History:
    """Read a run folder. Raises an error only if the folder holds no run."""
    folder = RunFolder.open(path)
    problems: list[str] = []
    history = History(folder, _read(folder.read_config, problems), _read(folder.read_run_info, problems), problems=problems)
    rows, damage = folder.read_rows()
    problems.extend(damage)
    for row in rows:
        if not is_sound(row):
            problems.append(f"metrics.jsonl: a row of kind {row.get('kind')!r} has the wrong shape; skipped")
            continue
        kind = row["kind"]
        if kind == "end":
            history.end = read_end(row, str(history.events[-1].get("text", "")) if history.events else "")
        else:
            {"update": history.updates, "eval": history.evals, "event": history.events}[kind].append(row)
            history.end = history.end if kind == "event" else {}  # an update behind an end: the run was resumed
    if folder.samples.is_symlink() or folder.samples.exists():
        history.samples, damage = read_rows(folder.samples)
        problems.extend(damage)
    return history


def _read(reader: Callable[[], Row], problems: list[str]) -> Row:
    try:
        return reader()
    except ConfigError as error:
        problems.append(str(error))
        return {}


def is_sound(row: Row) -> bool:
    """Whether the parts of a row that reports read have the right types."""
    time = row.get("time", {})
    tables = [row.get("metrics", {}), row.get("streams", {}), time]
    tables += (
        [time.get(part, {}) for part in ("stages", "idle", "ranks", "system", "conversations")]
        if isinstance(time, dict)
        else []
    )
    gpus = as_table(as_table(time).get("system")).get("gpus")
    counts = [row.get("steps") or 0, row.get("version") or 0, row.get("tokens") or 0]
    scores = [row.get(name) for name in ("mean", "low", "high", "num")] if row.get("kind") == "eval" else []
    return (
        row.get("kind") in ("update", "eval", "event", "end")
        and all(isinstance(table, dict) for table in tables)
        and all(isinstance(gpu, dict) for gpu in (gpus if isinstance(gpus, list) else []))
        and all(is_number(count) for count in counts)
        and all(score is None or type(score) in (int, float) for score in scores)
        and isinstance(row.get("samples", []), list)
    )


def as_table(value: object) -> Settings:
    """A part of a file that should be a table; empty if it is not, since anyone may have written the file."""
    return value if isinstance(value, Mapping) else {}


def run_label(info: Row, folder: RunFolder) -> str:
    """The recipe and the environment or task, else the folder's name. Runs that differ only in their seed share it."""
    parts = [own_name(str(info.get(key) or "")) for key in ("recipe", "subject")]
    return " ".join(dict.fromkeys(part for part in parts if part)) or folder.path.resolve().name


def tags_in(config: Settings) -> list[str]:
    """The tags that a run's config gives."""
    tags = config.get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def share_axis(runs: Sequence[History]) -> None:
    """Give all runs one axis: steps if each run counts them, else updates."""
    if len({run.axis for run in runs}) > 1:
        for run in runs:
            run.drawn_over = "version"
            run.__dict__.pop("_positions", None)  # drop the cached property: it was computed for another axis


def newest_per_seed(runs: Sequence[History]) -> list[History]:
    """The newest run of each seed: a second run of the same seed is no second observation."""
    kept: dict[object, History] = {}
    for run in sorted(runs, key=lambda run: (str(run.info.get("created", "")), run.name)):
        seed = run.info.get("seed", run.config.get("seed"))
        kept[run.name if seed is None else ("seed", str(seed))] = run
    return [run for run in runs if any(run is found for found in kept.values())]


def across(curves: Sequence[Curve], num_points: int = 200) -> tuple[Floats, Floats, Floats, Floats]:
    """The mean of several curves with its 95 % t-interval, on a common grid: positions, mean, low and high.

    The grid ends where the shortest curve ends, so that every run counts at every position.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    known = [(x, y) for x, y in known if len(x)]
    if not known:
        empty = np.zeros(0)
        return empty, empty, empty, empty
    start, end = max(float(x.min()) for x, _ in known), min(float(x.max()) for x, _ in known)
    grid = np.linspace(start, end, num_points) if end > start else np.array([end])
    rows = []
    for x, y in known:
        order = np.argsort(x, kind="stable")
        rows.append(np.interp(grid, x[order], y[order]))
    mean, half = mean_interval(np.stack(rows))
    return grid, mean, mean - half, mean + half
