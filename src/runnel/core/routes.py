"""Routes of agents: which policy serves an agent, and to which stream its trajectories go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.errors import ConfigError
from runnel.core.spaces import EnvSpec, TeamSpec

ROUTES, TEAMS = "routes", "teams"
"""Where routes come from: objects that Python code gives, or the setting `teams`."""
SHARED, EACH = "shared", "each"
"""Who shares parameters, in a word: one policy for all agents (so it is where nothing else is said), or one for each."""
STORED = "run:"
"""How the name of a policy begins that is a stored run's, and never changes."""
OPTIONS = ": "
"""What parts a policy from the options of its route."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_GRAMMAR = "after a colon come, with commas between them: N steps, burn-in N, or (of a stored policy) deterministic"


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


def route(routes: Sequence[AgentRoute], agent_id: str, *, field: str = ROUTES) -> AgentRoute:
    """The first route whose pattern matches the whole of `agent_id`; errors name the setting `field` that the routes are of.

    >>> routes = [AgentRoute("red_.*", "red"), AgentRoute(".*", "blue")]
    >>> route(routes, "red_0").inference, route(routes, "green").inference
    ('red', 'blue')
    """
    for candidate in routes:
        if _matches(candidate, agent_id, field):
            return candidate
    fix = f"add {agent_id}=POLICY, or end with .*=POLICY" if field == TEAMS else "add one, or end with '.*'"
    raise ConfigError(field, [_said(r, field) for r in routes], f"no pattern matches agent {agent_id!r}; {fix}")


def _said(found: AgentRoute, field: str) -> str:
    """A route as the user wrote it, without its options."""
    return f"{found.pattern}={found.stored or found.inference}" if field == TEAMS else found.pattern


def only_stream(found: AgentRoute) -> str:
    """The stream of a route, for samplers of one agent: they fill one stream, in segments as long as the stream says."""
    (first, *more) = found.samples or (SampleRoute(""),)
    if more or first != SampleRoute(first.stream) or not first.stream:
        fix = "an environment of one agent writes one stream, whose spec gives the length; several are for teams (team_graph)"
        raise ConfigError("routes", found.pattern, fix)
    return first.stream


def team_routes(teams: Sequence[str], agents: Sequence[str] = ()) -> list[AgentRoute]:
    """The routes that `PATTERN=POLICY` entries describe. Each policy writes a stream of its own name. A policy
    `run:FOLDER@WHICH` is that of a stored run: it acts, and nothing is learned from it. Behind a colon stand the options of a
    route: the length of its segments and their burn-in, or that it is deterministic.

    One entry alone may be a word: `shared` is one policy for all agents (as without entries), `each` one for each of `agents`.

    >>> [(r.pattern, r.inference, r.samples) for r in team_routes(["red_.*=red", ".*=blue: 32 steps, burn-in 8"])]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('red_.*', 'red', (SampleRoute(stream='red', num_steps=0, burn_in=0),)),
     ('.*', 'blue', (SampleRoute(stream='blue', num_steps=32, burn_in=8),))]
    >>> team_routes([])[0].inference
    'shared'
    >>> [r.inference for r in team_routes(["each"], agents=["red_0", "red_1"])]
    ['red_0', 'red_1']
    >>> team_routes([".*=run:runs/first@best: deterministic"])[0]
    AgentRoute(pattern='.*', inference='first@best', samples=(), deterministic=True, stored='run:runs/first@best')
    """
    entries = list(teams) or [SHARED]
    words = [entry for entry in entries if entry.partition(OPTIONS)[0] in (SHARED, EACH)]
    if not words:
        return [_parse(entry) for entry in entries]
    if len(entries) > 1:
        raise ConfigError("teams", words[0], "says it of all agents, so it stands alone; for groups write PATTERN=POLICY")
    word, colon, text = words[0].partition(OPTIONS)
    options = f"{colon}{text}"
    if word == SHARED:
        return [_parse(f".*={SHARED}{options}")]
    if not agents:
        raise ConfigError("teams", words[0], "only an environment knows its agents; give their names")
    if unfit := [agent for agent in agents if not _NAME.fullmatch(agent)]:
        fix = "write PATTERN=POLICY for each: names of policies are a letter, then letters, digits, '_', '-' or '.'"
        raise ConfigError("teams", EACH, f"agent {unfit[0]!r} has a name that no policy can have; {fix}")
    return [replace(_parse(f".*={agent}{options}"), pattern=re.escape(agent)) for agent in agents]


def _parse(entry: str) -> AgentRoute:
    pattern, equals, rest = entry.partition("=")
    policy, colon, text = rest.partition(OPTIONS)
    if not (pattern and equals):
        raise ConfigError("teams", entry, "write PATTERN=POLICY, for example red_.*=red; or shared or each, for all agents")
    options = _options(text, entry) if colon else {}
    if policy.startswith(STORED):
        if writes := [name for name in ("steps", "burn-in") if name in options]:
            fix = f"a stored policy writes no segments, so {writes[0]} would mean nothing; leave it out"
            raise ConfigError("teams", entry, fix)
        # without query and checksum, which say nothing to a reader; no slash, which would part a name into two
        name = re.sub(r"\[[^]]*\]|\+[0-9a-f]+", "", policy.removeprefix(STORED)).rstrip("/").rpartition("/")[2]
        return AgentRoute(pattern, name.replace("#", "."), (), "deterministic" in options, policy)
    if not _NAME.fullmatch(policy):
        fix = "after = comes the name of a policy: a letter, then letters, digits, '_', '-' or '.'"
        raise ConfigError("teams", entry, fix)
    if "deterministic" in options:
        fix = "a policy that is trained must try actions, so it draws them; deterministic is for stored policies (run:FOLDER)"
        raise ConfigError("teams", entry, fix)
    return AgentRoute(pattern, policy, (SampleRoute(policy, options.get("steps", 0), options.get("burn-in", 0)),))


def _options(text: str, entry: str) -> dict[str, int]:
    """The options of a route by name, with their numbers."""
    found: dict[str, int] = {}
    for part in (part.strip() for part in text.split(",")):
        match = re.fullmatch(r"(?P<number>[1-9]\d*) steps|burn-in (?P<burn>[1-9]\d*)|deterministic", part)
        if match is None:
            raise ConfigError("teams", entry, f"{part!r} is not understood; {_GRAMMAR}")
        name = "steps" if match["number"] else "burn-in" if match["burn"] else part
        if name in found:
            raise ConfigError("teams", entry, f"{name} is said twice; say it once")
        found[name] = int(match["number"] or match["burn"] or 1)
    return found


def with_lengths(routes: Sequence[AgentRoute], num_steps: int) -> list[AgentRoute]:
    """The routes with the length of every segment, for updates of `num_steps` steps. Refuses lengths that do not fit into each
    other, so that each stream has a whole number of segments in an update, and all segments begin together.

    >>> [with_lengths([AgentRoute(samples=(SampleRoute("red", n),))], 64)[0].samples[0].num_steps for n in (0, 16)]
    [64, 16]
    """
    settled = [replace(r, samples=tuple(replace(s, num_steps=s.num_steps or num_steps) for s in r.samples)) for r in routes]
    samples = sorted((s for r in settled for s in r.samples), key=lambda s: s.num_steps)
    above = [s.num_steps for s in samples[1:]] + [num_steps]
    for sample, longer in zip(samples, above, strict=False):
        if longer % sample.num_steps:
            whose = "num_steps" if longer == num_steps else "those of another route"
            fix = f"segments of {sample.num_steps} steps do not fit into {longer} ({whose}); use a divisor of it"
            raise ConfigError("teams", f"{sample.stream}: {sample.num_steps} steps", fix)
    for sample in samples:
        if sample.burn_in > sample.num_steps:
            fix = f"a segment has {sample.num_steps} steps, and burn-in are steps of the one before it; use at most that"
            raise ConfigError("teams", f"{sample.stream}: burn-in {sample.burn_in}", fix)
    return settled


def sides_of(routes: Sequence[AgentRoute], spec: TeamSpec, *, field: str = ROUTES) -> dict[str, Side]:
    """The agents of each policy, by its name, in the order of the routes. Refuses, before anything starts, an agent without a
    route, a route without an agent, and agents of one policy that differ in their spaces; errors name the setting `field`."""
    chosen = {agent: route(routes, agent, field=field) for agent in spec.agents}
    for candidate in routes:
        if candidate not in chosen.values():
            _refuse_idle(candidate, chosen, field)
    sides: dict[str, Side] = {}
    for policy in dict.fromkeys(candidate.inference for candidate in routes):
        mine = {agent: r for agent, r in chosen.items() if r.inference == policy}
        common = _common_route(policy, list(mine.values()), field)
        sides[policy] = Side(tuple(mine), _common_spec(policy, tuple(mine), spec), common)
    streams = [sample.stream for side in sides.values() for sample in side.route.samples]
    if twice := [stream for stream in streams if streams.count(stream) > 1]:
        raise ConfigError(field, twice[0], "two routes write to this stream; give each a stream of its own")
    if not any(side.trains for side in sides.values()):
        fix = "name one without run:, which learns" if field == TEAMS else "give one of them a sample stream"
        raise ConfigError(field, [_said(r, field) for r in routes], f"none of these policies is trained; {fix}")
    return sides


def _matches(candidate: AgentRoute, agent_id: str, field: str) -> bool:
    try:
        return re.fullmatch(candidate.pattern, agent_id) is not None
    except re.error as error:
        fix = f"this is no regular expression ({error}); '.*' stands for any text"
        raise ConfigError(field, _said(candidate, field), fix) from error


def _refuse_idle(candidate: AgentRoute, chosen: Mapping[str, AgentRoute], field: str) -> None:
    """Say why no agent follows `candidate`: its pattern matches none, or an earlier pattern takes all that it matches."""
    taken = [agent for agent in chosen if _matches(candidate, agent, field)]
    if taken:
        fix = f"all agents that it matches follow an earlier one ({_said(chosen[taken[0]], field)!r}); put it first, or drop it"
    else:
        fix = f"it matches no agent; the agents are {', '.join(chosen)}"
    raise ConfigError(field, _said(candidate, field), fix)


def _common_spec(policy: str, agents: Sequence[str], spec: TeamSpec) -> EnvSpec:
    first = spec.agents[agents[0]]
    for agent in agents[1:]:
        if spec.agents[agent] != first:
            fix = "give each kind of agent a policy: --teams PATTERN=POLICY ..."
            fix = f"agents {agents[0]!r} and {agent!r} differ in their spaces; {fix}"
            raise ConfigError("teams", policy, fix)
    return first


def _common_route(policy: str, routes: Sequence[AgentRoute], field: str) -> AgentRoute:
    for other in routes[1:]:
        if replace(other, pattern="") != replace(routes[0], pattern=""):
            other_name = "policy" if field == TEAMS else "inference stream"
            fix = f"two entries of this policy differ in more than their patterns; name a second {other_name} for one of them"
            raise ConfigError(field, policy, fix)
    return routes[0]
