"""Arrows and bars across processes: what became of each segment of a stream, and who loaded each version.

An arrow starts at the slice in which a segment was reserved. It passes through the slice that committed the segment and the one
that took it, and ends in the last slice before the segment was released. Each segment also has a bar: filled, waiting, in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runnel.core.trace import LOAD, MARK, PUBLISH
from runnel.track.trace.files import names_of, tracks_of
from runnel.track.trace.picture import ProcessPicture, meta, micro

BEGINS = ("reserve", "take")
"""Marks that may lie shortly before the slice that they belong to. All other marks may lie shortly after it."""
PHASES = {"reserve": "filled", "commit": "waiting", "take": "in use"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the life of a segment or a version."""

    t: int
    what: str
    process: int
    track: int
    rows: int = 0
    version: int = -1


@dataclass(frozen=True, slots=True)
class PathPoint:
    """A point where an arrow touches a slice."""

    t: int
    pid: int
    track: int
    slice: int


class Paths:
    """Arrows and bars over all processes. Consume `events` only after the pictures have made their slices."""

    def __init__(self, pictures: Sequence[ProcessPicture], pid: int) -> None:
        self._pictures, self._pid = pictures, pid
        self._next = 0
        self.num_segments = self.num_versions = 0

    def events(self) -> Iterator[str]:
        chains = self._segments()
        streams = sorted({stream for stream, _, _ in chains})
        if chains:
            yield meta("process_name", self._pid, name="samples")
            yield meta("process_sort_index", self._pid, sort_index=self._pid)
        for (stream, epoch, sample_id), marks in chains.items():
            marks.sort(key=lambda mark: mark.t)
            yield from self._bar(stream, streams.index(stream) + 1, f"{epoch}.{sample_id}", sample_id, marks)
            points = [point for mark in marks if (point := self._bind(mark))]
            self.num_segments += 1
            yield from self._arrow(f"{stream} segment", points)
        yield from self._versions()

    def _segments(self) -> dict[tuple[str, int, int], list[Mark]]:
        """Marks by stream, epoch and sample id. A run that went back to a checkpoint makes some ids again, in another epoch."""
        chains: dict[tuple[str, int, int], list[Mark]] = {}
        for index, picture in enumerate(self._pictures):
            rows = picture.process.of_kind(MARK)
            words = [name.partition(" ") for name in picture.process.names]
            columns = (names_of(rows), picture.nanoseconds(rows[:, 1]), rows[:, 2], rows[:, 3], rows[:, 4], tracks_of(rows))
            for name, t, sample_id, version, num, track in zip(*(c.tolist() for c in columns), strict=True):
                what, _, stream = words[name]
                key = (stream, picture.process.epoch, int(sample_id))
                chains.setdefault(key, []).append(Mark(t, what, index, track, int(num), int(version)))
        return chains

    def _bar(self, stream: str, tid: int, key: str, sample_id: int, marks: Sequence[Mark]) -> Iterator[str]:
        """The life of a segment, and its phases inside. A segment with one mark only is not drawn: it has no end yet."""
        if len(marks) < 2:
            return
        parts = [(f"{stream} segment", marks[0].t, marks[-1].t)]
        parts += [(PHASES[a.what], a.t, b.t) for a, b in pairwise(marks) if a.what in PHASES]
        version = max(mark.version for mark in marks)
        args = json.dumps({"sample_id": sample_id, "rows": marks[0].rows, "version": version, "end": marks[-1].what})
        head = f'"cat":{json.dumps(stream)},"id":{json.dumps(key)},"pid":{self._pid},"tid":{tid}'
        edges = [
            (start, 1, n, f'{{"ph":"b","name":{json.dumps(name)},{head},"args":{args}')
            for n, (name, start, _) in enumerate(parts)
        ]
        edges += [(end, 0, -n, f'{{"ph":"e","name":{json.dumps(name)},{head}') for n, (name, _, end) in enumerate(parts)]
        # at equal times an end precedes a begin, and phases close before the segment that holds them: the format nests by order
        for t, _, _, text in sorted(edges):
            yield f'{text},"ts":{micro(t)}}}'

    def _bind(self, mark: Mark) -> PathPoint | None:
        picture = self._pictures[mark.process]
        slices = picture.slices[mark.track]
        i = slices.at(mark.t) if mark.what in BEGINS else slices.before(mark.t)
        return None if i is None else PathPoint(slices.inside(i, mark.t), picture.pid, mark.track, i)

    def _arrow(self, name: str, points: Sequence[PathPoint]) -> Iterator[str]:
        """An arrow from slice to slice; nothing if all points lie in one slice."""
        stops: list[PathPoint] = []
        for point in points:
            place = (point.pid, point.track, point.slice)
            if not stops or (place != (stops[-1].pid, stops[-1].track, stops[-1].slice) and point.t >= stops[-1].t):
                stops.append(point)
        if len(stops) < 2:
            return
        self._next += 1
        for n, stop in enumerate(stops):
            kind = "s" if n == 0 else "f" if n == len(stops) - 1 else "t"
            enclosing = ',"bp":"e"' if kind == "f" else ""
            where = f'"ts":{micro(stop.t)},"pid":{stop.pid},"tid":{stop.track + 1}'
            yield f'{{"ph":"{kind}","cat":"path","name":{json.dumps(name)},"id":{self._next},{where}{enclosing}}}'

    def _versions(self) -> Iterator[str]:
        """Arrows from the slice that published a version to each slice that loaded it."""
        published: dict[tuple[str, int, int], PathPoint] = {}
        for channel, epoch, version, point in self._params(PUBLISH):
            published.setdefault((channel, epoch, version), point)
        for channel, epoch, version, point in self._params(LOAD):
            source = published.get((channel, epoch, version))
            if source is not None and source.t <= point.t:
                arrow = list(self._arrow(f"{channel} version {version}", [source, point]))
                self.num_versions += bool(arrow)
                yield from arrow

    def _params(self, kind: int) -> Iterator[tuple[str, int, int, PathPoint]]:
        """Records of `kind` (publish or load): channel, epoch, version, and the slice that they belong to."""
        for picture in self._pictures:
            rows = picture.process.of_kind(kind)
            columns = (names_of(rows), picture.nanoseconds(rows[:, 1]), rows[:, 2], tracks_of(rows))
            for name, t, version, track in zip(*(c.tolist() for c in columns), strict=True):
                slices = picture.slices[track]
                if (i := slices.at(t)) is not None:
                    point = PathPoint(slices.inside(i, t), picture.pid, track, i)
                    yield picture.process.names[name], picture.process.epoch, int(version), point
