"""Routes of several agents: who follows which, and what is refused before anything starts."""

from __future__ import annotations

import pytest
import torch

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError
from runnel.core.routes import sides_of, team_routes
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec

CHOICE = ActionSpec("discrete", num_actions=3)
NARROW = EnvSpec({"obs": ArraySpec((2,))}, CHOICE)
WIDE = EnvSpec({"obs": ArraySpec((5,), torch.uint8)}, CHOICE)
TEAM = TeamSpec({"red_0": NARROW, "blue_0": WIDE, "red_1": NARROW})


def test_the_first_pattern_that_matches_wins_and_a_policy_keeps_the_order_of_its_agents() -> None:
    sides = sides_of(team_routes(["red_.*=red", ".*=blue"]), TEAM)
    assert {name: side.agents for name, side in sides.items()} == {"red": ("red_0", "red_1"), "blue": ("blue_0",)}
    assert sides["blue"].spec is WIDE
    assert sides["red"].trains
    assert sides["red"].route.samples == "red"


def test_several_patterns_may_name_one_policy() -> None:
    sides = sides_of(team_routes(["red_0=one", "red_1=one", "blue.*=two"]), TEAM)
    assert sides["one"].agents == ("red_0", "red_1")


def test_a_route_without_a_sample_stream_is_asked_but_not_trained() -> None:
    routes = [AgentRoute("red_.*", "red", "red"), AgentRoute("blue_0", "blue", "", deterministic=True)]
    sides = sides_of(routes, TEAM)
    assert not sides["blue"].trains
    assert sides["blue"].route.deterministic
    assert sides["red"].trains


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        (["red_.*=red"], "no pattern matches agent 'blue_0'"),
        (["red_.*=red", "blue_.*=blue", "green=green"], "it matches no agent; the agents are red_0, blue_0, red_1"),
        (["red_.*=red", "blue_.*=blue", "red_1=one"], r"follow an earlier pattern \('red_.\*'\); put it first"),
        ([], "agents 'red_0' and 'blue_0' differ in their spaces; give each kind of agent a policy"),
        (["red_"], "write PATTERN=POLICY"),
        (["red_.*="], "after = comes the name of a policy"),
        (["red_.*=a/b"], "after = comes the name of a policy"),
        (["*=red"], "this is no regular expression"),
    ],
)
def test_what_cannot_work_is_refused_with_the_field_and_the_fix(routes: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        sides_of(team_routes(routes), TEAM)


def test_a_team_that_nobody_learns_from_and_a_policy_with_two_streams_are_refused() -> None:
    with pytest.raises(ConfigError, match="none of these policies is trained"):
        sides_of([AgentRoute("red_.*", "red", ""), AgentRoute(".*", "blue", "")], TEAM)
    with pytest.raises(ConfigError, match="differ in more than their patterns"):
        sides_of([AgentRoute("red_0", "red", "a"), AgentRoute("red_1", "red", "b"), AgentRoute(".*", "blue")], TEAM)
