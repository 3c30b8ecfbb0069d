"""The status of a run, in one word. The board, `runnel ps`, reports, cards, sinks and `rl.Run.status` all take it from here.

The last row of a run (kind `end`) holds the status that its process ended with. A run without such a row still runs, or it was
killed before it could write one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from runnel.track.folder import Row

STATUSES = {
    "running": "a process trains it now",
    "solved": "an evaluation reached `eval.stop_return`, so it ended before its budget was spent",
    "finished": "it has spent its whole budget",
    "stopped": "it was asked to end: by Ctrl-C, SIGTERM, `runnel stop`, the board or a callback; `runnel resume` goes on",
    "collapsed": "it ended itself at a collapse (`--stop-on collapse`)",
    "failed": "an error ended it; its report and its page on the board say which",
    "unknown": "it was started on another machine and has written nothing for a while; only that machine can see its process",
    "killed": "its process is gone and wrote no end; `runnel resume` goes on from its newest checkpoint",
}
FRESH_S = 30.0
"""Seconds. No process of this machine holds a run that is trained on another machine. It counts as running while its metrics
are not older than this."""
_SOLVED = "evaluation reached "
"""Beginning of the event before the end of a solved run, by which rows of older versions are recognised."""


def make_end(status: str) -> Row:
    """The fields of an `end` row that say how a run ended. `status` is one of `STATUSES`, or `interrupted`: stopped from
    outside."""
    interrupted = status == "interrupted"
    return {"status": "stopped" if interrupted else status, "interrupted": interrupted}


def read_end(row: Row, last_event: str = "") -> Row:
    """Convert an `end` row to today's words. `last_event` is the text of the last event before it.

    Older versions wrote `interrupted` for a run that was stopped from outside, and `stopped` for one that was solved, too.

    >>> read_end({"status": "interrupted"})["status"]
    'stopped'
    >>> read_end({"status": "stopped"}, "evaluation reached 500 (stop_return is 475)")["status"]
    'solved'
    """
    status = str(row.get("status") or "")
    if "interrupted" in row or not status:
        return dict(row)
    solved = status == "stopped" and last_event.startswith(_SOLVED)
    return row | make_end("solved" if solved else status)


def has_ended(end: Row) -> bool:
    """Whether a run ended by itself: by its budget, its goal, its callback or a collapse. A run that failed or that somebody
    stopped did not. `end` is from `read_end`."""
    status = end.get("status")
    return status in ("solved", "finished", "collapsed") or (status == "stopped" and not end.get("interrupted"))


def failure_of(end: Row, events: Sequence[Row]) -> str:
    """Why a run failed: the text of its last error event. Empty for a run that did not fail."""
    if end.get("status") != "failed":
        return ""
    return next((str(row.get("text", "")) for row in reversed(events) if row.get("level") == "error"), "")


def status_of(end: Row, *, held: bool, changed: float, elsewhere: bool = False) -> str:
    """The status of a run, from its `end` row (empty if there is none).

    `held`: a process of this machine holds its lock. `changed`: when its metrics were last written, in seconds since 1970.
    `elsewhere`: another machine started it (`Holder.state` is `unknown`).
    """
    if held:  # first: a run that was resumed still has the end of its earlier part
        return "running"
    if end.get("status"):
        return str(end["status"])
    if time.time() - changed < FRESH_S:
        return "running"
    return "unknown" if elsewhere else "killed"
