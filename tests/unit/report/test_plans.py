"""Predicted and reached rates stand side by side: of a run from a plan, and of each plan of its own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from made_runs import made_run

from runnel.report.plans import predicted_rates
from runnel.report.write import write_report
from runnel.track.history import load_history


def test_a_run_from_a_plan_has_one_row(tmp_path: Path) -> None:
    """1,000 steps in rows from second 1 (200 steps) to second 5: 200 steps a second."""
    folder = made_run(tmp_path, 1.0, num_actors=2, placement={"predicted_per_s": 250.0, "policy_workers": 1})
    table = predicted_rates(load_history(folder.path))
    assert table.rows == [["9 s", "2 actor, 1 policy", "steps/s", 250.0, pytest.approx(200.0), pytest.approx(0.8)]]
    assert "Predicted and reached rates" in write_report([folder.path]).read_text()
    with (folder.path / "report_csv/predicted.csv").open() as file:
        head, row = csv.reader(file)
    assert head == ["until", "workers", "unit", "predicted", "reached", "reached / predicted"]
    assert [float(cell) for cell in row[3:]] == pytest.approx([250.0, 200.0, 0.8])


@pytest.mark.parametrize("placement", [{}, {"predicted_per_s": 0.0}, {"predicted_per_s": "fast"}, "damaged"])
def test_a_run_without_a_plan_has_none(tmp_path: Path, placement: object) -> None:
    folder = made_run(tmp_path, 1.0, placement=placement)
    assert not predicted_rates(load_history(folder.path)).rows
    assert "Predicted and reached" not in write_report([folder.path]).read_text()


def test_each_period_of_a_run_that_replans_has_a_row(tmp_path: Path) -> None:
    folder = made_run(tmp_path, 1.0, placement={"predicted_per_s": 250.0})
    plan = {"kind": "event", "what": "plan", "text": "", "unit": "steps", "version": 1}
    few = {**plan, "text": "too few updates"}
    rows = [few, {**plan, "workers": {"actor": 1}, "predicted": None, "reached": 240.0, "time": {"wall_s": 60.0}}]
    rows.append({**plan, "workers": {"actor": 2, "policy": 1}, "predicted": 500.0, "reached": 450.0, "time": {"wall_s": 120.0}})
    with folder.metrics.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert predicted_rates(load_history(folder.path)).rows == [
        ["1:00", "1 actor", "steps/s", None, 240.0, None],
        ["2:00", "2 actor, 1 policy", "steps/s", 500.0, 450.0, 0.9],
    ]
