"""Action values of a team: those of each agent, and how they make the value of what all of them do together.

The rows are environments, laid out as by `envs/team/joint.py`: `obs...` `[..., A, *shape]`, masks `[..., A * n]`, the global
state `shared/...` `[..., *shape]`. An agent chooses by its own values alone. That is also best for the team if the team's
value rises with each of them (Rashid et al. 2018, arXiv:1803.11485, eq. 4-5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.agent_nets import AgentNets, Obs, OneAgent, Sharing
from runnel.nets.layers import MLP, NetConfig, Torso
from runnel.nets.q_nets import QNet

_MASK = "action_mask"


class MonotoneMixer(nn.Module):
    """QMIX: a small network of the agents' values, whose weights are made from the global state s and are never negative.

        h = elu(|W1(s)| q + b1(s)),  Q_tot = |w2(s)| h + v(s)

    W1, w2: perceptrons with one hidden layer of `hypernet` units (0: linear, as in the paper); b1 is linear; v has one hidden
    layer of `width` units. Weights that are not negative make Q_tot rise with each q; b1 and v may have any sign.

    It begins near a plain sum: |W1| and |w2| around 1 / sqrt(width), with a tenth of the usual say of the state. With slopes
    that the state alone decides, targets of states far from those seen pull values away without bound (measured on
    `tensor:Spread`, docs/algorithms/value-mixing.md).
    """

    def __init__(self, state: Mapping[str, ArraySpec], num_agents: int, *, width: int, hypernet: int, seed: int) -> None:
        super().__init__()
        self.num_agents, self.width = num_agents, width
        config = NetConfig(activation="relu", hidden=())
        self.torso = Torso(state, config, seed=make_seed(seed, "torso"))
        inner = replace(config, hidden=(hypernet,) if hypernet else ())

        def maker(name: str, outputs: int, config: NetConfig) -> MLP:
            return MLP(self.torso.width, outputs, config=config, head_gain=0.1, seed=make_seed(seed, name))

        self.first, self.first_bias = maker("first", num_agents * width, inner), maker("first bias", width, config)
        self.second, self.value = maker("second", width, inner), maker("value", 1, replace(config, hidden=(width,)))
        for net in (self.first, self.second):
            nn.init.constant_(net.bias[-1], width**-0.5)

    def forward(self, q: Tensor, state: Obs) -> Tensor:
        """`[..., A]` and state leaves `[..., *shape] -> [...]`."""
        s = self.torso(state)
        weight = self.first(s).abs().unflatten(-1, (self.num_agents, self.width))
        hidden = F.elu((q.unsqueeze(-2) @ weight).squeeze(-2) + self.first_bias(s))
        total: Tensor = (hidden * self.second(s).abs()).sum(-1) + self.value(s).squeeze(-1)
        return total


class TeamQNet(AgentNets):
    """The values of all agents, each by what it sees. A `mixer` is part of it, so that it travels and is followed with the
    weights. With a core each agent has a state of its own."""

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
        if agent_spec.action.kind != "discrete":
            fix = "values of single actions need agents with one choice each; use masac for boxes, or ippo"
            raise ConfigError("env", agent_spec.action.kind, fix)

        def make(spec: EnvSpec, seed: int) -> QNet:
            return QNet(spec, config, seed=seed, dueling=dueling)

        super().__init__(env_spec, agent_spec, make, num_agents=num_agents, share=share, agent_id=agent_id, seed=seed)
        self.num_actions, self.mixer = agent_spec.action.num_actions, mixer
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
        return self.each({key: obs[key] for key in self.keys}, lambda net, rows: cast(QNet, net).q(rows))

    def unroll_batch(self, batch: Obs, *, burn_in: int) -> tuple[Tensor, Tensor]:
        """Values at the steps of sequences (`data/sequences.py`) from `burn_in` on, and (without gradient) after each return:
        `[T - burn_in, B, A, n]` twice."""
        nets, found = self.nets(), []
        for i, net in enumerate(nets):
            rows = self._sequences(batch, agent=None if self.shared else i)
            scores, following, _ = net.unroll_batch(rows, burn_in=burn_in)
            found.append((net.expected(scores), net.expected(following)))
        if self.shared:
            steps = len(found[0][0])
            q, following = (x.view(steps, -1, self.num_agents, self.num_actions) for x in found[0])
            return q, following
        return torch.stack([q for q, _ in found], 2), torch.stack([following for _, following in found], 2)

    def _sequences(self, batch: Obs, *, agent: int | None) -> dict[str, Tensor]:
        """A batch whose rows are agents: all of each environment side by side, or number `agent` alone."""
        num, rows = self.num_agents, {k: batch[k] for k in ("ended", "last", "final_index")}
        seen = {key: batch[key] for key in self.keys}
        last = {key: batch["final_" + key] for key in self.keys}
        if agent is None:
            seen, last = dict(self.identified(seen)), dict(self.identified(last))
        leaves = {key: (x, 2) for key, x in seen.items()} | {"final_" + key: (x, 1) for key, x in last.items()}
        leaves |= {key: (batch[key], 1) for key in self.state_spec}
        if agent is not None:
            return rows | {key: x.select(axis, agent) for key, (x, axis) in leaves.items()}
        rows |= {key: rows[key].repeat_interleave(num, 1) for key in ("ended", "last")}
        rows["final_index"] = (rows["final_index"].unsqueeze(1) * num + torch.arange(num, device=self._ids.device)).flatten()
        return rows | {key: x.flatten(axis - 1, axis) for key, (x, axis) in leaves.items()}

    def total(self, q: Tensor, obs: Obs) -> Tensor:
        """The team's value of chosen actions, whose values are `q` `[..., A]`: their sum (VDN), or what the mixer says."""
        return q.sum(-1) if self.mixer is None else self.mixer(q, obs)

    # ----------------------------------------------------------------------------------------------------------- acting
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, A]`: each agent its best one or, with its own probability epsilon, one of those that are open to it."""
        num_rows, nets = len(rows[self.keys[0]]), self.nets()
        leaves = {key: rows[key] for key in (*self.keys, *self.state_spec)}
        if not greedy:
            leaves["noise"] = rows["noise"].view(num_rows, self.num_agents, -1)
        if _MASK in rows:
            leaves[_MASK] = rows[_MASK].view(num_rows, self.num_agents, -1)
        if self.shared:
            flat = self.identified(leaves).map(lambda x: x.flatten(0, 1))
            return nets[0].act(flat, greedy=greedy).map(lambda x: x.view(num_rows, self.num_agents, *x.shape[1:]))
        answers = [net.act(Batch({k: x[:, i] for k, x in leaves.items()}), greedy=greedy) for i, net in enumerate(nets)]
        return Batch({key: torch.stack([a[key] for a in answers], 1) for key in answers[0]})

    def of_agent(self, agent: int) -> OneQ:
        """What acts for one agent alone."""

        def act(rows: Batch, greedy: bool) -> Batch:
            net, mine = self.alone(agent, rows)
            return cast(QNet, net).act(mine, greedy=greedy)

        return OneQ(self, act, noise_size=QNet.noise_size, state_spec=self.nets()[0].state_spec)


class OneQ(OneAgent):
    """One agent of a `TeamQNet`."""

    @property
    def epsilon(self) -> Tensor:
        """Its share of random actions; that there is one says that it only explores at random."""
        assert isinstance(self.team, TeamQNet)
        return self.team.nets()[0].epsilon
