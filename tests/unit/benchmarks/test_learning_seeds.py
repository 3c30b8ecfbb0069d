"""Seeds of learners: what is skipped, what a limit of time cuts, what processes side by side are told. Nothing is trained."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning import conversations, seeds


@dataclass(frozen=True)
class Toy:
    key: str = "world: toy, small"
    settings: dict = field(default_factory=lambda: {"hidden": (64, 64)})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command with some arguments; it gives the seeds that were trained, with the seconds that each was given."""
    monkeypatch.setattr(seeds.machine, "commit", lambda root: {})
    monkeypatch.setattr(seeds.machine, "facts", dict)

    def main(*arguments, cut=False):
        trained = []

        def train(entry, seed, how):
            trained.append((seed, how.limit_s))
            return {"score": seed / 10, **({"cut": True} if cut else {})}

        monkeypatch.setattr(sys, "argv", ["seeds", *arguments])
        seeds.main(tmp_path, [Toy()], train, lambda anchors, rows: ", ".join(str(row["score"]) for row in rows))
        return trained

    return main


def test_a_whole_result_is_not_made_again_and_a_cut_one_is(run, tmp_path):
    assert [seed for seed, _ in run("--seeds", "1", "2")] == [1, 2]
    assert (tmp_path / "table.md").read_text() == "0.1, 0.2\n"
    assert [seed for seed, _ in run("--seeds", "2", "3", cut=True)] == [3]
    assert [seed for seed, _ in run()] == [3]
    assert not list(tmp_path.glob("*.part"))


def test_other_settings_are_run_again(run, tmp_path):
    run("--seeds", "1")
    path = tmp_path / "world-toy-small-1.json"
    path.write_text(path.read_text().replace("64", "32"))
    assert [seed for seed, _ in run("--seeds", "1")] == [1]


def test_the_limit_of_time_is_that_of_the_command(run, monkeypatch):
    assert not run("--minutes", "0")
    moments = iter([100.0, 110.0, 150.0, 170.0])
    monkeypatch.setattr(seeds.time, "monotonic", lambda: next(moments))
    assert run("--minutes", "1", "--seeds", "1", "2", "3") == [(1, 50.0), (2, 10.0)]


def test_processes_side_by_side_have_one_seed_each(run, monkeypatch):
    commands = []

    def start(command, **how):
        commands.append(command[2:])
        return SimpleNamespace(returncode=0, stdout='{"score": 1}\n', stderr="")

    monkeypatch.setattr(seeds.subprocess, "run", start)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="benchmarks.learning.toy"), raising=False)
    run("--at-once", "2", "--seeds", "1", "2", "--device", "cuda")
    told = ["benchmarks.learning.toy", "--only", Toy().key, "--seeds"]
    assert sorted(commands) == [[*told, seed, "--device", "cuda", "--beside", "2"] for seed in ("1", "2")]
    commands.clear()
    run("--at-once", "3", "--seeds", "3", "--store", "kept")
    assert commands == [[*told, "3", "--device", "cpu", "--beside", "3", "--store", "kept"]]


def test_the_table_of_conversations_holds_the_end_against_the_imitation():
    """Means of three seeds by hand; the seed of the tuning is left out, and what was cut is told."""

    def row(seed, first, last, **more):
        evals = [{"version": v, "mean": m, "extra": {"pass@1": m / 2}} for v, m in ((6, first), (36, last))]
        settings = json.loads(json.dumps(conversations.CALCULATOR))
        return {"key": "calculator: grpo", "seed": seed, "tokens": 1000, "evals": evals, "settings": settings, **more}

    rows = [row(1, 0.2, 0.9), row(2, 0.4, 1.0), row(3, 0.3, 0.95, cut=True), row(conversations.TUNING, 0.0, 0.0)]
    lines = conversations.table([{"key": "calculator: at random", "mean": 0.0}], rows).splitlines()
    half = 4.3027 * 0.1 / 3**0.5
    assert f"| 0.300 ± {half:.3f} (0.200, 0.400, 0.300) | 0.950 ± {half / 2:.3f} (0.900, 1.000, 0.950) |" in lines[3]
    assert lines[4].startswith("| calculator: grpo | sampled | 3 | 0.150")
    assert "seed 3, was cut" in lines[-1]
