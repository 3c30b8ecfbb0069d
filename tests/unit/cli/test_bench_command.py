"""`runnel bench`: a short measurement, its parts, and what it refuses."""

import json

import pytest
import torch
from rich.console import Console

from runnel.cli import bench as bench_command
from runnel.cli import profiling
from runnel.cli.bench import show
from runnel.cli.main import main
from runnel.cli.profiling import Parts, Window, found_in, replaced, split
from runnel.envs.vector import measure
from runnel.envs.vector.measure import Timed

SHORT = ["--seconds", "0.2", "--warmup", "0.1"]


@pytest.fixture
def quick(monkeypatch):
    """Few updates under torch's profiler, which takes seconds for each; the machine's limits are measured in one test."""
    monkeypatch.setattr(bench_command, "PROFILED_UPDATES", (1, 2))
    monkeypatch.setattr(bench_command, "machine_limits", lambda cores: {})


def bench(capsys, *flags):
    assert main(["bench", "--json", *SHORT, *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_throughput_of_a_recipe(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bench(capsys, "--num-envs", "4", "--num-steps", "16")
    assert result["rates"]["steps_per_s"] == pytest.approx(64 * result["rates"]["updates_per_s"])
    assert "stages" not in result
    assert list(tmp_path.iterdir()) == []


def test_profile_takes_sample_and_update_apart(capsys, monkeypatch):
    monkeypatch.setattr(bench_command, "PROFILED_UPDATES", (1, 2))
    result = bench(capsys, "--profile", "--num-envs", "4", "--num-steps", "16", "--compiled", "off")
    found = {(r["worker"], r["stage"], r["part"]): r for r in result["stages"]}
    for part in ("environment", "policy", "writing"):
        assert ("actor-0", "sample", part) in found
    for part in ("backward", "optimiser", "forward, losses"):
        assert ("trainer", "update", part) in found
    whole = sum(r["share"] for r in result["stages"] if not r["part"])
    assert whole == pytest.approx(1.0, abs=0.02)
    update = found["trainer", "update", ""]
    inner = sum(r["share"] for (_, stage, part), r in found.items() if stage == "update" and part)
    assert inner == pytest.approx(update["share"], rel=0.02)
    assert update["ms_per_update"] == pytest.approx(update["us_per_step"] * 64 / 1000)
    assert any(r["operator"].startswith("aten::") for r in result["operators"])
    assert result["limits"]["gemm_gflops_1_thread"] > 0


@pytest.mark.usefixtures("quick")
def test_profile_of_a_tensor_environment(capsys):
    result = bench(capsys, "--profile", "--env", "tensor:CartPole-v1", "--num-steps", "16", "--net.hidden", "64")
    parts = {r["part"] for r in result["stages"] if r["stage"] == "sample"}
    assert {"environment", "policy"} <= parts


@pytest.mark.usefixtures("quick")
def test_profile_of_compiled_steps(capsys):
    pytest.importorskip("numba")
    result = bench(capsys, "--profile", "--num-envs", "4", "--num-steps", "16")
    parts = {r["part"] for r in result["stages"] if r["stage"] == "update"}
    assert "compiled steps" in parts
    assert "backward" not in parts


@pytest.mark.usefixtures("quick")
def test_profile_of_a_replay_recipe_has_its_buffer(capsys):
    result = bench(capsys, "--profile", "--recipe", "dqn", "--min-fill", "200")
    stages = {(r["worker"], r["stage"]) for r in result["stages"]}
    assert {("buffer", "insert"), ("buffer", "select"), ("trainer", "update")} <= stages


def test_back_ends_are_measured_here_and_only_here(capsys, monkeypatch):
    """A run chooses without a stopwatch; the advice is a setting that `runnel train` takes as it stands."""
    seconds = {"SerialVector": 0.008, "GymVector": 0.001, "ProcessVector": 0.02}
    monkeypatch.setattr(measure, "time_step", lambda vector: (vector.close(), Timed(seconds[type(vector).__name__], 3))[1])
    result = bench(capsys, "--backends", "--num-envs", "4", "--num-steps", "16", "--net.hidden", "64")
    assert result["backends"].startswith("CartPole-v1 x 4: gymnasium vector entry point, 1000 us a step (serial 8000 us")
    assert result["settings"] == {"vector.backend": "gymnasium"}
    show(result, Console(width=200))
    assert "fastest: --vector.backend gymnasium\n" in capsys.readouterr().out
    assert main(["bench", "--backends", *SHORT, "--env", "tensor:CartPole-v1"]) == 2


def test_table_for_people(capsys):
    stage = {"worker": "actor-0", "stage": "sample", "part": "", "share": 0.25, "us_per_step": 3.0, "ms_per_update": 1.5}
    operator = {"operator": "aten::mm", "us_per_update": 1234.0, "share": 0.5, "calls_per_update": 16.0}
    result = {
        "recipe": "ppo",
        "rates": {"steps_per_s": 12345.6, "updates_per_s": 2.5},
        "stages": [stage, {**stage, "part": "environment", "share": 0.125}],
        "operators": [operator],
        "limits": {"gemm_gflops_1_thread": 155.0},
    }
    show(result, Console(width=100))
    text = capsys.readouterr().out
    for shown in ("ppo: 12,346 steps/s, 2.5 updates/s", "25.0%", "environment", "12.5%", "1,234", "gemm_gflops_1_thread 155"):
        assert shown in text


def test_what_belongs_to_train_is_refused(capsys):
    assert main(["bench", "--dry-run"]) == 2
    assert "runnel train" in capsys.readouterr().err


def test_a_call_inside_another_counts_once(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: next(now))
    parts = Parts()
    inner = parts.timed("inner", lambda: None)
    parts.timed("outer", inner)()
    # the outer call lasts 10 s, 3 s of which are the inner one's
    assert parts.seconds == {"inner": 3.0, "outer": 7.0}
    assert parts.calls == {"inner": 1, "outer": 1}


def test_what_was_wrapped_is_given_back():
    before = torch.autograd.grad
    with Parts().opened([]):
        assert torch.autograd.grad is not before
    assert torch.autograd.grad is before

    class Thing:
        def call(self):
            return 1

    thing = Thing()
    with replaced(thing, "call", lambda: 2):
        assert thing.call() == 2
    assert thing.call() == 1
    assert vars(thing) == {}


def test_rows_by_hand():
    window = Window(wall_s=2.0, steps=1000, updates=10)
    window.stages.update({"actor-0/sample": 1.0, "trainer/update": 0.5})
    parts = Parts()
    parts.seconds.update({"environment": 0.4, "policy": 0.5, "backward": 0.2})
    rows = {(r["worker"], r["stage"], r["part"]): r for r in split(window, parts)}
    assert rows["actor-0", "sample", "writing"]["share"] == pytest.approx(0.05)
    assert rows["trainer", "update", "forward, losses"]["ms_per_update"] == pytest.approx(30.0)
    assert rows["run", "rounds", ""]["us_per_step"] == pytest.approx(500.0)
    assert found_in([1, [2.0, (3, "x")]], int) == [1, 3]
