"""The folder of a study, and `study.json`, which the board and reports read: settings, every trial, and the best trial.

tune.json  study.json  best.json  journal.log (Optuna)  population.json, points/ (pbt)  trials/  test/  log.txt
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.track.files import MAX_JSON, read_regular
from runnel.track.locks import locked
from runnel.tune.settings import Setup

Trial = State
"""The entry of one trial in study.json (`blank_trial`)."""


class StudyFolder:
    """Names of the parts of a study's folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).resolve()
        self.settings = self.path / "tune.json"
        self.study = self.path / "study.json"
        self.best = self.path / "best.json"
        self.journal = self.path / "journal.log"
        self.population = self.path / "population.json"
        self.trials = self.path / "trials"
        self.points = self.path / "points"
        self.test = self.path / "test"
        self.log = self.path / "log.txt"

    def exists(self) -> bool:
        """Whether the folder holds a study."""
        return self.settings.is_file()

    def make(self) -> None:
        """Make the folder. A folder with other files is refused."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("out", str(self.path), f"no folder can be made there ({error.strerror})") from error
        left = [p.name for p in self.path.iterdir() if p.name != ".lock"]
        if left and not self.exists():
            raise ConfigError("out", str(self.path), f"holds other things ({sorted(left)[0]}); give a new folder for the study")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the study for this process until the block ends."""
        fix = "another process is tuning there; it takes more at once with --workers. Wait for it, or stop it"
        with locked(self.path, "out", fix):
            yield

    def relative(self, path: str | Path) -> str:
        """A path relative to the folder, as in study.json."""
        return os.path.relpath(path, self.path)


def study_name(setup: Setup, when: datetime) -> str:
    """The default name of the folder: tune, recipe, subject, date."""
    parts = ["tune", Path(setup.recipe.name).stem, setup.subject, when.strftime("%Y%m%d-%H%M%S")]
    return "-".join(re.sub(r"[^\w.+-]+", "_", part).strip("_.") for part in parts if part)


def write_json(path: Path, data: Mapping[str, object], *, indent: int | None = 1) -> None:
    """Write beside, then rename: a reader sees the old file or the new one, also after a kill."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=indent, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def read_json(path: Path) -> State:
    """The object in `path`; a `ConfigError` if it is missing or damaged."""
    try:
        data = json.loads(read_regular(path, most=MAX_JSON))
    except FileNotFoundError as error:
        raise ConfigError("study", str(path.parent), f"holds no study (no {path.name})") from error
    except (OSError, ValueError) as error:
        raise ConfigError("study", str(path), f"this file cannot be read ({error}); restore it") from error
    if not isinstance(data, dict):
        raise ConfigError("study", str(path), "this file must hold a JSON object; restore it")
    return data


class Book:
    """`study.json`: written whole, after each change."""

    def __init__(self, folder: StudyFolder, setup: Setup) -> None:
        self._folder, self._maximise = folder, setup.maximise
        before: State = {}
        with suppress(ConfigError):  # study.json can be made again from the other files, so a damaged one is replaced
            before = read_json(folder.study)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        self.data: State = {
            "kind": "study",
            "name": folder.path.name,
            "recipe": setup.recipe.name,
            "subject": setup.subject,
            "direction": setup.options.direction,
            "metric": setup.options.metric,
            "summary": setup.options.summary,
            "algorithm": setup.algorithm,
            "pruner": "none" if setup.algorithm == "pbt" else setup.options.pruner,
            "status": "running",
            "created": before.get("created", now),
            "seeds": setup.seeds,
            "budget": {"field": setup.budget, "total": setup.total},
            "params": {name: p.to_data() for name, p in setup.space.items()},
            "trials": before.get("trials", []),
            "best": before.get("best"),
            "importance": before.get("importance"),
            "lineage": before.get("lineage", []),
            "test": before.get("test"),
        }

    @property
    def trials(self) -> list[Trial]:
        found: list[Trial] = self.data["trials"]
        return found

    def put(self, trials: list[Trial]) -> None:
        """Replace all trials. The best is the completed one with the best value."""
        done = [t for t in trials if t["state"] == "complete" and t["value"] is not None]
        best = (max if self._maximise else min)(done, key=lambda t: t["value"], default=None)
        self.data |= {"trials": trials, "best": None if best is None else best["number"]}

    def best(self) -> Trial | None:
        return next((t for t in self.trials if t["number"] == self.data["best"]), None)

    def write(self, status: str = "") -> None:
        self.data["status"] = status or self.data["status"]
        write_json(self._folder.study, self.data, indent=None)


def blank_trial(number: int, params: Mapping[str, object], runs: list[str]) -> Trial:
    """The entry of a trial that has just started."""
    return {
        "number": number,
        "state": "running",
        "value": None,
        "params": dict(params),
        "run": runs[0] if len(runs) == 1 else None,
        "runs": runs,
        "steps": [],
        "seconds": 0.0,
        "error": None,
        "parent": None,
        "copied_at": None,
    }
