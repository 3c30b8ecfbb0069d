"""Routes of agents: which policy serves an agent, and to which stream its trajectories go."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError


def route(routes: Sequence[AgentRoute], agent_id: str) -> AgentRoute:
    """The first route whose pattern matches the whole of `agent_id`.

    >>> routes = [AgentRoute("red_.*", "red", "red"), AgentRoute(".*", "blue", "blue")]
    >>> route(routes, "red_0").inference, route(routes, "green").inference
    ('red', 'blue')
    """
    for candidate in routes:
        if re.fullmatch(candidate.pattern, agent_id):
            return candidate
    patterns = ", ".join(repr(r.pattern) for r in routes)
    raise ConfigError("routes", patterns, f"no pattern matches agent {agent_id!r}; add one, or end with '.*'")
