import csv
import json
from datetime import datetime

import pytest
from made_runs import made_group, made_run
from test_write import Page

from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.eval.aggregates import aggregate
from runnel.report.collect import collect
from runnel.report.verdicts import make_verdicts, score_of
from runnel.report.write import write_comparison
from runnel.track.evals import append_eval, make_eval_row
from runnel.track.history import load_history


def cells(table):
    return [list(row) for row in table.rows]


def judged(*arguments, **settings):
    return make_verdicts(collect(arguments), **settings)


def test_one_task_keeps_its_returns_and_is_decided(tmp_path):
    made_group(tmp_path, [100.0, 110.0, 120.0, 130.0], recipe="ppo")
    made_group(tmp_path, [10.0, 20.0, 30.0, 40.0], recipe="dqn")
    found = judged(tmp_path)
    aggregates, _, tasks, scores = found.tables
    assert found.sentences[0].startswith(
        "ppo is better than dqn: IQM of return 115 against 25, a difference of 90 (95 % interval "
    )
    assert "beats one of dqn with probability 1.00 (1.00 to 1.00), rank test p = 0.029." in found.sentences[0]
    assert [row[:3] for row in cells(aggregates)] == [["dqn", 1, 4], ["ppo", 1, 4]]
    assert aggregates.rows[1][3].value == 115.0
    assert (
        aggregates.rows[1][6]
        == aggregate([[(s - 22.1) / 477.9 for s in (100, 110, 120, 130)]], ["optimality_gap"])["optimality_gap"]
    )
    assert [row[2] for row in cells(tasks)] == [4, 4]
    assert [row[4] for row in cells(scores)] == [10.0, 20.0, 30.0, 40.0, 100.0, 110.0, 120.0, 130.0]
    assert found.notices == [
        "dqn has 4 seeds, fewer than 5: a rough guess; bootstrap intervals (IQM, differences, bands) are too narrow.",
        "ppo has 4 seeds, fewer than 5: a rough guess; bootstrap intervals (IQM, differences, bands) are too narrow.",
    ]


def test_what_is_not_decided_says_how_many_seeds_would_decide_it(tmp_path):
    made_group(tmp_path / "a", [1.0, 3.0, 5.0, 7.0, 9.0])
    made_group(tmp_path / "b", [0.0, 2.0, 4.0, 6.0, 8.0])
    found = judged(tmp_path / "a", tmp_path / "b")
    needed = found.comparisons["a", "b"].seeds_needed
    assert "a looks better than b, but it is not decided" in found.sentences[0]
    assert f"About {needed - 5} more seeds of each ({needed} in all) would decide it" in found.sentences[0]


def test_only_the_group_with_fewer_seeds_is_asked_for_more(tmp_path):
    made_group(tmp_path / "a", [1.0, 3.0, 5.0, 7.0, 9.0, 2.0, 4.0, 6.0])
    made_group(tmp_path / "b", [7.0, 8.0, 10.0])
    found = judged(tmp_path / "a", tmp_path / "b")
    needed = found.comparisons["a", "b"].seeds_needed
    assert needed is not None
    assert 3 < needed <= 8
    assert f"About {needed - 3} more of b ({needed} seeds of each) would decide it" in found.sentences[0]


def test_one_seed_is_said_plainly(tmp_path):
    made_run(tmp_path / "a", 5.0)
    made_run(tmp_path / "b", 4.0)
    found = judged(tmp_path / "a", tmp_path / "b")
    assert "the data cannot tell: with one seed" in found.sentences[0]
    assert found.notices[0] == "a has only one seed: it has no interval, and nothing can be decided. Run at least 4."
    assert found.tables[0].rows[0][3] == 5.0  # a number, not an interval of no width


def test_equal_groups_and_a_group_alone(tmp_path):
    made_group(tmp_path / "a", [1.0, 2.0, 3.0])
    made_group(tmp_path / "b", [1.0, 2.0, 3.0])
    assert judged(tmp_path / "a", tmp_path / "b").sentences == [
        "a and b cannot be told apart: both have an IQM of 2, and neither wins more often."
    ]
    alone = judged(tmp_path / "a")
    assert alone.sentences[0].startswith("ppo: IQM of return 2 (95 % interval ")
    assert alone.sentences[0].endswith("over 3 runs; there is no second group to compare it with.")


def test_several_tasks_are_normalised_by_what_is_known(tmp_path):
    for task, scale in (("CartPole-v1", 100.0), ("Pendulum-v1", -100.0)):
        made_group(tmp_path / "a", [scale, 1.5 * scale], task=task)
        made_group(tmp_path / "b", [2 * scale, 2.5 * scale], task=task)
    found = judged(tmp_path / "a", tmp_path / "b")
    assert found.unit == "normalised score"
    expected = [[(s - 22.1) / 477.9 for s in (100, 150)], [(s + 1240.9) / 1240.9 for s in (-100, -150)]]
    assert found.tables[0].rows[0][5] == pytest.approx(aggregate(expected, ["mean"])["mean"].value)
    own = judged(tmp_path / "a", tmp_path / "b", ranges={"CartPole-v1": (0.0, 100.0), "Pendulum-v1": (-200.0, 0.0)})
    assert own.tables[0].rows[0][5] == pytest.approx((1.25 + 0.375) / 2)
    plain = judged(tmp_path / "a", tmp_path / "b", normalise="none")
    assert plain.unit == "return"
    assert plain.tables[0].rows[0][5] == 0.0
    with pytest.raises(ConfigError, match="does not know"):
        judged(tmp_path / "a", normalise="atari")


