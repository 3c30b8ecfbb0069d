"""The queue of learning runs: what is skipped, what is kept, how seeds are judged. Nothing is trained here."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning import one, pages, report, run
from benchmarks.learning.entries import ENTRIES, Learning, Score
from benchmarks.learning.settings import changed, settings_today

import runnel as rl
from runnel.core.config import to_data
from runnel.run import registry

GOAL = Score("train_return", "last 100", 490.0, 6.0, "somebody")
ENTRY = Learning("toy", "a toy", "ppo", 2, (GOAL,), {"env": "CartPole-v1", "net.hidden": (64, 64)})
ANSWER = {"train_return": 480.0, "steps": 1000, "wall_s": 3.0}


@pytest.fixture
def calls(monkeypatch):
    """What was trained; every run answers at once."""
    found = []

    def answer(python, script, arguments, *, limit_s):
        found.append(arguments[3])
        return {"error": "no answer"} if arguments[3] == "9" else dict(ANSWER)

    monkeypatch.setattr(run, "run_once", answer)
    return found


def train(seed, tmp_path, entry=ENTRY):
    return run.train_seed(entry, seed, out=tmp_path / "out", runs=tmp_path / "runs")


def test_a_finished_seed_is_kept_and_skipped_and_a_failed_one_is_tried_again(tmp_path, calls):
    assert train(1, tmp_path).endswith("train_return 480")
    assert train(1, tmp_path).endswith("done before")
    assert train(9, tmp_path).endswith("no answer")
    train(9, tmp_path)
    assert calls == ["1", "9", "9"]
    row = json.loads((tmp_path / "out" / "toy" / "seed-1.json").read_text())
    assert row["code"]["commit"]
    assert row["wall_s"] == 3.0
    assert row["settings"] == {"env": "CartPole-v1", "net.hidden": [64, 64]}
    assert "480" in (tmp_path / "out" / "toy" / "table.md").read_text()


def test_other_settings_are_another_run(tmp_path, calls):
    other = Learning("toy", "a toy", "ppo", 2, (GOAL,), {"env": "Acrobot-v1"})
    train(1, tmp_path)
    train(1, tmp_path, other)
    assert calls == ["1", "1"]
    assert run.run_name(ENTRY, 1) != run.run_name(other, 1)


def test_where_a_run_is_made_does_not_make_it_another(tmp_path, calls):
    train(1, tmp_path)
    elsewhere = Learning("toy", "a toy", "ppo", 2, (GOAL,), {**ENTRY.settings, "device": "cuda", "placement.threads": 4})
    assert train(1, tmp_path, elsewhere).endswith("done before")
    assert calls == ["1"]


@pytest.fixture
def zoo(monkeypatch):
    """A zoo of its own, which a test may change."""
    table = {"ppo": {"CartPole-v1": {"ppo.gamma": 0.9}}}
    monkeypatch.setattr("runnel.run.zoo.ZOO", table)
    return table["ppo"]["CartPole-v1"]


def test_a_result_is_stale_once_the_zoo_or_a_default_is_another(tmp_path, monkeypatch, zoo):
    calls = []

    def answer(python, script, arguments, *, limit_s):
        calls.append(arguments[3])
        config = registry.configure(
            registry.load_recipe("ppo"), {**json.loads(arguments[1]), "name": "a-run", "device": "meta"}
        )
        return {**ANSWER, "status": "finished", "eval_return": 480.0, "config": to_data(config)}

    monkeypatch.setattr(run, "run_once", answer)
    monkeypatch.setattr(pages, "OUT", tmp_path / "out")
    train(1, tmp_path)
    (row,) = report.read_seeds("toy", tmp_path / "out")
    assert row["config"] == settings_today(ENTRY)
    assert row["config"]["ppo.gamma"] == 0.9
    assert not {"name", "device", "seed"} & set(row["config"])
    assert train(1, tmp_path).endswith("done before")
    assert pages.measured(ENTRY)[0].endswith("table.md)")

    before = run.run_name(ENTRY, 1)
    zoo["ppo.gamma"] = 0.95
    assert changed(row, ENTRY) == {"ppo.gamma": (0.9, 0.95)}
    assert pages.measured(ENTRY)[0].endswith("table.md), stale: measured with `ppo.gamma` 0.9")
    assert "Stale: measured with `ppo.gamma` 0.9, which" in report.page(ENTRY, [row])
    assert run.run_name(ENTRY, 1) != before, "what the former run left must not be taken for this one's"
    train(1, tmp_path)
    assert calls == ["1", "1"]
    assert pages.measured(ENTRY)[0].endswith("table.md)")


def test_of_a_result_without_its_settings_nothing_is_said(tmp_path, calls, zoo):
    train(1, tmp_path)
    (row,) = report.read_seeds("toy", tmp_path / "out")
    zoo["ppo.gamma"] = 0.95
    assert "config" not in row
    assert changed(row, ENTRY) == {}
    assert train(1, tmp_path).endswith("done before")


@pytest.mark.parametrize(("page", "table"), [("evidence/results.md", pages.results), ("reference/zoo.md", pages.zoo)])
def test_tables_of_the_docs_are_those_of_the_results(page, table):
    text = (pages.DOCS / page).read_text(encoding="utf-8")
    _, _, rest = text.partition(pages.BEGIN)
    assert rest.partition(pages.END)[0].strip() == table().strip(), "run python -m benchmarks.learning.pages"


def test_a_cut_seed_is_gone_on_with_and_never_gives_way_to_one_that_came_less_far(tmp_path, monkeypatch):
    answers = [{**ANSWER, "status": "cut", "steps": 600}, {**ANSWER, "status": "cut", "steps": 400}, {"error": "fell over"}]
    limits = []

    def answer(python, script, arguments, *, limit_s):
        limits.append((arguments[-1], limit_s))
        return answers.pop(0)

    monkeypatch.setattr(run, "run_once", answer)
    path = tmp_path / "out" / "toy" / "seed-1.json"
    for _ in range(3):
        line = run.train_seed(ENTRY, 1, out=tmp_path / "out", runs=tmp_path / "runs", limit_s=5.0)
        assert json.loads(path.read_text())["steps"] == 600
    assert limits == [("5.0", 5.0 + run.GRACE_S)] * 3
    assert "fell over" in line
    assert "600 (cut)" in path.with_name("table.md").read_text()


def test_jobs_get_a_core_each(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "train_seed", lambda entry, seed, **_: seen.append(os.sched_getaffinity(0)) or "")
    before = os.sched_getaffinity(0)
    run.work([(ENTRY, 1)], jobs=1, out=tmp_path, runs=tmp_path, pin=True)
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before


def test_a_limit_cuts_a_run_and_the_next_attempt_ends_it(tmp_path):
    settings = {"env": "CartPole-v1", "total_steps": 4096, "num_steps": 64, "eval.episodes": 2, "vector.backend": "serial"}
    folder = tmp_path / "toy"
    watch = one.Watch(0.0)
    first = one.scores(one.finish("ppo", settings, seed=1, folder=folder, watch=watch), cut=watch.cut)
    assert (first["status"], first["steps"], first["solve_steps"]) == ("cut", 512, None)
    assert first["eval_return"] > 0.0
    watch = one.Watch(60.0)
    last = one.scores(one.finish("ppo", settings, seed=1, folder=folder, watch=watch), cut=watch.cut)
    assert (last["status"], last["steps"]) == ("finished", 4096)
    assert last["config"]["num_steps"] == 64
    assert last["curve"][-1] == [4096, pytest.approx(last["train_return"], abs=1e-3)]


def test_a_curve_keeps_its_end():
    rows = [{"steps": i, "metrics": {"return": float(i)} if i > 2 else {}} for i in range(10)]
    assert one.curve(rows, 3) == [[3, 3.0], [6, 6.0], [9, 9.0]]
    assert len(one.curve(rows)) == 7


def test_a_run_that_another_queue_is_at_is_left_to_it(tmp_path, calls):
    with run.claim(run.run_name(ENTRY, 1), tmp_path / "runs") as mine:
        assert mine
        assert train(1, tmp_path).endswith("another queue is at it")
    assert calls == []


def test_reached_by_the_upper_end_of_the_interval():
    near = report.judge(GOAL, [{"train_return": 480.0}, {"train_return": 490.0}])
    assert near["reached"]
    assert near["mean"] == 485.0
    assert report.judge(GOAL, [{"train_return": 400.0}])["reached"] is False
    assert report.judge(GOAL, [{"train_return": 500.0}, {"error": "fell over"}])["reached"] is False
    assert report.judge(GOAL, [])["reached"] is None
    assert report.judge(GOAL, [{"train_return": 400.0, "status": "cut"}])["reached"] is None


def test_the_overview_says_what_was_not_run(tmp_path):
    text = report.write_all(tmp_path)
    assert (tmp_path / "table.md").read_text() == text
    assert text.count("not run") == len(ENTRIES)
    assert "| sac-halfcheetah | last 100 training episodes | not run | - | - | 9,635 ± 1,424 |" in text


def test_names_are_patterns():
    assert [e.name for e in run.choose(["td3-*"])] == ["td3-pendulum", "td3-halfcheetah", "td3-hopper", "td3-walker2d"]
    assert run.main(["--only", "nothing-of-the-kind"]) == 2


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_every_entry_is_a_config_that_its_recipe_accepts(entry):
    from runnel.run import registry

    recipe = registry.load_recipe(entry.recipe)
    config = registry.configure(recipe, dict(entry.settings))
    config.check()
    assert isinstance(config, rl.RunConfig)
