"""Action values of a team: those of each agent, and how they make the value of what all of them do together.

The rows are environments, laid out as by `envs/team/joint.py`: `obs...` `[..., A, *shape]`, masks `[..., A * n]`, the global
state `shared/...` `[..., *shape]`. An agent chooses by its own values alone. That is also best for the team if the team's
value rises with each of them (Rashid et al. 2018, arXiv:1803.11485, eq. 4-5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.layers import MLP, NetConfig, Torso
from runnel.nets.q_nets import QNet

Obs = Mapping[str, Tensor]
Sharing = Literal["all", "none"]
AGENT = "agent"
"""What a network that serves several agents reads beside what an agent sees: which one it is, one number for each."""
_MASK = "action_mask"


class MonotoneMixer(nn.Module):
    """QMIX: a small network of the agents' values, whose weights are made from the global state s and are never negative.

        h = elu(|W1(s)| q + b1(s)),  Q_tot = |w2(s)| h + v(s)

    W1, w2: perceptrons with one hidden layer of `hypernet` units (0: linear, as in the paper); b1 is linear; v has one hidden
    layer of `width` units. Weights that are not negative make Q_tot rise with each q; b1 and v may have any sign.
    """

    def __init__(self, state: Mapping[str, ArraySpec], num_agents: int, *, width: int, hypernet: int, seed: int) -> None:
        super().__init__()
        self.num_agents, self.width = num_agents, width
        config = NetConfig(activation="relu", hidden=())
        self.torso = Torso(state, config, seed=make_seed(seed, "torso"))
        inner = replace(config, hidden=(hypernet,) if hypernet else ())

        def maker(name: str, outputs: int, config: NetConfig) -> MLP:
            return MLP(self.torso.width, outputs, config=config, head_gain=1.0, seed=make_seed(seed, name))

        self.first, self.first_bias = maker("first", num_agents * width, inner), maker("first bias", width, config)
        self.second, self.value = maker("second", width, inner), maker("value", 1, replace(config, hidden=(width,)))

    def forward(self, q: Tensor, state: Obs) -> Tensor:
        """`[..., A]` and state leaves `[..., *shape] -> [...]`."""
        s = self.torso(state)
        weight = self.first(s).abs().unflatten(-1, (self.num_agents, self.width))
        hidden = F.elu((q.unsqueeze(-2) @ weight).squeeze(-2) + self.first_bias(s))
        total: Tensor = (hidden * self.second(s).abs()).sum(-1) + self.value(s).squeeze(-1)
        return total


class TeamQNet(nn.Module):
    """The values of all agents, each by what it sees. `share` all: one network serves every agent; none: each has its own.

    A shared network also reads which agent it is for, with `agent_id`; without, agents that see the same do the same. A `mixer`
    is part of it, so that it travels and is followed with the weights. With a core each agent has a state of its own.
    """

    _ids: Tensor

    def __init__(
        self,
        env_spec: EnvSpec,
        agent_spec: EnvSpec,
        config: NetConfig,
        *,
        num_agents: int,
        share: Sharing = "all",
        agent_id: bool = True,
        dueling: bool = False,
        mixer: MonotoneMixer | None = None,
        seed: int,
    ) -> None:
        super().__init__()
        if agent_spec.action.kind != "discrete":
            fix = "values of single actions need agents with one choice each; use masac for boxes, or ippo"
            raise ConfigError("env", agent_spec.action.kind, fix)
        self.env_spec, self.num_agents, self.num_actions = env_spec, num_agents, agent_spec.action.num_actions
        self._keys = tuple(agent_spec.obs)
        self._with_id = agent_id and share == "all" and num_agents > 1
        seen = {**agent_spec.obs, **({AGENT: ArraySpec((num_agents,))} if self._with_id else {})}
        # masks of several agents lie in one row, and the learner applies them
        spec = replace(agent_spec, obs=seen, has_mask=False)
        seeds = [seed] if share == "all" else [make_seed(seed, "agent", i) for i in range(num_agents)]
        self.members = nn.ModuleList(QNet(spec, config, seed=s, dueling=dueling) for s in seeds)
        self.mixer = mixer
        self.register_buffer("_ids", torch.eye(num_agents), persistent=False)
        self.noise_size = num_agents * QNet.noise_size
        self.state_spec: Mapping[str, ArraySpec] = {
            key: ArraySpec((num_agents, *leaf.shape), leaf.dtype) for key, leaf in self.nets()[0].state_spec.items()
        }

    def nets(self) -> list[QNet]:
        """The networks: one for all agents, or one for each."""
        return [net for net in self.members if isinstance(net, QNet)]

    # --------------------------------------------------------------------------------------------------------- learning
    def q(self, obs: Obs) -> Tensor:
        """Leaves `[..., A, *shape] -> [..., A, n]`; feedforward."""
        parts = [net.q(rows) for net, rows in self._parts({key: obs[key] for key in self._keys})]
        return parts[0] if len(parts) == 1 else torch.stack(parts, -2)

    def _parts(self, leaves: Obs) -> Iterator[tuple[QNet, dict[str, Tensor]]]:
        """Each network with what it reads: of all agents `[..., A, *shape]`, or of its own `[..., *shape]`."""
        nets, spec = self.nets(), self.env_spec.obs
        if len(nets) == 1:
            yield nets[0], self._identified(dict(leaves))
            return
        for i, net in enumerate(nets):
            yield net, {key: x.select(x.dim() - len(spec[key].shape), i) for key, x in leaves.items()}

    def _identified(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._with_id:
            key = self._keys[0]
            front = leaves[key].shape[: leaves[key].dim() - len(self.env_spec.obs[key].shape)]
            leaves[AGENT] = self._ids.expand(*front, self.num_agents, self.num_agents)
        return leaves

    def unroll_batch(self, batch: Obs, *, burn_in: int) -> tuple[Tensor, Tensor]:
        """Values at the steps of sequences (`data/sequences.py`) from `burn_in` on, and (without gradient) after each return:
        `[T - burn_in, B, A, n]` twice."""
        nets, found = self.nets(), []
        for i, net in enumerate(nets):
            rows = self._sequences(batch, agent=None if len(nets) == 1 else i)
            scores, following, _ = net.unroll_batch(rows, burn_in=burn_in)
            found.append((net.expected(scores), net.expected(following)))
        if len(nets) == 1:
            steps, actions = len(found[0][0]), self.num_actions
            q, following = (x.view(steps, -1, self.num_agents, actions) for x in found[0])
            return q, following
        return torch.stack([q for q, _ in found], 2), torch.stack([following for _, following in found], 2)

    def _sequences(self, batch: Obs, *, agent: int | None) -> dict[str, Tensor]:
        """A batch whose rows are agents: all of each environment side by side, or number `agent` alone."""
        num, rows = self.num_agents, {k: batch[k] for k in ("ended", "last", "final_index")}
        leaves = {key: (batch[key], 2) for key in self._keys} | {
            "final_" + key: (batch["final_" + key], 1) for key in self._keys
        }
        leaves |= {key: (batch[key], 1) for key in self.state_spec}
        if agent is not None:
            return rows | {key: x.select(axis, agent) for key, (x, axis) in leaves.items()}
        rows |= {key: rows[key].repeat_interleave(num, 1) for key in ("ended", "last")}
        rows["final_index"] = (rows["final_index"].unsqueeze(1) * num + torch.arange(num, device=self._ids.device)).flatten()
        if self._with_id:
            steps, envs = batch[self._keys[0]].shape[:2]
            leaves[AGENT] = self._ids.expand(steps, envs, num, num), 2
            leaves["final_" + AGENT] = self._ids.expand(len(batch["final_index"]), num, num), 1
        return rows | {key: x.flatten(axis - 1, axis) for key, (x, axis) in leaves.items()}

    def total(self, q: Tensor, obs: Obs) -> Tensor:
        """The team's value of chosen actions, whose values are `q` `[..., A]`: their sum (VDN), or what the mixer says."""
        return q.sum(-1) if self.mixer is None else self.mixer(q, obs)

    # ----------------------------------------------------------------------------------------------------------- acting
    def seat(self, agent: int) -> AgentQ:
        """What acts for one agent alone."""
        return AgentQ(self, agent)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, A]`: each agent its best one or, with its own probability epsilon, one of those that are open to it."""
        num_rows = len(rows[self._keys[0]])
        leaves = {key: rows[key] for key in (*self._keys, *self.state_spec)}
        if not greedy:
            leaves["noise"] = rows["noise"].view(num_rows, self.num_agents, -1)
        if _MASK in rows:
            leaves[_MASK] = rows[_MASK].view(num_rows, self.num_agents, -1)
        nets = self.nets()
        if len(nets) == 1:
            flat = Batch({key: x.flatten(0, 1) for key, x in self._identified(leaves).items()})
            found = nets[0].act(flat, greedy=greedy)
            return Batch({key: x.view(num_rows, self.num_agents, *x.shape[1:]) for key, x in found.items()})
        answers = [net.act(Batch({k: x[:, i] for k, x in leaves.items()}), greedy=greedy) for i, net in enumerate(nets)]
        return Batch({key: torch.stack([a[key] for a in answers], 1) for key in answers[0]})


class AgentQ(nn.Module):
    """One agent of a `TeamQNet`: acts for rows of what that agent alone sees, `[B, *shape]`."""

    noise_size = QNet.noise_size

    def __init__(self, team: TeamQNet, agent: int) -> None:
        super().__init__()
        self.team, self.agent = team, agent
        nets = team.nets()
        self._net = nets[0] if len(nets) == 1 else nets[agent]
        self.state_spec = self._net.state_spec

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]`, as `TeamQNet.act` has it for this agent."""
        if AGENT in self._net.env_spec.obs:
            which = self.team._ids[self.agent]
            rows = Batch({**rows, AGENT: which.expand(len(next(iter(rows.values()))), -1)})
        return self._net.act(rows, greedy=greedy)
