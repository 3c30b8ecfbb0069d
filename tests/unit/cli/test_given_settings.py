"""Settings of `runnel train` as people give them: large numbers in short, a file, the settings of a run that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.cli.main import main
from runnel.cli.overlay import read_overlay
from runnel.core.config import to_data
from runnel.run.registry import configure, load_recipe
from runnel.track.folder import RunFolder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The config that a command would train with."""
    assert main(["train", *words, "--dry-run"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.partition("\n\n")[0])
    return found


def test_a_budget_may_be_written_in_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert shown(capsys, "ppo", "--total-steps", "1e5")["total_steps"] == 100_000
    found = shown(capsys, "dqn", "--total-steps", "2_000_000", "--replay.capacity", "1e6", "--net.hidden", "64", "6.4e1")
    assert (found["total_steps"], found["replay"]["capacity"], found["net"]["hidden"]) == (2_000_000, 1_000_000, [64, 64])
    file = tmp_path / "small.toml"
    file.write_text("total_updates = 1e2\n")
    found = shown(capsys, "ppo", "--config", str(file))
    assert (found["total_steps"], found["total_updates"]) == (None, 100)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "inf", "many"])
def test_what_is_no_whole_number_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "ppo", "--total-steps", text, "--dry-run"])
    assert caught.value.code == 2
    assert "--total-steps" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of PPO, as far as its settings go."""
    folder = RunFolder.create(tmp_path, "first")
    settings = {"ppo.lr": 0.01, "total_updates": 7, "name": "first", "out": str(tmp_path), "seed": 3, "tags": ["tuning"]}
    folder.write_config(to_data(configure(load_recipe("ppo"), settings)))
    folder.info.write_text(json.dumps({"recipe": "ppo"}))
    return folder


def test_a_runs_own_config_is_taken(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (run.config, run.path):
        found = shown(capsys, "ppo", "--config", str(given))
        assert (found["ppo"]["lr"], found["total_updates"], found["total_steps"], found["seed"]) == (0.01, 7, None, 3)
        assert (found["out"], found["name"], found["tags"]) == ("runs", "", []), "those are of the run that is there"
    found = shown(capsys, "ppo", "--config", str(run.config), "--ppo.lr", "0.02", "--total-steps", "5000")
    assert (found["ppo"]["lr"], found["total_steps"], found["total_updates"]) == (0.02, 5000, None), "flags win"


def test_a_run_of_another_recipe_is_refused(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "--config", str(run.config), "--dry-run"]) == 2
    assert "is of a run of ppo; use runnel train ppo" in capsys.readouterr().err
    for text, why in (("[1]", "must hold a JSON object"), ("{", "is not JSON")):
        run.config.write_text(text)
        assert main(["train", "ppo", "--config", str(run.config), "--dry-run"]) == 2
        assert why in capsys.readouterr().err


def test_a_study_takes_it_without_its_seed(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "ppo", "--search", "ppo.gamma=0.9..0.99", "--config", str(run.config), "--dry-run"]
    assert main(words) == 0
    assert '"lr": 0.01' in capsys.readouterr().out


def test_code_that_a_run_names_is_not_run_for_the_asking(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else may have written that file."""
    run.write_config({**run.read_config(), "env": "subprocess:getoutput"})
    for command in (["train", "ppo"], ["tune", "ppo", "--search", "ppo.gamma=0.9..0.99"]):
        assert main([*command, "--config", str(run.path), "--dry-run"]) == 2
        assert "would import the module subprocess" in capsys.readouterr().err
    found = shown(capsys, "ppo", "--config", str(run.path), "--env", "CartPole-v1")
    assert found["env"] == "CartPole-v1", "what is given in its place is not asked about"


def test_a_new_run_with_the_settings_of_another_may_have_other_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Only where it is given another folder: without, the folder must still hold what that run had."""
    states = {"kind": "states", "states": "a", "states_digest": "b"}
    config = configure(load_recipe("rlpd"), {"data": "c", "data_digest": "d", "curriculum": states})
    RunFolder(tmp_path).write_config(to_data(config))
    for words, digests in (
        ((), ("d", "b")),
        (("--data", "x"), ("", "b")),
        (("--curriculum.states=y",), ("d", "")),
        (("--data", "x", "--curriculum.states", "y"), ("", "")),
    ):
        found = read_overlay(["--config", str(tmp_path), *words], "rlpd")
        assert (found.get("data_digest", ""), found["curriculum"].get("states_digest", "")) == digests
    assert capsys.readouterr().err == ""
