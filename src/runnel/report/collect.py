"""Collects the runs of a comparison: folders, globs and names become groups of runs that differ only in task and seed.

Runs that would spoil a comparison are left out with a notice, or refused with a fix: trials of a tuning study, seeds that were
tuned on, runs that did not end, the same seed twice, one name for runs with different settings.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runnel.core.config import differences
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.report.curves import PER_RUN
from runnel.report.tuning import check_seeds, is_trial
from runnel.track.folder import Row, RunFolder, Settings
from runnel.track.history import History, load_history, newest_per_seed
from runnel.track.numbers import middle
from runnel.track.status import has_ended

DEPTH = 3
"""Levels of folders below the given one in which runs are looked for."""
NOT_LEARNED = (*PER_RUN, "track", "log_every", "checkpoint", "vector", "eval")
"""Settings in which runs of one method may differ: none of them changes what is learned."""
OF_THE_TASK = ("env", "env_kwargs", "task")
NAMED = 6
"""Most runs that a notice names; it counts the others."""


@dataclass(frozen=True)
class RunSource:
    """How a run was given: under a name of the user's, in a folder of runs, or by its own path."""

    path: Path
    name: str = ""
    folder: str = ""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one method."""

    name: str
    runs: Sequence[History]

    def by_task(self) -> dict[str, list[History]]:
        """The runs of each task, sorted by seed."""
        found: dict[str, list[History]] = {}
        for run in sorted(self.runs, key=lambda run: (task_of(run), seed_of(run) or 0)):
            found.setdefault(task_of(run), []).append(run)
        return found


@dataclass
class Collected:
    """The groups, and notices about how they were made."""

    groups: list[RunGroup]
    notices: list[str] = field(default_factory=list)

    def lines(self) -> dict[str, list[History]]:
        """The runs whose mean one curve shows: those of one group and one task."""
        several = len({task_of(run) for group in self.groups for run in group.runs}) > 1
        parts = [(group.name, task, runs) for group in self.groups for task, runs in group.by_task().items()]
        return {f"{name} on {task}" if several else name: runs for name, task, runs in parts}


def task_of(run: History) -> str:
    """The environment or task of a run."""
    return own_name(str(run.info.get("subject") or run.config.get("env") or run.config.get("task") or run.name))


def seed_of(run: History) -> int | None:
    """A run's seed, if it is known."""
    seed = run.info.get("seed", run.config.get("seed"))
    return seed if isinstance(seed, int) else None


def collect(arguments: Sequence[str | Path], *, unfinished: bool = False, allow_tuning_seeds: bool = False) -> Collected:
    """The groups that `arguments` name: a run folder, a folder of runs, a glob, or NAME=any of these."""
    if not arguments:
        raise ConfigError("runs", [], "give folders of runs to compare")
    sources: dict[Path, RunSource] = {}
    for argument in arguments:
        for source in find_runs(str(argument)):
            sources.setdefault(source.path.resolve(), source)
    found = [(source, load_history(source.path)) for source in sources.values()]
    notices: list[str] = []
    found = _without_trials(found, notices)
    found = found if unfinished else _without_unfinished(found, notices)
    if not found:
        raise ConfigError("runs", [str(a) for a in arguments], "; ".join(["no run is left to compare", *notices]))
    notices += _one_name(found)
    notices += check_seeds([(run, task_of(run), seed_of(run)) for _, run in found], allow=allow_tuning_seeds)
    collapsed = [run.name for _, run in found if run.collapses]
    notices += [f"A collapse was reported in {few(collapsed)}; their own reports describe it."] if collapsed else []
    groups = [_once(RunGroup(name, runs), notices) for name, runs in _groups(found).items()]
    return Collected(groups, notices)


