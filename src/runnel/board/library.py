"""Finds the runs under a folder, reads their files as they grow, and sums up each in a line of the table."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from runnel.board.behaviour import LineIndex, conversation_head, group_head
from runnel.board.columns import Columns, index_file, mark_of, preview, read_blocks
from runnel.board.labels import group_labels
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.report.collect import NOT_LEARNED
from runnel.track.files import size_of
from runnel.track.folder import Row, RunFolder
from runnel.track.frame import RETURN_KEYS
from runnel.track.history import Floats, is_number, run_label, tags_in
from runnel.track.locks import Lock, holder_of, locked_files
from runnel.track.status import status_of

LARGE = 1 << 20
"""Bytes above which a file is parsed in another process."""
DEPTH = 6
"""Levels of folders in which runs are looked for."""
BEHIND_LINKS = 2
"""Levels behind a link, which may lead anywhere."""
INSIDE = {"checkpoints", "tensorboard", "episodes", "model", "trace", "wandb", "report", "mlruns"}
NUM_SPARKS = 40


class RunView:
    """One run: the content of its files now."""

    def __init__(self, key: str, folder: RunFolder, cache: Path) -> None:
        self.key, self.folder = key, folder
        self.lock = threading.Lock()
        """Held during a refresh, and while columns are read."""
        self.columns = Columns()
        self.groups = LineIndex(folder.groups, group_head)
        self.conversations = LineIndex(folder.conversations, conversation_head)
        self.info: Row = {}
        self.config: Row = {}
        self.damage: list[str] = []
        """What is wrong with run.json and config.json."""
        self.is_rough = False
        """Whether the columns are a preview."""
        self.changed = 0.0
        self._seen: dict[str, tuple[int, int]] = {}
        name = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:24]
        self._cache = cache / f"{name}.columns"
        self._indexing: Future[None] | None = None
        self._mark = ""

    # ------------------------------------------------------------------------------------------------------------ refreshing
    def refresh(self, pool: ProcessPoolExecutor | None) -> bool:
        """Read what is new. Returns whether anything was."""
        new = self._read_plain()
        try:
            size = size_of(self.folder.metrics)
            stat = self._look(self.folder.metrics)
            if stat:
                self.changed = self.folder.metrics.lstat().st_mtime
            if not (stat or self._indexing):
                return new
            return self._follow(size, pool) or new
        except FileNotFoundError:
            return self._unread("metrics.jsonl is missing; the run has written nothing yet, or the file was removed") or new
        except OSError as error:  # a link, a pipe, or a file that this user may not read
            return self._unread(f"metrics.jsonl is not read: {error}") or new

    def _unread(self, why: str) -> bool:
        """Note why there are no metrics, once. Returns whether this is new."""
        if self.columns.num_rows == 0 and not self.columns.problems:
            self.columns.problems.append(why)
            return True
        return False

    def _follow(self, size: int, pool: ProcessPoolExecutor | None) -> bool:
        """Read new rows of metrics.jsonl; with much to read, show a preview and let another process parse the file."""
        if self._indexing is not None:
            return self._finish_indexing()
        columns = self.columns
        if self.is_rough or size < columns.offset or (columns.offset and not self._is_same()):
            columns = Columns()
        if columns.offset == 0:
            columns = Columns.load(self._cache, self.folder.metrics) or columns
        if size - columns.offset > LARGE and pool is not None:
            self.columns, self.is_rough = preview(self.folder.metrics), True
            with suppress(BrokenExecutor):
                self._indexing = pool.submit(index_file, str(self.folder.metrics), str(self._cache))
                return True
        for block in read_blocks(self.folder.metrics, columns.offset):
            columns.feed(block)
        self.columns, self.is_rough = columns, False
        self._mark = mark_of(self.folder.metrics, columns.offset)
        return True

    def _is_same(self) -> bool:
        return self._mark == mark_of(self.folder.metrics, self.columns.offset)

    def _finish_indexing(self) -> bool:
        assert self._indexing is not None
        if not self._indexing.done():
            return False
        self._indexing = None  # if it failed (no room for a cache, say), this process now parses the file itself
        return self._follow(self.folder.metrics.stat().st_size, None)

    def _read_plain(self) -> bool:
        """Read run.json and config.json again if they have changed. Returns whether they have."""
        changed = False
        for path, name in ((self.folder.info, "info"), (self.folder.config, "config")):
            if not self._look(path):
                continue
            changed = True
            self.damage = [d for d in self.damage if path.name not in d]
            try:
                setattr(self, name, self.folder.read_run_info() if name == "info" else self.folder.read_config())
            except ConfigError as error:
                self.damage.append(str(error))
        return changed

    def _look(self, path: Path) -> bool:
        """Whether a file has changed since the last call."""
        try:
            stat = path.lstat()
        except OSError:
            return False
        now = (stat.st_mtime_ns, stat.st_size)
        changed = self._seen.get(path.name) != now
        self._seen[path.name] = now
        return changed

    # --------------------------------------------------------------------------------------------------------------- summary
    def status(self, held: Collection[Lock] | None) -> str:
        """One of `runnel.track.status.STATUSES`."""
        end, here, elsewhere = self.columns.end, self.is_held(held), bool(self.elsewhere(held))
        return status_of(end, held=here, changed=self.changed, elsewhere=elsewhere)

    def elsewhere(self, held: Collection[Lock] | None) -> list[str]:
        """For a run without an end that another machine started: a sentence that its state cannot be seen from here."""
        holder = holder_of(self.folder.path, held)
        if holder.state != "unknown" or self.columns.end:
            return []
        return [f"it was started on {holder.host or 'another machine'}; whether it still runs cannot be seen from here"]

    def is_held(self, held: Collection[Lock] | None) -> bool:
        """Whether a process on this machine trains the run now."""
        return holder_of(self.folder.path, held).state == "here"

    @property
    def label(self) -> str:
        return run_label(self.info, self.folder)

    @property
    def seed(self) -> str:
        """The seed as text. A run without a known seed gets its own key, so that it is equal to no other run."""
        found = self.info.get("seed", self.config.get("seed"))
        return self.key if found is None else str(found)

    @property
    def created(self) -> str:
        return str(self.info.get("created") or "")

    @property
    def method(self) -> Row:
        """The settings that change learning, as in `runnel report --over seeds`."""
        return {k: v for k, v in self.config.items() if k not in NOT_LEARNED}

    @property
    def group(self) -> str:
        """A key that runs of one method on one task share."""
        return hashlib.sha256((self.label + json.dumps(self.method, sort_keys=True)).encode()).hexdigest()[:12]

    @property
    def score_name(self) -> str:
        names = self.columns.names()
        return next((key for key in RETURN_KEYS if key in names), "eval/mean")

    def line(self, held: Collection[Lock] | None) -> Row:
        """The run as a line of the table."""
        c, last = self.columns, self.columns.last
        status = self.status(held)
        progress = 1.0 if status in ("finished", "solved") else last.get("progress") or 0.0
        _, score = c.values(self.score_name)
        rate = last.get("time", {}).get("tokens_per_s") or last.get("time", {}).get("steps_per_s")
        return {
            "id": self.key,
            "name": self.folder.path.resolve().name,
            "label": self.label,
            "group": self.group,
            "recipe": own_name(str(self.info.get("recipe") or "")),
            "subject": own_name(str(self.info.get("subject") or "")),
            "seed": self.info.get("seed"),
            "tags": tags_in(self.config),
            "created": self.created,
            "status": status,
            "progress": progress,
            "version": last.get("version") or 0,
            "steps": last.get("steps") or 0,
            "tokens": last.get("tokens") or 0,
            "wall_s": max(_wall(last), _wall(c.last_eval), _wall(c.end)),
            "rate": rate if status == "running" else None,
            "left_s": last.get("time", {}).get("left_s") if status == "running" else None,
            "eval": {k: c.last_eval.get(k) for k in ("mean", "low", "high", "num")} if c.last_eval else None,
            "score": float(score[-1]) if len(score) else None,
            "score_name": self.score_name,
            "spark": sparks(score),
            "num_rows": c.num_rows,
            "rough": self.is_rough,
            "collapses": [{k: row.get(k) for k in ("collapse", "since", "text")} for row in c.collapses],
            "problems": c.num_problems + len(self.damage) + (1 if c.problems and not c.num_problems else 0),
        }


def _wall(row: Row) -> float:
    found = row.get("time", {}).get("wall_s")
    return float(found) if is_number(found) else 0.0


def sparks(values: Floats) -> list[float]:
    """A curve as a few means, for a line of the table.

    >>> sparks(np.array([0.0, 1.0, 2.0]))
    [0.0, 1.0, 2.0]
    """
    known = values[np.isfinite(values)]
    ranges = np.array_split(known, min(NUM_SPARKS, len(known))) if len(known) else []
    return [float(f"{values.mean():.4g}") for values in ranges]


class Library:
    """All runs (and studies) under a folder."""

    def __init__(self, root: Path, *, cache: Path | None = None, num_processes: int = 1) -> None:
        if not root.is_dir():
            raise ConfigError("folder", str(root), "there is no such folder; give one that holds runs, such as runs/")
        self.root = root
        self.runs: dict[str, RunView] = {}
        self.studies: dict[str, Path] = {}
        self.held: Collection[Lock] | None = ()
        """The locks that processes of this machine hold (`locked_files`)."""
        self.problem = ""
        """Why the folder cannot be read now; empty if it can."""
        self._cache = cache or default_cache()
        self._looking = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._num_processes = num_processes

    def refresh(self) -> set[str]:
        """Read everything that has changed. Returns the ids of runs that changed, are new, or are gone."""
        with self._looking:
            self.held = locked_files()
            runs, self.studies = _find(self.root)
            changed = {key for key in self.runs if key not in runs}
            self.runs = {key: self.runs.get(key) or RunView(key, RunFolder(path), self._cache) for key, path in runs.items()}
            for key, run in self.runs.items():
                with run.lock:
                    if run.refresh(self._workers()):
                        changed.add(key)
            return changed

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # spawn: the watching thread may hold locks, which a forked process would inherit and never release
            self._pool = ProcessPoolExecutor(self._num_processes, mp_context=get_context("spawn"))
        return self._pool

    def lines(self) -> list[Row]:
        """The table of runs, the newest first."""
        lines = []
        for run in self.runs.values():
            with run.lock:
                lines.append(run.line(self.held))
        labels = group_labels(list(self.runs.values()))
        for line in lines:
            line["group_label"] = labels.get(line["group"], line["label"])
        return sorted(lines, key=lambda line: (line["created"], line["id"]), reverse=True)

    def close(self) -> None:
        """Stop the processes that parse files."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def default_cache() -> Path:
    """The folder of parsed metrics: `runnel/board` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "runnel" / "board"


def run_folders(root: Path) -> dict[str, Path]:
    """The folders of all runs in `root` and below, by their path relative to `root`."""
    return _find(root)[0]


def _find(root: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    runs: dict[str, Path] = {}
    studies: dict[str, Path] = {}
    for path, names in _folders(root):
        key = path.relative_to(root).as_posix()
        if "study.json" in names:
            studies[key] = path / "study.json"
        if "run.json" in names or "metrics.jsonl" in names:
            runs[key] = path
    return runs, studies


def _folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """All folders with the names of their files; each folder once, although links may lead to it again.

    Links are followed last, so that a folder appears under its real name, and less deep, since they may lead anywhere.
    """
    seen: set[tuple[int, int]] = set()
    real, links = deque([(root, DEPTH)]), deque[tuple[Path, int]]()
    while real or links:
        path, depth = (real or links).popleft()
        try:
            stat, entries = path.stat(), list(os.scandir(path))
        except OSError:  # it is gone, unreadable or no folder, or its links form a circle
            continue
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        yield path, {e.name for e in entries if not e.is_dir(follow_symlinks=False)}
        for entry in entries if depth else []:
            if entry.name in INSIDE or entry.name.startswith("."):
                continue
            if entry.is_symlink():
                links.append((Path(entry.path), min(depth - 1, BEHIND_LINKS)))
            elif entry.is_dir(follow_symlinks=False):
                real.append((Path(entry.path), depth - 1))
