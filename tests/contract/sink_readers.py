"""What a sink has written, read back by the library that it was written for: points `(step, value)` by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Points = dict[str, list[tuple[int, float]]]


def tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def mlflow(folder: Path) -> Points:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("runnel")
    (run,) = client.search_runs([experiment.experiment_id])  # what was deleted is not shown
    histories = {tag: client.get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
    return {tag: [(m.step, m.value) for m in history] for tag, history in histories.items()}


def trackio(folder: Path) -> Points:
    from trackio import sqlite_storage

    before, sqlite_storage.TRACKIO_DIR = sqlite_storage.TRACKIO_DIR, folder / "trackio"
    try:
        storage = sqlite_storage.SQLiteStorage
        assert storage.get_projects() == ["runnel"]
        (run,) = storage.get_runs("runnel")
        logs = storage.get_logs("runnel", run)
    finally:
        sqlite_storage.TRACKIO_DIR = before
    return _points((row["step"], {k: v for k, v in row.items() if k not in ("step", "timestamp")}) for row in logs)


def wandb_offline(folder: Path) -> Points:
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # a run is finished before wandb's process has written all of it; when that has ended, it has
    rows: list[tuple[int, dict[str, Any]]] = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                step = items.get("_step", record.history.step.num)
                rows.append((step, {k: v for k, v in items.items() if not k.startswith("_")}))
    return _points(rows)


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a wandb file: after seven bytes, LevelDB's log format (blocks of 32 KiB; crc, length, kind, data)."""
    assert data[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (rest := 32768 - place % 32768) < 7:
            place += rest
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if kind == 0:
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def csv(folder: Path) -> Points:
    import pandas

    return _table(pandas.read_csv(folder / "metrics.csv"))


def parquet(folder: Path) -> Points:
    import pandas

    return _table(pandas.read_parquet(folder / "metrics.parquet"))


def _table(frame: Any) -> Points:
    names = [n for n in frame.columns if n not in ("kind", "version", "steps", "tokens")]
    found = {name: frame.loc[frame[name].notna(), ["steps", name]] for name in names}
    return {name: [(int(s), float(v)) for s, v in part.itertuples(index=False)] for name, part in found.items()}


def _points(rows: Any) -> Points:
    found: Points = {}
    for step, values in rows:
        for name, value in values.items():
            found.setdefault(name, []).append((step, value))
    return found


READERS: dict[str, Callable[[Path], Points]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "trackio": trackio,
    "wandb-offline": wandb_offline,
    "csv": csv,
    "parquet": parquet,
}
