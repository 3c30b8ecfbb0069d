"""`runnel trace`: writes the files of a traced run as one JSON file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from runnel.track.files import writing
from runnel.track.folder import RunFolder
from runnel.track.trace.files import Process, read_processes
from runnel.track.trace.paths import Paths
from runnel.track.trace.picture import ProcessPicture


@dataclass(frozen=True)
class TraceSummary:
    """What the written trace shows. `notices` say what it leaves out."""

    path: Path
    num_processes: int
    num_events: int
    num_segments: int
    num_versions: int
    notices: tuple[str, ...]


def write_trace(run: Path | str, out: Path | str | None = None) -> TraceSummary:
    """Write the trace of a run. A name that ends in .gz is compressed. Default: trace.json.gz in the run's folder."""
    processes = read_processes(run)
    path = Path(out) if out is not None else RunFolder(run).path / "trace.json.gz"
    zero_s = min((p.clocks[0][0] + p.shift_s for p in processes), default=0.0)
    pictures = [ProcessPicture(process, pid, zero_s) for pid, process in enumerate(processes, start=1)]
    paths = Paths(pictures, pid=len(pictures) + 1)
    notices = tuple(_notices(processes))
    num_epochs = len({p.epoch for p in processes})
    num_events = 0
    with _opened(path) as file:
        about = json.dumps({"run": RunFolder(run).path.name, "left_out": list(notices)})
        file.write(f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n')
        heads, events = (p.heads(num_epochs=num_epochs) for p in pictures), (p.events() for p in pictures)
        # arrows last: they need the slices that the pictures make meanwhile
        for event in chain(*heads, *events, paths.events()):
            file.write(f",\n{event}" if num_events else event)
            num_events += 1
        file.write("\n]}\n")
    return TraceSummary(path, len(processes), num_events, paths.num_segments, paths.num_versions, notices)


def _notices(processes: list[Process]) -> Iterator[str]:
    for p in processes:
        if p.left_out:
            yield f"{p.group}: its file was full; {p.left_out:,} later records are left out (--trace-mb gives it more room)"
        if p.problem:
            yield f"{p.group}: {p.problem}"


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """A text file that is written under another name and renamed at the end, so that no reader sees half of it."""
    new = path.with_name(f".{path.name}.new")
    with writing(path, "the trace"):
        with gzip.open(new, "wt", compresslevel=5) if path.suffix == ".gz" else new.open("w") as file:
            yield file
        new.replace(path)
