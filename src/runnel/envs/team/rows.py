"""The rows of one policy in a vector of teams: what its agents see and get, in the memory of one `StepOut`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import final_mask, read_mask
from runnel.core.errors import DataError
from runnel.core.routes import Side
from runnel.core.state import Array
from runnel.envs.bounds import Bounds
from runnel.envs.spaces import MASK, Action, Info, Obs, mask_in_obs, obs_leaves
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.vector.contract import StepOut, allocate
from runnel.envs.vector.cpu_base import obs_writer, out_arrays
from runnel.envs.vector.serial import action_rows

Seen = tuple[Mapping[str, Obs], Mapping[str, Info]]
"""What an environment shows: observations and infos by agent."""


@dataclass
class _OutArrays:
    """The memory of a `StepOut` as numpy arrays."""

    reward: Array
    terminated: Array
    truncated: Array
    active: Array
    mask: Array | None
    final_mask: Array | None


class PolicyRows:
    """`num_envs` times the agents of `side`: row e * A + a is agent a of environment e."""

    def __init__(self, side: Side, num_envs: int, env: ParallelEnv) -> None:
        self.side, self.num_rows = side, num_envs * len(side.agents)
        self.out: StepOut = allocate(side.spec, self.num_rows)
        self.out.active = torch.zeros(self.num_rows, dtype=torch.bool)
        first = side.agents[0]
        self._leaves = leaves = obs_leaves(env.env.observation_space(first))
        self._obs = {k: x.numpy() for k, x in self.out.obs.items()}
        self._final = {k: x.numpy() for k, x in self.out.final_obs.items()}
        self._write, self._write_last = obs_writer(leaves, self._obs), obs_writer(leaves, self._final)
        self._bounds, self._mask_in_obs = Bounds(leaves), mask_in_obs(env.env.observation_space(first))
        self.convert: Callable[[Array], list[Action]] = action_rows(side.spec.action)
        out = self.out
        self._now = _OutArrays(
            out.reward.numpy(),
            out.terminated.numpy(),
            out.truncated.numpy(),
            out.active.numpy() if out.active is not None else np.zeros(0, bool),
            None if out.action_mask is None else out.action_mask.numpy(),
            self._final.get(MASK),
        )

    def row(self, env: int, agent: str) -> int:
        return env * len(self.side.agents) + self.side.agents.index(agent)

    def of_env(self, env: int, x: Array) -> Array:
        """The rows of environment `env` in `[E * A, ...]`."""
        width = len(self.side.agents)
        return x[env * width : (env + 1) * width]

    def clear(self) -> None:
        """Forget the last step: no reward, no end."""
        self._now.reward.fill(0.0)
        self._now.terminated.fill(False)
        self._now.truncated.fill(False)
        self.out.final_rows = []

    def actions(self, raw: Array) -> list[Action]:
        """What `env.step` takes for each row, of network actions `[E * A, ...]`."""
        spec = self.side.spec.action
        if raw.shape != (self.num_rows, *spec.shape):
            wanted = (self.num_rows, *spec.shape)
            raise DataError(f"policy {self.side.route.inference!r} gave actions of shape {raw.shape}, not {wanted}")
        if spec.kind == "discrete" and (raw.dtype.kind not in "iu" or raw.min() < 0 or raw.max() >= spec.num_actions):
            rule = f"a choice is an integer from 0 to {spec.num_actions - 1}"
            raise DataError(f"policy {self.side.route.inference!r} gave actions outside of their space; {rule}")
        return self.convert(raw)

    def record(self, env: int, source: ParallelEnv, obs: Mapping[str, Obs], infos: Mapping[str, Info]) -> None:
        """What a step of environment `env` gave its agents: rewards, and the ends of those that left."""
        for agent in self.side.agents:
            row = self.row(env, agent)
            self._now.reward[row] = source.rewards.get(agent, 0.0)
            if agent in source.flags:
                self._end(row, source.flags[agent], obs[agent], infos.get(agent, {}))

    def _end(self, row: int, flags: tuple[bool, bool], obs: Obs, info: Info) -> None:
        rows = self.out.final_rows
        assert rows is not None
        self._now.terminated[row], self._now.truncated[row] = flags
        self._write_last(len(rows), obs)
        if self._now.final_mask is not None:
            raw = obs[MASK] if self._mask_in_obs else info.get(MASK)
            self._now.final_mask[len(rows)] = final_mask(raw, self.side.spec.action, terminated=flags[0])
        rows.append(row)

    def show(self, env: int, source: ParallelEnv, seen: Seen, *, first: bool = False) -> None:
        """What the agents of environment `env` see before their next decision; `first`: of an episode."""
        obs, infos = seen
        live = set(source.live)
        for agent in self.side.agents:
            row = self.row(env, agent)
            self._now.active[row] = agent in live
            if agent not in live:
                self._blank(row)
                continue
            self._write(row, obs[agent])
            if self._now.mask is not None:
                raw = obs[agent][MASK] if self._mask_in_obs else infos.get(agent, {}).get(MASK)
                if raw is None:
                    raise DataError(f"gave agent {agent!r} no action_mask; put one into every info")
                self._now.mask[row] = read_mask(raw, self.side.spec.action)
            # bounds are looked at once an episode, as a check costs as much as a small step
            if first and self._bounds and (found := self._bounds.outside(self._obs, slice(row, row + 1))) is not None:
                raise DataError(f"{found[1]} (agent {agent!r})")

    def _blank(self, row: int) -> None:
        """Nothing is to be decided in `row`: zeros, and a mask that allows everything."""
        for x in self._obs.values():
            x[row] = 0
        if self._now.mask is not None:
            self._now.mask[row] = True

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

    def arrays(self) -> dict[str, Tensor]:
        """The arrays of the next decision, for a checkpoint."""
        assert self.out.active is not None
        return {**out_arrays(self.out), "active": self.out.active}
