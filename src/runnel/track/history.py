"""A run read back from its folder: metrics as columns, time by stage, and many runs as one mean with an interval."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.eval.statistics import mean_interval
from runnel.track.collapse import told
from runnel.track.folder import Row, RunFolder, read_rows

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Positions and values."""


@dataclass
class History:
    """Everything that a report says about one run. Damage is in `problems`, never an exception."""

    folder: RunFolder
    config: dict[str, Any]
    info: dict[str, Any]
    updates: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    end: Row = field(default_factory=dict)
    samples: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def status(self) -> str:
        """How it ended; `unfinished` is still running, or killed so that nobody could write the end."""
        return str(self.end.get("status", "unfinished"))

    @property
    def collapses(self) -> list[str]:
        """What was told of a collapse that is not over."""
        return [str(row.get("text", "")) for row in told(self.events)]

    @property
    def label(self) -> str:
        """What was trained on what; runs that differ only in their seed share it."""
        parts = [str(self.info.get(key) or "") for key in ("recipe", "subject")]
        return " ".join(part for part in parts if part) or self.name

    @property
    def axis(self) -> str:
        """The key of the horizontal axis: steps where the run counts them, else its version."""
        return "steps" if any(row.get("steps") for row in self.updates + self.evals) else "version"

    @property
    def last(self) -> Row:
        return self.updates[-1] if self.updates else {}

    def curve(self, name: str) -> Curve:
        """A metric over the axis."""
        at, values = self._columns.get(name, ([], []))
        y = np.array(values, dtype=np.float64)
        return self._positions[at], np.where(np.isfinite(y), y, np.nan)

    @cached_property
    def _columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """Each metric: the updates that have it, and its values there, NaN for what is no number. One pass over a long run."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for number, row in enumerate(self.updates):
            for name, value in row.get("metrics", {}).items():
                at, values = found.setdefault(str(name), ([], []))
                at.append(number)
                values.append(_number(value))
        return found

    @cached_property
    def _positions(self) -> Floats:
        """Where on the axis each update is."""
        axis = self.axis
        return np.array([row.get(axis) or 0 for row in self.updates], dtype=np.float64)

    def rate(self, name: str) -> Curve:
        """A number of the `time` part over the axis (`steps_per_s`)."""
        points = [(row, row.get("time", {}).get(name)) for row in self.updates]
        return self._curve([(row, value) for row, value in points if is_number(value) and value > 0])

    def evaluation(self, name: str = "mean") -> Curve:
        return self._curve([(row, row.get(name)) for row in self.evals])

    def metric_names(self) -> list[str]:
        """Every metric that an update reported as a number, in order of appearance."""
        return [name for name, (_, values) in self._columns.items() if any(map(math.isfinite, values))]

    def stage_seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by worker and stage over the whole run (`trainer/update` is stage `update` of worker `trainer`)."""
        out: dict[str, dict[str, float]] = {}
        for row in self.updates:
            for key, spent in row.get("time", {}).get("stages", {}).items():
                if is_number(spent):
                    worker, _, stage = str(key).partition("/")
                    stages = out.setdefault(worker, {})
                    stages[stage or "all"] = stages.get(stage or "all", 0.0) + spent
        return out

    def idle_shares(self) -> dict[str, float]:
        """Mean share of time that each worker spent waiting."""
        values: dict[str, list[float]] = {}
        for row in self.updates:
            for worker, share in row.get("time", {}).get("idle", {}).items():
                if is_number(share):
                    values.setdefault(str(worker), []).append(share)
        return {worker: sum(shares) / len(shares) for worker, shares in values.items()}

    def streams(self) -> dict[str, Any]:
        """The last accounting of each stream."""
        found = self.end.get("streams") or self.last.get("streams") or {}
        return dict(found) if isinstance(found, Mapping) else {}

    def wall_s(self) -> float | None:
        rows = [self.end] if self.end else self.updates[-1:] + self.evals[-1:]
        spent = [row.get("time", {}).get("wall_s") for row in rows]
        return max((float(s) for s in spent if is_number(s)), default=None)

    def _curve(self, points: Sequence[tuple[Row, Any]]) -> Curve:
        axis = self.axis  # it looks at every row
        x = np.array([row.get(axis) or 0 for row, _ in points], dtype=np.float64)
        y = np.array([value if is_number(value) else np.nan for _, value in points], dtype=np.float64)
        return x, y


def is_number(value: Any) -> bool:
    """A finite number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(value: Any) -> float:
    """The number, or NaN."""
    if type(value) is float:
        return value
    return float(value) if is_number(value) else math.nan


def load_history(path: Path | str) -> History:
    """Read a run folder. Raises only where there is no run."""
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
            history.end = row
        else:
            {"update": history.updates, "eval": history.evals, "event": history.events}[kind].append(row)
            history.end = history.end if kind == "event" else {}
    if folder.samples.is_file():
        history.samples, damage = read_rows(folder.samples)
        problems.extend(damage)
    return history


def _read(reader: Any, problems: list[str]) -> dict[str, Any]:
    try:
        return dict(reader())
    except ConfigError as error:
        problems.append(str(error))
        return {}


def is_sound(row: Row) -> bool:
    """Whether the parts that a report walks through have their shapes."""
    time = row.get("time", {})
    tables = [row.get("metrics", {}), row.get("streams", {}), time]
    tables += [time.get(part, {}) for part in ("stages", "idle", "ranks", "system")] if isinstance(time, dict) else []
    counts = [row.get("steps") or 0, row.get("version") or 0, row.get("tokens") or 0]
    return (
        row.get("kind") in ("update", "eval", "event", "end")
        and all(isinstance(table, dict) for table in tables)
        and all(isinstance(gpu, dict) for gpu in _as_list(time.get("system", {}).get("gpus")))
        and all(is_number(count) for count in counts)
        and isinstance(row.get("samples", []), list)
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def across(curves: Sequence[Curve], num_points: int = 200) -> tuple[Floats, Floats, Floats, Floats]:
    """Positions, mean, low and high of several curves: the mean over runs with its 95 % t-interval, on a common grid.

    The grid ends where the shortest curve ends, so that every position has every run.
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
