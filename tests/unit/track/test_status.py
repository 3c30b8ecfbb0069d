"""One word for how a run stands: written, read back from older runs, the same in the terminal, on the board and in reports."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import runnel as rl
from runnel.board.library import Library
from runnel.cli.jobs import describe_run
from runnel.track.folder import RunFolder
from runnel.track.history import load_history
from runnel.track.status import STATUSES, has_ended, make_end, read_end, status_of

DOCS = Path(__file__).parents[3] / "docs"
REACHED = {"kind": "event", "level": "info", "text": "evaluation reached 500 (stop_return is 475)"}
ASKED = {"kind": "event", "level": "info", "text": "a callback asked to stop after update"}
ENDS = {
    "solved": ([REACHED, {"kind": "end", "status": "solved", "interrupted": False}], True),
    "solved, by an older version": ([REACHED, {"kind": "end", "status": "stopped"}], True),
    "stopped by a callback": ([ASKED, {"kind": "end", "status": "stopped", "interrupted": False}], True),
    "stopped by a callback, by an older version": ([ASKED, {"kind": "end", "status": "stopped"}], True),
    "stopped from outside": ([{"kind": "end", "status": "stopped", "interrupted": True}], False),
    "stopped from outside, by an older version": ([{"kind": "end", "status": "interrupted"}], False),
    "finished": ([{"kind": "end", "status": "finished"}], True),
    "collapsed": ([{"kind": "end", "status": "collapsed"}], True),
    "failed": ([{"kind": "end", "status": "failed"}], False),
    "killed": ([], False),
}


@pytest.mark.parametrize("case", ENDS)
def test_terminal_board_and_report_say_the_same_word(case, tmp_path):
    rows, ended = ENDS[case]
    folder = RunFolder.create(tmp_path / "runs", "run")
    first = {"kind": "update", "version": 1, "steps": 1, "metrics": {"a": 1.0}}
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in [first, *rows]))
    folder.info.write_text("{}")
    os.utime(folder.metrics, (1e9, 1e9))
    library = Library(tmp_path / "runs", cache=tmp_path / "cache")
    library.refresh()
    words = {describe_run(folder)[1], library.lines()[0]["status"], load_history(folder.path).status}
    library.close()
    assert words == {re.split("[ ,]", case)[0]}
    assert words <= set(STATUSES)
    assert has_ended(load_history(folder.path).end) is ended


def test_a_run_without_an_end_runs_while_its_file_grows():
    import time

    assert status_of({}, held=False, changed=time.time()) == "running"
    assert status_of({}, held=False, changed=time.time() - 60) == "killed"
    assert status_of({"status": "stopped"}, held=True, changed=0.0) == "running"


def test_what_is_written_is_read_back():
    for word in ("solved", "finished", "stopped", "interrupted", "collapsed", "failed"):
        assert read_end(make_end(word)) == make_end(word)
        assert make_end(word)["status"] in STATUSES


def test_every_word_is_documented_and_no_other():
    table = (
        (DOCS / "reference/statuses-and-exit-codes.md").read_text().partition("## How a run stands")[2].partition("\n## ")[0]
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M))
    assert rows == STATUSES


def test_a_goal_a_callback_and_a_budget_end_a_run_by_their_own_words(tmp_path):
    tiny = {
        "num_envs": 2,
        "num_steps": 8,
        "vector": {"backend": "serial"},
        "track": (),
        "out": str(tmp_path),
        "total_updates": 3,
    }
    tiny |= {"ppo": {"num_minibatches": 1, "num_epochs": 1}}
    solved = rl.train("ppo", name="solved", eval={"every": 1, "episodes": 1, "stop_return": -1e9}, **tiny)
    stopped = rl.train("ppo", name="stopped", eval={"episodes": 0}, on_update=lambda row: row["version"] < 2, **tiny)
    finished = rl.train("ppo", name="finished", eval={"episodes": 0}, **tiny)
    assert [(r.status, r.interrupted) for r in (solved, stopped, finished)] == [
        ("solved", False),
        ("stopped", False),
        ("finished", False),
    ]
    assert {r.path.name: load_history(r.path).status for r in (solved, stopped, finished)} == {
        name: name for name in ("solved", "stopped", "finished")
    }
