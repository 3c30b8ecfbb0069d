"""The benchmarks of transports and faults: they run, and their tables say what they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.transport import samples


def test_samples_are_measured_over_memory(tmp_path: Path) -> None:
    assert samples.main(["--quick", "--only", "memcpy", "inproc", "shm", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(r["side"], r["segment"]) for r in rows[:3]] == [("memcpy", "4 KB"), ("inproc", "4 KB"), ("shm", "4 KB")]
    assert all(r["mb_per_s"] > 0 for r in rows)
    table = (tmp_path / "table.md").read_text()
    assert "| transport | segment | MB/s | samples/s | segments/s | of a plain copy |" in table
    assert "| memcpy | 64 KB |" in table


def test_the_table_of_recoveries_counts_by_fault() -> None:
    pytest.importorskip("ray")
    from benchmarks.faults import chaos

    rows = [
        {"name": "ppo", "faults": ["a", "b", "a"], "back": [("a", 2.0), ("a", 4.0)], "version": 9, "wrong": []},
        {"name": "appo", "faults": ["a"], "back": [("a", 9.0)], "version": 5, "wrong": []},
    ]
    text = chaos.markdown({"rows": rows, "made": "today", "machine": {"cores": 2, "cpu": "one"}})
    assert "| a | 3 | 3 | 4.0 | 9.0 |" in text
    assert "| b | 1 | 0 | - | - |" in text
    assert "All versions once" in text
    rows[0]["wrong"] = ["a sample was trained on twice"]
    assert "- ppo: a sample" in chaos.markdown({"rows": rows, "made": "today", "machine": {"cores": 2, "cpu": "one"}})
