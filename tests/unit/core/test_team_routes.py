"""Routes of several agents: who follows which, and what is refused before anything starts."""

from __future__ import annotations

import pytest
import torch

from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.errors import ConfigError
from runnel.core.routes import only_stream, sides_of, team_routes, with_lengths
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
    assert sides["red"].route.samples == (SampleRoute("red"),)


def test_several_patterns_may_name_one_policy() -> None:
    sides = sides_of(team_routes(["red_0=one", "red_1=one", "blue.*=two"]), TEAM)
    assert sides["one"].agents == ("red_0", "red_1")


def test_a_route_without_a_sample_stream_is_asked_but_not_trained() -> None:
    routes = [AgentRoute("red_.*", "red"), AgentRoute("blue_0", "blue", (), deterministic=True)]
    sides = sides_of(routes, TEAM)
    assert not sides["blue"].trains
    assert sides["blue"].route.deterministic
    assert sides["red"].trains


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        (["red_.*=red"], "no pattern matches agent 'blue_0'"),
        (["red_.*=red", "blue_.*=blue", "green=green"], "it matches no agent; the agents are red_0, blue_0, red_1"),
        (["red_.*=red", "blue_.*=blue", "red_1=one"], r"follow an earlier one \('red_.\*'\); put it first"),
        ([], "agents 'red_0' and 'blue_0' differ in their spaces; give each kind of agent a policy"),
        (["red_"], "write PATTERN=POLICY"),
        (["red_.*="], "after = comes the name of a policy"),
        (["red_.*=a/b"], "after = comes the name of a policy"),
        (["*=red"], "this is no regular expression"),
        (["each", "blue_0=blue"], "teams = 'each': says it of all agents, so it stands alone"),
        (["red_.*=red", "shared"], "teams = 'shared': says it of all agents, so it stands alone"),
        (["each"], "only an environment knows its agents; give their names"),
        (["all"], "teams = 'all': write PATTERN=POLICY, for example red_.*=red; or shared or each, for all agents"),
        (["shared: deterministic"], "a policy that is trained must try actions"),
        (["red_.*=red: 32"], "'32' is not understood; after a colon come, with commas between them: N steps"),
        (["red_.*=red: 0 steps"], "'0 steps' is not understood"),
        (["red_.*=red: 8 steps, 16 steps"], "steps is said twice"),
        (["red_.*=red: deterministic"], "a policy that is trained must try actions"),
        (["red_.*=run:x: 8 steps"], "a stored policy writes no segments, so steps would mean nothing"),
        (["red_.*=run:x: deterministic, burn-in 2"], "so burn-in would mean nothing"),
    ],
)
def test_what_cannot_work_is_refused_with_the_field_and_the_fix(routes: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        sides_of(team_routes(routes), TEAM)


@pytest.mark.parametrize(
    ("teams", "text"),
    [
        (
            ["red_.*=red"],
            r"teams = \['red_.\*=red'\]: no pattern matches agent 'blue_0'; add blue_0=POLICY, or end with .\*=POLICY",
        ),
        (["red_.*=red", "b.*=blue", "green=green"], "teams = 'green=green': it matches no agent"),
        (
            ["red_.*=red", "b.*=blue", "red_1=one"],
            r"teams = 'red_1=one': .* follow an earlier one \('red_.\*=red'\); put it first",
        ),
        (["red_.*=red", "*=blue"], r"teams = '\*=blue': this is no regular expression"),
        (
            [".*=run:runs/first: deterministic"],
            r"teams = \['.\*=run:runs/first'\]: none of .* is trained; name one without run:",
        ),
        (["red_0=a: 8 steps", "red_1=a", "b.*=b"], "teams = 'a': two entries .* name a second policy for one of them"),
        ([], "teams = 'shared': agents 'red_0' and 'blue_0' differ in their spaces"),
    ],
)
def test_errors_name_the_setting_that_the_user_wrote(teams: list[str], text: str) -> None:
    spec = TeamSpec(dict.fromkeys(TEAM.agents, NARROW)) if "run:" in "".join(teams) else TEAM
    with pytest.raises(ConfigError, match=text):
        sides_of(team_routes(teams), spec, field="teams")


def test_a_team_that_nobody_learns_from_and_a_policy_with_two_streams_are_refused() -> None:
    with pytest.raises(ConfigError, match="none of these policies is trained"):
        sides_of([AgentRoute("red_.*", "red", ()), AgentRoute(".*", "blue", ())], TEAM)
    with pytest.raises(ConfigError, match="differ in more than their patterns"):
        sides_of(
            [AgentRoute("red_0", "red"), AgentRoute("red_1", "red", (SampleRoute("b"),)), AgentRoute(".*", "blue", ())], TEAM
        )


def test_options_of_a_route() -> None:
    red, blue = team_routes(["red_.*=red: burn-in 4, 16 steps", "blue_.*=run:runs/first@12+ab01#blue: deterministic"])
    assert red.samples == (SampleRoute("red", 16, 4),)
    assert (blue.inference, blue.samples, blue.deterministic) == ("first@12.blue", (), True)
    assert blue.stored == "run:runs/first@12+ab01#blue"


def test_a_word_says_who_shares_parameters() -> None:
    names = list(TEAM.agents)
    each = sides_of(team_routes(["each"], names), TEAM)
    assert {policy: side.agents for policy, side in each.items()} == {name: (name,) for name in names}
    assert [side.route.samples for side in each.values()] == [(SampleRoute(name),) for name in names]
    assert team_routes(["each: 8 steps"], ["a.b", "a-b"])[0] == AgentRoute(r"a\.b", "a.b", (SampleRoute("a.b", 8),))
    assert team_routes(["shared"]) == team_routes([])
    assert team_routes(["shared: 8 steps"])[0].samples == (SampleRoute("shared", 8),)
    with pytest.raises(ConfigError, match="agent '0' has a name that no policy can have; write PATTERN=POLICY for each"):
        team_routes(["each"], ["a", "0"])


def test_lengths_fit_into_each_other() -> None:
    def lengths(*samples: SampleRoute) -> list[int]:
        return [s.num_steps for s in with_lengths([AgentRoute(samples=samples)], 96)[0].samples]

    assert lengths(SampleRoute("a"), SampleRoute("b", 48), SampleRoute("c", 16, burn_in=16)) == [96, 48, 16]
    with pytest.raises(ConfigError, match=r"segments of 40 steps do not fit into 96 \(num_steps\)"):
        lengths(SampleRoute("a", 40))
    with pytest.raises(ConfigError, match=r"segments of 32 steps do not fit into 48 \(those of another route\)"):
        lengths(SampleRoute("a", 48), SampleRoute("b", 32))
    with pytest.raises(ConfigError, match="a segment has 16 steps, and burn-in are steps of the one before it"):
        lengths(SampleRoute("a", 16, burn_in=17))


def test_streams_have_one_writer_each_and_one_agent_alone_writes_one_stream() -> None:
    with pytest.raises(ConfigError, match="two routes write to this stream"):
        sides_of([AgentRoute("red_.*", "red", (SampleRoute("x"),)), AgentRoute(".*", "blue", (SampleRoute("x"),))], TEAM)
    assert only_stream(AgentRoute()) == "trajectories"
    for samples in ((), (SampleRoute("a"), SampleRoute("b")), (SampleRoute("a", 8),)):
        with pytest.raises(ConfigError, match="an environment of one agent writes one stream"):
            only_stream(AgentRoute(samples=samples))
