"""The rows of one policy in a vector of teams: what its agents see and get, in the memory of one `StepOut`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from runnel.core.action_codec import final_mask, read_mask
from runnel.core.errors import DataError
from runnel.core.routes import Side
from runnel.core.state import Array
from runnel.core.trajectories import CLOCK
from runnel.envs.bounds import Bounds
from runnel.envs.spaces import MASK, Action, Info, Obs, mask_in_obs, obs_leaves
from runnel.envs.team.base import RowMemory
from runnel.envs.team.global_state import GlobalState, has_shared
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.vector.contract import StepOut
from runnel.envs.vector.cpu_base import obs_writer
from runnel.envs.vector.serial import action_rows

Seen = tuple[Mapping[str, Obs], Mapping[str, Info]]
"""What an environment shows: observations and infos by agent."""


class PolicyRows(RowMemory):
    """The rows of one policy, written by its environments; `env` is one of them."""

    def __init__(self, side: Side, out: StepOut, env: ParallelEnv) -> None:
        super().__init__(side, out)
        space = env.env.observation_space(side.agents[0])
        self._leaves = leaves = obs_leaves(space)
        self._write, self._write_last = obs_writer(leaves, self._obs), obs_writer(leaves, self._final)
        self._bounds, self._mask_in_obs = Bounds(leaves), mask_in_obs(space)
        self._shared: GlobalState | None = None
        if has_shared(side.spec):
            self._shared = GlobalState(env, side.agents, clock=CLOCK in side.spec.obs)
        self.convert: Callable[[Array], list[Action]] = action_rows(side.spec.action)

    def actions(self, raw: Array) -> list[Action]:
        """What `env.step` takes for each row, of network actions `[E * A, ...]`."""
        self.check_actions(raw)
        return self.convert(raw)

    def record(self, env: int, source: ParallelEnv, obs: Mapping[str, Obs], infos: Mapping[str, Info]) -> None:
        """What a step of environment `env` gave its agents: rewards, and the ends of those that left."""
        for agent in self.side.agents:
            row = self.row(env, agent)
            self.now.reward[row] = source.rewards.get(agent, 0.0)
            if agent in source.flags:
                try:
                    self._end(row, source.flags[agent], obs[agent], infos.get(agent, {}))
                except DataError as error:
                    raise DataError(f"{error} (agent {agent!r}, at its end)") from error
        if self._shared is not None and any(agent in source.flags for agent in self.side.agents):
            self._share_ends(env, self._shared.at_end(source, obs))

    def _share_ends(self, env: int, found: Mapping[str, Array]) -> None:
        """The global state beside the final observations of environment `env`, whose rows were written last."""
        rows, num_agents = self.out.final_rows, len(self.side.agents)
        assert rows is not None
        assert self._shared is not None
        for place in reversed(range(len(rows))):
            if rows[place] // num_agents != env:
                break
            self._shared.write(self._final, place, found, agent=rows[place] % num_agents)

    def _end(self, row: int, flags: tuple[bool, bool], obs: Obs, info: Info) -> None:
        rows = self.out.final_rows
        assert rows is not None
        self.now.terminated[row], self.now.truncated[row] = flags
        self._write_last(len(rows), obs)
        if self.now.final_mask is not None:
            raw = obs[MASK] if self._mask_in_obs else info.get(MASK)
            self.now.final_mask[len(rows)] = final_mask(raw, self.side.spec.action, terminated=flags[0])
        rows.append(row)

    def show(self, env: int, source: ParallelEnv, seen: Seen, *, first: bool = False) -> None:
        """What the agents of environment `env` see before their next decision; `first`: of an episode."""
        obs, infos = seen
        live = set(source.live)
        shared = self._shared.now(source, obs) if self._shared is not None and live & {*self.side.agents} else {}
        first_row = env * len(self.side.agents)
        self.now.active[first_row : first_row + len(self.side.agents)] = [agent in live for agent in self.side.agents]
        for place, agent in enumerate(self.side.agents):
            row = first_row + place
            if agent not in live:
                self._blank(row)
                continue
            try:
                self._show(row, obs[agent], infos.get(agent, {}), first=first)
            except DataError as error:
                raise DataError(f"{error} (agent {agent!r})") from error
            if self._shared is not None:
                self._shared.write(self._obs, row, shared, agent=place)

    def _show(self, row: int, obs: Obs, info: Info, *, first: bool) -> None:
        self._write(row, obs)
        if self.now.mask is not None:
            raw = obs[MASK] if self._mask_in_obs else info.get(MASK)
            if raw is None:
                raise DataError("gave no action_mask; put one into every info")
            self.now.mask[row] = read_mask(raw, self.side.spec.action)
        # bounds are looked at once an episode, as a check costs as much as a small step
        if first and self._bounds and (found := self._bounds.outside(self._obs, slice(row, row + 1))) is not None:
            raise DataError(found[1])

    def _blank(self, row: int) -> None:
        """Nothing is to be decided in `row`: zeros, and a mask that allows everything."""
        for x in self._obs.values():
            x[row] = 0
        if self.now.mask is not None:
            self.now.mask[row] = True

    def differs(self, env: int, source: ParallelEnv, obs: Mapping[str, Obs]) -> str:
        """The first agent that sees something else than its row says; empty if there is none."""
        for agent in self.side.agents:
            if agent not in source.live:
                continue
            for leaf in self._leaves:
                stored, found = self._obs[leaf.key][self.row(env, agent)], leaf.read(obs[agent])
                if not np.array_equal(found.astype(stored.dtype), stored, equal_nan=stored.dtype == np.float32):
                    return agent
        return ""
