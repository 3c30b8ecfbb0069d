"""The networks of a team's agents: one that serves all of them, or one for each.

A row is an environment (`envs/team/joint.py`): what its agents see lies side by side, `[..., A, *shape]`. `OneAgent` is one of
them, which acts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec

Obs = Mapping[str, Tensor]
Sharing = Literal["all", "none"]
AGENT = "agent"
"""What a network that serves several agents reads beside what an agent sees: which one it is, one number for each."""


class AgentNets(nn.Module):
    """`share` all: one network serves every agent; none: each has its own. `make` makes one, of a spec and a seed.

    A shared network also reads which agent it is for, with `agent_id`; without, agents that see the same do the same.
    """

    _ids: Tensor

    def __init__(
        self,
        env_spec: EnvSpec,
        agent_spec: EnvSpec,
        make: Callable[[EnvSpec, int], nn.Module],
        *,
        num_agents: int,
        share: Sharing,
        agent_id: bool,
        seed: int,
    ) -> None:
        super().__init__()
        self.env_spec, self.agent_spec, self.num_agents = env_spec, agent_spec, num_agents
        self.keys = tuple(agent_spec.obs)
        """What an agent sees."""
        self.shared = share == "all"
        self.with_id = agent_id and self.shared and num_agents > 1
        seen = {**agent_spec.obs, **({AGENT: ArraySpec((num_agents,))} if self.with_id else {})}
        # masks of several agents lie in one row, and whoever chooses applies them
        spec = replace(agent_spec, obs=seen, has_mask=False)
        seeds = [seed] if self.shared else [make_seed(seed, "agent", i) for i in range(num_agents)]
        self.members = nn.ModuleList(make(spec, one) for one in seeds)
        self.register_buffer("_ids", torch.eye(num_agents), persistent=False)

    def parts(self, leaves: Obs) -> Iterator[tuple[nn.Module, Batch]]:
        """Each network with what it reads of `leaves` `[..., A, *shape]`: of all agents so, or of its own `[..., *shape]`."""
        spec = self.env_spec.obs
        if self.shared:
            yield self.members[0], self.identified(leaves)
            return
        for i, net in enumerate(self.members):
            yield net, Batch({key: x.select(x.dim() - len(spec[key].shape), i) for key, x in leaves.items()})

    def identified(self, leaves: Obs) -> Batch:
        """`leaves` `[..., A, *shape]`, and which agent is which."""
        found = Batch(leaves)
        if self.with_id:
            key = self.keys[0]
            front = leaves[key].shape[: leaves[key].dim() - len(self.env_spec.obs[key].shape)]
            found[AGENT] = self._ids.expand(*front, self.num_agents, self.num_agents)
        return found

    def each(self, leaves: Obs, run: Callable[[nn.Module, Batch], Tensor]) -> Tensor:
        """What `run` makes of each network and what it reads, agent beside agent. `[..., A, *shape] -> [..., A, n]`"""
        parts = [run(net, rows) for net, rows in self.parts(leaves)]
        return parts[0] if self.shared else torch.stack(parts, -2)

    def alone(self, agent: int, rows: Batch) -> tuple[nn.Module, Batch]:
        """The network of one agent, and what it reads where rows `[B, *shape]` are what that agent alone sees."""
        if not self.with_id:
            return self.members[0 if self.shared else agent], rows
        which = self._ids[agent].expand(len(next(iter(rows.values()))), -1)
        return self.members[0], Batch({**rows, AGENT: which})


class OneAgent(nn.Module):
    """One agent of a team's network, which acts for rows of what that agent alone sees, `[B, *shape]`."""

    def __init__(
        self,
        team: AgentNets,
        act: Callable[[Batch, bool], Batch],
        *,
        noise_size: int,
        state_spec: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        super().__init__()
        self.team, self._act, self.noise_size, self.state_spec = team, act, noise_size, state_spec or {}

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, ...]`, as the team's network has it for this agent."""
        return self._act(rows, greedy)
