"""`rl.check_env` for environments of several agents: what it finds, in which words, and that it passes what is right."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import turn_envs as envs

import runnel as rl
from runnel.cli.main import main

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


@pytest.mark.parametrize(
    "target", [SPREAD, "pettingzoo:classic.tictactoe_v3", envs.Columns, envs.columns, envs.Two, envs.Ring, envs.Saved]
)
def test_what_is_right_passes(target: Any) -> None:
    report = rl.check_env(target)
    assert not report
    assert not report.warnings
    assert report.num_episodes > 5


def test_an_instance_is_checked_as_it_is() -> None:
    for env in (envs.Columns(), envs.Two()):
        assert not rl.check_env(env)
    assert "after a reset" in rl.check_env(envs.Renames())[0]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (envs.Renames, "`possible_agents` was .* and is .* after a reset; name all agents that may ever come in"),
        (envs.Haunted, "step: gave rewards of 'a_0', which had ended at an earlier step; .* Leave it out of all five dicts"),
        (envs.Blind, "gave no observation of 'b_0'"),
        (envs.Lacks, "PettingZoo's parallel_api_test warns: an agent in `agents` has no reward: give all five dicts an entry"),
        (envs.Grows, "two instances differ in their agents or spaces: agent 'a_0' has .*; make all instances alike"),
        (envs.Unseeded, "is not deterministic under a seed: .* the first observation is another one"),
        (envs.Tired, "is not deterministic under a seed once it was played: a fresh one repeats .* set back every attribute"),
        (envs.Shared, r"set_state\(get_state\(\)\) does not bring Shared back: .* share no memory with the environment"),
        (envs.Silent, "no agent is left, but 'b_0' never got terminated or truncated; flag every agent's end"),
        (envs.Outside, "the observation of '._0' is outside of its space .* clip it, or widen the space"),
        (envs.Numbered, "agent ids are texts, and 0 is a int; write 'agent_0'"),
        (envs.Closed, r"agent 'first_0': gave the action_mask \[False, False, False\]; .* at least one open action"),
        (envs.Stays, r"has ended, but step\(None\) did not take it out of `agents`"),
        (envs.Forgets, r"PettingZoo's api_test fails: last\(\) gives an agent another reward .* self._accumulate_rewards\(\)"),
    ],
)
def test_a_mistake_is_found_and_told_with_what_mends_it(target: Any, text: str) -> None:
    report = rl.check_env(target)
    assert report, "it passed"
    assert re.search(text, report[0]), report[0]


def test_what_never_ends_and_what_lacks_an_entry_are_warnings() -> None:
    assert "truncate all agents after a number of steps" in rl.check_env(envs.Endless).warnings[0]
    assert "step gave no rewards of 'b_0', which decided in it" in rl.check_env(envs.Lacks).warnings[0]


def test_agents_that_wait_are_played_and_the_test_that_does_not_know_them_is_left_out() -> None:
    report = rl.check_env("team_envs:Turns")
    assert not report
    assert "parallel_api_test was not run: agent 'x' waits" in report.hints[0]


def test_without_pettingzoo_its_tests_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo.test.api_test", None)
    report = rl.check_env(envs.Two)
    assert not report
    assert 'pip install "runnel[teams]"' in report.hints[0]


def test_wrappers_of_one_agent_are_refused() -> None:
    with pytest.raises(rl.ConfigError, match="wrappers are of one agent, and it has several"):
        rl.check_env(envs.Two, wrappers=["wrappers_of_users:nothing"])


def test_the_command_checks_teams(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", SPREAD, "--env-kwargs", '{"N": 2}']) == 0
    assert "nothing to complain about" in capsys.readouterr().out
    assert main(["check-env", "turn_envs:Haunted"]) == 1
    assert "which had ended at an earlier step" in capsys.readouterr().out
