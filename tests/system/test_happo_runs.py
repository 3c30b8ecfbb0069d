"""Runs in which one learner reads the streams of all policies: several actors and processes, and a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_team_runs import TEAM, content, params

import runnel as rl

HAPPO: dict[str, Any] = {key: value for key, value in TEAM.items() if key not in ("ppo", "teams")}


def train(out: Path, **more: Any) -> rl.Run:
    return rl.train("happo", out=str(out), **{**HAPPO, **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"), num_actors=2)


def test_actors_in_processes_give_the_same(whole: rl.Run, tmp_path: Path) -> None:
    """Segments of one round stay together, whoever writes first."""
    apart = train(tmp_path, num_actors=2, launcher="local", placement={"policy_workers": 1})
    assert content(apart) == content(whole)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(whole: rl.Run, tmp_path: Path) -> None:
    stopped = rl.train("happo", out=str(tmp_path), on_update=lambda row: row["version"] < 4, **{**HAPPO, "num_actors": 2})
    assert (stopped.status, stopped.version) == ("stopped", 4)
    assert content(rl.resume(stopped.path), evaluations=False) == content(whole, evaluations=False)


def test_counterfactual_runs_are_resumed_alike(tmp_path: Path) -> None:
    more: dict[str, Any] = {**HAPPO, "teams": ("each",), "eval": {"episodes": 0}, "coma": {"target_every": 2}}
    whole = rl.train("coma", out=str(tmp_path / "whole"), **more)
    stopped = rl.train("coma", out=str(tmp_path / "part"), on_update=lambda row: row["version"] < 5, **more)
    assert content(rl.resume(stopped.path)) == content(whole)


def test_what_cannot_be_read_as_one_round_is_refused(whole: rl.Run, tmp_path: Path) -> None:
    for more, text in (
        ({"net": {"core": "gru"}}, r"net\.core.*no memory"),
        ({"staleness": {"mode": "window"}}, "would be taken as they come, and not those of one round"),
        ({"teams": ("sender=a: 5 steps", "receiver=b")}, "segments of one length"),
        ({"happo": {"num_minibatches": 1_000}}, r"happo\.num_minibatches.*each minibatch needs a moment"),
    ):
        with pytest.raises(rl.ConfigError, match=text):
            train(tmp_path, **more)
    other = train(tmp_path, teams=("sender=sender", f"receiver=run:{whole.path}@newest#receiver"), total_updates=2)
    assert other.status == "finished"
    assert params(other).exists()
