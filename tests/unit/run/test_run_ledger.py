from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runnel.core.clock import ManualClock
from runnel.run.ledger import Callbacks, Ledger
from runnel.run.version_counts import VersionCounts
from runnel.track.collapse import Watcher
from runnel.track.folder import RunFolder
from runnel.track.frame import describe_eval


class ListSink:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.flushed = self.closed = 0

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed += 1


def ledger_of(path: Path, **settings: Any) -> tuple[Ledger, ManualClock]:
    clock = ManualClock()
    return Ledger(RunFolder(path), clock, **settings), clock


def update(version: int, *, steps: int = 0, **metrics: float) -> dict[str, Any]:
    return {
        "kind": "update",
        "worker": "trainer",
        "version": version,
        "steps": steps,
        "tokens": 2 * steps,
        "progress": version / 10,
        "metrics": metrics,
        "sample_ids": {"s": [version]},
        "streams": {"s": {"dispatched": 4, "consumed": 4}},
    }


def episode(value: float, length: int = 5) -> dict[str, Any]:
    return {"kind": "episode", "worker": "actor-0", "return": value, "length": length}


def evaluation(version: int, *returns: float) -> dict[str, Any]:
    extra = {"length": [1.0, 3.0], "none": []}
    return {"kind": "eval", "worker": "evaluator", "version": version, "returns": list(returns), "extra": extra, "samples": []}


def rows_of(path: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]


