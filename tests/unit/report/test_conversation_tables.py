"""What a report says of conversations: tables of one run, of several, of groups; as HTML, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run

from runnel.eval.aggregates import over_seeds
from runnel.report.collect import collect
from runnel.report.conversations import conversation_tables
from runnel.report.markdown import verdicts_markdown, write_markdown
from runnel.report.paper import write_paper
from runnel.report.write import write_comparison, write_report
from runnel.track.conversations import ConversationLog
from runnel.track.folder import RunFolder
from runnel.track.history import load_history


def talk(value: float, turns: int, *, passed: bool, errors: dict[str, int] | None = None, reason: str = "terminated") -> Any:
    told = {
        "turns": turns,
        "context": 300 * turns,
        "prefilled": 100,
        "reason": reason,
        "tool_calls": 2,
        "tool_errors": errors or {},
    }
    return {"return": value, "passed": passed, "env_s": 3.0, "engine_s": 1.0, **told}


FIRST = [talk(0.0, 1, passed=False), talk(0.5, 10, passed=False, errors={"<raised>": 2, "timeout": 1}, reason="turns")]
LAST = [talk(1.0, 2, passed=True), talk(2.0, 2, passed=True, errors={"timeout": 1})]


def talked(folder: RunFolder, *, last: Any = LAST) -> RunFolder:
    """Put conversations into a made run of five updates: `FIRST` into the first one, `last` into the last one."""
    log = ConversationLog(folder.conversations)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for row in rows:
        if row["kind"] == "update":
            for event in {1: FIRST, 5: last}.get(row["version"], []):
                log.add(event)
            row |= log.take()
            row["time"] |= log.take_seconds()
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_tables_of_a_run(tmp_path: Path) -> None:
    run = talked(made_run(tmp_path, 1.0))
    tables = {table.name: table for table in conversation_tables(load_history(run.path))}
    assert tables["conversations"].rows == [
        ["conversations", 4, 2],
        ["success", 0.5, 1.0],
        ["mean return", 0.875, 1.5],
        ["turns", 3.75, 2.0],
        ["longest row in tokens", 1125.0, 600.0],
        ["tokens prefilled", 100.0, 100.0],
        ["tool calls", 2.0, 2.0],
        ["tool errors", 1.0, 0.5],
        ["share of time in tools and environment", 0.75, 0.75],
    ]
    turns = tables["conversations-turns"]
    assert list(turns.head[:4]) == ["turns", "conversations", "success", "mean return"]
    assert turns.rows == [
        ["1", 1, 0.0, 0.0, 0, None, None],
        ["2", 2, 1.0, 1.5, 2, 1.0, 1.5],
        ["9-16", 1, 0.0, 0.5, 0, None, None],
    ]
    assert tables["conversations-tool-errors"].rows == [["<raised>", 2, 0.5, 0, 0.0], ["timeout", 2, 0.5, 1, 0.5]]
    assert [row[1:] for row in tables["conversations-ends"].rows] == [[3, 0.75, 2, 1.0], [1, 0.25, 0, 0.0]]
    assert [row[:3] for row in tables["conversations-context"].rows] == [
        *(["up to 512", 1, 0.25], ["up to 1,024", 2, 0.5], ["up to 4,096", 1, 0.25])
    ]
    assert tables["conversations-time"].rows == [
        ["tools and environment", 12.0, 3.0, 0.75, 6.0, 3.0, 0.75],
        ["engine", 4.0, 1.0, 0.25, 2.0, 1.0, 0.25],
    ]


def test_the_report_of_a_run_has_them_as_html_and_csv_and_markdown(tmp_path: Path) -> None:
    run = talked(made_run(tmp_path, 1.0))
    page = write_report([run.path]).read_text()
    assert "<h2>Conversations</h2>" in page
    assert "&lt;raised&gt;" in page
    assert "<raised>" not in page
    for table in conversation_tables(load_history(run.path)):
        with (run.path / "report_csv" / f"{table.name}.csv").open() as file:
            assert list(csv.reader(file)) == table.csv_rows()
    text = write_markdown(tmp_path / "r.md", runs=[run.path]).read_text()
    assert "#### Success by number of turns" in text
    assert "| 2 | 2 | 1 | 1.5 | 2 | 1 | 1.5 |" in text


def test_the_report_shows_the_first_and_the_last_conversations(tmp_path: Path) -> None:
    run = made_run(tmp_path, 1.0)
    call = {"function": {"name": "add", "arguments": {"a": "</pre><b>"}}}
    turns = [{"rewards": {"win": 0.25}, "duration_s": 0.5, "engine_s": 75.0}]
    for number in range(9):
        said = [{"role": "assistant", "content": f"I am {number}.", "turn": 0, "tool_calls": [call]}, "broken"]
        said += [{"role": "tool", "name": "add", "content": "x" * 2100, "turn": 7}]
        said += [{"role": "assistant", "content": "{", "tool_errors": [{"kind": "not_json", "text": "<no JSON>"}]}]
        row = {"agent": "listener", "messages": said, "turns": turns, "return": 0.25, "reason": "turns", "version": number}
        with run.conversations.open("a") as file:
            file.write(json.dumps(row) + "\n")
    page = write_report([run.path]).read_text()
    assert [number for number in range(9) if f"I am {number}." in page] == [0, 1, 2, 6, 7, 8]
    assert "assistant · turn 1 · win 0.25 · 1:15 in the engine · 0.5 s in the environment" in page
    assert "add({&quot;a&quot;: &quot;&lt;/pre&gt;&lt;b&gt;&quot;})" in page
    assert "(100 more characters)" in page
    assert "not a call (not_json): &lt;no JSON&gt;" in page
    assert "version 8 · listener · no more turns" in page


def test_a_run_without_conversations_says_nothing_of_them(tmp_path: Path) -> None:
    run = made_run(tmp_path, 1.0)
    assert conversation_tables(load_history(run.path)) == []
    assert "Conversations" not in write_report([run.path]).read_text()
    assert not list((run.path / "report_csv").glob("conversations*"))


def test_several_runs_are_compared_a_line_each(tmp_path: Path) -> None:
    runs = [talked(made_run(tmp_path, 1.0, seed=1)), made_run(tmp_path, 1.0, seed=2)]
    page = write_report([run.path for run in runs], tmp_path / "c.html").read_text()
    assert "<h2>Conversations</h2>" in page
    with (tmp_path / "c_csv" / "conversations-runs.csv").open() as file:
        head, *rows = csv.reader(file)
    assert [dict(zip(head, row, strict=True))["success"] for row in rows] == ["0.5"]


def test_groups_are_compared_by_the_last_quarter_of_their_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for seed in (1, 2):
        talked(made_run(tmp_path / "a_1", 1.0, seed=seed), last=[talk(float(seed), 2 * seed, passed=seed == 1)])
        made_run(tmp_path / "b", 2.0, seed=seed)
    verdicts = write_comparison(collect([tmp_path / "a_1", tmp_path / "b"]), tmp_path / "c.html")
    (table,) = verdicts.others
    (row,) = table.rows
    assert dict(zip(table.head, row, strict=True)) == {
        "group": "a_1",
        "runs": 2,
        "success": over_seeds([1.0, 0.0]),
        "mean return": over_seeds([1.0, 2.0]),
        "turns": over_seeds([2.0, 4.0]),
        "longest row in tokens": over_seeds([600.0, 1200.0]),
        "tokens prefilled": over_seeds([100.0, 100.0]),
        "tool calls": over_seeds([2.0, 2.0]),
        "tool errors": over_seeds([0.0, 0.0]),
        "share of time in tools and environment": over_seeds([0.75, 0.75]),
    }
    assert "<h2>Conversations</h2>" in (tmp_path / "c.html").read_text()
    with (tmp_path / "c_csv" / "conversations.csv").open() as file:
        assert list(csv.reader(file)) == table.csv_rows()
    assert "#### Conversations" in verdicts_markdown(verdicts)
    files = {path.name: path for path in write_paper(verdicts, tmp_path / "paper")}
    tex = files["conversations.tex"].read_text()
    assert r"a\_1 & 2 & 0.5 {\scriptsize [" in tex
    assert tex.count("&") == 2 * (len(table.head) - 1)
