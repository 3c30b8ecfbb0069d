"""Where metric rows go: always to metrics.jsonl, and on request to TensorBoard and Weights & Biases.

metrics.jsonl is the truth (reports and resume read it); the other sinks are views, brought back in line with it on resume.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from runnel.core.clock import Clock, WallClock
from runnel.core.errors import ConfigError
from runnel.track.folder import Row, RunFolder, read_rows

WandbMode = Literal["online", "offline"]


class Sink(Protocol):
    """Takes rows as the run makes them. `flush` leaves nothing in memory (call it before a checkpoint)."""

    def row(self, row: Row) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def step_of(row: Row) -> int:
    """The horizontal axis: environment steps, or the version where a run counts no steps.

    >>> step_of({"version": 3, "steps": 0}), step_of({"version": 3, "steps": 96})
    (3, 96)
    """
    return int(row.get("steps") or row.get("version") or 0)


def last_step(metrics: Path) -> int | None:
    """The last step on the axis of a metrics file; None where it holds no row yet."""
    steps = [step_of(row) for row in read_rows(metrics)[0] if row.get("kind") in ("update", "eval")]
    return max(steps, default=None)


def scalars(row: Row) -> dict[str, float]:
    """The numbers of an update or eval row under flat names, without the ones that are not finite.

    >>> scalars({"kind": "eval", "mean": 9.5, "low": 9.0, "high": float("nan")})
    {'eval/mean': 9.5, 'eval/low': 9.0}
    """
    flat: dict[str, Any] = {}
    if row.get("kind") == "update":
        flat.update(row.get("metrics", {}))
        timing = row.get("time", {})
        flat.update({f"time/{k}": v for k, v in timing.items() if not isinstance(v, dict)})
        flat.update({f"time/{part}/{k}": v for part in ("stages", "idle", "ranks") for k, v in timing.get(part, {}).items()})
        for stream, counts in row.get("streams", {}).items():
            flat.update(_counts(f"streams/{stream}", counts))
    elif row.get("kind") == "eval":
        flat = {f"eval/{name}": row[name] for name in ("mean", "low", "high") if name in row}
    return {k: float(v) for k, v in flat.items() if isinstance(v, int | float) and math.isfinite(v)}


def _counts(prefix: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            flat.update({f"{prefix}/{name}/{reason}": n for reason, n in value.items()})
        else:
            flat[f"{prefix}/{name}"] = value
    return flat


class JsonlSink:
    """Appends one JSON object a line and flushes it, so that a killed run keeps all but its last line."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open(self.path, "ab")  # noqa: SIM115  (closed by close())
        if self.offset() and not self._ends_with_newline():
            self._file.write(b"\n")
            self._file.flush()

    def row(self, row: Row) -> None:
        self._file.write(encode(row).encode(errors="backslashreplace") + b"\n")
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def offset(self) -> int:
        """Bytes written so far: what a checkpoint stores."""
        self._file.flush()
        return self._file.seek(0, 2)

    def truncate(self, offset: int) -> int:
        """Cut the file back to `offset` and go on from there. Returns the bytes removed; negative: the file was shorter."""
        size = self.offset()
        if size > offset:
            self._file.truncate(offset)
            self._file.seek(0, 2)
        return size - offset

    def close(self) -> None:
        self._file.close()

    def _ends_with_newline(self) -> bool:
        with open(self.path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"


def encode(row: Row) -> str:
    """One line of strict JSON: numpy scalars as numbers, and null for what is not finite.

    >>> encode({"loss": float("nan"), "n": np.int64(3)})
    '{"loss": null, "n": 3}'
    """
    try:
        return json.dumps(row, allow_nan=False, default=_plain, ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a metrics row holds a {type(value).__name__}; give plain numbers, strings, lists and dicts")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return _finite(_plain(value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoardSink:
    """Scalars as TensorBoard events. `resume_step`: hide what an earlier life of the run wrote after that step.

    An event costs about half a millisecond (its checksum is computed in Python), so of updates that come faster than every
    `interval_s` only the newest is written; metrics.jsonl has them all.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        resume_step: int | None = None,
        interval_s: float = 0.1,
        clock: Clock | None = None,
    ) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError("track", "tensorboard", f"cannot import it ({error}); pip install tensorboard") from error
        self._event, self._summary = Event, Summary
        self._clock, self._interval_s = clock or WallClock(), interval_s
        self._due = self._clock.now()
        self._held: Row | None = None
        self._writer = EventFileWriter(str(directory), flush_secs=10)
        if resume_step is not None:
            restart = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=resume_step + 1, session_log=restart))

    def row(self, row: Row) -> None:
        now = self._clock.now()
        if row.get("kind") == "update" and now < self._due:
            self._held = row
            return
        if row.get("kind") == "update":
            self._held, self._due = None, now + self._interval_s
        self._write_held()
        self._write(row)

    def flush(self) -> None:
        self._write_held()
        self._writer.flush()

    def close(self) -> None:
        self._write_held()
        self._writer.close()

    def _write_held(self) -> None:
        if self._held is not None:
            self._write(self._held)
            self._held = None

    def _write(self, row: Row) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row).items()]
        if values:
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=time.time(), step=step_of(row), summary=summary))


class WandbSink:
    """Scalars to Weights & Biases. The id in `directory/wandb_id.txt` makes a resumed run the same run there.

    `mode=None` leaves the choice to wandb (`WANDB_MODE`, else online). Steps that an earlier life of the run has already sent
    are kept by wandb as they are.
    """

    def __init__(
        self, project: str, config: Mapping[str, Any], *, directory: Path | str, mode: WandbMode | None = None
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("track", "wandb", f"cannot import it ({error}); pip install 'runnel[wandb]'") from error
        directory = Path(directory)
        try:
            self._run: Any = wandb.init(
                project=project,
                config=dict(config),
                dir=str(directory),
                name=directory.name,
                id=_wandb_id(directory),
                resume="allow",
                mode=mode,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.UsageError as error:
            fix = f"{error}; run `wandb login`, or use --track wandb-offline"
            raise ConfigError("track", "wandb", fix) from error
        self._exit_code = 0

    def row(self, row: Row) -> None:
        values = scalars(row)
        if values:
            self._run.log(values, step=step_of(row))
        if row.get("kind") == "end":
            self._run.summary["status"] = row.get("status")
            self._exit_code = int(row.get("status") == "failed")

    def flush(self) -> None:
        """wandb's own process has each row as soon as it is logged."""

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)


def _wandb_id(directory: Path) -> str:
    """The run's identity at wandb, made once per run folder."""
    path = directory / "wandb_id.txt"
    if not path.is_file():
        path.write_text(secrets.token_hex(6) + "\n")
    return path.read_text().strip()


def _tensorboard(folder: RunFolder, config: Mapping[str, Any]) -> Sink:
    return TensorBoardSink(folder.tensorboard, resume_step=last_step(folder.metrics))


def _wandb(folder: RunFolder, config: Mapping[str, Any]) -> Sink:
    return WandbSink("runnel", config, directory=folder.path)


def _wandb_offline(folder: RunFolder, config: Mapping[str, Any]) -> Sink:
    return WandbSink("runnel", config, directory=folder.path, mode="offline")


SINKS: dict[str, Callable[[RunFolder, Mapping[str, Any]], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "wandb-offline": _wandb_offline,
}


def make_sink(name: str, run_dir: Path | str, config: Mapping[str, Any]) -> Sink:
    """The sink called `name` for a run folder. On resume, call it after metrics.jsonl was cut back: sinks go on from there."""
    if name not in SINKS:
        raise ConfigError("track", name, f"unknown sink; use one of {', '.join(SINKS)}")
    return SINKS[name](RunFolder(run_dir), config)
