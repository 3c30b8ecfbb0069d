"""What the board shows is so: seeds, names of groups, workers that run, waiting, and why a run failed."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from runnel.board import responses as answers
from runnel.board.labels import group_labels
from runnel.board.library import Library
from runnel.report.write import write_report
from runnel.track.history import load_history


@pytest.fixture
def board(tmp_path):
    """Writes runs, and looks at them."""
    found: list[Library] = []

    def look(**runs):
        for number, (name, (config, rows)) in enumerate(runs.items()):
            folder = tmp_path / "runs" / name
            folder.mkdir(parents=True)
            info = {"recipe": "ppo", "subject": "Toy", "seed": config.get("seed", 1), "created": f"2030-01-{number + 1:02}"}
            (folder / "run.json").write_text(json.dumps(info | config.pop("info", {})))
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        library = Library(tmp_path / "runs", cache=tmp_path / "cache")
        library.refresh()
        found.append(library)
        return library

    yield look
    for library in found:
        library.close()


def update(version, value=1.0, **time):
    return {"kind": "update", "version": version, "steps": 10 * version, "metrics": {"return": value}, "time": time}


def mean_over_seeds(library, runs):
    asked = {"runs": runs, "metrics": ["return"], "axis": "steps", "group": True}
    return answers.curves(library, asked)["series"]


def test_a_seed_that_was_run_twice_counts_once_by_its_newest_run(board):
    def run(seed, value):
        return {"seed": seed}, [update(v, value) for v in (1, 2)]

    library = board(old=run(1, 100.0), new=run(1, 1.0), second=run(2, 3.0))
    (only,) = mean_over_seeds(library, ["new", "old"])
    assert (only["num"], only["repeats"], only["run"], only["y"]) == (1, 1, "new", [1.0, 1.0])
    assert "low" not in only, "one seed has no interval, however often it was run"
    (both,) = mean_over_seeds(library, ["old", "second", "new"])
    assert (both["num"], both["repeats"], both["y"]) == (2, 1, [2.0, 2.0])


def test_a_report_of_several_runs_counts_a_seed_once_too(board, tmp_path):
    def run(seed, value):
        end = {"kind": "end", "status": "finished"}
        return {"seed": seed}, [update(1, value), {"kind": "eval", "version": 1, "steps": 10, "mean": value}, end]

    board(old=run(1, 100.0), new=run(1, 1.0), second=run(2, 3.0))
    page = write_report([tmp_path / "runs" / name for name in ("old", "new", "second")], tmp_path / "page.html").read_text()
    assert "mean of 2" in page
    assert "mean of 3" not in page
    assert "<b>2 " in page or "<b>2</b>" in page, "the mean of 1 and 3"


def test_two_seeds_are_drawn_as_lines_not_as_a_band(board):
    def run(seed, value):
        return {"seed": seed}, [update(1, value)]

    library = board(a=run(1, 1.0), b=run(2, 3.0), c=run(3, 5.0))
    (two,) = mean_over_seeds(library, ["a", "b"])
    assert sorted(two["members"]) == [[1.0], [3.0]]
    (three,) = mean_over_seeds(library, ["a", "b", "c"])
    assert "members" not in three
    assert three["low"]


def names_of(library):
    return {
        run.key: label
        for run in library.runs.values()
        for g, label in group_labels(list(library.runs.values())).items()
        if g == run.group
    }


def test_every_group_has_a_name_of_its_own(board):
    """Four settings that vary: the first three are not enough to tell all groups apart."""
    runs = {}
    for i, (lr, clip, gamma, epochs) in enumerate(product((0.1, 0.2), repeat=4)):
        config = {"ppo": {"lr": lr, "clip_range": clip, "gamma": gamma, "epochs": epochs}, "seed": 1}
        runs[f"run{i}"] = (config, [update(1)])
    names = names_of(board(**runs))
    assert len(set(names.values())) == 16


def test_a_group_is_named_by_the_fewest_settings_that_tell_it_apart(board):
    def run(**ppo):
        return {"ppo": ppo, "seed": 1}, [update(1)]

    names = names_of(
        board(
            a=run(lr=0.1, clip_range=0.2),
            b=run(lr=0.2, clip_range=0.2),
            c=run(lr=0.2, clip_range=0.3),
            d=run(lr=0.2, clip_range=0.2, actor={"lr": 1}),
        )
    )
    assert names == {
        "a": "ppo Toy · ppo.lr 0.1",
        "b": "ppo Toy · ppo.lr 0.2, clip_range 0.2, ppo.actor.lr None",
        "c": "ppo Toy · clip_range 0.3",
        "d": "ppo Toy · ppo.actor.lr 1",
    }


def test_what_learning_does_not_see_makes_no_group(board):
    """The back end of the environments plays the same episodes bit for bit."""

    def run(seed, backend):
        return {"seed": seed, "vector": {"backend": backend}, "eval": {"episodes": seed}}, [update(1)]

    library = board(a=run(1, "serial"), b=run(2, "async"))
    assert set(names_of(library).values()) == {"ppo Toy"}
    assert mean_over_seeds(library, ["a", "b"])[0]["num"] == 2


DATAFLOW = {
    "workers": [{"name": f"actor-{i}", "kind": "actor"} for i in range(4)]
    + [{"name": "policy-0", "kind": "policy"}, {"name": "policy-1", "kind": "policy"}]
    + [{"name": "trainer", "kind": "trainer"}, {"name": "trainer-1", "kind": "trainer"}],
    "streams": [],
}
PLACED = {"num_actors": 2, "placement": {"policy_workers": 1, "max_actors": 4, "max_policy_workers": 2}}


@pytest.mark.parametrize(
    ("events", "actors", "policies"),
    [
        ([], 2, 1),
        ([{"what": "order", "numbers": {"actor": 4}}], 4, 1),
        ([{"what": "order", "numbers": {"actor": 4}}, {"what": "order", "numbers": {"actor": 1, "policy": 2}}], 1, 2),
        ([{"what": "order", "numbers": {"actor": 4}}, {"what": "resume"}], 2, 1),
        ([{"what": "order", "numbers": "many"}, {"what": "order"}], 2, 1),
    ],
)
def test_the_graph_has_the_workers_that_run(board, events, actors, policies):
    rows = [update(1), *({"kind": "event", "text": "", **event} for event in events)]
    library = board(run=({**PLACED, "info": {"dataflow": DATAFLOW}}, rows))
    workers = answers.run(library, {"run": "run"})["dataflow"]["workers"]
    kinds = [w["kind"] for w in workers]
    assert (kinds.count("actor"), kinds.count("policy"), kinds.count("trainer")) == (actors, policies, 2)


def test_board_and_report_say_the_same_of_waiting(board):
    shares = [0.9, 0.5, 0.1, 0.2]
    walls = [1.0, 2.0, 60.0, 100.0]
    rows = [
        update(i + 1, wall_s=w, idle={"trainer": s}, stages={"trainer/x": 1.0})
        for i, (w, s) in enumerate(zip(walls, shares, strict=True))
    ]
    rows.insert(2, {"kind": "eval", "version": 2, "steps": 20, "mean": 1.0, "time": {"wall_s": 50.0}})
    library = board(run=({}, rows))
    (stages,) = answers.run(library, {"run": "run"})["stages"]
    spans = np.diff(walls, prepend=0.0)
    assert stages["idle"] == pytest.approx(float((spans * shares).sum() / spans.sum()))
    assert stages["idle"] == pytest.approx(load_history(library.runs["run"].folder.path).idle_shares()["trainer"])
    assert stages["idle_recent"] == pytest.approx((58 * 0.1 + 40 * 0.2) / 98), "of the last minute"


def test_a_failed_run_says_why(board):
    rows = [update(1), {"kind": "event", "level": "warning", "text": "careful"}]
    rows += [{"kind": "event", "level": "error", "text": "ValueError: <b>reward</b> is nan"}]
    failed = [*rows, {"kind": "end", "status": "failed"}]
    library = board(
        failed=({}, failed), resumed=({}, [*failed, update(2)]), fine=({}, [*rows, {"kind": "end", "status": "finished"}])
    )
    told = {key: answers.run(library, {"run": key})["failure"] for key in library.runs}
    assert told == {"failed": "ValueError: <b>reward</b> is nan", "resumed": "", "fine": ""}
    page = write_report([library.runs["failed"].folder.path]).read_text()
    assert "ValueError: &lt;b&gt;reward&lt;/b&gt; is nan" in page.partition("</header>")[0]
