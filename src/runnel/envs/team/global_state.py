"""The global state of an environment with several agents: what the critics of a team read beside what their agents see.

Where an environment has `state()` and a `state_space` (PettingZoo's names), that is it. Otherwise it is what all agents see,
joined in the order of `possible_agents`, with zeros for those that see nothing now or have left, and for each a flag that says
whether it is there (death masking: Yu et al. 2022, arXiv:2103.01955, sec. 5.4). Beside it stands which agent a row is and, for
learners that read the streams of a whole team together (`agents/joint.py`), the step of the episode: where it falls, the
environment has begun anew.

It lies in rows and segments as observations whose names begin with `SHARED`. Requests leave those out, so no policy reads them
(but who decides, which a team as one agent has there: `TEAM_ACTIVE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runnel.core.errors import DataError
from runnel.core.routes import Side
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import Array
from runnel.core.trajectories import AGENT, CLOCK, SHARED
from runnel.envs.spaces import Obs, ObsLeaf, obs_leaves
from runnel.envs.team.parallel import ParallelEnv

STATE, SEEN = f"{SHARED}state", f"{SHARED}seen"
"""The environment's own state; what all agents see."""


def has_shared(spec: EnvSpec) -> bool:
    """Whether rows of `spec` hold the global state."""
    return any(key.startswith(SHARED) for key in spec.obs)


def with_global_state(side: Side, env: ParallelEnv, *, clock: bool = False) -> Side:
    """`side`, whose rows also hold the global state of environments like `env`, and with `clock` the step of the episode."""
    shared = GlobalState(env, side.agents, clock=clock).spec
    return replace(side, spec=replace(side.spec, obs={**side.spec.obs, **shared}))


class GlobalState:
    """Reads the global state of environments like `env` for the rows of `agents`, which follow one policy."""

    def __init__(self, env: ParallelEnv, agents: Sequence[str], *, clock: bool = False) -> None:
        self._leaves = _state_leaves(env.env)
        self._parts: dict[str, list[ObsLeaf]] = {}
        self.spec: dict[str, ArraySpec] = {leaf.key: leaf.spec for leaf in self._leaves}
        if not self._leaves:
            self._parts = {agent: obs_leaves(env.env.observation_space(agent)) for agent in env.agents}
            self._widths = {agent: sum(_width(leaf.spec) for leaf in leaves) for agent, leaves in self._parts.items()}
            self.spec[SEEN] = ArraySpec((sum(self._widths.values()) + len(env.agents),))
        self._which = np.eye(len(agents), dtype=np.float32)
        self.spec[AGENT] = ArraySpec((len(agents),))
        self._clock = clock
        if clock:
            self.spec[CLOCK] = ArraySpec((), torch.int64)

    def now(self, source: ParallelEnv, obs: Mapping[str, Obs]) -> dict[str, Array]:
        """Before a decision, where `obs` is what the agents see."""
        return self._read(source, {agent: seen for agent, seen in obs.items() if agent not in source.ended})

    def at_end(self, source: ParallelEnv, obs: Mapping[str, Obs]) -> dict[str, Array]:
        """Behind the last step of some agents; they are still there, others that left before are not."""
        gone = source.ended - source.flags.keys()
        return self._read(source, {agent: seen for agent, seen in obs.items() if agent not in gone})

    def write(self, to: Mapping[str, Array], place: int, found: Mapping[str, Array], *, agent: int) -> None:
        """Write what was read into a place of `to`, for the agent of that number."""
        for key, value in found.items():
            to[key][place] = value
        to[AGENT][place] = self._which[agent]

    def _read(self, source: ParallelEnv, there: Mapping[str, Obs]) -> dict[str, Array]:
        found: dict[str, Array] = {CLOCK: np.asarray(source.steps)} if self._clock else {}
        if not self._leaves:
            return {**found, SEEN: self._joined(there)}
        state = source.env.state()
        for leaf in self._leaves:
            raw = leaf.checked(leaf.pick(state))
            found[leaf.key] = raw if leaf.encode is None else leaf.encode(raw)
        return found

    def _joined(self, there: Mapping[str, Obs]) -> Array:
        parts = []
        for agent, leaves in self._parts.items():
            if agent in there:
                parts += [_flat(leaf, there[agent]) for leaf in leaves]
            else:
                parts.append(np.zeros(self._widths[agent], np.float32))
        # the flag tells an agent that is not there from one that sees zeros, also after observations were normalised
        parts.append(np.array([agent in there for agent in self._parts], np.float32))
        return np.concatenate(parts)


def _state_leaves(env: Any) -> list[ObsLeaf]:
    """The leaves of `env.state()`; none where there is no such thing. The space decides: the base class of PettingZoo has a
    `state` that raises."""
    space = getattr(env, "state_space", None)
    if space is None or not callable(getattr(env, "state", None)):
        return []
    return [replace(leaf, key=STATE + leaf.key.removeprefix("obs")) for leaf in obs_leaves(space)]


def _width(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))


def _flat(leaf: ObsLeaf, obs: Obs) -> Array:
    """One part of an observation as a vector of floats; bytes as numbers from 0 to 1."""
    found = leaf.read(obs)
    if found.shape != leaf.spec.shape:
        raise DataError(f"gave {leaf.key!r} of shape {np.shape(leaf.pick(obs))}, but its space says {leaf.shape}")
    flat = found.astype(np.float32).ravel()
    return flat / np.float32(255.0) if found.dtype == np.uint8 else flat
