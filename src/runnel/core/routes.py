"""Routes of agents: which policy serves an agent, and to which stream its trajectories go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError
from runnel.core.spaces import EnvSpec, TeamSpec

SHARED = "shared"
"""The policy of all agents where nothing else is said."""
STORED = "run:"
"""How the name of a policy begins that is a stored run's, and never changes."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Side:
    """The agents of one policy, in the order of their rows, with the spec that they share and the route that they follow."""

    agents: tuple[str, ...]
    spec: EnvSpec
    route: AgentRoute

    @property
    def trains(self) -> bool:
        """Whether segments of these agents are written."""
        return bool(self.route.samples)


def route(routes: Sequence[AgentRoute], agent_id: str) -> AgentRoute:
    """The first route whose pattern matches the whole of `agent_id`.

    >>> routes = [AgentRoute("red_.*", "red", "red"), AgentRoute(".*", "blue", "blue")]
    >>> route(routes, "red_0").inference, route(routes, "green").inference
    ('red', 'blue')
    """
    for candidate in routes:
        if _matches(candidate, agent_id):
            return candidate
    patterns = ", ".join(repr(r.pattern) for r in routes)
    raise ConfigError("routes", patterns, f"no pattern matches agent {agent_id!r}; add one, or end with '.*'")


def team_routes(teams: Sequence[str]) -> list[AgentRoute]:
    """The routes that `PATTERN=POLICY` entries describe; without entries, one policy for all agents. Each policy writes a
    stream of its own name. A policy `run:FOLDER@WHICH` is that of a stored run: it acts, and nothing is learned from it.

    >>> [(r.pattern, r.inference, r.samples) for r in team_routes(["red_.*=red", ".*=blue"])]
    [('red_.*', 'red', 'red'), ('.*', 'blue', 'blue')]
    >>> team_routes([])[0].inference
    'shared'
    >>> team_routes([".*=run:runs/first@best"])[0]
    AgentRoute(pattern='.*', inference='first@best', samples='', deterministic=False, stored='run:runs/first@best')
    """
    return [_parse(entry) for entry in teams] or [AgentRoute(".*", SHARED, SHARED)]


def _parse(entry: str) -> AgentRoute:
    pattern, equals, policy = entry.partition("=")
    if not (pattern and equals):
        raise ConfigError("teams", entry, "write PATTERN=POLICY, for example red_.*=red")
    if policy.startswith(STORED):
        # without the checksum, which says nothing to a reader; no slash, which would part a name into two
        name = re.sub(r"\+[0-9a-f]+", "", policy.rstrip("/").rpartition("/")[2].removeprefix(STORED)).replace("#", ".")
        return AgentRoute(pattern, name, "", stored=policy)
    if not _NAME.fullmatch(policy):
        fix = "after = comes the name of a policy: a letter, then letters, digits, '_', '-' or '.'"
        raise ConfigError("teams", entry, fix)
    return AgentRoute(pattern, policy, policy)


def sides_of(routes: Sequence[AgentRoute], spec: TeamSpec) -> dict[str, Side]:
    """The agents of each policy, by its name, in the order of the routes. Refuses, before anything starts, an agent without a
    route, a route without an agent, and agents of one policy that differ in their spaces."""
    chosen = {agent: route(routes, agent) for agent in spec.agents}
    for candidate in routes:
        if candidate not in chosen.values():
            _refuse_idle(candidate, chosen)
    sides: dict[str, Side] = {}
    for policy in dict.fromkeys(candidate.inference for candidate in routes):
        mine = {agent: r for agent, r in chosen.items() if r.inference == policy}
        sides[policy] = Side(tuple(mine), _common_spec(policy, tuple(mine), spec), _common_route(policy, list(mine.values())))
    if not any(side.trains for side in sides.values()):
        raise ConfigError("routes", ", ".join(sides), "none of these policies is trained; give one of them a sample stream")
    return sides


def _matches(candidate: AgentRoute, agent_id: str) -> bool:
    try:
        return re.fullmatch(candidate.pattern, agent_id) is not None
    except re.error as error:
        fix = f"this is no regular expression ({error}); '.*' stands for any text"
        raise ConfigError("routes", candidate.pattern, fix) from error


def _refuse_idle(candidate: AgentRoute, chosen: Mapping[str, AgentRoute]) -> None:
    """Say why no agent follows `candidate`: its pattern matches none, or an earlier pattern takes all that it matches."""
    taken = [agent for agent in chosen if _matches(candidate, agent)]
    if taken:
        fix = f"all agents that it matches follow an earlier pattern ({chosen[taken[0]].pattern!r}); put it first, or drop it"
    else:
        fix = f"it matches no agent; the agents are {', '.join(chosen)}"
    raise ConfigError("routes", candidate.pattern, fix)


def _common_spec(policy: str, agents: Sequence[str], spec: TeamSpec) -> EnvSpec:
    first = spec.agents[agents[0]]
    for agent in agents[1:]:
        if spec.agents[agent] != first:
            fix = "give each kind of agent a policy: --teams PATTERN=POLICY ..."
            fix = f"agents {agents[0]!r} and {agent!r} differ in their spaces; {fix}"
            raise ConfigError("teams", policy, fix)
    return first


def _common_route(policy: str, routes: Sequence[AgentRoute]) -> AgentRoute:
    for other in routes[1:]:
        if replace(other, pattern="") != replace(routes[0], pattern=""):
            fix = "two routes of this policy differ in more than their patterns; name a second inference stream for one of them"
            raise ConfigError("routes", policy, fix)
    return routes[0]
