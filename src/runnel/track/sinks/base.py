"""What a sink is, and what it takes from a row.

metrics.jsonl is the truth (reports and resume read it); sinks are views of it. The contract:

- a sink is made with the run's folder and its config, when metrics.jsonl holds what the run has kept (nothing, for a new run;
  after a resume, without what was cut away). It brings its view in line with that file: nothing twice, nothing cut away;
- `row` takes each row as the run makes it, of any kind, and passes by what it does not show;
- `flush` leaves nothing in memory: what was given so far survives a kill;
- `close` is the end of this view; the folder may be opened again by another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from runnel.track.folder import Row, RunFolder, read_rows


class Sink(Protocol):
    """Takes rows as the run makes them; see the module for what a sink must do on resume."""

    def row(self, row: Row) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def step_of(row: Row) -> int:
    """The horizontal axis: environment steps, or the version where a run counts no steps.

    >>> step_of({"version": 3, "steps": 0}), step_of({"version": 3, "steps": 96})
    (3, 96)
    """
    return int(row.get("steps") or row.get("version") or 0)


def scalars(row: Row) -> dict[str, float]:
    """The numbers of an update or eval row under flat names, without the ones that are not finite.

    >>> scalars({"kind": "eval", "mean": 9.5, "low": 9.0, "high": float("nan")})
    {'eval/mean': 9.5, 'eval/low': 9.0}
    """
    flat: dict[str, Any] = {}
    if row.get("kind") == "update":
        flat.update(row.get("metrics", {}))
        timing = row.get("time", {})
        flat.update({f"time/{k}": v for k, v in timing.items() if not isinstance(v, dict) and k != "left_s"})
        flat.update({f"time/{part}/{k}": v for part in ("stages", "idle", "ranks") for k, v in timing.get(part, {}).items()})
        for stream, counts in row.get("streams", {}).items():
            flat.update(_counts(f"streams/{stream}", counts) if isinstance(counts, Mapping) else {})
    elif row.get("kind") == "eval":
        flat = {f"eval/{name}": row[name] for name in ("mean", "low", "high") if name in row} | row.get("metrics", {})
    return {k: float(v) for k, v in flat.items() if _is_finite(v)}


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def _counts(prefix: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            flat.update({f"{prefix}/{name}/{reason}": n for reason, n in value.items()})
        else:
            flat[f"{prefix}/{name}"] = value
    return flat


def kept_rows(folder: Path) -> list[Row]:
    """The rows of metrics.jsonl that have numbers to show: what a view of the run must hold when it is made."""
    return [row for row in read_rows(RunFolder(folder).metrics)[0] if scalars(row)]


KEYS = ("kind", "version", "steps", "tokens")


def cells(row: Row) -> dict[str, Any]:
    """A row of a wide table: what it is and where it stands, then its numbers; empty for a row without numbers.

    >>> cells({"kind": "eval", "version": 2, "steps": 64, "tokens": 0, "mean": 9.5})
    {'kind': 'eval', 'version': 2, 'steps': 64, 'tokens': 0, 'eval/mean': 9.5}
    """
    numbers = scalars(row)
    return {key: row.get(key) for key in KEYS} | numbers if numbers else {}
