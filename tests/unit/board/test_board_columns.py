"""metrics.jsonl as columns: growth, damage, cuts, the cache, and the rough picture of a large file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runnel.board import library as library_module
from runnel.board.columns import Columns, index_file, mark_of, preview
from runnel.board.detail import detail
from runnel.board.labels import group_labels
from runnel.board.library import Library, RunView, locked_files
from runnel.track.folder import RunFolder
from runnel.track.sinks import encode


def update(version, **metrics):
    stream = {"dispatched": 8 * version, "consumed": 8 * version, "dropped": {"stale": version}, "in_flight": 0, "queued": 2}
    return {
        "kind": "update",
        "version": version,
        "steps": 10 * version,
        "tokens": 0,
        "progress": version / 100,
        "metrics": metrics,
        "streams": {"trajectories": stream},
        "time": {
            "wall_s": 0.5 * version,
            "stages": {"trainer/update": 0.1},
            "system": {"cores": 1.5, "gpus": [{"memory_gb": 2.0}]},
        },
    }


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_run(root, name, rows, *, config=None, seed=1):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_bytes(lines(*rows))
    (folder / "config.json").write_text(json.dumps({"seed": seed, **(config or {})}))
    (folder / "run.json").write_text(
        json.dumps({"recipe": "ppo", "subject": "Toy", "seed": seed, "created": "2030-01-01T00:00:00"})
    )
    return folder


def test_columns_follow_a_file_that_grows_in_any_pieces():
    data = lines(
        update(1, a=1.0), update(2, a=2.0, b=5.0), {"kind": "eval", "version": 2, "steps": 20, "mean": 7.0, "returns": [7.0]}
    )
    whole, parts = Columns(), Columns()
    whole.feed(data)
    rest = b""
    for i in range(0, len(data), 37):
        rest += data[i : i + 37]
        rest = rest[parts.feed(rest) :]
    for columns in (whole, parts):
        assert columns.curve("a", "steps")[0].tolist() == [10.0, 20.0]
        assert columns.curve("b", "version")[1].tolist() == [5.0]
        assert columns.curve("a", "samples")[0].tolist() == [8.0, 16.0]
        assert columns.curve("eval/mean", "steps") == (pytest.approx([20.0]), pytest.approx([7.0]))
        assert columns.curve("system/gpu0/memory_gb", "wall_s")[1].tolist() == [2.0, 2.0]
        assert columns.curve("streams/trajectories/dropped/stale", "wall_s")[1].tolist() == [1.0, 2.0]
        assert columns.offset == len(data)


def test_damage_is_skipped_and_told():
    columns = Columns()
    bad = b'{"kind": "update", "metrics": 3}\n[1]\nnonsense\n\xff\xfe\n' + b"[" * 3000 + b"\n"
    columns.feed(lines(update(1, a=1.0)) + bad + lines(update(2, a=2.0)))
    assert columns.curve("a", "version")[1].tolist() == [1.0, 2.0]
    assert columns.num_problems == 5
    assert columns.problems[0] == "metrics.jsonl line 2 has the wrong shape; skipped"
    assert columns.problems[1].startswith("metrics.jsonl line 3")


def test_what_is_not_a_number_leaves_a_gap():
    columns = Columns()
    columns.feed(b'{"kind": "update", "version": 1, "steps": 1, "metrics": {"a": NaN, "b": null, "c": "x", "d": 1}}\n')
    assert columns.names() == ["d"]


def test_the_cache_gives_back_what_was_parsed_and_goes_on(tmp_path):
    metrics, cache = tmp_path / "metrics.jsonl", tmp_path / "cache" / "x.columns"
    metrics.write_bytes(
        lines(*(update(v, a=float(v)) for v in range(1, 50)), {"kind": "event", "level": "info", "text": "hello"})
    )
    index_file(str(metrics), str(cache))
    found = Columns.load(cache, metrics)
    assert found is not None
    assert found.curve("a", "steps")[1].tolist() == [float(v) for v in range(1, 50)]
    assert [e["text"] for e in found.events] == ["hello"]
    found.feed(lines(update(50, a=50.0, late=1.0)))
    assert found.curve("a", "steps")[0][-1] == 500.0
    assert found.curve("late", "version")[0].tolist() == [50.0]
    found.save(cache, mark_of(metrics, 10))
    assert Columns.load(cache, metrics) is None  # its mark is of another file
    cache.write_bytes(b"short")
    assert Columns.load(cache, metrics) is None


def test_a_collapse_is_marked_however_much_happens_after_it_and_until_it_is_over(tmp_path):
    told = {"kind": "event", "level": "warning", "what": "collapse", "collapse": "no entropy", "since": 4, "text": "c"}
    later = [{"kind": "event", "level": "info", "what": "checkpoint", "text": str(n)} for n in range(600)]
    folder = write_run(tmp_path, "a", [update(1, a=1.0), told, *later])
    cache = tmp_path / "cache" / "x.columns"
    index_file(str(folder / "metrics.jsonl"), str(cache))
    found = Columns.load(cache, folder / "metrics.jsonl")
    assert [row["collapse"] for row in found.collapses] == ["no entropy"]
    view = RunView("a", RunFolder(folder), tmp_path / "cache")
    view.refresh(None)
    assert detail(view, set())["collapses"] == [{"collapse": "no entropy", "since": 4, "text": "c"}]
    found.feed(lines({**told, "over": True}))
    assert found.collapses == []


def test_a_preview_is_rough_but_covers_the_whole_run(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(lines(*(update(v, a=float(v)) for v in range(1, 3000)), {"kind": "end", "status": "finished"}))
    rough = preview(metrics, num_rows=20)
    x, y = rough.curve("a", "version")
    assert 20 <= len(x) < 400
    assert (x[0], x.max()) == (1.0, 2999.0)
    assert np.array_equal(x, y)
    assert rough.end["status"] == "finished"
    assert rough.num_problems == 0


def test_a_library_sees_new_grown_cut_and_removed_runs(tmp_path):
    runs = tmp_path / "runs"
    first = write_run(runs, "one", [update(1, a=1.0), update(2, a=2.0)])
    library = Library(runs, cache=tmp_path / "cache")
    assert library.refresh() == {"one"}
    assert library.refresh() == set()
    write_run(runs, "deep/er/two", [update(1, a=1.0)])
    with (first / "metrics.jsonl").open("ab") as file:
        file.write(lines(update(3, a=3.0)))
    assert library.refresh() == {"one", "deep/er/two"}
    assert library.runs["one"].columns.curve("a", "version")[1].tolist() == [1.0, 2.0, 3.0]
    (first / "metrics.jsonl").write_bytes(lines(update(1, a=1.0), update(2, a=9.0), update(3, a=8.0), update(4, a=7.0)))
    library.refresh()  # a resume cut the file back, and it has grown past where it was
    assert library.runs["one"].columns.curve("a", "version")[1].tolist() == [1.0, 9.0, 8.0, 7.0]
    (runs / "deep/er/two/metrics.jsonl").unlink()
    (runs / "deep/er/two/run.json").unlink()
    assert library.refresh() == {"deep/er/two"}
    library.close()


def test_a_large_file_is_shown_roughly_then_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "LARGE", 10_000)
    runs = tmp_path / "runs"
    write_run(runs, "large", [update(v, a=float(v), **{"return": 1.0}) for v in range(1, 2000)])
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    run = library.runs["large"]
    assert run.is_rough
    assert run.line(set())["spark"]
    assert run._indexing is not None
    run._indexing.result(timeout=60)
    assert library.refresh() == {"large"}
    assert not run.is_rough
    assert len(run.columns.curve("a", "version")[0]) == 1999
    library.close()
    again = Library(runs, cache=tmp_path / "cache")
    again.refresh()
    assert not again.runs["large"].is_rough  # from the cache, at once
    again.close()


def test_without_room_for_a_cache_a_large_file_is_parsed_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "LARGE", 10_000)
    runs = tmp_path / "runs"
    write_run(runs, "large", [update(v, a=float(v)) for v in range(1, 2000)])
    (tmp_path / "cache").write_text("a file where the folder should be")
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    run = library.runs["large"]
    assert run._indexing is not None
    assert run._indexing.exception(timeout=60) is not None
    library.refresh()
    assert (run.is_rough, len(run.columns.curve("a", "version")[0])) == (False, 1999)
    library.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_row_however_wrong_takes_the_page_down(tmp_path, data):
    """Any part of any row, of the config and of run.json replaced by anything that JSON can say."""
    rows = [
        update(1, a=1.0),
        {"kind": "eval", "version": 1, "steps": 1, "mean": 1.0, "returns": [1.0]},
        {"kind": "event", "text": "x"},
    ]
    row = data.draw(st.sampled_from(rows))
    part = data.draw(st.sampled_from([row, *(v for v in row.values() if isinstance(v, dict))]))
    part[data.draw(st.sampled_from([*part, "new"]))] = data.draw(VALUES)
    run = RunView("x", RunFolder(tmp_path), tmp_path)
    run.info, run.config = {"git": data.draw(VALUES), "seed": data.draw(VALUES)}, {"tags": data.draw(VALUES)}
    run.columns.feed(lines(*rows) + lines({"kind": "end", "status": "failed"}))
    assert json.loads(encode(detail(run, set())))["id"] == "x"
    positions, values = run.columns.curve("a", "steps")
    assert len(positions) == len(values)
    assert group_labels([run]).keys() == {run.group}


def test_the_status_of_a_run(tmp_path):
    import fcntl
    import os

    runs = tmp_path / "runs"
    folder = write_run(runs, "one", [update(1, a=1.0), {"kind": "end", "status": "finished"}])
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    run = library.runs["one"]
    assert run.status(set()) == "finished"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = locked_files()
        assert run.status(held) == "running"  # it was resumed
    (folder / "metrics.jsonl").write_bytes(lines(update(1, a=1.0)))
    library.refresh()
    assert run.status(locked_files()) == "running"  # written a moment ago, perhaps on another machine
    os.utime(folder / "metrics.jsonl", (1e9, 1e9))
    library.refresh()
    assert run.status(locked_files()) == "killed"
    library.close()


def test_groups_are_named_by_what_differs(tmp_path):
    runs = tmp_path / "runs"
    for lr in (0.1, 0.2):
        for seed in (1, 2):
            config = {"ppo": {"lr": lr, "clip": 0.2}, "out": f"x{seed}"}
            write_run(runs, f"{lr}-{seed}", [update(1, a=1.0)], config=config, seed=seed)
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    assert sorted(group_labels(list(library.runs.values())).values()) == ["ppo Toy · lr 0.1", "ppo Toy · lr 0.2"]
    assert len({line["group"] for line in library.lines()}) == 2
    library.close()
