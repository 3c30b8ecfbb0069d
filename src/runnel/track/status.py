"""How a run stands, in one word. The board, `runnel ps`, reports, cards, sinks and `rl.Run.status` all take it from here.

A run's last row (kind `end`) has the word that its process ended with. A run without such a row is `running` or `killed`: then
nobody could write its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

STATUSES = {
    "running": "a process trains it now",
    "solved": "an evaluation reached `eval.stop_return`, so it ended before its budget was spent",
    "finished": "it has spent its whole budget",
    "stopped": "it was asked to end: by Ctrl-C, SIGTERM, `runnel stop`, the board or a callback; `runnel resume` goes on",
    "collapsed": "it was told to end at a collapse (`--stop-on collapse`), and did",
    "failed": "an error ended it; its report and its page on the board say which",
    "unknown": "it was started on another machine, and nothing was heard of it for a while; only that machine can see it",
    "killed": "its process is gone and left no word; `runnel resume` goes on from its newest checkpoint",
}
FRESH_S = 30.0
"""A run without an end that no process of this machine holds may be trained on another one: it is while its metrics grow."""
_BEFORE = {"interrupted": "stopped"}
_SOLVED = "evaluation reached "


def make_end(status: str) -> dict[str, Any]:
    """What an `end` row says of how the run ended. `status` is one of `STATUSES`, or `interrupted`: stopped from outside."""
    return {"status": _BEFORE.get(status, status), "interrupted": status == "interrupted"}


def read_end(row: Mapping[str, Any], said: str = "") -> dict[str, Any]:
    """An `end` row with today's words; `said` is the text of the last event before it.

    Runs of older versions wrote `interrupted` for what was stopped from outside, and `stopped` also for what was solved.

    >>> read_end({"status": "interrupted"})["status"]
    'stopped'
    >>> read_end({"status": "stopped"}, "evaluation reached 500 (stop_return is 475)")["status"]
    'solved'
    """
    status = str(row.get("status") or "")
    if "interrupted" in row or not status:
        return dict(row)
    new = make_end(status)
    if status == "stopped" and said.startswith(_SOLVED):
        new["status"] = "solved"
    return {**row, **new}


def has_ended(end: Mapping[str, Any]) -> bool:
    """Whether a run came to an end of its own, by its budget, its goal, its callback or a collapse; not one that failed or that
    somebody stopped. `end` is from `read_end`."""
    status = end.get("status")
    return status in ("solved", "finished", "collapsed") or (status == "stopped" and not end.get("interrupted"))


def failure_of(end: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Why a run failed: the last error that it told; empty for a run that did not fail."""
    if end.get("status") != "failed":
        return ""
    return next((str(row.get("text", "")) for row in reversed(events) if row.get("level") == "error"), "")


def status_of(end: Mapping[str, Any], *, held: bool, changed: float, elsewhere: bool = False) -> str:
    """The word for a run: its `end` row (empty if there is none), whether a process of this machine holds it, when its metrics
    were last written (seconds since 1970), and whether another machine has begun it (`Holder.state` is `unknown`)."""
    if held:
        return "running"
    word = str(end.get("status") or "")
    return word or ("running" if time.time() - changed < FRESH_S else "unknown" if elsewhere else "killed")
