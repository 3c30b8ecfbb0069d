"""The rows of the comparison are whole: scripts, peers, settings and records fit together."""

import ast
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.classic import clock, run
from benchmarks.classic.rows import ROWS


@pytest.mark.parametrize("name", ROWS)
def test_every_side_is_asked_in_words_that_the_scripts_know(name, monkeypatch):
    entry = ROWS[name]
    assert entry.sides[0].name == "runnel"
    for measure in entry.measures:
        for side in entry.sides:
            if not measure.includes(side):
                continue
            assert side.script.is_file()
            line = [*side.arguments, *measure.arguments, "--seed", "3", "--warmup", "1", "--window", "2"]
            monkeypatch.setattr(sys, "argv", [side.script.name, *line])
            args = clock.arguments()
            assert args.measure in ("throughput", "solve")
            assert args.seed == 3


@pytest.mark.parametrize("name", ROWS)
def test_records_are_held_against_a_side_that_is_measured(name):
    for measure in ROWS[name].measures:
        sides = {s.name for s in ROWS[name].sides if measure.includes(s)}
        for record in measure.recorded:
            assert record.anchor in sides | {""}
            assert record.value > 0
            assert (record.anchor_value > 0) == bool(record.anchor)
        assert (measure.must is None) == (measure.aim is None)


def test_scripts_of_peers_need_nothing_of_runnel():
    folder = Path(run.__file__).parent
    for path in (*folder.glob("peer_*.py"), folder / "clock.py"):
        tree = ast.parse(path.read_text())
        found = {a.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        found |= {(n.module or "").partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not found & {"runnel", "benchmarks"}, path.name


def test_quick_is_one_short_pair_in_a_folder_of_its_own():
    line = run.quick(["--peer", "sb3", "--", "--threads", "2"], "dqn-cartpole")
    text = shlex.join(line)
    assert "--pairs 1 --idle-limit 0 --out" in text
    assert text.endswith("--peer sb3 -- --warmup 1 --window 2 --threads 2")


def test_the_list_names_every_row_and_what_is_asked_for(capsys):
    assert run.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ROWS)
    assert "must 1.2x, aim 2x" in text
    assert run.main([]) == 2
