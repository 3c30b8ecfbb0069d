"""The contract of a sink, and the numbers that it takes from a row.

metrics.jsonl is the truth (reports and resume read it). Sinks are views of it. The contract:

- A sink is made with the run's folder and its config. At that moment metrics.jsonl holds the rows that the run kept: none for a
new run, and after a resume no rows that were cut away. The sink brings its view in line with that file: each row once, no
other.
- `row` gets every row that the run makes, of any kind, and ignores those that it does not show.
- `flush` leaves nothing in memory: all rows given so far survive a kill.
- `close` ends this view. Another sink may open the folder again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from runnel.track.folder import Row, RunFolder, read_rows


class Sink(Protocol):
    """Gets the rows of a run as they are made. The module's docstring says what a sink must do on resume."""

    def row(self, row: Row) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def step_of(row: Row) -> int:
    """The position of a row on the horizontal axis: environment steps, or the version if the run counts no steps.

    >>> step_of({"version": 3, "steps": 0}), step_of({"version": 3, "steps": 96})
    (3, 96)
    """
    return int(row.get("steps") or row.get("version") or 0)


def scalars(row: Row) -> dict[str, float]:
    """The finite numbers of an update or eval row, under flat names.

    >>> scalars({"kind": "eval", "mean": 9.5, "low": 9.0, "high": float("nan")})
    {'eval/mean': 9.5, 'eval/low': 9.0}
    """
    flat: Row = {}
    if row.get("kind") == "update":
        flat.update(row.get("metrics", {}))
        timing = row.get("time", {})
        flat.update({f"time/{k}": v for k, v in timing.items() if not isinstance(v, dict) and k != "left_s"})
        for part in ("stages", "idle", "ranks", "conversations"):
            flat.update({f"time/{part}/{k}": v for k, v in timing.get(part, {}).items()})
        for stream, counts in row.get("streams", {}).items():
            flat.update(_counts(f"streams/{stream}", counts) if isinstance(counts, Mapping) else {})
    elif row.get("kind") == "eval":
        flat = {f"eval/{name}": row[name] for name in ("mean", "low", "high") if name in row} | row.get("metrics", {})
    return {k: float(v) for k, v in flat.items() if _is_finite(v)}


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def _counts(prefix: str, counts: Mapping[str, object]) -> Row:
    """The account of a stream under flat names: counts by reason have the reason as the last part."""
    flat: Row = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            flat.update({f"{prefix}/{name}/{reason}": n for reason, n in value.items()})
        else:
            flat[f"{prefix}/{name}"] = value
    return flat


def kept_rows(folder: Path) -> list[Row]:
    """The rows of metrics.jsonl that have numbers: a view of the run must hold exactly these when it is made."""
    return [row for row in read_rows(RunFolder(folder).metrics)[0] if scalars(row)]


KEYS = ("kind", "version", "steps", "tokens")


def cells(row: Row) -> Row:
    """A line of a wide table: kind and position of the row, then its numbers. Empty for a row without numbers.

    >>> cells({"kind": "eval", "version": 2, "steps": 64, "tokens": 0, "mean": 9.5})
    {'kind': 'eval', 'version': 2, 'steps': 64, 'tokens': 0, 'eval/mean': 9.5}
    """
    numbers = scalars(row)
    return {key: row.get(key) for key in KEYS} | numbers if numbers else {}
