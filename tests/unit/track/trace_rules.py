"""The rules of the trace format that a picture must keep, and what it shows, by process and worker."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
KINDS = {"M", "X", "C", "i", "s", "t", "f", "b", "e"}


def read_trace(path: Path) -> list[Event]:
    """The events of a trace file, which must be strict JSON and keep all rules."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    data = json.loads(text, parse_constant=_refuse)
    events: list[Event] = data["traceEvents"]
    check_rules(events)
    return events


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def check_rules(events: Sequence[Event]) -> None:
    named = {(e["pid"], e["tid"], e["name"]) for e in events if e["ph"] == "M"}
    for e in events:
        assert e["ph"] in KINDS, e
        assert isinstance(e["name"], str), e
        assert e["ts"] >= 0, e
        assert math.isfinite(e["ts"]), e
        assert (e["pid"], 0, "process_name") in named, e
        if e["ph"] in "Xstf":
            assert (e["pid"], e["tid"], "thread_name") in named, e
        if e["ph"] == "C":
            assert all(isinstance(v, int | float) for v in e["args"].values()), e
        if e["ph"] == "i":
            assert e["s"] in "gpt", e
    slices = check_slices(events)
    check_flows(events, slices)
    check_async(events)


def check_slices(events: Sequence[Event]) -> dict[tuple[int, int], list[Event]]:
    """Complete events come in order, and each is after the one before it or inside it."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append(e)
    for track in tracks.values():
        assert [e["ts"] for e in track] == sorted(e["ts"] for e in track)
        open_until: list[float] = []
        for e in track:
            assert e["dur"] >= 0
            start, end = _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"])
            while open_until and start >= open_until[-1]:
                open_until.pop()
            assert not open_until or end <= open_until[-1], e
            open_until.append(end)
    return tracks


def check_flows(events: Sequence[Event], slices: dict[tuple[int, int], list[Event]]) -> None:
    """Every arrow begins once, ends once, never goes back in time, and touches slices."""
    flows: dict[tuple[str, str, Any], list[Event]] = defaultdict(list)
    for e in events:
        if e["ph"] in "stf":
            flows[e["cat"], e["name"], e["id"]].append(e)
    for flow in flows.values():
        assert [e["ph"] for e in flow] == ["s", *["t"] * (len(flow) - 2), "f"], flow
        assert [e["ts"] for e in flow] == sorted(e["ts"] for e in flow), flow
        for e in flow:
            around = slices[e["pid"], e["tid"]]
            assert any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] + 1e-3 for s in around), e


def check_async(events: Sequence[Event]) -> None:
    """Begin and end in pairs, the inner ones inside."""
    bars: dict[tuple[int, str, str], list[Event]] = defaultdict(list)
    for e in events:
        if e["ph"] in "be":
            bars[e["pid"], e["cat"], e["id"]].append(e)
    for bar in bars.values():
        assert [e["ts"] for e in bar] == sorted(e["ts"] for e in bar)
        names: list[str] = []
        for e in bar:
            if e["ph"] == "b":
                names.append(e["name"])
            else:
                assert names.pop() == e["name"], bar
        assert not names, bar


def lanes(events: Sequence[Event]) -> dict[tuple[int, int], str]:
    """`process/worker` of each track."""
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {place: f"{process[place[0]]}/{name}" for place, name in threads.items()}


def arrows(events: Sequence[Event], name: str) -> list[list[str]]:
    """The tracks that each arrow of a name goes through."""
    where, found = lanes(events), defaultdict(list)
    for e in events:
        if e["ph"] in "stf" and e["name"].startswith(name):
            found[e["name"], e["id"]].append(where[e["pid"], e["tid"]])
    return list(found.values())


def _ns(micro: float) -> int:
    return round(micro * 1000)
