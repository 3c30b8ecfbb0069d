"""Runs in which other models speak for some agents: who that was is kept, resumes go on, and what cannot work is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runnel as rl
from runnel.run.stored import stored_params

GAME: dict[str, Any] = {
    "chat": "signal",
    "num_prompts": 2,
    "group_size": 2,
    "max_turns": 2,
    "max_context": 128,
    "max_tokens": 4,
    "total_updates": 4,
    "checkpoint": {"every": 2},
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32, "max_positions": 128},
    "learner": {"lr": 1e-2, "warmup_updates": 0},
    "eval": {"episodes": 2, "every": 2},
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    stored_params.cache_clear()
    yield
    stored_params.cache_clear()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in which one policy speaks for both."""
    return rl.train("grpo", out=str(tmp_path_factory.mktemp("first")), **{**GAME, "name": "first"}).path


def played(out: Path, agents: tuple[str, ...] = (), **more: Any) -> rl.Run:
    return rl.train("grpo", out=str(out), **{**GAME, "agents": agents, **more})


def content(run: rl.Run) -> tuple[list[Any], dict[str, list[float]]]:
    """What was measured, and the last parameters. A run that stops is evaluated once more."""
    path = sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors"
    said = {row["version"]: (row["returns"], row["extra"]) for row in run.rows("eval")}
    return list(said.values()), {name: x.flatten().tolist() for name, x in load_file(path).items()}


def test_both_roles_of_one_policy_are_trained_and_told(first: Path) -> None:
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    (end,) = [row for row in rows if row["kind"] == "end"]
    assert end["streams"]["rollouts"]["consumed"] == 4 * 2 * 2 * 2, "trajectories: updates, tasks, conversations, agents"
    (row, *_) = [row["metrics"] for row in rows if row["kind"] == "update"]
    assert row["return/speaker"] == row["return/listener"] == row["return"]
    measured = [row["extra"] for row in rows if row["kind"] == "eval"]
    assert all({"return/speaker", "return/listener"} <= extra.keys() for extra in measured)
    assert all(extra["return/speaker"] == extra["return/listener"] == extra["reward"] for extra in measured)


@pytest.mark.parametrize("who", ["frozen", "run:{first}", "model:{first}/model"])
def test_a_run_with_a_partner_goes_on_where_it_stopped_and_as_with_policy_workers(
    who: str, first: Path, tmp_path: Path
) -> None:
    agents = (f"listener={who.format(first=first)}",)
    whole = played(tmp_path / "whole", agents)
    stopped = played(tmp_path / "b", agents, on_update=lambda row: row["version"] < 2)
    assert stopped.version == 2
    assert content(rl.resume(stopped.path)) == content(whole)
    assert content(played(tmp_path / "c", agents, placement={"policy_workers": 1})) == content(whole)
    assert rl.evaluate(whole.path, episodes=3).extra["turns"] == [1.0] * 3


def test_a_stored_policy_is_one_version_of_one_run_from_the_start_on(first: Path, tmp_path: Path) -> None:
    there = tmp_path / "first"
    shutil.copytree(first, there)
    run = played(tmp_path / "runs", (f"listener=run:{there}@best",), on_update=lambda row: row["version"] < 2)
    (chosen,) = json.loads((run.path / "config.json").read_text())["agents"]
    start, _, version = chosen.partition("@")
    assert start == f"listener=run:{there.resolve()}"
    assert int(version.partition("+")[0]) in (0, 2, 4)
    assert len(version.partition("+")[2]) == 12
    assert any(
        f"of {there.resolve()} speaks for agent 'listener', and never changes" in row["text"] for row in run.rows("event")
    )
    stored_params.cache_clear()
    shutil.rmtree(there)
    with pytest.raises(rl.ConfigError, match=r"agents = .*there is no such folder"):
        rl.resume(run.path)


def test_the_model_as_it_was_is_that_of_init_from(first: Path, tmp_path: Path) -> None:
    run = played(tmp_path, ("listener=frozen",), init_from=str(first), total_updates=1)
    (chosen,) = json.loads((run.path / "config.json").read_text())["agents"]
    assert chosen.startswith(f"listener=run:{first.resolve()}@4+")


def test_what_cannot_speak_is_refused_before_anything_starts(first: Path, tmp_path: Path) -> None:
    team = rl.train("ppo", out=str(tmp_path / "ppo"), total_updates=1, num_envs=1, num_steps=8, eval={"episodes": 0}).path
    refused = {
        f"listener=run:{team}": "that run trained no language model",
        f"listener=run:{first}@77": "keeps no version 77",
        "listener=run:nowhere": "there is no such folder",
        "listener=model:nowhere": "there is no such folder",
        "buyer=frozen": "it matches no agent; the agents are speaker, listener",
    }
    for entry, why in refused.items():
        with pytest.raises(rl.ConfigError, match=f"^agents = .*{why}"):
            played(tmp_path / "none", (entry,))
    with pytest.raises(rl.ConfigError, match=r"^agents = .*have one agent"):
        played(tmp_path / "none", ("agent=frozen",), chat="guess")
    with pytest.raises(rl.ConfigError, match=r"^agents = .*name one with --chat"):
        rl.train("grpo", out=str(tmp_path / "none"), agents=("a=frozen",))
    with pytest.raises(rl.ConfigError, match=r"^placement\.trainers = .*cannot share evenly; use 2"):
        played(tmp_path / "none", launcher="local", placement={"trainers": 4})
    assert not (tmp_path / "none").exists()
