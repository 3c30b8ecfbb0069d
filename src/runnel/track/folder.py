"""The run folder: which files it holds, how they are written, and how they are read back even after a kill.

config.json  run.json  metrics.jsonl  samples.jsonl  groups.jsonl  episodes/  tensorboard/  checkpoints/  best/  report.html
log.txt  report_csv/  evals.jsonl  orders.jsonl  control.json  settings.json  tasks.jsonl  league.jsonl
conversations.jsonl
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from runnel.core.disk import told_if_refused
from runnel.core.errors import ConfigError
from runnel.core.old_configs import todays_config
from runnel.track.files import MAX_JSON, NotRegularError, open_append, open_regular, read_regular, replace_file, size_of
from runnel.track.locks import Holder, holder_of, locked, locked_files

Row = dict[str, Any]
"""A JSON object in a file of a run. Anyone may have written it, so a reader tests the type of each field that it uses."""
Settings = Mapping[str, Any]
"""The settings of a run, as plain data."""

ROWS = (
    *("metrics.jsonl", "samples.jsonl", "groups.jsonl", "conversations.jsonl"),
    *("evals.jsonl", "orders.jsonl", "tasks.jsonl", "league.jsonl"),
)
"""Files of a run with a row a line."""
WRITTEN = ("config.json", "run.json", *ROWS, "control.json", "settings.json", "log.txt")
"""Files of a run that are written in place."""
LONGEST_NAME = 200
"""Bytes of a folder's name. File systems allow 255; the rest is room for suffixes of files that are named after the run."""

PACKAGES = (
    *("runnel", "numpy", "torch", "gymnasium", "tyro", "rich", "safetensors"),
    *("tensorboard", "transformers", "tokenizers", "mujoco", "ale-py", "ray", "wandb"),
)
"""Packages whose versions run.json notes."""


def run_name(recipe: str, subject: str, *, seed: int, when: datetime) -> str:
    """The folder's name: recipe, environment or task, seed, date. Nothing in it needs quoting in a shell.

    >>> run_name("ppo", "ALE/Pong-v5", seed=1, when=datetime(2030, 1, 2, 3, 4, 5))
    'ppo-ALE_Pong-v5-1-20300102-030405'
    """
    parts = [re.sub(r"[^\w.+-]+", "_", part).strip("_.") for part in (Path(recipe).stem, subject) if part]
    return "-".join([*parts, str(seed), when.strftime("%Y%m%d-%H%M%S")])


def check_run_name(name: str) -> None:
    """Raise a `ConfigError` for a name that is a path, that cannot be typed, or that is too long.

    >>> check_run_name("my run 3")
    >>> check_run_name("../x")
    Traceback (most recent call last):
    runnel.core.errors.ConfigError: name = '../x': is the name of one folder, without / and \\; say where with out
    """
    if "/" in name or "\\" in name:
        raise ConfigError("name", name, "is the name of one folder, without / and \\; say where with out")
    if name.startswith("."):
        raise ConfigError("name", name, "must not begin with a dot")
    if not name.isprintable() or name != name.strip() or not name:
        raise ConfigError("name", name, "use letters that can be printed, with no spaces at the ends; or leave it out")
    if len(name.encode()) > LONGEST_NAME:
        raise ConfigError("name", name[:40] + "...", f"is longer than {LONGEST_NAME} bytes, and folders have a limit")