def find_runs(argument: str) -> list[RunSource]:
    """The runs that one argument names."""
    name, equals, pattern = argument.partition("=")
    if not equals or Path(argument).exists():
        name, pattern = "", argument
    elif not name or not pattern:
        raise ConfigError("runs", argument, "give NAME=FOLDER or NAME='GLOB'")
    places = [Path(p) for p in sorted(glob.glob(pattern))] if glob.has_magic(pattern) else [Path(pattern)]
    if not any(place.is_dir() for place in places):
        raise ConfigError("runs", argument, "there is no such folder; give a run's folder, a folder of runs, or a glob")
    found: list[RunSource] = []
    for place in places:
        if RunFolder(place).has_run():
            found.append(RunSource(place, name, folder=str(place.parent) if glob.has_magic(pattern) else ""))
        elif place.is_dir():
            found += [RunSource(path, name, folder=str(place)) for path in runs_below(place)]
    if not found:
        raise ConfigError("runs", argument, f"it holds no run (no run.json within {DEPTH} folders below it)")
    return found


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder, and in folders of it."""
    names = ("run.json", "metrics.jsonl")
    found = {p.parent for depth in range(1, DEPTH + 1) for name in names for p in folder.glob("*/" * depth + name)}
    return sorted({path.resolve(): path for path in sorted(found, reverse=True)}.values())  # a link may lead to one again


def few(names: Sequence[str]) -> str:
    """The first names, and the number of the others.

    >>> few(["a", "b"]), few([str(i) for i in range(9)])
    ('a, b', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _without_trials(found: list[tuple[RunSource, History]], notices: list[str]) -> list[tuple[RunSource, History]]:
    for source, run in found:
        if is_trial(run) and not source.folder:
            fix = "it is a trial of a tuning study, chosen for its score; train anew with other seeds, and compare those runs"
            raise ConfigError("runs", str(source.path), fix)
    trials = [run.name for _, run in found if is_trial(run)]
    if trials:
        notices.append(f"Left out, as trials of a tuning study: {few(trials)}.")
    return [(source, run) for source, run in found if not is_trial(run)]


def _without_unfinished(found: list[tuple[RunSource, History]], notices: list[str]) -> list[tuple[RunSource, History]]:
    """Without runs that did not end by themselves. A collapsed run stays: to leave it out would flatter its method."""
    open_ended = [f"{run.name} ({run.status})" for _, run in found if not has_ended(run.end)]
    if open_ended:
        notices.append(f"Left out, as they did not finish: {few(open_ended)}. --unfinished keeps them.")
    return [(source, run) for source, run in found if has_ended(run.end)]


def _one_name(found: Sequence[tuple[RunSource, History]]) -> list[str]:
    """Notices about files of one name in several folders: they count as one task, but may differ."""
    places: dict[str, set[str]] = {}
    for _, run in found:
        env = run.config.get("env")
        if isinstance(env, str) and own_name(env) != env:
            places.setdefault(task_of(run), set()).add(env)
    return [
        f"{task} counts as one task, and is {len(files)} files: {few(sorted(files))}."
        for task, files in places.items()
        if len(files) > 1
    ]


def _groups(found: Sequence[tuple[RunSource, History]]) -> dict[str, list[History]]:
    """Group runs by the name that the user gave. Others are grouped by settings, separately for each folder that was given."""
    named: dict[str, list[History]] = {}
    keyed: dict[tuple[str, str, str], list[History]] = {}
    for source, run in found:
        if source.name:
            named.setdefault(source.name, []).append(run)
        else:
            key = json.dumps(method(run), sort_keys=True, default=str)
            keyed.setdefault((source.folder, str(run.info.get("recipe", "")), key), []).append(run)
    for name, runs in named.items():
        _check_one_method(name, runs)
    return {**named, **dict(zip(_names(keyed, taken=list(named)), keyed.values(), strict=True))}


def method(run: History) -> Row:
    """The settings that define a method: without the seed, the task, and all that does not change learning."""
    return {k: v for k, v in run.config.items() if k not in NOT_LEARNED and k not in OF_THE_TASK}


def _check_one_method(name: str, runs: Sequence[History]) -> None:
    """Raise a `ConfigError` if runs of one name and one task have different settings. Another task may have other settings."""
    first: dict[str, History] = {}
    for run in runs:
        before = first.setdefault(task_of(run), run)
        changed = differences(method(before), method(run))
        if before.info.get("recipe") != run.info.get("recipe"):
            changed["recipe"] = (before.info.get("recipe"), run.info.get("recipe"))
        if changed:
            told = few([f"{k} = {a!r} and {b!r}" for k, (a, b) in changed.items()])
            fix = f"on {task_of(run)} its runs have different settings ({told}); give each of them a name of its own"
            raise ConfigError("runs", name, fix)


def _names(keyed: Mapping[tuple[str, str, str], Sequence[History]], *, taken: Sequence[str]) -> list[str]:
    """A name for each group: the recipe if only one group has it, else the folder, else the settings that differ."""
    folders, recipes = [key[0] for key in keyed], [key[1] for key in keyed]
    settings = [method(runs[0]) for runs in keyed.values()]
    names: list[str] = []
    for i, (folder, recipe, _) in enumerate(keyed):
        others = [other for other, by in zip(settings, recipes, strict=True) if by == recipe]
        varying = {name for other in others for name in differences(others[0], other)}
        told = ", ".join(f"{name}={setting_of(settings[i], name)}" for name in sorted(varying))
        short = own_name(recipe)
        if recipes.count(recipe) == 1 and short not in taken:
            name = short
        elif folder and folders.count(folder) == 1:
            name = Path(folder).resolve().name
        else:
            name = f"{short} ({middle(told, 60)})" if told else short
        while name in (*names, *taken):
            name += "'"
        names.append(name or "runs")
    return names


def setting_of(config: Settings, name: str, missing: object = None) -> object:
    """The setting of a dotted name; `missing` if the config has none of that name."""
    value: object = config
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return missing
        value = value[part]
    return own_name(value) if isinstance(value, str) else value


def _once(group: RunGroup, notices: list[str]) -> RunGroup:
    """The group with only the newest run of each task and seed."""
    kept = [run for members in group.by_task().values() for run in newest_per_seed(members)]
    older = [f"{run.name} (seed {seed_of(run)})" for run in group.runs if not any(run is found for found in kept)]
    if older:
        notices.append(f"{group.name}: a seed counts once, by its newest run; left out: {few(older)}.")
    return RunGroup(group.name, kept)
