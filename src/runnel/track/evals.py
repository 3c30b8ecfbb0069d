"""evals.jsonl: the measurements of `runnel eval` on a finished run, a row for each, for reports and model cards.

A row holds the `version` of the parameters, the number of `episodes`, the `seed`, every return, per-episode numbers (`extra`),
and the time. The episodes are none of training or of its own evaluations, so their scores are fresh. `best` marks an evaluation
of the best version, `elsewhere` one on another environment than the run's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.eval.statistics import bootstrap_interval, iqm, median, share_interval, summarise
from runnel.track.files import open_append
from runnel.track.folder import Row, read_rows

FILE = "evals.jsonl"


def make_eval_row(
    returns: Sequence[float], extra: Mapping[str, Sequence[float]], *, version: int, seed: int, when: datetime
) -> Row:
    """The row of one measurement."""
    s = summarise(returns)
    summary = {"mean": s.mean, "low": s.low, "high": s.high, "median": s.median, "iqm": s.iqm}
    for name, statistic in (("median", median), ("iqm", iqm)):
        summary[f"{name}_low"], summary[f"{name}_high"] = bootstrap_interval(returns, statistic=statistic)
    passed = {k: _interval(v) for k, v in extra.items() if k.startswith("pass@") and v}
    row = {"version": version, "episodes": s.num, "seed": seed, "when": when.isoformat(timespec="seconds"), **summary}
    return {**row, "pass": passed, "returns": list(returns), "extra": {k: list(v) for k, v in extra.items()}}


def _interval(values: Sequence[float]) -> dict[str, float]:
    low, high = share_interval(values)
    return {"value": sum(values) / len(values), "low": low, "high": high, "prompts": len(values)}


def append_eval(run: Path | str, row: Mapping[str, object]) -> Path:
    """Add a row to a run's evals.jsonl."""
    path = Path(run) / FILE
    try:
        with open_append(path) as file:
            file.write(json.dumps(dict(row)).encode() + b"\n")
    except OSError as error:
        fix = f"{FILE} cannot be written ({error.strerror or error}); use --json to see the result"
        raise ConfigError("run", str(run), fix) from error
    return path


def read_evals(run: Path | str) -> tuple[list[Row], list[str]]:
    """The rows, oldest first, and a sentence for each thing that is wrong with the file.

    Rows of the best version and rows on another environment are left out: a report compares the newest policies on their own
    tasks.
    """
    path = Path(run) / FILE
    rows, problems = read_rows(path) if path.is_symlink() or path.exists() else ([], [])
    return [row for row in rows if not row.get("best") and not row.get("elsewhere")], problems
