"""The responses of the board: plain functions of the library and a request's data, without a web server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runnel.board.behaviour import LineIndex, recorded_episodes
from runnel.board.columns import AXES
from runnel.board.curves import Aligned, across_seeds, align, clean, plain, smooth
from runnel.board.detail import detail
from runnel.board.league import league_view
from runnel.board.library import Library, RunView
from runnel.core.config import differences, flat
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.eval.statistics import FEWEST_SEEDS, few_seeds
from runnel.track.files import MAX_JSON, read_regular
from runnel.track.folder import Row, live_in
from runnel.track.history import Curve

Query = Mapping[str, object]
"""The data of a request, from the address or from a JSON body. Anyone may have sent it, so each field is tested."""
MAX_POINTS = 1600
MIN_POINTS = 240
BUDGET = 160_000
"""Values in one response. With more curves, each has fewer points."""
MAX_RUNS = 1000
MAX_METRICS = 64


def find(library: Library, key: object) -> RunView:
    """The run with the id `key`."""
    run = library.runs.get(str(key))
    if run is None:
        raise ConfigError("run", str(key), f"there is no such run under {library.root}; it may have been moved or removed")
    return run


def runs(library: Library, asked: Query) -> Row:
    """The table of runs, and the names of the studies."""
    studies = [read_study(key, path) for key, path in library.studies.items()]
    heads = [{k: s.get(k) for k in ("id", "name", "status", "error")} for s in studies]
    return {"root": str(library.root), "runs": library.lines(), "studies": heads, "problem": library.problem}


def run(library: Library, asked: Query) -> Row:
    """One run without its curves."""
    found = find(library, asked.get("run"))
    with found.lock:
        return detail(found, library.held) | {"config": found.config}


def groups(library: Library, asked: Query) -> Row:
    """The list of a run's completion groups, or with `number` one whole group."""
    found = find(library, asked.get("run"))
    return _listed(found, found.groups, asked.get("number"), "group")


def conversations(library: Library, asked: Query) -> Row:
    """The list of conversations that a run kept, or with `number` a whole one."""
    found = find(library, asked.get("run"))
    return _listed(found, found.conversations, asked.get("number"), "conversation")


def _listed(run: RunView, index: LineIndex, number: object, what: str) -> Row:
    with run.lock:
        index.refresh()
        if number is None:
            return {f"{what}s": index.heads(), "num_problems": index.num_problems}
        found = index.read(int(str(number))) if str(number).isdecimal() else None
    if found is None:
        raise ConfigError("number", number, f"there is no such {what} any more; open the list again")
    return found


def order(library: Library, asked: Query) -> Row:
    """Order a run to stop, to save a checkpoint, or to `set` its live `settings`. The request must hold the token that the run
    printed. The run itself checks the values, and tells of a change and of a refusal."""
    found, op = find(library, asked.get("run")), asked.get("op")
    if op not in ("stop", "checkpoint", "set"):
        raise ConfigError("op", op, "use stop, checkpoint or set")
    if not found.is_held(library.held) and not found.elsewhere(library.held):
        raise ConfigError("op", op, "no process is training this run now")
    if not found.folder.may_control(str(asked.get("token") or "")):
        raise ConfigError("token", "…", "this is not the token that the run printed when it started with --control")
    more = {"settings": _live_settings(found, asked.get("settings"))} if op == "set" else {}
    found.folder.add_order({"op": op, **more})
    return {"said": op, **more}


def _live_settings(found: RunView, settings: object) -> Row:
    """The settings of a request; a `ConfigError` for one that may not change while the run goes on."""
    known, members = live_in(found.info)
    if not isinstance(settings, Mapping) or not settings:
        raise ConfigError("settings", settings, f"give names and values; live settings of this run: {', '.join(known)}")
    for name, value in settings.items():
        member, _, plain = str(name).rpartition("/")
        if plain not in known or (member and member not in members):
            raise ConfigError(str(name), value, f"may not change while this run goes on; live settings: {', '.join(known)}")
        if not isinstance(value, int | float | str | None):
            raise ConfigError(str(name), value, "give a number, true, false, null or a text")
    return dict(settings)


