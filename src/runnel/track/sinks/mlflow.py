"""The MLflow sink. Its store is mlflow.db in the run's folder, or where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from runnel.core.config import flat
from runnel.core.errors import ConfigError
from runnel.track.folder import Row, Settings
from runnel.track.sinks.base import scalars, step_of
from runnel.track.sinks.config import names_in
from runnel.track.sinks.tracker import TrackerSink

MOST = 1000
"""MLflow's limit of metrics in one call."""
MOST_PARAMS = 100
"""MLflow's limit of parameters in one call."""
LONGEST_PARAM = 6000
"""MLflow's limit of characters of a parameter's value."""
ENDS = {"failed": "FAILED", "collapsed": "FAILED"}


class MlflowSink(TrackerSink):
    """Sends scalars to an MLflow store.

    MLflow cannot remove single metrics. So a run that a resume cut back becomes a new run there, with all rows that were kept,
    and the old one is deleted (MLflow hides it).
    """

    def __init__(self, folder: Path, config: Settings) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError("track", "mlflow", f"cannot import it ({error}); pip install 'runnel[mlflow]'") from error
        # else it logs a line for every table that it makes
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        names = names_in(config)
        experiment = names.project_of("MLFLOW_EXPERIMENT_NAME")
        super().__init__(folder, "mlflow", place=experiment)
        self._status, identity = "FINISHED", self._id
        if not self._id or self._is_cut:
            where = self._experiment(experiment, folder)
            identity = self._client.create_run(where, run_name=names.name_of(folder)).info.run_id
            params = [Param(_name(k), str(v)[:LONGEST_PARAM]) for k, v in flat(config).items()]
            for start in range(0, len(params), MOST_PARAMS):
                self._client.log_batch(identity, params=params[start : start + MOST_PARAMS])
            if self._id:
                self._client.delete_run(self._id)
        else:
            self._client.update_run(self._id, status="RUNNING")
        self._begin(identity)

    def row(self, row: Row) -> None:
        super().row(row)
        if row.get("kind") == "end":
            self._status = "KILLED" if row.get("interrupted") else ENDS.get(str(row.get("status")), "FINISHED")

    def _finish(self) -> None:
        self._client.set_terminated(self._id, status=self._status)

    def _experiment(self, name: str, folder: Path) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        local = None if os.environ.get("MLFLOW_TRACKING_URI") else (folder / "mlflow").resolve().as_uri()
        return str(self._client.create_experiment(name, artifact_location=local))

    def _send(self, rows: Sequence[Row]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_name(k), v, now, step_of(row)) for row in rows for k, v in scalars(row).items()]
        for start in range(0, len(metrics), MOST):
            self._client.log_batch(self._id, metrics=metrics[start : start + MOST])


def _name(name: str) -> str:
    """A metric's name with only the characters that MLflow allows.

    >>> _name("loss/policy (µ)")
    'loss/policy ___'
    """
    return re.sub(r"[^A-Za-z0-9_. :/-]", "_", name)