def test_an_update_becomes_a_row_with_the_recent_episodes(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    ledger.add([episode(1.0, 4), episode(3.0, 8)])
    clock.advance(2.0)
    ledger.add_stages({"trainer/update": 0.5, "trainer/prepare": 0.5, "actor-0/sample": 2.0})
    ledger.add_stages({"trainer/update": 0.5})
    ledger.add([update(1, steps=100, loss=0.5)])
    ledger.close()
    (row,) = rows_of(tmp_path)
    assert (row["kind"], row["version"], row["steps"], row["tokens"], row["progress"]) == ("update", 1, 100, 200, 0.1)
    assert row["metrics"] == {"loss": 0.5, "return": 2.0, "episode_length": 6.0, "episodes": 2.0}
    assert row["streams"] == {"s": {"dispatched": 4, "consumed": 4}}
    assert row["time"]["wall_s"] == 2.0
    assert row["time"]["steps_per_s"] == pytest.approx(50.0)
    assert row["time"]["tokens_per_s"] == pytest.approx(100.0)
    assert row["time"]["stages"] == {"trainer/update": 1.0, "trainer/prepare": 0.5, "actor-0/sample": 2.0}
    assert row["time"]["idle"] == {"trainer": pytest.approx(0.25), "actor-0": 0.0}
    assert (ledger.version, ledger.steps, ledger.tokens, ledger.progress) == (1, 100, 200, 0.1)


def test_stages_are_of_one_row_and_rates_of_the_last_seconds(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    for k in range(1, 21):
        clock.advance(1.0)
        ledger.add_stages({"trainer/update": 0.5})
        ledger.add([update(k, steps=k * 10 if k <= 10 else 100 + (k - 10) * 30)])
    rows = rows_of(tmp_path)
    assert all(r["time"]["stages"] == {"trainer/update": 0.5} for r in rows)
    assert rows[9]["time"]["steps_per_s"] == pytest.approx(10.0)
    assert rows[-1]["time"]["steps_per_s"] == pytest.approx(30.0)


def test_rates_of_updates_that_are_further_apart_than_the_window(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    for k in range(1, 4):
        clock.advance(20.0)
        ledger.add_stages({"trainer/update": 15.0})
        ledger.add([update(k, steps=k * 100)])
    for row in rows_of(tmp_path):
        assert row["time"]["steps_per_s"] == pytest.approx(5.0)
        assert row["time"]["idle"] == {"trainer": pytest.approx(0.25)}


def test_updates_that_arrive_in_lumps_have_the_shares_of_the_last_seconds(tmp_path: Path) -> None:
    """Another process reports a few times a second: its stages come with the first of several updates."""
    ledger, clock = ledger_of(tmp_path)
    for lump in range(10):
        clock.advance(0.5)
        ledger.add_stages({"actor-0/sample": 0.2})
        ledger.add([update(5 * lump + k, steps=(5 * lump + k) * 10) for k in range(1, 6)])
    rows = rows_of(tmp_path)
    assert all(r["time"]["idle"] == {"actor-0": pytest.approx(0.6)} for r in rows)
    assert all(50 < r["time"]["steps_per_s"] < 200 for r in rows[5:])
    assert rows[-1]["time"]["steps_per_s"] == pytest.approx(100.0, rel=0.15)


def test_the_first_rate_after_a_resume_counts_only_what_came_since(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    clock.advance(1.0)
    ledger.add([update(1, steps=10_000)])
    again, clock = ledger_of(tmp_path)
    again.restore(ledger.snapshot())
    clock.advance(2.0)
    again.add([update(2, steps=10_100)])
    assert rows_of(tmp_path)[-1]["time"]["steps_per_s"] == pytest.approx(50.0)


def test_only_the_last_hundred_episodes_count(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([episode(1000.0), *(episode(float(k)) for k in range(100)), update(1)])
    metrics = rows_of(tmp_path)[0]["metrics"]
    assert (metrics["return"], metrics["episodes"]) == (49.5, 101.0)


def test_an_evaluation_becomes_a_row_with_its_interval(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, stop_return=10.0)
    ledger.add([update(3, steps=30), evaluation(3, 4.0, 6.0)])
    row = rows_of(tmp_path)[1]
    assert (row["kind"], row["version"], row["steps"], row["mean"], row["num"]) == ("eval", 3, 30, 5.0, 2)
    assert row["low"] <= 5.0 <= row["high"]
    assert row["extra"] == {"length": 2.0}
    assert row["lengths"] == [1, 3]
    assert ledger.last_eval is not None
    assert ledger.stop_reason is None
    ledger.add([update(4, steps=40), evaluation(4, 9.0, 11.0)])
    assert ledger.stop_reason == "evaluation reached 10 (stop_return is 10)"
    assert ledger.stop_status == "solved"


def test_failures_samples_and_notes_have_their_places(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([{"kind": "sample", "worker": "actor-0", "text": "hello"}])
    ledger.add([{"kind": "failure", "worker": "actor-0", "rows": 3, "reason": "env_failed: x"}])
    ledger.note("resumed", level="warning")
    assert rows_of(tmp_path, "samples") == [{"kind": "sample", "text": "hello"}]
    texts = [(r["kind"], r["level"], r["text"]) for r in rows_of(tmp_path)]
    assert texts[0][:2] == ("event", "warning")
    assert "actor-0" in texts[0][2]
    assert "3 rows cancelled: env_failed: x" in texts[0][2]
    assert texts[1] == ("event", "warning", "resumed")


@pytest.mark.parametrize(
    ("name", "event"),
    [("on_update", update(1)), ("on_episode", episode(1.0)), ("on_eval", evaluation(0, 2.0))],
)
@pytest.mark.parametrize(("answer", "stops"), [(False, True), (None, False), (True, False), (0, False)])
def test_a_callback_that_returns_false_stops_the_run(
    name: str, event: dict[str, Any], answer: Any, stops: bool, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def callback(row: dict[str, Any]) -> Any:
        seen.append(row)
        return answer

    ledger, _ = ledger_of(tmp_path, callbacks=Callbacks(**{name: callback}))
    ledger.add([event])
    assert [r["kind"] for r in seen] == [event["kind"]]
    assert (ledger.stop_reason is not None) == stops
    if stops:
        assert ledger.stop_reason == f"a callback asked to stop after {event['kind']}"


def test_a_checkpoint_is_told(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    callback: Callable[[dict[str, Any]], Any] = seen.append
    ledger, _ = ledger_of(tmp_path, callbacks=Callbacks(on_checkpoint=callback))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "params").write_bytes(b"x" * 3_200_000)
    ledger.checkpoint(tmp_path / "c", 7, seconds=0.049)
    assert seen == [{"kind": "checkpoint", "version": 7, "path": str(tmp_path / "c")}]
    (row,) = rows_of(tmp_path)
    assert (row["kind"], row["what"], row["text"]) == ("event", "checkpoint", "checkpoint at version 7, 3.2 MB, 0.05 s")


def test_the_event_of_a_checkpoint_outlives_the_resume_from_it(tmp_path: Path) -> None:
    """It stands right behind the place at which the file is cut."""
    ledger, _ = ledger_of(tmp_path)
    ledger.add([update(1)])
    saved = ledger.snapshot()
    ledger.checkpoint(tmp_path, 1)
    ledger.add([update(2)])
    ledger.close()
    resumed, _ = ledger_of(tmp_path)
    resumed.restore(saved)
    resumed.note("resumed from version 1", what="resume")
    resumed.close()
    assert [(r["kind"], r.get("what")) for r in rows_of(tmp_path)] == [
        ("update", None),
        ("event", "checkpoint"),
        ("event", "resume"),
    ]


def test_events_say_what_they_are_about_and_at_which_version(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([update(3)])
    ledger.note("chose a back end")
    ledger.note("slow", level="warning")
    ledger.lost("worker 'actor-0' died", "starting it again")
    ledger.recovered("worker 'actor-0'", 1.25)
    ledger.close()
    events = [(r["what"], r["level"], r["version"]) for r in rows_of(tmp_path)[1:]]
    assert events == [("note", "info", 3), ("warning", "warning", 3), ("worker_lost", "warning", 3), ("restart", "warning", 3)]


def test_the_load_is_looked_at_every_two_seconds(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    for version in range(1, 12):
        clock.advance(0.5)
        ledger.add([update(version)])
    ledger.close()
    looked = [r["version"] for r in rows_of(tmp_path) if "system" in r["time"]]
    assert looked == [1, 5, 9]
    assert rows_of(tmp_path)[0]["time"]["system"]["num_cores"] >= 1


def test_other_sinks_get_every_row(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    sink = ListSink()
    ledger.attach([sink])
    ledger.add([update(1), evaluation(1, 1.0)])
    ledger.snapshot()
    ledger.end("finished", 3.0)
    ledger.close()
    assert [r["kind"] for r in sink.rows] == ["update", "eval", "end"]
    assert (sink.flushed > 0, sink.closed) == (True, 1)
    end = rows_of(tmp_path)[-1]
    assert (end["status"], end["time"]["train_s"], end["streams"]) == ("finished", 3.0, ledger.streams)


def test_restore_cuts_the_files_back_and_goes_on_identically(tmp_path: Path) -> None:
    ledger, clock = ledger_of(tmp_path)
    ledger.add([episode(1.0), update(1, steps=10), evaluation(1, 1.0), {"kind": "sample", "worker": "a", "text": "kept"}])
    clock.advance(4.0)
    state = json.loads(json.dumps(ledger.snapshot()))
    kept = {name: (tmp_path / f"{name}.jsonl").read_bytes() for name in ("metrics", "samples")}
    ledger.add([episode(3.0), update(2, steps=20), {"kind": "sample", "worker": "a", "text": "cut"}])
    first = rows_of(tmp_path)[-1]
    ledger.close()
    again, clock = ledger_of(tmp_path)
    again.restore(state)
    assert {name: (tmp_path / f"{name}.jsonl").read_bytes() for name in kept} == kept
    assert (again.version, again.steps, again.tokens) == (1, 10, 20)
    assert again.last_eval is not None
    assert again.last_eval["mean"] == 1.0
    clock.advance(1.0)
    assert again.wall_s() == 5.0
    again.add([episode(3.0), update(2, steps=20)])
    second = rows_of(tmp_path)[-1]
    assert {k: v for k, v in second.items() if k != "time"} == {k: v for k, v in first.items() if k != "time"}


def test_restore_drops_half_a_line_of_a_killed_run(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([update(1)])
    state = ledger.snapshot()
    ledger.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "upd')
    again, _ = ledger_of(tmp_path)
    again.restore(state)
    again.add([update(2)])
    assert [r["version"] for r in rows_of(tmp_path)] == [1, 2]


def weight_check(version: int, kl: float) -> dict[str, Any]:
    return {"kind": "proof", "worker": "actor-0", "version": version, "metrics": {"mismatch/canary_kl": kl}}


def test_rows_say_what_engines_found_about_the_newest_version_that_any_has_checked(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add(
        [
            update(1),
            weight_check(1, 0.5),
            weight_check(1, 0.25),
            update(2),
            weight_check(2, 0.125),
            weight_check(1, 9.0),
            update(3),
        ]
    )
    again, _ = ledger_of(tmp_path)
    again.restore(ledger.snapshot())
    again.add([update(4)])
    again.close()
    found = [{k: v for k, v in row["metrics"].items() if "canary" in k} for row in rows_of(tmp_path)]
    two, three = ({"mismatch/canary_kl": kl, "mismatch/canary_version": v} for kl, v in ((0.5, 1.0), (0.125, 2.0)))
    assert found == [{}, two, three, three]


def test_an_evaluation_has_the_steps_of_the_version_that_it_measured(tmp_path: Path) -> None:
    """An evaluator in a process of its own: the learner goes on meanwhile, and either may be heard of first."""
    ledger, _ = ledger_of(tmp_path)
    for k in range(1, 10):
        ledger.add([update(k, steps=100 * k)])
    ledger.add([evaluation(5, 1.0)])
    ledger.add([evaluation(11, 2.0), {"kind": "note", "worker": "evaluator", "text": "between"}])
    ledger.add([update(10, steps=1_000)])
    assert [r["version"] for r in rows_of(tmp_path) if r["kind"] == "eval"] == [5], "the update of version 11 is not heard of"
    ledger.add([update(11, steps=1_150), update(12, steps=1_200)])
    rows = rows_of(tmp_path)
    assert [(r["version"], r["steps"], r["tokens"]) for r in rows if r["kind"] == "eval"] == [
        (5, 500, 1_000),
        (11, 1_150, 2_300),
    ]
    assert [r["version"] for r in rows if r["kind"] in ("update", "eval")] == [*range(1, 10), 5, 10, 11, 11, 12]


def test_after_going_back_an_evaluation_has_the_steps_of_the_checkpoint(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.add([update(4, steps=400)])
    saved = ledger.snapshot()
    ledger.add([update(5, steps=500), evaluation(7, 9.0)])
    ledger.restore(saved)
    ledger.add([evaluation(4, 1.0), update(5, steps=555), update(6, steps=600), update(7, steps=700), evaluation(5, 2.0)])
    assert [(r["version"], r["steps"]) for r in rows_of(tmp_path) if r["kind"] == "eval"] == [(4, 400), (5, 555)]


def test_counts_of_versions_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.run.version_counts.MOST", 100)
    counts = VersionCounts()
    for version in range(1, 1_001):
        counts.add(version, 10 * version, 0)
        assert len(counts._steps) <= 100
    assert counts.of(1_000) == (10_000, 0)
    assert counts.of(960) == (9_600, 0)
    counts.forget_before(990)
    assert counts.of(990) == (9_900, 0)
    assert len(counts._steps) == 11


def test_episodes_that_were_cut_or_crashed_are_counted_and_told(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    event = evaluation(0, 4.0, 6.0, 8.0)
    ledger.add([{**event, "extra": {"length": [5.0, 9.0, 9.0], "cut": [0.0, 1.0, 1.0], "crashed": [0.0, 0.0, 1.0, 0.0]}}])
    row, *told = rows_of(tmp_path)
    assert (row["mean"], row["num"], row["cut"], row["crashed"]) == (6.0, 3, 2, 1)
    assert [(t["level"], t["text"]) for t in told] == [
        (
            "warning",
            "evaluation of version 0: 2 of 3 evaluated episodes were cut after 9 steps (eval.max_steps); their returns are "
            "those until then",
        ),
        (
            "warning",
            "evaluation of version 0: 1 of 4 evaluated episodes crashed and have no return; the mean is that of the other 3, "
            "which may be the easier ones",
        ),
    ]
    assert describe_eval(row).endswith("(3 episodes, 2 cut, 1 crashed)")


def watching(path: Path, **settings: Any) -> Ledger:
    return ledger_of(path, watcher=Watcher({"ppo.lr": 10.0}, world="environment"), **settings)[0]


def test_a_collapse_is_an_event_of_its_own_kind_and_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = watching(tmp_path)
    ledger.add([update(v, kl=3.0) for v in range(1, 9)])
    saved = json.loads(json.dumps(ledger.snapshot()))
    (event,) = [row for row in rows_of(tmp_path) if row["kind"] == "event"]
    assert {k: event[k] for k in ("level", "what", "version", "collapse", "since")} == {
        "level": "warning",
        "what": "collapse",
        "version": 5,
        "collapse": "large steps",
        "since": 1,
    }
    assert "lower ppo.lr (now 10)" in event["text"]
    assert capsys.readouterr().err == f"runnel: warning: {event['text']}\n", "who has no live view is told too"
    assert (ledger.stop_reason, ledger.collapses) == (None, {"large steps": event["text"]})
    ledger.close()
    again = watching(tmp_path)
    again.restore(saved)
    again.add([update(v, kl=3.0) for v in range(9, 30)])
    assert len([row for row in rows_of(tmp_path) if row["kind"] == "event"]) == 1
    assert again.collapses == ledger.collapses
    again.add([update(v, kl=0.0) for v in range(30, 36)])
    (_, over) = [row for row in rows_of(tmp_path) if row["kind"] == "event"]
    assert (over["what"], over["level"], over["over"], over["version"]) == ("collapse", "info", True, 34)
    assert again.collapses == {}


def test_a_collapse_ends_a_run_that_wants_it_and_no_other_reason_replaces_it(tmp_path: Path) -> None:
    ledger = watching(
        tmp_path, stop_on="collapse", stop_return=0.0, callbacks=Callbacks(on_update=lambda row: row["version"] < 6)
    )
    ledger.add([update(v, kl=3.0) for v in range(1, 8)])
    ledger.add([evaluation(7, 1.0)])
    assert ledger.stop_status == "collapsed"
    assert ledger.stop_reason == "stopped by stop_on collapse: large steps since version 1"


def test_a_run_that_is_resumed_in_a_collapse_and_stays_in_it_is_ended_again(tmp_path: Path) -> None:
    ledger = watching(tmp_path, stop_on="collapse")
    ledger.add([update(v, kl=3.0) for v in range(1, 7)])
    again = watching(tmp_path, stop_on="collapse")
    again.restore(ledger.snapshot())
    again.add([update(v, kl=3.0) for v in range(7, 11)])
    assert again.stop_reason is None, "it has some updates to come out of it"
    again.add([update(11, kl=3.0)])
    assert again.stop_status == "collapsed"
    assert len([row for row in rows_of(tmp_path) if row["kind"] == "event"]) == 1


def test_updates_between_two_rows_are_looked_at_too(tmp_path: Path) -> None:
    """Of ten updates one row is written, with means that hide a spike's length."""
    ledger = watching(tmp_path, log_every=10)
    ledger.add([update(v, kl=3.0 if v > 4 else 0.0) for v in range(1, 10)])
    (event,) = rows_of(tmp_path)
    assert (event["what"], event["since"]) == ("collapse", 5)
