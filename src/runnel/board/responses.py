"""What the board answers: plain functions of the library and a request's data, without a web server in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runnel.board.behaviour import recorded_episodes
from runnel.board.columns import AXES
from runnel.board.curves import Aligned, Curve, across_seeds, align, clean, plain, smooth
from runnel.board.detail import detail
from runnel.board.library import Library, RunView
from runnel.core.config import differences, flat
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.eval.statistics import FEWEST_SEEDS, few_seeds
from runnel.track.files import MAX_JSON, read_regular

MAX_POINTS = 1600
MIN_POINTS = 240
BUDGET = 160_000
"""Values of one answer; more curves have fewer points each."""
MAX_RUNS = 1000
MAX_METRICS = 64


def find(library: Library, key: Any) -> RunView:
    """The run called `key`."""
    run = library.runs.get(str(key))
    if run is None:
        raise ConfigError("run", str(key), f"there is no such run under {library.root}; it may have been moved or removed")
    return run


def runs(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The table of runs, and the studies by name."""
    studies = [read_study(key, path) for key, path in library.studies.items()]
    heads = [{k: s.get(k) for k in ("id", "name", "status", "error")} for s in studies]
    return {"root": str(library.root), "runs": library.lines(), "studies": heads, "problem": library.problem}


def run(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One run without its curves."""
    found = find(library, asked.get("run"))
    with found.lock:
        return detail(found, library.held) | {"config": found.config}


def groups(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of completions of a run, or the whole of one (`number`)."""
    found, number = find(library, asked.get("run")), asked.get("number")
    with found.lock:
        found.groups.refresh()
        if number is None:
            return {"groups": found.groups.heads(), "num_problems": found.groups.num_problems}
        group = found.groups.read(int(number)) if str(number).isdecimal() else None
    if group is None:
        raise ConfigError("number", number, "there is no such group any more; open the list again")
    return group


def order(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a run to stop or to save, for whoever has the token that it printed."""
    found, op = find(library, asked.get("run")), asked.get("op")
    if op not in ("stop", "checkpoint"):
        raise ConfigError("op", op, "use stop or checkpoint")
    if not found.is_held(library.held) and not found.elsewhere(library.held):
        raise ConfigError("op", op, "no process is training this run now")
    if not found.folder.may_control(str(asked.get("token") or "")):
        raise ConfigError("token", "…", "this is not the token that the run printed when it started with --control")
    found.folder.add_order({"op": op})
    return {"said": op}


def curves(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of runs on a common grid.

    `asked`: runs, metrics, axis, smoothing in [0, 1), group (mean over seeds), span ([low, high] of the axis).
    """
    chosen = [library.runs[str(key)] for key in _list(asked, "runs")[:MAX_RUNS] if str(key) in library.runs]
    names, axis = [str(name) for name in _list(asked, "metrics")[:MAX_METRICS]], str(asked.get("axis", "steps"))
    if axis not in AXES:
        raise ConfigError("axis", axis, f"use one of {', '.join(AXES)}")
    weight, span = _weight(asked.get("smoothing", 0.0)), _span(asked.get("span"))
    of = [(run, name) for run in chosen for name in names]
    found: list[Curve] = []
    for run, name in of:
        with run.lock:
            found.append(run.columns.curve(name, axis))
    cleaned = [clean(curve, span) for curve in found]
    kept = [i for i, (x, _) in enumerate(cleaned) if len(x) and x[-1] > 0]  # a run that does not count this is not at its 0
    points = int(np.clip(BUDGET // max(len(kept), 1), MIN_POINTS, MAX_POINTS))
    grouped = bool(asked.get("group"))
    aligned = align([cleaned[i] for i in kept], points=points, means=grouped or weight > 0)
    y = smooth(aligned.y, weight) if weight > 0 else aligned.y
    shown = Aligned(aligned.x, y)
    members = [of[i] for i in kept]
    series = _by_group(shown, members) if grouped else _by_run(shown, members)
    return {"metrics": names, "axis": axis, "x": plain(aligned.x, 10), "series": series}


def _by_run(aligned: Aligned, of: Sequence[tuple[RunView, str]]) -> list[dict[str, Any]]:
    return [{"run": run.key, "group": run.group, "metric": name, "y": plain(aligned.y[i])} for i, (run, name) in enumerate(of)]


def _by_group(aligned: Aligned, of: Sequence[tuple[RunView, str]]) -> list[dict[str, Any]]:
    """The mean over the seeds of each group. A seed counts once, by its newest run: a second run of it is no second observation
    (so does `runnel report --over seeds`)."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    numbers = Counter((run.group, name) for run, name in of)
    for i, (run, name) in sorted(enumerate(of), key=lambda item: (item[1][0].created, item[1][0].key)):
        groups.setdefault((run.group, name), {})[run.seed] = i
    return [_mean(aligned, of, list(groups[key].values()), repeats=numbers[key] - len(groups[key])) for key in numbers]


def _mean(aligned: Aligned, of: Sequence[tuple[RunView, str]], members: list[int], *, repeats: int) -> dict[str, Any]:
    run, name = of[members[0]]
    mean, low, high = across_seeds(aligned, members)
    series = {"run": run.key, "group": run.group, "metric": name, "num": len(members), "repeats": repeats, "y": plain(mean)}
    if len(members) == 1:
        return series
    series |= {"low": plain(low), "high": plain(high), "caution": few_seeds(len(members))}
    return series | ({"members": [plain(aligned.y[i]) for i in members]} if len(members) < FEWEST_SEEDS else {})


def metrics(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Names of metrics that any of some runs has, and the axes that say something about them."""
    names: dict[str, None] = {}
    axes = set()
    for key in _list(asked, "runs")[:MAX_RUNS]:
        run = library.runs.get(str(key))
        if run is None:
            continue
        with run.lock:
            names.update(dict.fromkeys(run.columns.names()))
            axes |= {axis for axis in AXES if axis not in axes and run.columns.axis(axis)[-1:].any()}
    return {"metrics": list(names), "axes": [axis for axis in AXES if axis in axes]}


def configs(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of some runs: those that are not the same in all, and how many are."""
    chosen = [library.runs[str(key)] for key in _list(asked, "runs")[:MAX_RUNS] if str(key) in library.runs]
    flats = {run.key: flat(run.config) for run in chosen}
    names = list(dict.fromkeys(name for found in flats.values() for name in found))
    varied = [n for n in names if len({repr(found.get(n)) for found in flats.values()}) > 1]
    rows = {key: {n: found.get(n) for n in varied} for key, found in flats.items()}
    return {"varied": varied, "num_same": len(names) - len(varied), "rows": rows}


def compare(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs (`a`, `b`) were told differently, beside the versions of what they ran on."""
    first, second = find(library, asked.get("a")), find(library, asked.get("b"))
    changed = differences(first.config, second.config)
    versions = differences(first.info.get("versions") or {}, second.info.get("versions") or {})
    commits = [(run.info.get("git") or {}).get("commit", "") for run in (first, second)]
    return {
        "config": [{"name": n, "a": x, "b": y} for n, (x, y) in changed.items()],
        "num_same": len(flat(first.config)) - len(changed),
        "versions": [{"name": n, "a": x, "b": y} for n, (x, y) in versions.items()],
        "commits": commits,
    }


def episodes(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded episodes of a run."""
    return recorded_episodes(find(library, asked.get("run")).folder)


def study(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One study, whole."""
    key = str(asked.get("study", ""))
    if key not in library.studies:
        raise ConfigError("run", key, f"there is no such study under {library.root}")
    return read_study(key, library.studies[key])


def read_study(key: str, path: Path) -> dict[str, Any]:
    """A study of `runnel tune`, or what is wrong with its file."""
    try:
        found = json.loads(read_regular(path, most=MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        return {"id": key, "name": path.parent.name, "error": f"{path.name} cannot be read: {error}"}
    if not isinstance(found, dict) or not isinstance(found.get("trials"), list):
        return {"id": key, "name": path.parent.name, "error": f"{path.name} holds no study; it has no list of trials"}
    return {**found, "recipe": own_name(str(found.get("recipe") or "")), "id": key}


def _list(asked: Mapping[str, Any], name: str) -> list[Any]:
    value = asked.get(name)
    if not isinstance(value, list):
        raise ConfigError(name, value, "give a list")
    return value


def _weight(value: Any) -> float:
    if isinstance(value, int | float) and 0 <= value < 1:
        return float(value)
    raise ConfigError("smoothing", value, "use a number from 0 up to, but not, 1")


def _span(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, int | float) for v in value) and value[0] < value[1]:
        return float(value[0]), float(value[1])
    raise ConfigError("span", value, "give [low, high], two numbers on the axis")
