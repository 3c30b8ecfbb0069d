"""Tables of evaluations, from a run's rows to the report and the board; malformed ones are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.report.write import write_report
from runnel.track.results import tables_in

GOOD = {"rows": ["red", "blue"], "columns": ["red", "blue"], "values": [[0.5, 0.75], [0.25, None]]}


@pytest.mark.parametrize(
    "bad",
    [
        3,
        [],
        {"rows": ["a"], "columns": ["b"]},
        {"rows": ["a"], "columns": ["b"], "values": [[1, 2]]},
        {"rows": ["a", "b"], "columns": ["b"], "values": [[1]]},
        {"rows": [], "columns": [], "values": []},
        {"rows": "a", "columns": "b", "values": [[1]]},
        {"rows": ["a"], "columns": ["b"], "values": [3]},
        {"rows": ["x"] * 101, "columns": ["b"], "values": [[1]] * 101},
    ],
)
def test_what_is_no_table_is_left_out(bad: Any) -> None:
    assert [t.title for t in tables_in([{"tables": {"bad": bad, "pay-offs": GOOD}}])] == ["pay-offs"]


def test_the_last_evaluation_that_has_tables_counts() -> None:
    rows = [{"tables": {"old": GOOD}}, {"tables": {"new": GOOD}}, {"mean": 1.0}, {"tables": 3}]
    assert [t.title for t in tables_in(rows)] == ["new"]
    assert tables_in([]) == []


def test_values_that_are_no_numbers_are_not_measured() -> None:
    table = {"rows": ["a"], "columns": ["x", "y"], "values": [["<script>", True]]}
    assert tables_in([{"tables": {"t": table}}])[0].values == [[None, None]]


def test_a_report_shows_them_and_writes_their_numbers(tmp_path: Path) -> None:
    eval_row = {"kind": "eval", "version": 4, "steps": 8, "mean": 1.0, "num": 2, "tables": {"Pay-offs <b>": GOOD}}
    rows = [{"kind": "update", "version": 4, "steps": 8, "progress": 1.0, "metrics": {}}, eval_row]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    page = write_report([tmp_path]).read_text()
    assert "Evaluation tables" in page
    assert "Pay-offs &lt;b&gt;" in page
    lines = (tmp_path / "report_csv" / "table-pay-offs-b.csv").read_text().splitlines()
    assert lines == [",red,blue", "red,0.5,0.75", "blue,0.25,"]
