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

    counts = {"dispatched": 9, "consumed": 4, "dropped": 2, "cancelled": 2, "in_flight": 1, "left_over": 0}
    clean = {
        "duplicates": 0,
        "orphans": 0,
        "segments_left": 0,
        "wrong": [],
        "audit": {"checkpoints": ["000000005", "000000009"]},
    }
    common = {"streams": {"s": counts}, "return": 200.0, "threshold": 195.0, "version": 9, **clean}
    rows = [
        {"name": "ppo", "faults": [["a", 2.0], ["b", None], ["a", 4.0]], **common},
        {"name": "appo", "faults": [["a", 9.0]], **common},
    ]
    settings = {"seed": [0, 1], "drop": 0.0, "delay": 0.7, "calm": 0.0}
    result = {"rows": rows, "made": "today", "machine": {"cores": 2, "cpu": "one"}, "settings": settings, "command": "it"}
    text = chaos.markdown(result)
    assert "| a | 3 | 4.0 | 9.0 | 2.0, 4.0 | 9.0 |" in text
    assert "| ppo | 9 | 3 | 9 | 4 | 2 | 2 | 1 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "each up to 700 ms late" in text
    assert "All versions once" in text
    rows[0]["wrong"] = ["a sample was trained on twice"]
    text = chaos.markdown(result)
    assert "- ppo: a sample was trained on twice" in text
    assert "All versions once" not in text
