"""trackio: a database in the run's folder under trackio/, or where TRACKIO_DIR says. Local: no server, no network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runnel.core.errors import ConfigError
from runnel.track.folder import Row
from runnel.track.sinks.base import scalars, step_of
from runnel.track.sinks.config import names_in
from runnel.track.sinks.outbox import Outbox


class TrackioSink:
    """Scalars into trackio's own storage, which `trackio show` reads: `TRACKIO_DIR=RUN/trackio trackio show`.

    The storage is called directly, not `trackio.init`: that would look for a Hugging Face Space or a server in the environment,
    and takes its folder from the moment of its first import. What was cut away by a resume is deleted, the run written anew.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            from trackio import sqlite_storage
        except ImportError as error:
            raise ConfigError("track", "trackio", f"cannot import it ({error}); pip install 'runnel[trackio]'") from error
        self._module: Any = sqlite_storage
        self._folder = Path(os.environ.get("TRACKIO_DIR") or folder / "trackio").resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        names = names_in(config)
        self._project, self._run, self._config = names.project_of(), names.name_of(folder), dict(config)
        self._outbox = Outbox(folder, "trackio", place=self._project)
        if self._outbox.is_cut:
            with self._here() as storage:
                storage.delete_run(self._project, self._run)
            self._outbox.id = ""
        self._outbox.begin(self._run, self._send)

    def row(self, row: Row) -> None:
        self._outbox.add(row)

    def flush(self) -> None:
        self._outbox.flush()

    def close(self) -> None:
        self._outbox.flush()
        self._outbox.close()

    def _send(self, rows: Sequence[Row]) -> None:
        with self._here() as storage:
            numbers, steps = [scalars(row) for row in rows], [step_of(row) for row in rows]
            storage.bulk_log(self._project, self._run, numbers, steps=steps, config=self._config)

    @contextmanager
    def _here(self) -> Iterator[Any]:
        """trackio's storage, with this folder for its own: it keeps one for the whole process."""
        before = self._module.TRACKIO_DIR
        self._module.TRACKIO_DIR = self._folder
        try:
            yield self._module.SQLiteStorage
        finally:
            self._module.TRACKIO_DIR = before
