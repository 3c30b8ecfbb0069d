"""Reads the files that the processes of a traced run have written (`core/trace.py`), and brings them onto one time base."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.trace import FORMAT, KINDS, LANES, RECORD
from runnel.track.files import NotRegularError, read_regular
from runnel.track.folder import Row, RunFolder

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass
class Process:
    """What one process recorded. Records `[n, RECORD]`: code, time, and three numbers."""

    group: str
    """The name of its process group."""
    epoch: int
    """How often the run had gone back to a checkpoint."""
    incarnation: int
    """Restart counter of the group in the upper bits; see `restarts`."""
    pid: int
    host: str
    boot: str
    clocks: list[tuple[float, float]]
    """Pairs of one moment: by the process's monotonic clock, and by the wall clock."""
    names: list[str] = field(default_factory=list)
    tracks: list[str] = field(default_factory=list)
    records: Numbers = field(default_factory=lambda: np.zeros((0, RECORD)))
    left_out: int = 0
    problem: str = ""
    shift_s: float = 0.0
    """Seconds to add to its times. Processes of one machine share a monotonic clock; machines are aligned by their wall
    clocks."""

    @property
    def restarts(self) -> int:
        """How often the group was restarted before, in this epoch."""
        return self.incarnation >> 12

    def of_kind(self, kind: int) -> Numbers:
        """The records of one kind."""
        return np.asarray(self.records[self.records[:, 0].astype(np.int64) % KINDS == kind])


def tracks_of(records: Numbers) -> Integers:
    """The track of each record."""
    return np.asarray(records[:, 0].astype(np.int64) // KINDS % LANES)


def names_of(records: Numbers) -> Integers:
    """The number of each record's name."""
    return np.asarray(records[:, 0].astype(np.int64) // (KINDS * LANES))


def read_processes(run: Path | str) -> list[Process]:
    """All processes of a run, in the order of the picture. Raises a `ConfigError` if the run was not traced."""
    folder = RunFolder.open(run)
    paths = sorted(folder.trace.glob("*.bin")) if folder.trace.is_dir() else []
    if not paths:
        fix = f"train it with --trace, or go on with it: runnel resume {run} --trace"
        raise ConfigError("run", str(run), f"was not traced (it has no trace/ folder); {fix}")
    found = [read_process(path) for path in paths]
    _align(found)
    return sorted(found, key=lambda p: (_rank(p.group), p.group, p.epoch, p.incarnation))


def read_process(path: Path) -> Process:
    """Read one file. An incomplete block at its end (the process was killed) is left out, and so is all that follows damage."""
    try:
        data = read_regular(path, below=path.parent.parent)
    except NotRegularError as error:
        raise ConfigError("run", str(path), f"{error}; delete it") from error
    line, _, _ = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["runnel_trace"] != FORMAT:
            raise ConfigError("run", str(path), f"was recorded in format {head['runnel_trace']}; this runnel reads {FORMAT}")
        epoch, incarnation, pid = (int(head[name]) for name in ("epoch", "incarnation", "pid"))
        group, host, boot = (str(head[name]) for name in ("group", "host", "boot"))
        process = Process(group, epoch, incarnation, pid, host, boot, [_clock(head)])
        process.problem = _read_blocks(process, data, len(line) + 1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("run", str(path), f"is not a trace of runnel, or damaged ({error}); delete this file") from error
    return process


def _read_blocks(process: Process, data: bytes, place: int) -> str:
    """Add the blocks from byte `place` on to `process`; return what is wrong with them, or an empty text."""
    blocks: list[Numbers] = []
    problem = ""
    while place < len(data):
        end = data.find(b"\n", place)
        size = 0
        try:
            head = json.loads(data[place:end]) if end >= 0 else {}
            size = int(head["n"]) * RECORD * 8
            whole = size >= 0 and end + 1 + size <= len(data)
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            problem = "the end of the file is missing or damaged (the process was killed?)"
            break
        process.names += [str(name) for name in head.get("names", [])]
        # files written by older versions call tracks lanes
        process.tracks += [str(track) for track in head.get("tracks", head.get("lanes", []))]
        process.left_out = int(head.get("left_out", process.left_out))
        process.clocks += [_clock(head)] if "clock" in head else []
        blocks.append(np.frombuffer(data, np.float64, size // 8, end + 1).reshape(-1, RECORD))
        place = end + 1 + size
    if blocks:
        records = np.concatenate(blocks)
        # a damaged file may hold codes of names and tracks that it never introduced
        known = (names_of(records) < len(process.names)) & (tracks_of(records) < len(process.tracks))
        process.records = records[known & np.isfinite(records).all(axis=1)]
    return problem


def _clock(head: Row) -> tuple[float, float]:
    here, world = head["clock"]
    return float(here), float(world)


def _align(processes: list[Process]) -> None:
    """Set `shift_s` so that all processes have the time base of the first machine.

    A machine's offset is a median over many readings: one reading may be late because the process was suspended in between.
    """
    offsets = {
        boot: median(world - here for p in processes if p.boot == boot for here, world in p.clocks)
        for boot in dict.fromkeys(p.boot for p in processes)
    }
    first = next(iter(offsets.values()))
    for process in processes:
        process.shift_s = offsets[process.boot] - first


def _rank(group: str) -> int:
    """The place of a group in the picture: the launcher first, then trainers, then the others."""
    order = ("launcher", "main", "trainer", "buffer", "policy", "actor")
    return next((i for i, name in enumerate(order) if group.startswith(name)), len(order))
