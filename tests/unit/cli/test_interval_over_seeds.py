"""A mean over seeds has one interval, wherever it is printed, and below five seeds each place says that it is rough."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from runnel.board.library import Library
from runnel.board.responses import curves
from runnel.cli import train
from runnel.cli.tune import _tell_test
from runnel.core.config import override
from runnel.eval.aggregates import over_seeds
from runnel.eval.statistics import t_quantile
from runnel.recipes import ppo
from runnel.report.card import write_card
from runnel.report.collect import collect
from runnel.report.verdicts import make_verdicts
from runnel.run.api import Run
from runnel.track.numbers import short

sys.path.insert(0, str(Path(__file__).parents[1] / "track"))
from made_runs import made_group

SCORES = [471.0, 500.0, 482.0]
TABLE = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 9: 2.26216, 10: 2.22814, 30: 2.04227, 1000: 1.96234}
"""97.5 % quantiles of Student's t, from published tables."""


def expected(scores):
    """Mean and bounds by the textbook."""
    x = np.array(scores)
    half = TABLE[len(x) - 1] * math.sqrt(x.var(ddof=1) / len(x))
    return x.mean(), x.mean() - half, x.mean() + half


@pytest.fixture
def words():
    mean, low, high = (short(float(f"{v:.4g}")) for v in expected(SCORES))
    return f"{mean}, mean over 3 seeds, 95 % interval {low} to {high} (fewer than 5: a rough guess)"


def test_quantiles_are_those_of_published_tables():
    assert {n: t_quantile(n) for n in TABLE} == pytest.approx(TABLE, rel=1e-5)
    assert t_quantile(4, 0.99) == pytest.approx(4.60409, rel=1e-5)
    assert t_quantile(7, 0.5) == pytest.approx(0.711142, rel=1e-5)


def test_an_interval_of_three_holds_the_truth_as_often_as_it_says():
    """Of three values a bootstrap gives the lowest and the highest, which do so in 75 of 100 cases."""
    samples = np.random.default_rng(0).normal(5.0, 2.0, (4000, 3))
    found = [over_seeds(row) for row in samples]
    share = np.mean([i.low <= 5.0 <= i.high for i in found])
    assert share == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_terminal_and_report_of_one_call_say_the_same(tmp_path, capsys, monkeypatch, words):
    folders = iter(made_group(tmp_path, SCORES, vector={"backend": "serial"}))

    def trained(recipe, config, **_):
        folder = next(folders)
        return Run(folder.path, "finished", 5, 1000, 0, {"mean": SCORES[config.seed - 1]}, 1.0)

    monkeypatch.setattr(train.api, "train_config", trained)
    assert train._several("ppo", override(ppo.Config(), {"out": str(tmp_path), "seed": 1}), 3, "") == 0
    out = capsys.readouterr().out
    assert f"last evaluation: {words}\n" in out
    (page,) = tmp_path.glob("*-3-seeds.html")
    number, _, rest = words.partition(", ")
    assert f">{number}<" in page.read_text()
    assert f"ppo CartPole-v1: last evaluation, {rest}" in page.read_text()


def test_so_do_a_comparison_a_card_and_a_study(tmp_path, capsys, words):
    runs = made_group(tmp_path, SCORES, vector={"backend": "serial"})
    judged, mean = make_verdicts(collect([tmp_path])), expected(SCORES)
    for table in judged.tables:
        for row in table.rows:
            for name, cell in zip(table.head, row, strict=True):
                if name in ("mean", "IQM") and not isinstance(cell, float):
                    assert (cell.value, cell.low, cell.high) == pytest.approx(mean, rel=1e-5)
    assert f"(95 % interval {short(judged.tables[0].rows[0][3].low)} to " in judged.sentences[0]
    assert judged.notices[0].startswith("ppo has 3 seeds, fewer than 5: a rough guess; ")
    bounds = words.split("95 % interval ")[1].split(" (")[0]
    card = write_card(runs[0].path, {}).read_text()
    assert f"({bounds}) | 3 seeds, last evaluation of each; fewer than 5: a rough guess |" in card
    _tell_test({"values": SCORES, "seeds": [4, 5, 6]})
    assert capsys.readouterr().out == f"test: {words}; fresh seeds 4 to 6: the honest number\n"


def test_so_does_the_board(tmp_path):
    runs = made_group(tmp_path / "runs", SCORES, vector={"backend": "serial"})
    library = Library(tmp_path / "runs", cache=tmp_path / "cache")
    library.refresh()
    (line,) = curves(library, {"runs": list(library.runs), "metrics": ["eval/mean"], "group": True})["series"]
    found = (line["y"][-1], line["low"][-1], line["high"][-1])
    assert found == pytest.approx(expected(SCORES), rel=1e-5)
    assert (line["num"], line["caution"], len(runs)) == (3, "fewer than 5: a rough guess", 3)


def test_five_seeds_are_enough_and_one_has_no_interval(capsys):
    _tell_test({"values": [1.0, 2.0, 3.0, 4.0, 5.0], "seeds": [1, 5]})
    assert "(fewer" not in capsys.readouterr().out
    _tell_test({"values": [1.0], "seeds": [4]})
    assert capsys.readouterr().out == "test: 1, one seed, so no interval; fresh seeds 4: the honest number\n"
