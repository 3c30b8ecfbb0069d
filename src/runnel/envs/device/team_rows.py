"""The rows of one policy in arrays of a whole team: which columns are its agents', and how they come into its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from runnel.core.routes import Side
from runnel.core.spaces import TeamSpec
from runnel.core.state import Array
from runnel.core.trajectories import AGENT, SHARED
from runnel.envs.device.base import Leaves
from runnel.envs.spaces import MASK
from runnel.envs.team.global_state import has_shared
from runnel.envs.vector.contract import StepOut

Columns = slice | list[int]


@dataclass
class Seen:
    """What a team sees at one moment: leaves of each kind of agents, the global state `[E, ...]` by name, and who decides
    `[E, A]` (None: everybody)."""

    kinds: Sequence[Leaves]
    shared: Mapping[str, Array]
    active: Array | None


@dataclass
class Decision:
    """Memory of one decision of a policy: observation leaves `[E, A, ...]`, the mask, and who decides `[E, A]`."""

    obs: dict[str, Array]
    mask: Array | None
    active: Array


@dataclass
class Outcome:
    """Memory of what came of a decision, `[E, A]`."""

    reward: Array
    terminated: Array
    truncated: Array


class TeamRows:
    """The agents of one policy: row e * A + a is agent a of environment e."""

    def __init__(self, side: Side, spec: TeamSpec) -> None:
        names, kinds = list(spec.agents), spec.kinds
        places = [names.index(agent) for agent in side.agents]
        self.side, self.width = side, len(places)
        self.kind = next(k for k, members in enumerate(kinds) if places[0] in members)
        within = [kinds[self.kind].index(place) for place in places]
        self.of_team, self.of_kind = _columns(places), _columns(within)
        self.is_kind = len(places) == len(kinds[self.kind])
        """Whether all agents of the kind are its own."""
        self._within = np.array(within)
        self._shared = has_shared(side.spec)
        self._which = np.eye(self.width, dtype=np.float32)

    def decision(self, obs: Mapping[str, Tensor], mask: Tensor | None, active: Tensor) -> Decision:
        """Memory of rows `[E * A, ...]`, by environment and agent."""
        leaves = {key: self._by_agent(x) for key, x in obs.items()}
        return Decision(leaves, None if mask is None else self._by_agent(mask), self._by_agent(active))

    def outcome(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> Outcome:
        """Memory of rows `[E * A]`, by environment and agent."""
        return Outcome(*map(self._by_agent, (reward, terminated, truncated)))

    def of_out(self, out: StepOut) -> tuple[Decision, Outcome]:
        """The memory of a vector."""
        assert out.active is not None
        outcome = self.outcome(out.reward, out.terminated, out.truncated)
        return self.decision(out.obs, out.action_mask, out.active), outcome

    def _by_agent(self, x: Tensor) -> Array:
        return x.numpy().reshape(-1, self.width, *x.shape[1:])

    def show(self, seen: Seen, into: Decision) -> None:
        """Write what the agents see. Who does not decide has zeros, and a mask that allows everything."""
        leaves = seen.kinds[self.kind]
        for key, to in into.obs.items():
            if not key.startswith(SHARED):
                to[...] = leaves[key][:, self.of_kind]
            else:
                to[...] = self._which if key == AGENT else seen.shared[key][:, None]
        if into.mask is not None:
            into.mask[...] = leaves[MASK][:, self.of_kind]
        if seen.active is None:
            into.active.fill(True)
            return
        into.active[...] = seen.active[:, self.of_team]
        silent = ~into.active
        for to in into.obs.values():
            to[silent] = 0
        if into.mask is not None:
            into.mask[silent] = True

    def end(self, seen: Seen, ends: Array, terminated: Array, into: Leaves, *, start: int) -> Array:
        """Write what agents saw last into `into`, from place `start` on, and return their rows.

        `seen` is of the environments in which some agent ended. `ends` and `terminated` `[E, A]` say who has, of whole teams.
        """
        rows = np.flatnonzero(ends[:, self.of_team])
        envs, agents = np.divmod(rows, self.width)
        place = (np.cumsum(ends.any(axis=1)) - 1)[envs]
        leaves, here = seen.kinds[self.kind], slice(start, start + len(rows))
        for key, to in into.items():
            if key == MASK:
                to[here] = leaves[MASK][place, self._within[agents]]
                # nothing comes after a terminated episode, and an agent that waits has no choice to make
                free = terminated[:, self.of_team].reshape(-1)[rows]
                if seen.active is not None:
                    free = free | ~seen.active[:, self.of_team][place, agents]
                to[here][free] = True
            elif not key.startswith(SHARED):
                to[here] = leaves[key][place, self._within[agents]]
            else:
                to[here] = self._which[agents] if key == AGENT else seen.shared[key][place]
        return rows


def _columns(places: list[int]) -> Columns:
    """Neighbours as a slice, which numpy reads without a copy."""
    first, last = places[0], places[-1]
    return slice(first, last + 1) if places == list(range(first, last + 1)) else places
