"""All that the page of one run shows, apart from the curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from runnel.board.library import RunView
from runnel.report.accounts import accounts_in
from runnel.track.files import is_regular
from runnel.track.folder import Row, live_in
from runnel.track.history import Floats, as_table, waiting_share
from runnel.track.locks import Lock
from runnel.track.results import tables_in
from runnel.track.status import failure_of

RECENT_S = 60.0
"""The length in seconds of what the page calls the last minute."""
RATE_ROWS = 20
"""Rates are measured over at least this many rows, and at least a second."""
STAGES = "time/stages/"
IDLE = "time/idle/"


def detail(run: RunView, held: Collection[Lock] | None) -> Row:
    """All that the page shows of a run, apart from its curves."""
    c = run.columns
    return {
        **run.line(held),
        "path": str(run.folder.path),
        "info": {k: v for k, v in run.info.items() if k not in ("graph", "dataflow")},
        "graph": str(run.info.get("graph") or ""),
        "dataflow": at_work(run),
        "metrics": c.names(),
        "evals": c.evals[-400:],
        "returns": {k: c.last_eval[k] for k in ("returns", "lengths", "extra", "per_prompt") if k in c.last_eval},
        "tables": [vars(table) for table in tables_in([c.last_eval])],
        "stages": stages(run),
        "streams": [{"name": name, **vars(found), "balance": found.balance} for name, found in accounts_in(c.streams).items()],
        "rates": rates(run),
        "ranks": c.last.get("time", {}).get("ranks") or {},
        "system": c.last.get("time", {}).get("system") or {},
        "events": list(c.events)[-300:],
        "failure": failure_of(c.end, c.events),
        "problem_texts": [*run.damage, *c.problems, *run.elsewhere(held)],
        "has": {
            "episodes": is_regular(run.folder.path / "episodes" / "index.jsonl", below=run.folder.path),
            "groups": is_regular(run.folder.groups),
            "conversations": is_regular(run.folder.conversations),
            "league": is_regular(run.folder.league),
            "samples": run.folder.samples.is_file() and run.folder.samples.stat().st_size > 0,
            "report": is_regular(run.folder.report),
            "live": live_in(run.info)[0],
            "control": run.is_held(held) and (run.folder.path / "control.json").is_file(),
        },
        "checkpoints": [{"name": n, "bytes": size} for n, size in run.folder.checkpoint_sizes()],
    }


def stages(run: RunView) -> list[Row]:
    """For each worker the seconds in each stage and the share of time that it waits: over the whole run and its last minute
    (`recent`). The share is None for a worker that does not report it."""
    c = run.columns
    wall = c.axis("wall_s")
    since = wall[-1] - RECENT_S if len(wall) else 0.0
    updates = np.setdiff1d(np.arange(len(wall)), c.values("eval/mean")[0])  # rows of evaluations do not mention workers
    workers: dict[str, Row] = {}

    def of(worker: str) -> Row:
        return workers.setdefault(worker, {"worker": worker, "idle": None, "idle_recent": None, "stages": []})

    for name in c.names():
        if name.startswith(STAGES):
            worker, _, stage = name[len(STAGES) :].partition("/")
            rows, values = c.values(name)
            recent = float(values[wall[rows] >= since].sum())
            of(worker)["stages"].append({"stage": stage or "all", "seconds": float(values.sum()), "recent": recent})
        elif name.startswith(IDLE):
            rows, values = c.values(name)
            new, at = wall[rows] >= since, np.searchsorted(updates, rows)
            found = of(name[len(IDLE) :])
            found["idle"] = waiting_share(wall[updates], at, values)
            found["idle_recent"] = waiting_share(wall[updates], at[new], values[new]) if new.any() else None
    return sorted(workers.values(), key=lambda w: w["worker"])


def at_work(run: RunView) -> Row:
    """The graph with only the workers that take part. The graph also lists places for more (`--placement.max-actors`), which
    are empty until `runnel scale` fills them."""
    found = run.info.get("dataflow")
    if not isinstance(found, Mapping) or not isinstance(found.get("workers"), list):
        return {}
    numbers = {"actor": run.config.get("num_actors"), "policy": as_table(run.config.get("placement")).get("policy_workers")}
    numbers |= run.columns.scaled
    workers = [w for w in found["workers"] if isinstance(w, Mapping) and _is_at_work(w, numbers.get(str(w.get("kind"))))]
    return {**found, "workers": workers}


def _is_at_work(worker: Mapping[str, object], number: object) -> bool:
    name, _, place = str(worker.get("name")).rpartition("-")
    counted = place.isdecimal() and (name == "actor" or worker.get("kind") == "policy")
    return not (counted and isinstance(number, int)) or int(place) < number


def rates(run: RunView) -> dict[str, float]:
    """Samples of each stream, versions, steps and tokens per second, over the last rows."""
    c = run.columns
    out: dict[str, float] = {}
    for name in c.names():
        if name.startswith("streams/") and name.endswith("/consumed"):
            out[name.split("/")[1]] = _slope(*c.curve(name, "wall_s"))
    for name in ("version", "steps", "tokens"):
        out[f"@{name}"] = _slope(c.axis("wall_s"), c.axis(name))
    return out


def _slope(x: Floats, y: Floats) -> float:
    if len(x) < 2:
        return 0.0
    first = max(len(x) - RATE_ROWS, 0)
    while first > 0 and x[-1] - x[first] < 1.0:
        first = max(first - RATE_ROWS, 0)
    span = x[-1] - x[first]
    return float(max(y[-1] - y[first], 0.0) / span) if span > 0 else 0.0
