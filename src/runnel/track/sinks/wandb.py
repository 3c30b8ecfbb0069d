"""The Weights & Biases sink: online, or offline in wandb/ of the run's folder (`wandb sync` sends it later)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from runnel.core.errors import ConfigError
from runnel.track.folder import Row, Settings
from runnel.track.sinks.base import scalars, step_of
from runnel.track.sinks.config import names_in
from runnel.track.sinks.tracker import TrackerSink

WandbMode = Literal["online", "offline"]


class WandbSink(TrackerSink):
    """Sends scalars to Weights & Biases. The id in wandb_run.json makes a resumed run the same run there.

    `mode=None` leaves the choice to wandb (`WANDB_MODE`, else online). Offline files with rows that a resume cut away are moved
    to wandb/superseded/ and written again. The same happens after a kill, because wandb may not have written all rows to its
    files. Online, wandb cannot remove rows, so the steps that it has stay as they are.
    """

    def __init__(self, folder: Path, config: Settings, *, mode: WandbMode | None = None) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("track", "wandb", f"cannot import it ({error}); pip install 'runnel[wandb]'") from error
        names = names_in(config)
        project = names.project_of("WANDB_PROJECT")
        super().__init__(folder, "wandb", place=f"{names.entity}/{project}")
        identity = self._id or secrets.token_hex(6)
        is_offline = (mode or os.environ.get("WANDB_MODE")) == "offline"
        if is_offline and (self._is_cut or not self._was_closed):
            _set_aside(folder / "wandb", identity)
            self._id = ""
        try:
            self._run = wandb.init(
                project=project,
                entity=names.entity or None,
                group=names.group or None,
                config=dict(config),
                dir=str(folder),
                name=names.name_of(folder),
                id=identity,
                resume="allow",
                mode=mode,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.UsageError as error:
            fix = f"{error}; run `wandb login`, or use --track wandb-offline"
            raise ConfigError("track", "wandb", fix) from error
        self._exit_code = 0
        self._begin(identity)

    def row(self, row: Row) -> None:
        super().row(row)
        if row.get("kind") == "end":
            self._run.summary["status"] = row.get("status")
            self._exit_code = int(row.get("status") in ("failed", "collapsed"))

    def _finish(self) -> None:
        self._run.finish(exit_code=self._exit_code)

    def _send(self, rows: Sequence[Row]) -> None:
        """Log rows. wandb's own process has each of them at once, so that a flush has nothing more to do."""
        for row in rows:
            if step_of(row) >= self._run.step:  # wandb has older steps already, and would warn about each
                self._run.log(scalars(row), step=step_of(row))


def wandb_offline(folder: Path, config: Settings) -> WandbSink:
    """The sink `wandb-offline`."""
    return WandbSink(folder, config, mode="offline")


def _set_aside(folder: Path, identity: str) -> None:
    """Move offline files of this run to a folder that `wandb sync --sync-all` does not read.

    wandb puts a number behind the id where a run was started twice in the same second.
    """
    aside = folder / "superseded"
    for number, path in enumerate(sorted(folder.glob(f"offline-run-*-{identity}*"))):
        aside.mkdir(exist_ok=True)
        path.rename(aside / f"{path.name}-{len(list(aside.iterdir())) + number}")