def test_unknown_tasks_are_scaled_by_what_was_seen_and_it_is_said(tmp_path):
    for task in ("x", "y"):
        made_group(tmp_path / "a", [0.0, 10.0], task=task)
    found = judged(tmp_path / "a")
    assert found.unit == "score between the lowest and highest seen"
    assert "mean nothing outside this comparison" in found.notices[0]
    assert found.tables[0].rows[0][3] == 0.5


def test_groups_without_a_task_in_common(tmp_path):
    made_group(tmp_path / "a", [1.0, 2.0], task="x")
    made_group(tmp_path / "b", [1.0, 2.0], task="y")
    found = judged(tmp_path / "a", tmp_path / "b")
    assert found.sentences == ["a and b cannot be compared: no task has runs of both."]
    assert "no task that all groups were trained on (a: x; b: y)" in found.notices[0]
    made_group(tmp_path / "c", [5.0, 6.0], task="y", ppo=1)
    assert "c looks better than b" in judged(tmp_path / "a", tmp_path / "b", tmp_path / "c").sentences[2]


def test_a_task_that_one_group_lacks_is_left_out_of_the_aggregates(tmp_path):
    made_group(tmp_path / "a", [1.0, 2.0], task="x")
    made_group(tmp_path / "a", [1.0, 2.0], task="y")
    made_group(tmp_path / "b", [1.0, 2.0], task="y")
    found = judged(tmp_path / "a", tmp_path / "b")
    assert found.tasks == ["y"]
    assert found.unit == "return"
    assert found.notices[0] == "Not every group was trained on x; aggregates are over y."


def test_scores_that_are_not_finite_or_not_there(tmp_path):
    made_group(tmp_path, [1.0, float("nan"), float("inf")])
    made_run(tmp_path, 1.0, seed=9, num_evals=0)
    found = judged(tmp_path)
    assert [row[3] for row in cells(found.tables[3])] == ["ppo-CartPole-v1-1"]
    assert "without a finite score by the last evaluation of the run, and left out: ppo-CartPole-v1-2" in found.notices[0]
    with pytest.raises(ConfigError, match="runnel eval RUN"):
        judged(tmp_path, scores="eval")
    with pytest.raises(ConfigError, match="use one of"):
        judged(tmp_path, scores="best")


def test_the_ways_to_score_a_run(tmp_path):
    folder = made_run(tmp_path, 10.0)
    append_eval(
        folder.path,
        make_eval_row([4.0, 6.0], {"pass@1": [0.0, 1.0]}, version=5, seed=0, when=datetime(2030, 1, 1)),
    )
    run = load_history(folder.path)
    assert {how: score_of(run, how) for how in ("last", "eval", "mean", "train")} == {
        "last": 10.0,
        "eval": 5.0,
        "mean": pytest.approx(6.0),
        "train": 10.0,
    }


def test_efficiency_is_the_iqm_over_steps_and_stopped_runs_keep_their_score(tmp_path):
    made_group(tmp_path, [10.0, 20.0, 30.0])
    (curve, _) = judged(tmp_path).figures
    assert (curve.name, curve.x_label) == ("efficiency", "steps")
    assert curve.series[0].x[0] == 200
    assert curve.series[0].x[-1] == 1000
    assert curve.series[0].y[-1] == 20.0
    made_run(tmp_path, 40.0, seed=9, status="stopped", num_evals=2)
    curve = judged(tmp_path).figures[0]
    assert "keeps its last score" in curve.note
    assert curve.series[0].x[0] == 500


