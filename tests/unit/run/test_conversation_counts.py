"""Conversations become numbers: means over the last ones in the metrics, counts that add up in the rows, seconds under time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_run_ledger import episode, ledger_of, rows_of, update

from runnel.run.checkpoint import read_part, write_parts
from runnel.track.conversations import MOST_KINDS, OTHER, ConversationLog, Counts, TurnCounts, counts_in


def talk(value: float, turns: int, *, reason: str = "terminated", **more: Any) -> dict[str, Any]:
    told = {"turns": turns, "context": 100 * turns, "reason": reason, "tool_calls": turns, "tool_errors": {}}
    return {**episode(value, 10 * turns), **told, "passed": value >= 1.0, "env_s": 0.5, "engine_s": 0.25, **more}


def whole(number: int) -> dict[str, Any]:
    return {"kind": "conversation", "worker": "actor-0", "version": 1, "return": float(number), "messages": []}


def test_the_metrics_are_means_over_the_last_conversations(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([talk(1.0, 2), talk(0.0, 4, reason="turns", tool_errors={"raised": 2}), update(1)])
    metrics = rows_of(tmp_path)[0]["metrics"]
    assert {name: value for name, value in metrics.items() if name.startswith("chat/")} == {
        "chat/turns": 3.0,
        "chat/context": 300.0,
        "chat/tool_calls": 3.0,
        "chat/tool_errors/raised": 1.0,
        "chat/ended/terminated": 0.5,
        "chat/ended/turns": 0.5,
        "chat/success": 0.5,
        "chat/success_by_turns/2": 1.0,
        "chat/success_by_turns/4": 0.0,
    }
    ledger.add([*(talk(1.0, 1) for _ in range(100)), update(2)])
    later = rows_of(tmp_path)[1]["metrics"]
    assert (later["chat/turns"], later["chat/tool_errors/raised"], later["chat/ended/turns"]) == (1.0, 0.0, 0.0)
    assert "chat/success_by_turns/2" not in later


def test_rows_add_up_to_the_whole_run_and_seconds_are_under_time(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, log_every=2)
    ledger.add([talk(1.0, 2), update(1), talk(0.25, 2, tool_errors={"raised": 1}), talk(1.5, 9), update(2)])
    ledger.add([update(3), update(4), talk(0.0, 12, reason="context"), update(5), update(6)])
    rows = rows_of(tmp_path)
    assert ["conversations" in row for row in rows] == [True, False, True]
    assert rows[0]["conversations"] == {
        "num": 3,
        "turns": 13,
        "by_turns": {"2": {"num": 2, "return": 1.25, "passed": 1}, "9-16": {"num": 1, "return": 1.5, "passed": 1}},
        "context": {"256": 2, "1024": 1},
        "context_tokens": 1300,
        "ended": {"terminated": 3},
        "tool_calls": 13,
        "tool_errors": {"raised": 1},
    }
    assert rows[0]["time"]["conversations"] == {"env_s": 1.5, "engine_s": 0.75}
    assert "conversations" not in rows[1]["time"]
    assert counts_in(rows) == Counts(
        num=4,
        turns=25,
        by_turns={"2": TurnCounts(2, 1.25, 1), "9-16": TurnCounts(2, 1.5, 1)},
        context={"256": 2, "1024": 1, "2048": 1},
        context_tokens=2500,
        ended={"terminated": 3, "context": 1},
        tool_calls=25,
        tool_errors={"raised": 1},
        seconds={"env_s": 2.0, "engine_s": 1.0},
    )


def test_runs_without_conversations_have_none_of_it(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([episode(1.0), update(1)])
    (row,) = rows_of(tmp_path)
    assert not [name for name in row["metrics"] if name.startswith("chat/")]
    assert "conversations" not in row
    assert "conversations" not in row["time"]
    assert not (tmp_path / "conversations.jsonl").exists()
    assert counts_in([row]) == Counts()


def test_tools_that_make_up_kinds_do_not_make_rows_longer(tmp_path: Path) -> None:
    log = ConversationLog(tmp_path / "conversations.jsonl")
    for number in range(3 * MOST_KINDS):
        log.add(talk(0.0, 1, tool_errors={f"kind {number}": 1}))
    named = {name for name in log.metrics() if name.startswith("chat/tool_errors/")}
    assert len(named) == MOST_KINDS + 1
    assert log.metrics()[f"chat/tool_errors/{OTHER}"] == pytest.approx(2 / 3)
    assert sum(log.take()["conversations"]["tool_errors"].values()) == 3 * MOST_KINDS


def test_a_resume_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, log_every=2)
    ledger.add([whole(1), talk(1.0, 2, tool_errors={"raised": 1}), update(1)])
    write_parts(tmp_path, {"ledger": ledger.snapshot()})
    state = read_part(tmp_path, "ledger")
    later = [talk(0.0, 3, reason="turns"), whole(2), update(2)]
    ledger.add(later)
    expected = (rows_of(tmp_path), rows_of(tmp_path, "conversations"))
    again, _ = ledger_of(tmp_path, log_every=2)
    again.restore(state)
    assert [row["return"] for row in rows_of(tmp_path, "conversations")] == [1.0]
    again.add(later)
    found = (rows_of(tmp_path), rows_of(tmp_path, "conversations"))
    assert found[1] == expected[1]
    assert [row["number"] for row in found[1]] == [1, 2]
    for before, now in zip(expected[0], found[0], strict=True):
        assert {**now, "time": {}} == {**before, "time": {}}


def test_counts_of_a_file_from_anybody_are_read_as_far_as_they_are_numbers() -> None:
    wrong = [{"conversations": 3}, {"conversations": {"num": "x", "by_turns": {"2": 5, "3": {"num": True}}, "ended": [1]}}]
    assert counts_in([*wrong, {"time": {"conversations": {"env_s": "long"}}}]) == Counts()
