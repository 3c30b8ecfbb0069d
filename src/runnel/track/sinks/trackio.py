"""The trackio sink: a database in trackio/ of the run's folder, or where TRACKIO_DIR says. It needs no server and no
network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError
from runnel.track.folder import Row, Settings
from runnel.track.sinks.base import scalars, step_of
from runnel.track.sinks.config import names_in
from runnel.track.sinks.tracker import TrackerSink

if TYPE_CHECKING:
    from trackio.sqlite_storage import SQLiteStorage


class TrackioSink(TrackerSink):
    """Writes scalars into trackio's storage. `TRACKIO_DIR=RUN/trackio trackio show` displays them.

    It calls the storage and not `trackio.init`: that would look for a Hugging Face Space or a server in the environment, and it
    fixes its folder at its first import. After a resume that cut rows away, the run is deleted there and written again.
    """

    def __init__(self, folder: Path, config: Settings) -> None:
        try:
            from trackio import sqlite_storage
        except ImportError as error:
            raise ConfigError("track", "trackio", f"cannot import it ({error}); pip install 'runnel[trackio]'") from error
        self._module = sqlite_storage
        self._folder = Path(os.environ.get("TRACKIO_DIR") or folder / "trackio").resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        names = names_in(config)
        self._project, self._run, self._config = names.project_of(), names.name_of(folder), dict(config)
        super().__init__(folder, "trackio", place=self._project)
        if self._is_cut:
            with self._here() as storage:
                storage.delete_run(self._project, self._run)
            self._id = ""
        self._begin(self._run)

    def _send(self, rows: Sequence[Row]) -> None:
        with self._here() as storage:
            numbers, steps = [scalars(row) for row in rows], [step_of(row) for row in rows]
            storage.bulk_log(self._project, self._run, numbers, steps=steps, config=self._config)

    @contextmanager
    def _here(self) -> Iterator[type[SQLiteStorage]]:
        """trackio's storage, set to this run's folder meanwhile: trackio keeps one folder for the whole process."""
        before = self._module.TRACKIO_DIR
        self._module.TRACKIO_DIR = self._folder
        try:
            yield self._module.SQLiteStorage
        finally:
            self._module.TRACKIO_DIR = before