def test_the_page_and_its_numbers(tmp_path):
    made_group(tmp_path / "a", [1.0, 2.0, 3.0], task="</script><b>")
    made_group(tmp_path / "b", [2.0, 3.0, 4.0], task="</script><b>")
    out = tmp_path / "page.html"
    found = write_comparison(collect([tmp_path / "a", tmp_path / "b"]), out)
    page = Page(out.read_text())
    assert "b looks better than a" in page.section("")
    assert page.section("Over seeds").startswith(
        "Over all tasks and seeds|group|tasks|runs|IQM|median|mean|a|1|3|2 (-0.4841 to 4.484)"
    )
    assert "Performance profile" in page.section("Curves")
    assert "script" not in page.names()
    assert "page_csv/" in "".join(page.text)
    folder = tmp_path / "page_csv"
    assert sorted(p.stem for p in folder.iterdir()) == [
        *("aggregates", "comparisons", "curves", "efficiency", "profile", "runs", "scores", "tasks")
    ]
    with (folder / "aggregates.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["IQM"]) == found.tables[0].rows[0][3].value
    assert float(rows[0]["IQM high"]) == found.tables[0].rows[0][3].high
    assert write_comparison(collect([tmp_path / "a", tmp_path / "b"]), out).tables == found.tables  # the same numbers twice


def test_damaged_files_cost_a_notice_and_no_more(tmp_path):
    runs = made_group(tmp_path, [1.0, 2.0, 3.0])
    with runs[0].metrics.open("a") as file:
        file.write('{"kind": "eval", "mean": ')
    runs[1].metrics.write_bytes(b"\x00\xff" * 50)
    runs[2].config.write_text("[")
    found = collect([tmp_path], unfinished=True)
    write_comparison(found, tmp_path / "page.html")
    text = "".join(Page((tmp_path / "page.html").read_text()).text)
    assert "is not readable" in text
    assert "this file" in text
    assert json.loads(runs[0].info.read_text())["seed"] == 1


@pytest.mark.parametrize("junk", [3, "x", [1], {"a": {"b": 1}}, 10**400, None])
def test_files_that_hold_anything_give_a_message_or_a_report(tmp_path, junk, capsys):
    runs = made_group(tmp_path / "a", [1.0, 2.0]) + made_group(tmp_path / "b", [2.0, 3.0])
    for key in ("seed", "vector", "tags", "eval"):
        runs[0].config.write_text(json.dumps({**json.loads(runs[0].config.read_text()), key: junk}))
    for key in ("git", "versions", "recipe", "subject", "seed"):
        runs[2].info.write_text(json.dumps({**json.loads(runs[2].info.read_text()), key: junk}))
    (runs[0].path / "evals.jsonl").write_text(json.dumps({"mean": 1.0, "returns": junk, "pass": junk}) + "\n")
    out = ["--out", str(tmp_path / "o.html")]
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--over", "seeds", "--markdown", *out]) in (0, 2)
    assert main(["report", str(runs[2].path), *out]) == 0
    assert [main(["card", str(run.path)]) for run in runs] == [0, 0, 0, 0]
    assert "Traceback" not in capsys.readouterr().err


def test_a_verdict_on_unequal_budgets_says_so(tmp_path):
    made_group(tmp_path / "a", [1.0, 2.0, 3.0], total_steps=1000)
    made_group(tmp_path / "b", [2.0, 3.0, 4.0], recipe="dqn", total_steps=2000)
    made_group(tmp_path / "c", [2.0, 3.0, 4.0], recipe="sac", total_steps=1010)
    told = "Their budgets differ: ppo was given 1,000 steps, dqn 2,000 steps."
    (sentence,) = judged(tmp_path / "a", tmp_path / "b").sentences
    assert sentence.endswith(told)
    (sentence,) = judged(tmp_path / "a", tmp_path / "c").sentences
    assert "budgets" not in sentence, "rounded up to whole updates"
    write_comparison(collect([tmp_path / "a", tmp_path / "b"]), tmp_path / "page.html")
    assert told in (tmp_path / "page.html").read_text()


def test_runs_that_did_not_spend_their_budget_are_named(tmp_path):
    runs = made_group(tmp_path, [1.0, 2.0, 3.0])
    for run, (status, progress) in zip(runs, [("stopped", 0.4), ("solved", 0.4), ("finished", 1.0)], strict=True):
        rows = [json.loads(line) | {"progress": progress} for line in run.metrics.read_text().splitlines()]
        rows[-1] |= {"status": status, "interrupted": False}
        run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "These runs did not spend their budget: ppo-CartPole-v1-1 (stopped at 40%)." in judged(tmp_path).notices


def test_two_seeds_have_no_interval_that_is_their_minimum_and_maximum(tmp_path):
    made_group(tmp_path / "a", [10.0, 20.0])
    made_group(tmp_path / "b", [12.0, 40.0], recipe="dqn")
    found = judged(tmp_path / "a", tmp_path / "b")
    assert "a difference of 11 (two seeds give no interval)" in found.sentences[0]
    assert "with probability 0.75, rank test" in found.sentences[0]
    iqm, median, mean = found.tables[0].rows[0][3:6]
    assert (median, mean.value) == (15.0, 15.0)
    assert mean.high - mean.low > 100, "that of Student's t"
    assert iqm == mean, "of fewer than four values it is the mean"
    assert found.tables[1].rows[0][2:4] == [-11.0, 0.25]
    assert all(s.low is None for figure in found.figures for s in figure.series)
    assert "it would be their minimum and maximum" in found.notices[0]
    made_run(tmp_path / "a", 30.0, seed=3)
    made_run(tmp_path / "b", 30.0, seed=3, recipe="dqn")
    assert all(s.low is not None for figure in judged(tmp_path / "a", tmp_path / "b").figures for s in figure.series)
