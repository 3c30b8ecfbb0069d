"""One run in full: what its page shows beside the curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runnel.board.library import RunView
from runnel.track.accounts import read_account

RECENT_S = 60.0
RATE_ROWS = 20
STAGES = "time/stages/"
IDLE = "time/idle/"


def detail(run: RunView, held: set[int]) -> dict[str, Any]:
    """Everything that changes while a run goes on, without its curves."""
    c = run.columns
    return {
        **run.line(held),
        "path": str(run.folder.path),
        "info": {k: v for k, v in run.info.items() if k not in ("graph", "dataflow")},
        "graph": str(run.info.get("graph") or ""),
        "dataflow": run.info.get("dataflow") or {},
        "metrics": c.names(),
        "evals": c.evals[-400:],
        "returns": {k: c.last_eval[k] for k in ("returns", "lengths", "extra", "per_prompt") if k in c.last_eval},
        "stages": stages(run),
        "streams": [stream_line(name, counts) for name, counts in c.streams.items() if isinstance(counts, Mapping)],
        "rates": rates(run),
        "ranks": c.last.get("time", {}).get("ranks") or {},
        "system": c.last.get("time", {}).get("system") or {},
        "events": list(c.events)[-300:],
        "problem_texts": [*run.damage, *c.problems],
        "has": {
            "episodes": (run.folder.path / "episodes" / "index.jsonl").is_file(),
            "groups": (run.folder.path / "groups.jsonl").is_file(),
            "samples": run.folder.samples.is_file() and run.folder.samples.stat().st_size > 0,
            "report": run.folder.report.is_file(),
            "control": run.is_held(held) and (run.folder.path / "control.json").is_file(),
        },
        "checkpoints": [{"name": n, "bytes": size} for n, size in run.folder.checkpoint_sizes()],
    }


def stages(run: RunView) -> list[dict[str, Any]]:
    """By worker: seconds in each stage over the whole run and over its last minute, and the share of time that it waited."""
    c = run.columns
    wall = c.axis("wall_s")
    since = wall[-1] - RECENT_S if len(wall) else 0.0
    workers: dict[str, dict[str, Any]] = {}
    for name in c.names():
        if name.startswith(STAGES):
            worker, _, stage = name[len(STAGES) :].partition("/")
            rows, values = c.values(name)
            recent = float(values[wall[rows] >= since].sum())
            found = workers.setdefault(worker, {"worker": worker, "stages": [], "idle": None})
            found["stages"].append({"stage": stage or "all", "seconds": float(values.sum()), "recent": recent})
        elif name.startswith(IDLE):
            worker = name[len(IDLE) :]
            values = c.values(name)[1]
            workers.setdefault(worker, {"worker": worker, "stages": [], "idle": None})["idle"] = float(values[-20:].mean())
    return sorted(workers.values(), key=lambda w: str(w["worker"]))


def stream_line(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The account of one stream, and what does not add up in it."""
    account = read_account(found)
    return {"name": str(name), **vars(account), "balance": account.balance}


def rates(run: RunView) -> dict[str, float]:
    """Per second, over the last rows: samples of each stream, versions, steps and tokens."""
    c = run.columns
    out: dict[str, float] = {}
    for name in c.names():
        if name.startswith("streams/") and name.endswith("/consumed"):
            out[name.split("/")[1]] = _slope(*c.curve(name, "wall_s"))
    for name in ("version", "steps", "tokens"):
        out[f"@{name}"] = _slope(c.axis("wall_s"), c.axis(name))
    return out


def _slope(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    if len(x) < 2:
        return 0.0
    first = max(len(x) - RATE_ROWS, 0)
    while first > 0 and x[-1] - x[first] < 1.0:
        first = max(first - RATE_ROWS, 0)
    span = x[-1] - x[first]
    return float(max(y[-1] - y[first], 0.0) / span) if span > 0 else 0.0
