"""Costs come from the recipe's own pieces: known step times are found again; the commands print what they found."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from runnel.cli.main import main
from runnel.plan.costs import Costs, LinearCost
from runnel.report.plans import predicted_rates
from runnel.run import registry
from runnel.run.measure import endless, measure, plain
from runnel.track.history import load_history

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


def test_a_part_of_the_budget_is_no_hindrance() -> None:
    """What is measured has no budget, and start states are for a part of one."""
    settings = {"total_steps": 1000, "curriculum": {"kind": "states", "states": "anywhere"}}
    config = registry.configure(registry.load_recipe("ppo"), settings)
    plain(config).check()
    assert endless(config).curriculum.until == 1.0  # type: ignore[attr-defined]


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


def test_a_plan_is_applied_and_its_prediction_stands_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One core for each worker; the environments sleep, so several actors are faster than one process."""
    costs, applied = tmp_path / "costs.json", tmp_path / "placement.toml"
    lines = {"step": LinearCost(0.0, 5e-3), "infer": LinearCost(1e-5), "serve": LinearCost(1e-2), "update": LinearCost(1e-3)}
    Costs(name="mine", rows=2, num_steps=4, batch_segments=1, **lines).save(costs)  # type: ignore[arg-type]
    fields = ["--env", "runnel.envs.toy:Counter", "--num-envs", "2", "--num-steps", "4", "--compiled", "off"]
    plan = ["plan", "appo", *fields, "--costs", str(costs), "--nodes", "1", "--cores", "3", "--gpus", "0"]
    assert main([*plan, "--num-actors", "7", "--apply", str(applied), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, settings = found["best"][0], tomllib.loads(applied.read_text())
    p = best["placement"]
    assert (settings["launcher"], settings["num_actors"], p["actors"] > 1) == ("local", p["actors"], True)
    assert settings["num_segments"] == p["batch_segments"]
    assert settings["placement"].pop("predicted_per_s") == pytest.approx(best["units_per_s"], rel=1e-3)
    assert settings["placement"] == {"policy_workers": p["servers"], "trainers": p["trainers"], "groups": []}
    assert found["command"] == ["runnel", "train", "appo", *fields, "--config", str(applied)], "the file has the actors"
    assert shlex.join(found["command"]) in applied.read_text()

    run = ["--out", str(tmp_path), "--name", "run", "--total-updates", "8", "--eval.episodes", "0", "--track"]
    assert main([*found["command"][1:], *run]) == 0
    row = predicted_rates(load_history(tmp_path / "run")).rows[0]
    assert row[1].startswith(f"{p['actors']} actor")
    assert row[3] == pytest.approx(best["units_per_s"], rel=1e-3)
    assert row[4] > 0
    assert "Predicted and reached rates" in (tmp_path / "run/report.html").read_text()


def test_an_applied_plan_says_what_else_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = tmp_path / "costs.json"
    Costs(name="mine", rows=2, num_steps=4, batch_segments=1).save(costs)
    far = ["--nodes", "2", "--cores", "4", "--gpus", "1", "--apply", str(tmp_path / "far.toml")]
    assert main(["plan", "ppo", "--costs", str(costs), *far]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "steps and not 8, which changes what is learned; give other --num-envs or --num-steps" in said
    assert "predicted on accelerators; train with --device cuda" in said
    assert tomllib.loads((tmp_path / "far.toml").read_text())["launcher"] == "ray"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("there.toml", "exists, and is not overwritten"),
        ("new.json", "ends in .toml"),
        ("no/new.toml", "no such folder"),
    ],
)
def test_a_plan_is_applied_to_a_new_file_alone(name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there.toml").write_text("mine = 1\n")
    assert main(["plan", "ppo", "--seconds", "1000", "--apply", str(tmp_path / name)]) == 2, "before anything is measured"
    said = " ".join(capsys.readouterr().err.split())
    assert "apply = " in said
    assert why in said
    assert (tmp_path / "there.toml").read_text() == "mine = 1\n"
    assert [p.name for p in tmp_path.iterdir()] == ["there.toml"]


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
