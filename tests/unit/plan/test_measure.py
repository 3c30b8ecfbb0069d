"""Costs come from the recipe's own pieces: known step times are found again; the commands print what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.cli.main import main
from runnel.plan.costs import Costs
from runnel.plan.measure import measure
from runnel.run import registry

SLEEPS = {"env": "runnel.envs.toy:StepTime", "env_kwargs": {"step_ms": 3.0}, "num_envs": 2, "num_steps": 8, "compiled": "off"}


def test_a_known_step_is_found_again() -> None:
    config = registry.configure(registry.load_recipe("ppo"), {**SLEEPS, "num_actors": 2})
    costs = measure("ppo", config, seconds=0.3)
    assert (costs.rows, costs.num_steps, costs.batch_segments, costs.unit) == (2.0, 8.0, 2, "steps")
    assert 0.006 <= costs.step(2) <= 0.03
    assert costs.step_cpu < 0.5
    assert costs.update(32) > 0
    assert costs.infer(2) > 0
    assert costs.param_bytes > 1000
    assert costs.request_bytes > 0


def test_replay_has_a_ratio() -> None:
    settings = {"compiled": "off", "min_fill": 64, "num_steps": 16, "update_ratio": 0.5, "dqn": {"batch_size": 32}}
    costs = measure("dqn", registry.configure(registry.load_recipe("dqn"), settings), seconds=0.3)
    assert costs.update_ratio == pytest.approx(0.5, rel=0.1)
    assert costs.insert_s > 0
    assert costs.select_s > 0


def test_plan_prints_a_command_and_saves_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "runnel.envs.toy:Counter", "--num-steps", "8", "--compiled", "off", "--seconds", "0.2"]
    assert main(["plan", "ppo", *flags, "--save", str(tmp_path / "costs.json")]) == 0
    said = capsys.readouterr().out
    assert "train with: runnel train ppo --env runnel.envs.toy:Counter" in said
    assert "limited by" in said
    saved = Costs.load(tmp_path / "costs.json")
    (tmp_path / "cluster.toml").write_text("[[nodes]]\nnodes = 2\ncores = 16\n[[nodes]]\nnodes = 1\ncores = 8\ngpus = 2\n")
    args = ["plan", "appo", "--costs", str(tmp_path / "costs.json"), "--cluster", str(tmp_path / "cluster.toml"), "--json"]
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["costs"]["name"] == saved.name
    assert found["best"][0]["placement"]["trainers"] >= 1
    assert main(["plan", "ppo", "--dry-run"]) == 2
    assert main(["plan", "ppo", "--cluster", "nowhere.toml"]) == 2
    (tmp_path / "cluster.toml").write_bytes(b'name = "\xe9"')
    assert main([*args[:2], "--cluster", str(tmp_path / "cluster.toml")]) == 2


def test_simulate_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["simulate", "--updates", "3", "--sweep", "actors=4,8", "inference=inline,split", "--cost", "step=0.001"]
    assert main([*args, "--plot", str(tmp_path / "out.svg")]) == 0
    assert "busiest" in capsys.readouterr().out
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 4
    assert all(r["accounting"]["balance"] == 0 for r in found)
    assert main(["simulate", "--actors", "4", "--updates", "2"]) == 0
    assert "dispatched" in capsys.readouterr().out
    for wrong in (["--sweep", "actors"], ["--cost", "nothing=1"], ["--cost", "step=x"], ["--sweep", "actors=0"]):
        assert main(["simulate", *wrong]) == 2
