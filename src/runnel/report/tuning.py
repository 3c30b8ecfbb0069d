"""Keeps tuning seeds and test seeds apart.

Settings that were chosen for their scores on some seeds look better on those seeds than they are. So a trial of a study (a run
tagged `tuning`) never enters a comparison. A later run on a seed that a study of the same recipe and task tuned on is refused;
with `--allow-tuning-seeds` it is allowed, and the report says so. A study is a folder with a `study.json`, which lists its
seeds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.track.files import MAX_JSON, read_regular
from runnel.track.folder import Row
from runnel.track.history import History, tags_in

TAG, STUDY = "tuning", "study.json"
PARENTS, BESIDE = 3, 2
"""How many folders above a run are tested for a study, and in how many of them subfolders are tested, too."""


@dataclass(frozen=True)
class KnownStudy:
    """What a comparison must know about a tuning study. An empty recipe or subject is unknown, and matches any."""

    path: Path
    seeds: frozenset[int]
    recipe: str
    subject: str

    def is_about(self, recipe: str, subject: str) -> bool:
        return self.recipe in ("", recipe) and own_name(self.subject) in ("", own_name(subject))


def is_trial(run: History) -> bool:
    """Whether a run is a trial of a tuning study."""
    return TAG in tags_in(run.config)


def find_studies(run: Path) -> list[KnownStudy]:
    """The studies in the folders above a run, and beside those."""
    found: dict[Path, KnownStudy] = {}
    for height, above in enumerate(list(run.resolve().parents)[:PARENTS]):
        if above == Path(above.anchor):
            break
        for path in [above / STUDY, *(sorted(above.glob(f"*/{STUDY}")) if height < BESIDE else [])]:
            study = read_study(path)
            if study is not None:
                found.setdefault(path, study)
    return list(found.values())


def read_study(path: Path) -> KnownStudy | None:
    """The study in a file; None if there is none, or none with seeds. A missing recipe or subject is taken from its first
    trial."""
    data = _json(path)
    seeds = data.get("seeds")
    if not isinstance(seeds, list):
        return None
    recipe, subject = data.get("recipe"), data.get("subject")
    if not (recipe and subject):
        runs = [p.parent for pattern in ("*/run.json", "*/*/run.json") for p in sorted(path.parent.glob(pattern))]
        trial = next((run for run in runs if TAG in tags_in(_json(run / "config.json"))), None)
        info = _json(trial / "run.json") if trial else {}
        recipe, subject = recipe or info.get("recipe"), subject or info.get("subject")
    return KnownStudy(path, frozenset(s for s in seeds if type(s) is int), str(recipe or ""), str(subject or ""))


def check_seeds(runs: Sequence[tuple[History, str, int | None]], *, allow: bool) -> list[str]:
    """Refuse runs (with task and seed) whose seed was tuned on. With `allow`, return notices for the report instead."""
    tuned: dict[Path, list[tuple[str, int]]] = {}
    known: dict[Path, list[KnownStudy]] = {}
    for run, task, seed in runs:
        parent = run.folder.path.resolve().parent
        if parent not in known:
            known[parent] = find_studies(run.folder.path)
        for study in known[parent]:
            if seed in study.seeds and study.is_about(str(run.info.get("recipe", "")), task):
                tuned.setdefault(study.path, []).append((run.name, seed))
    if not tuned:
        return []
    study_path, found = next(iter(tuned.items()))
    seeds = ", ".join(str(s) for s in sorted({s for _, s in found}))
    if not allow:
        fix = (
            f"the study {study_path} chose settings on seed {seeds}; train on seeds that it did not see "
            f"(--seed {_fresh(known)}, ...), or pass --allow-tuning-seeds, which the report will say"
        )
        raise ConfigError("runs", found[0][0], fix)
    return [
        f"Tuning seeds allowed: {len(found)} of the runs use seeds ({seeds}) that the study {path} chose its settings on, "
        "so their scores are too good."
        for path, found in tuned.items()
    ]


def _fresh(known: dict[Path, list[KnownStudy]]) -> int:
    """The first seed that was not tuned on."""
    tuned = {s for studies in known.values() for study in studies for s in study.seeds}
    return next(seed for seed in itertools.count(1) if seed not in tuned)


def _json(path: Path) -> Row:
    try:
        data = json.loads(read_regular(path, most=MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