class RunFolder:
    """The files of a run folder: their paths, and how to read and write them. The constructor touches nothing on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.info = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.groups = self.path / "groups.jsonl"
        self.conversations = self.path / "conversations.jsonl"
        self.episodes = self.path / "episodes"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.report = self.path / "report.html"
        self.log = self.path / "log.txt"
        self.orders = self.path / "orders.jsonl"
        self.control = self.path / "control.json"
        self.settings = self.path / "settings.json"
        self.tasks = self.path / "tasks.jsonl"
        self.league = self.path / "league.jsonl"
        self.trace = self.path / "trace"

    @classmethod
    def create(cls, root: Path | str, name: str) -> RunFolder:
        """Make a new folder `root/name`, or `name-2`, `name-3`, ... if that exists. Never writes into an old run."""
        number = 1
        while True:
            path = Path(root) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
                cls(path).checkpoints.mkdir()
            except FileExistsError:
                number += 1
                continue
            except OSError as error:
                fix = f"no folder can be made there ({error.strerror}); give a place that you may write to"
                raise ConfigError("out", str(root), fix) from error
            return cls(path)

    @classmethod
    def open(cls, path: Path | str, *, field: str = "run") -> RunFolder:
        """Open an existing run. Raises a `ConfigError` of `field` that says what is missing."""
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(field, path, "give the path of a run's folder")
        folder = cls(path)
        if not folder.path.is_dir():
            raise ConfigError(field, str(path), "there is no such folder; give the path that `runnel train` printed")
        if not folder.has_run():
            raise ConfigError(field, str(path), "this folder holds no run (no run.json, no metrics.jsonl); give a run's folder")
        return folder

    def has_run(self) -> bool:
        """Whether this is the folder of a run."""
        return self.info.is_file() or self.metrics.is_file()

    def check_files(self) -> None:
        """Raise a `ConfigError` if a file of the run is a link, a pipe or a device: writing to it would write elsewhere."""
        for name in WRITTEN:
            try:
                size_of(self.path / name)
            except FileNotFoundError:
                continue
            except NotRegularError as error:
                raise ConfigError("run", str(self.path), f"{error}; put the file itself there, or remove it") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the run. A second process that wants it meanwhile gets a `ConfigError`."""
        with locked(self.path, "run", "another process is training it; wait for it to end, or stop it"):
            yield

    def add_order(self, order: Mapping[str, object]) -> None:
        """Send an order to the process that trains the run: `{"op": "stop"}`, `{"op": "scale", "numbers": {"actor": 4}}`,
        `{"op": "set", "settings": {"ppo.lr": 1e-4}}`, `{"op": "tasks", "id": "7f3a", "tasks": [...]}`."""
        with told_if_refused(self.path, what=f"the order {order.get('op')!r} was not given"), open_append(self.orders) as file:
            file.write(json.dumps(dict(order)).encode() + b"\n")

    def read_orders(self, start: int) -> tuple[list[Row], int]:
        """The orders from byte `start` on, and the byte where the next one begins. -1 skips all orders that exist already."""
        if not self.orders.exists():
            return [], max(start, 0)
        if start < 0:
            return [], self.orders.stat().st_size
        with open_regular(self.orders) as file:
            file.seek(start)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # an order may be half written now; the next call reads all of it
        found = []
        for line in whole.splitlines():
            try:
                order = json.loads(line)
            except ValueError:
                continue
            if isinstance(order, dict) and _is_order(order):
                found.append(order)
        return found, start + len(whole)

    def open_control(self) -> str:
        """Make and return a token. Whoever has it may give orders over the board. Only its salted hash is written to disk."""
        token, salt = secrets.token_urlsafe(16), secrets.token_hex(16)
        _write_json(self.control, {"salt": salt, "sha256": _hash(salt, token)})
        return token

    def close_control(self) -> None:
        """Withdraw the token: no token is valid from now on."""
        self.control.unlink(missing_ok=True)

    def may_control(self, token: str) -> bool:
        """Whether `token` is the one that the run printed at its last start."""
        try:
            data = _read_json(self.control)
        except ConfigError:
            return False
        salt, known = data.get("salt"), data.get("sha256")
        if not isinstance(salt, str) or not isinstance(known, str):
            return False
        # takes equally long for every wrong token, so that its duration tells nothing about the right one
        return hmac.compare_digest(_hash(salt, token).encode(), known.encode())

    def holder(self) -> Holder:
        """Who trains the run now, as far as this machine can see. It takes no lock, so it never stops a run from starting."""
        return holder_of(self.path, locked_files())

    def is_held(self) -> bool:
        """Whether a process on this machine is training the run now."""
        return self.holder().state == "here"

    def changed(self) -> float:
        """When metrics.jsonl was last written, in seconds since 1970; 0.0 if never."""
        try:
            return self.metrics.stat().st_mtime
        except OSError:
            return 0.0

    def write_config(self, config: Settings) -> None:
        """Write the resolved configuration."""
        _write_json(self.config, config)

    def read_config(self) -> Row:
        """The settings of the run. Names and values of older versions are converted to today's (`core/old_configs.py`)."""
        return todays_config(_read_json(self.config))

    def write_run_info(
        self,
        *,
        recipe: str,
        command: str,
        seed: int,
        created: datetime,
        subject: str = "",
        graph: str = "",
        dataflow: Row | None = None,
    ) -> Row:
        """Write run.json, which holds all that is needed to run it again. Returns what was written."""
        info: Row = {
            "recipe": recipe,
            "subject": subject,
            "command": command,
            "seed": seed,
            "created": created.isoformat(timespec="seconds"),
            "versions": package_versions(),
            "git": git_state(Path.cwd()),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "graph": graph,
            "dataflow": dataflow or {},
        }
        _write_json(self.info, info)
        return info

    def write_changes(self, changes: Sequence[Row]) -> None:
        """Write the changes of live settings, each with its trainer and the first version that uses it."""
        _write_json(self.settings, {"changes": list(changes)})

    def read_changes(self) -> list[Row]:
        """What `write_changes` wrote; empty if nothing was changed. Raises a `ConfigError` if the file is damaged."""
        changes = _read_json(self.settings).get("changes", [])
        if not (isinstance(changes, list) and all(map(_is_change, changes))):
            raise ConfigError("run", str(self.settings), "this file must hold changes of settings; restore it")
        return changes

    def live(self) -> tuple[list[str], list[str]]:
        """The settings that may change while the run goes on, and the members that have values of their own, as it has told."""
        return live_in(self.read_run_info())

    def change_run_info(self, **fields: object) -> None:
        """Change some fields of run.json."""
        _write_json(self.info, self.read_run_info() | fields)

    def read_run_info(self) -> Row:
        """The content of run.json, as `write_run_info` wrote it, unless somebody has changed the file."""
        return _read_json(self.info)

    def read_rows(self) -> tuple[list[Row], list[str]]:
        """The rows of metrics.jsonl, and a sentence for each thing that is wrong with the file."""
        return read_rows(self.metrics)

    def checkpoint_sizes(self) -> list[tuple[str, int]]:
        """Name and size in bytes of each checkpoint, the oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return [(entry.name, _size(entry)) for entry in sorted(self.checkpoints.iterdir()) if not entry.name.startswith(".")]


def _hash(salt: str, token: str) -> str:
    return hashlib.sha256(f"{salt}:{token}".encode(errors="surrogatepass")).hexdigest()


def _is_order(order: Row) -> bool:
    """Whether this is an order that a run can follow. Anyone who may write into its folder may have written it."""
    if order.get("op") == "set":
        settings = order.get("settings")
        return isinstance(settings, dict) and all(isinstance(v, int | float | str | None) for v in settings.values())
    if order.get("op") == "tasks":
        return isinstance(order.get("id"), str) and are_tasks(order.get("tasks"))
    if order.get("op") != "scale":
        return order.get("op") in ("stop", "checkpoint")
    numbers = order.get("numbers")
    return isinstance(numbers, dict) and all(type(n) is int and n >= 1 for n in numbers.values())


def are_tasks(found: object) -> bool:
    """Whether these are new tasks: prompts, each with an answer and columns."""
    kinds = {"prompt": str | list, "answer": str | None, "columns": dict}
    return isinstance(found, list) and all(
        isinstance(task, dict)
        and all(name in task and isinstance(task[name], kind) for name, kind in kinds.items())
        and (isinstance(task["prompt"], str) or all(isinstance(message, dict) for message in task["prompt"]))
        for task in found
    )


def live_by_trainer(info: Row) -> dict[str, dict[str, list[str]]]:
    """By trainer, the settings that may change while the run goes on (`names`), and the `members` that have values of their
    own, by the content of a run.json."""
    told = info.get("live")
    found = {str(trainer): one for trainer, one in told.items() if isinstance(one, dict)} if isinstance(told, dict) else {}
    return {trainer: {key: _texts(one.get(key)) for key in ("names", "members")} for trainer, one in found.items()}


def live_in(info: Row) -> tuple[list[str], list[str]]:
    """Those of all trainers: names, and members."""
    of = live_by_trainer(info).values()
    names, members = (list(dict.fromkeys(name for one in of for name in one[key])) for key in ("names", "members"))
    return names, members


def _texts(found: object) -> list[str]:
    return [str(name) for name in found] if isinstance(found, list) else []


def _is_change(change: object) -> bool:
    """Whether this is a change of a setting, with all its fields. Anyone who may write into the folder may have written it."""
    kinds = {"trainer": str, "version": int, "name": str, "value": object}
    return isinstance(change, dict) and all(name in change and isinstance(change[name], kind) for name, kind in kinds.items())


def read_rows(path: Path | str) -> tuple[list[Row], list[str]]:
    """Every readable row of a JSON-lines file, and one sentence for each line that was skipped.

    A killed run may leave half a line, and a damaged disk may leave anything. The rest of the file is read all the same.
    """
    path = Path(path)
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return [], [f"{path.name} is missing"]
    except NotRegularError as error:
        return [], [str(error)]
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            cut = " (cut off; the run was probably killed while it wrote)" if number == len(lines) else ""
            problems.append(f"{path.name} line {number} is not readable{cut}; skipped")
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(f"{path.name} line {number} is not a row; skipped")
    return rows, problems


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions of the packages that are installed; imports none of them."""
    versions: dict[str, str] = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def git_state(path: Path) -> Row:
    """The `commit` of the work tree at `path`, and whether it has changes (`dirty`); empty outside of a repository or without
    git."""
    commit = _git(path, "rev-parse", "HEAD")
    return {} if commit is None else {"commit": commit, "dirty": bool(_git(path, "status", "--porcelain"))}


def _git(path: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    with told_if_refused(path.parent):
        replace_file(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


def _read_json(path: Path) -> Row:
    """The object in `path`; empty if there is no file. Raises a `ConfigError` if the file is damaged."""
    try:
        data = json.loads(read_regular(path, most=MAX_JSON))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ConfigError("run", str(path), f"this file is damaged ({error}); restore it") from error
    except NotRegularError as error:
        raise ConfigError("run", str(path), f"{error}; put the file itself there") from error
    if not isinstance(data, dict):
        raise ConfigError("run", str(path), "this file must hold a JSON object; restore it")
    return data
