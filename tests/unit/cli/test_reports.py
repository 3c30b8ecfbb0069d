"""`runnel report` as a user calls it; what it says is in tests/unit/report."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "track"))
from made_runs import made_group

from runnel.cli.main import main


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "project" / "runs"
    made_group(root / "a", [100.0, 110.0, 120.0, 130.0])
    made_group(root / "b", [10.0, 20.0, 30.0, 40.0])
    return root


def test_a_comparison_over_seeds(runs, capsys):
    out = runs.parent / "c.html"
    arguments = [str(runs / "a"), f"other={runs}/b/*", "--over", "seeds", "--out", str(out), "--markdown"]
    assert main(["report", *arguments]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0].startswith("ppo is better than other: IQM of return 115 against 25")
    assert told.out.splitlines()[1:] == [str(out), str(out.with_suffix(".md"))]
    assert told.err.startswith("note: ")


def test_normalised_by_flags_and_by_a_file(runs, capsys):
    table = runs / "t.json"
    table.write_text(json.dumps({"CartPole-v1": [0, 200]}))
    out = ["--over", "seeds", "--out", str(runs / "c.html")]
    assert main(["report", str(runs / "a"), *out, "--normalise", str(table)]) == 0
    assert "IQM of normalised score 0.575" in capsys.readouterr().out
    assert main(["report", str(runs / "a"), *out, "--normalise", "classic", "--range", "CartPole-v1=0:115"]) == 0
    assert "IQM of normalised score 1 " in capsys.readouterr().out


def test_several_runs_side_by_side_without_statistics(runs, capsys):
    assert main(["report", str(runs / "a"), str(runs / "b"), "--markdown"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(runs / "a" / "comparison.html"), str(runs / "a" / "comparison.md")]
    assert (runs / "a" / "comparison_csv" / "runs.csv").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        ["--paper", "p"],
        ["--normalise", "atari"],
        ["--range", "a=0:1"],
        ["--scores", "mean"],
        ["--unfinished"],
        ["--allow-tuning-seeds"],
    ],
)
def test_flags_of_a_comparison_need_seeds(runs, flags, capsys):
    assert main(["report", str(runs / "a"), *flags]) == 2
    assert "add --over seeds" in capsys.readouterr().err


def test_what_cannot_be_written_or_found_is_refused(runs, capsys):
    (runs / "file").write_text("")
    assert main(["report", str(runs / "a"), "--over", "seeds", "--out", str(runs / "file" / "c.html")]) == 2
    assert main(["report", f"x={runs}/a", "--out", str(runs / "c.html")]) == 2
    assert main(["report", str(runs / "nothing")]) == 2
    assert main(["report", str(runs / "a"), "--over", "seeds", "--range", "CartPole-v1"]) == 2
    assert "Traceback" not in capsys.readouterr().err