def curves(library: Library, asked: Query) -> Row:
    """Metrics of runs on a common grid.

    `asked`: runs, metrics, axis, smoothing in [0, 1), group (mean over seeds), span ([low, high] of the axis).
    """
    names, axis = [str(name) for name in _list(asked, "metrics")[:MAX_METRICS]], str(asked.get("axis", "steps"))
    if axis not in AXES:
        raise ConfigError("axis", axis, f"use one of {', '.join(AXES)}")
    weight, span = _weight(asked.get("smoothing", 0.0)), _span(asked.get("span"))
    of = [(run, name) for run in _chosen(library, asked) for name in names]
    found: list[Curve] = []
    for run, name in of:
        with run.lock:
            found.append(run.columns.curve(name, axis))
    cleaned = [clean(curve, span) for curve in found]
    # a run that does not count this axis has 0 everywhere: it is left out, and not drawn at 0
    kept = [i for i, (x, _) in enumerate(cleaned) if len(x) and x[-1] > 0]
    points = int(np.clip(BUDGET // max(len(kept), 1), MIN_POINTS, MAX_POINTS))
    grouped = bool(asked.get("group"))
    aligned = align([cleaned[i] for i in kept], points=points, means=grouped or weight > 0)
    y = smooth(aligned.y, weight) if weight > 0 else aligned.y
    shown = Aligned(aligned.x, y)
    lines = [of[i] for i in kept]
    if grouped:
        series = _by_group(shown, lines)
    else:
        each = zip(lines, y, strict=True)
        series = [{"run": run.key, "group": run.group, "metric": name, "y": plain(values)} for (run, name), values in each]
    return {"metrics": names, "axis": axis, "x": plain(aligned.x, 10), "series": series}


def _by_group(aligned: Aligned, of: Sequence[tuple[RunView, str]]) -> list[Row]:
    """The mean over the seeds of each group. Only the newest run of a seed counts, as in `runnel report --over seeds`: a second
    run of a seed is no second observation."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    numbers = Counter((run.group, name) for run, name in of)
    for i, (run, name) in sorted(enumerate(of), key=lambda item: (item[1][0].created, item[1][0].key)):
        groups.setdefault((run.group, name), {})[run.seed] = i
    return [_mean(aligned, of, list(groups[key].values()), repeats=numbers[key] - len(groups[key])) for key in numbers]


def _mean(aligned: Aligned, of: Sequence[tuple[RunView, str]], members: list[int], *, repeats: int) -> Row:
    run, name = of[members[0]]
    mean, low, high = across_seeds(aligned, members)
    series: Row = {"run": run.key, "group": run.group, "metric": name, "y": plain(mean)}
    series |= {"num": len(members), "repeats": repeats}
    if len(members) == 1:
        return series
    series |= {"low": plain(low), "high": plain(high), "caution": few_seeds(len(members))}
    return series | ({"members": [plain(aligned.y[i]) for i in members]} if len(members) < FEWEST_SEEDS else {})


def metrics(library: Library, asked: Query) -> Row:
    """The names of all metrics of some runs, and the axes that at least one of the runs counts."""
    names: dict[str, None] = {}
    axes = set()
    for run in _chosen(library, asked):
        with run.lock:
            names.update(dict.fromkeys(run.columns.names()))
            axes |= {axis for axis in AXES if axis not in axes and run.columns.axis(axis)[-1:].any()}
    return {"metrics": list(names), "axes": [axis for axis in AXES if axis in axes]}


def configs(library: Library, asked: Query) -> Row:
    """The settings that differ between some runs, and the number of settings that are the same."""
    flats = {run.key: flat(run.config) for run in _chosen(library, asked)}
    names = list(dict.fromkeys(name for found in flats.values() for name in found))
    varied = [n for n in names if len({repr(found.get(n)) for found in flats.values()}) > 1]
    rows = {key: {n: found.get(n) for n in varied} for key, found in flats.items()}
    return {"varied": varied, "num_same": len(names) - len(varied), "rows": rows}


def compare(library: Library, asked: Query) -> Row:
    """The differences of two runs (`a`, `b`): settings, versions of packages, commits."""
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


def episodes(library: Library, asked: Query) -> Row:
    """The recorded episodes of a run."""
    return recorded_episodes(find(library, asked.get("run")).folder)


def league(library: Library, asked: Query) -> Row:
    """The league of a run of self-play."""
    return league_view(find(library, asked.get("run")).folder)


def study(library: Library, asked: Query) -> Row:
    """One study, whole."""
    key = str(asked.get("study", ""))
    if key not in library.studies:
        raise ConfigError("run", key, f"there is no such study under {library.root}")
    return read_study(key, library.studies[key])


def read_study(key: str, path: Path) -> Row:
    """A study of `runnel tune`; if its file is damaged, an `error` that says so."""
    try:
        found = json.loads(read_regular(path, most=MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        return {"id": key, "name": path.parent.name, "error": f"{path.name} cannot be read: {error}"}
    if not isinstance(found, dict) or not isinstance(found.get("trials"), list):
        return {"id": key, "name": path.parent.name, "error": f"{path.name} holds no study; it has no list of trials"}
    return {**found, "recipe": own_name(str(found.get("recipe") or "")), "id": key}


def _chosen(library: Library, asked: Query) -> list[RunView]:
    """The runs that a request names. Those that are gone are left out."""
    return [run for key in _list(asked, "runs")[:MAX_RUNS] if (run := library.runs.get(str(key)))]


def _list(asked: Query, name: str) -> list[object]:
    value = asked.get(name)
    if not isinstance(value, list):
        raise ConfigError(name, value, "give a list")
    return value


def _weight(value: object) -> float:
    if isinstance(value, int | float) and 0 <= value < 1:
        return float(value)
    raise ConfigError("smoothing", value, "must be in [0, 1)")


def _span(value: object) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, int | float) for v in value) and value[0] < value[1]:
        return float(value[0]), float(value[1])
    raise ConfigError("span", value, "give [low, high], two numbers on the axis")
