"""Makes sinks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference, load_object
from runnel.track.folder import Settings
from runnel.track.sinks.base import Sink
from runnel.track.sinks.csv import CsvSink
from runnel.track.sinks.guard import GuardedSink
from runnel.track.sinks.mlflow import MlflowSink
from runnel.track.sinks.parquet import ParquetSink
from runnel.track.sinks.tensorboard import TensorBoardSink
from runnel.track.sinks.trackio import TrackioSink
from runnel.track.sinks.wandb import WandbSink, wandb_offline

SinkMaker = Callable[[Path, Settings], Sink]

SINKS: dict[str, SinkMaker] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "wandb-offline": wandb_offline,
    "mlflow": MlflowSink,
    "trackio": TrackioSink,
    "csv": CsvSink,
    "parquet": ParquetSink,
}


def find_sink(name: str) -> SinkMaker:
    """The class or function that makes the sink `name`: one of `SINKS`, or the user's own, `module:name` or `file.py:name`."""
    if name in SINKS:
        return SINKS[name]
    if not is_reference(name):
        own = "your own as file.py:Name"
        raise ConfigError("track", name, f"unknown sink; use one of {', '.join(SINKS)}, or {own}")
    found = load_object(name, "track")
    if not callable(found):
        raise ConfigError("track", name, "is no class or function; it is called with the run's folder and its config")
    maker: SinkMaker = found
    return maker


def make_sink(name: str, folder: Path | str, config: Settings) -> Sink:
    """Make the sink `name` for a run folder. On resume, call this after metrics.jsonl was cut back: sinks go on from there."""
    sink = find_sink(name)(Path(folder), config)
    lacks = [method for method in ("row", "flush", "close") if not callable(getattr(sink, method, None))]
    if lacks:
        raise ConfigError("track", name, f"it has no method {lacks[0]!r}; a sink has row(row), flush() and close()")
    return sink


def open_sinks(names: Sequence[str], folder: Path | str, config: Settings, warn: Callable[[str], None]) -> list[GuardedSink]:
    """Make the sinks of a run. `warn` is called for each that fails."""
    return [GuardedSink(name, partial(make_sink, name, folder, config), warn) for name in dict.fromkeys(names)]
