"""Runs that collapse are told and, where that is wanted, ended; runs that go well are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import runnel as rl
from runnel.board.library import Library
from runnel.cli.main import main
from runnel.report.markdown import write_markdown

TASK = str(Path(__file__).with_name("counting_task.py"))
QUIET: dict[str, Any] = {"track": (), "name": "run", "eval": {"episodes": 0}, "placement": {"threads": 1}}
MODEL = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64}
GRPO: dict[str, Any] = {
    **QUIET,
    "lm": MODEL,
    "demo_rows": 32,
    "warmup_updates": 8,
    "num_prompts": 4,
    "group_size": 4,
    "learner": {"lr": 5e-2, "sft_lr": 2e-2, "warmup_updates": 1},
    "checkpoint": {"every": 0},
}
PLAIN = {"normalise_obs": False, "normalise_reward": False}
ENV: dict[str, Any] = {**QUIET, "vector": {"backend": "serial"}, "checkpoint": {"every": "never"}, "log_every": 1}
TOO_FAST: dict[str, Any] = {**ENV, "num_envs": 2, "num_steps": 4, "ppo": {"lr": 10.0, "num_minibatches": 1, **PLAIN}}


def collapses(run: rl.Run) -> list[dict[str, Any]]:
    return [row for row in run.rows("event") if row["what"] == "collapse"]


def test_a_language_model_that_gives_one_answer_to_everything_is_told_and_ended(tmp_path: Path) -> None:
    """GRPO on a task that the model cannot solve: it bets on the commonest answer, and no group has signal any more."""
    task = f"{TASK}:make_task"
    run = rl.train("grpo", task=task, out=str(tmp_path), seed=4, total_updates=300, stop_on="collapse", **GRPO)
    assert run.status == "collapsed"
    assert run.version < 100, "and not at the end of its budget"
    (event,) = collapses(run)
    assert (event["level"], event["collapse"]) == ("warning", "no signal")
    silent = [row["version"] for row in run.rows() if row["metrics"].get("groups_zero_signal") == 1.0]
    assert silent[-10:] == list(range(event["since"], run.version + 1)) == list(range(run.version - 9, run.version + 1))
    assert "lower learner.lr (now 0.05); raise grpo.entropy_coef (now 0)" in event["text"]
    assert run.rows("end")[-1]["status"] == "collapsed"
    assert "stopped by stop_on collapse: no signal since version" in run.rows("event")[-1]["text"]
    assert sorted((run.path / "checkpoints").glob("0*"))[-1].name.startswith(f"{run.version:09}")
    shown(run, tmp_path)
    again = rl.resume(run.path, total_updates=run.version + 3, stop_on="nothing")
    assert (again.status, len(collapses(again))) == ("finished", 1), "it is told once, also after a resume"
    assert again.collapses == {"no signal": event["text"]}


def shown(run: rl.Run, folder: Path) -> None:
    """The report, its Markdown and the board say it."""
    page = (run.path / "report.html").read_text()
    assert '<span class="status bad">collapsed</span>' in page
    assert "all completions of each prompt get the same reward" in page.partition("<section>")[0], "before the curves"
    text = write_markdown(folder / "runs.md", runs=[run.path]).read_text()
    assert "collapse since version" in text
    library = Library(folder, cache=folder / "cache")
    library.refresh()
    (line,) = library.lines()
    library.close()
    assert line["status"] == "collapsed"
    assert line["progress"] < 1.0
    assert [(c["collapse"], c["since"]) for c in line["collapses"]] == [("no signal", collapses(run)[0]["since"])]


def test_a_language_model_that_solves_its_task_is_not_ended(tmp_path: Path) -> None:
    task = f"{TASK}:make_easy_task"
    run = rl.train("grpo", task=task, out=str(tmp_path), seed=4, total_updates=45, stop_on="collapse", **GRPO)
    assert (run.status, run.collapses) == ("finished", {})
    assert run.rows()[-1]["metrics"]["groups_zero_signal"] == 1.0
    notes = [row["text"] for row in run.rows("event") if row["what"] == "note"]
    assert len(notes) == 1
    assert "the task is solved, or too easy" in notes[0]


def test_a_policy_that_is_changed_too_fast_is_told_and_the_command_says_it_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = rl.train("ppo", out=str(tmp_path / "told"), total_updates=22, **TOO_FAST)
    assert (told.status, list(told.collapses)) == ("finished", ["no entropy"])
    assert "lower ppo.lr (now 10)" in capsys.readouterr().err
    file = tmp_path / "settings.toml"
    file.write_text(
        "[ppo]\nlr = 10.0\nnum_minibatches = 1\nnormalise_obs = false\nnormalise_reward = false\n"
        "[vector]\nbackend = 'serial'\n[eval]\nepisodes = 0\n"
    )
    flags = ["--total-updates", "30", "--num-envs", "2", "--num-steps", "4", "--out", str(tmp_path), "--name", "ended"]
    assert main(["train", "ppo", "--config", str(file), *flags, "--stop-on", "collapse"]) == 3
    printed = capsys.readouterr()
    assert "collapsed after 21 updates" in printed.out
    assert "lower ppo.lr (now 10)" in printed.err
    rows = [json.loads(line) for line in (tmp_path / "ended" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["status"] == "collapsed"


class OneChoice(gym.Env):  # type: ignore[misc]
    """One decision between two actions; the second pays 1. Solved, every return is 1 and the policy has no entropy."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), float(action), True, False, {}


FEWER = "linear(1, 0, 0.3)"
SMALL = {"net": {"hidden": (16,)}}
HEALTHY: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "solved": (
        "ppo",
        {
            **SMALL,
            "env": OneChoice,
            "num_envs": 4,
            "num_steps": 8,
            "ppo": {"lr": 3e-2, "num_epochs": 4, **PLAIN},
            "total_updates": 60,
        },
        ["no entropy", "no gradient"],
    ),
    "solved by value": (
        "dqn",
        {
            **SMALL,
            "env": OneChoice,
            "min_fill": 64,
            "total_steps": 800,
            "dqn": {"epsilon": FEWER, "batch_size": 64, "lr": 2.3e-3},
        },
        [],
    ),
    "always the same": (
        "ppo",
        {**SMALL, "env": "runnel.envs.toy:TruncationTrap", "num_envs": 8, "num_steps": 16, "total_updates": 30},
        ["constant returns"],
    ),
    "a2c": ("a2c", {**SMALL, "total_steps": 2_000}, []),
    "impala": ("impala", {**SMALL, "total_steps": 1_000}, []),
    "dqn": ("dqn", {**SMALL, "total_steps": 700, "min_fill": 200}, []),
    "sac": ("sac", {**SMALL, "env": "Pendulum-v1", "total_steps": 400, "min_fill": 300}, []),
    "td3": ("td3", {**SMALL, "env": "Pendulum-v1", "total_steps": 400, "min_fill": 300}, []),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_not_called_a_collapse(name: str, tmp_path: Path) -> None:
    recipe, given, expected = HEALTHY[name]
    run = rl.train(recipe, out=str(tmp_path), stop_on="collapse", **{**ENV, **given})
    assert (run.status, run.collapses, collapses(run)) == ("finished", {}, [])
    notes = [row["text"] for row in run.rows("event") if row["what"] == "note" and "since version" in row["text"]]
    assert [note.partition(" since")[0] for note in notes] == expected
