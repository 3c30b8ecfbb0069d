"""The Multi-Agent Transformer (Wen et al. 2022, arXiv:2205.14953, sec. 3.2 and fig. 2): one network chooses for a whole team.

Rows are environments, laid out as by `envs/team/joint.py`: `obs...` `[N, A, *shape]`, `shared/active` `[N, A]`, masks
`[N, A * n]`, actions `[N, A]`. The encoder looks at what all agents see, and gives each a representation and a value:

    x = LN(embed(o_a, which agent)),  for each block  x = LN(x + attention of all to all),  x = LN(x + MLP(x));  V_a = head(x_a)

The decoder gives the choice of agent a, from the representations of all and from what those before it have chosen:

    y_a = LN(embed(u_{a-1})),  for each block  y = LN(y + attention to those up to a),
                               y = LN(x + attention of x_a to y up to a),  y = LN(y + MLP(y));  logits_a = head(y_a)

Acting is a loop over agents, and learning a single pass over what they did. So agents that share all parameters may still do
different things, and fit what they do to each other. The order is that of the agents.

Who does not decide is nobody's key: neither what stands in its place of the observation nor its action changes anything for
others. Different from the authors' code, an action that is read says whose it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.nets.actor_critic import GAINS, ActorCritic, Obs
from runnel.nets.agent_nets import AGENT
from runnel.nets.entities import make_torso
from runnel.nets.layers import ACTIVATIONS, MLP, NetConfig, RunningMeanStd
from runnel.ops.distributions import categorical_evaluate, categorical_mode, categorical_sample, mask_logits


class TeamTransformer(ActorCritic):
    """A policy and values for all agents of a team, whose own spec is `agent_spec`. `config` has the layers that embed what an
    agent sees; `width`, `heads` and `blocks` are those of encoder and decoder."""

    def __init__(
        self,
        env_spec: EnvSpec,
        agent_spec: EnvSpec,
        config: NetConfig,
        *,
        width: int,
        heads: int,
        blocks: int,
        normalise_obs: bool = False,
        seed: int,
    ) -> None:
        if agent_spec.action.kind != "discrete":
            fix = "mat needs agents with one choice each; use masac for boxes, or mappo"
            raise ConfigError("env", agent_spec.action.kind, fix)
        num_agents = env_spec.obs[TEAM_ACTIVE].shape[0]
        sizes = {"num_agents": num_agents, "width": width, "heads": heads, "blocks": blocks}
        body = EncoderDecoder(agent_spec, config, **sizes, seed=seed)
        super().__init__(env_spec, body, normalise_obs=False)
        self.transformer, self.num_agents, self.num_actions = body, num_agents, agent_spec.action.num_actions
        floats = {k: x for k, x in agent_spec.obs.items() if x.dtype.is_floating_point and k not in body.torso.sets}
        # one set of statistics for all agents, from those that decide: in the places of others stand zeros
        statistics = {k: RunningMeanStd(x.shape) for k, x in floats.items()} if normalise_obs else {}
        self.normalisers = nn.ModuleDict(statistics)  # type: ignore[assignment]
        self._normalises = bool(statistics)

    @staticmethod
    def _is_own(body: nn.Module) -> bool:
        return False

    # ----------------------------------------------------------------------------------------------------------- acting
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, A]`, one agent after the other, and `logprob` `[B]` of all those that decide together; `noise` is
        `[B, A]`."""
        active, mask = rows[TEAM_ACTIVE], self._masks(rows.get("action_mask"))
        seen = self.transformer.encode(self.observe(rows), active)
        action = torch.zeros(active.shape, dtype=torch.int64, device=active.device)
        logprobs = []
        for agent in range(self.num_agents):
            upto = slice(agent + 1)
            scores = self.transformer.decode(seen[:, upto], action[:, upto], active[:, upto])[:, agent]
            scores = mask_logits(scores, None if mask is None else mask[:, agent])
            noise = None if greedy else rows["noise"][:, agent : agent + 1]
            chosen, logprob = categorical_mode(scores) if noise is None else categorical_sample(scores, noise)
            action[:, agent] = chosen
            logprobs.append(logprob)
        return Batch(action=action, logprob=torch.stack(logprobs, 1).masked_fill(~active, 0.0).sum(1))

    def _masks(self, mask: Tensor | None) -> Tensor | None:
        """`[N, A * n] -> [N, A, n]`"""
        return None if mask is None else mask.view(*mask.shape[:-1], self.num_agents, self.num_actions)

    # --------------------------------------------------------------------------------------------------------- learning
    def following(self, obs: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each agent after what those before it did in `action` `[N, A]`, and its value: `[N, A, n], [N, A]`."""
        seen = self.transformer.encode(self.observe(obs), obs[TEAM_ACTIVE])
        return self.transformer.decode(seen, action, obs[TEAM_ACTIVE]), self.transformer.values(seen)

    def evaluate_scores(self, scores: Tensor, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability of the action of each agent under `scores` `[N, A, n]`, and the entropy: `[N, A]` each."""
        return categorical_evaluate(mask_logits(scores, self._masks(mask)), action.long())

    def evaluate(self, obs: Obs, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`evaluate_scores` at obs leaves `[N, ...]`."""
        return self.evaluate_scores(self.following(obs, action)[0], action, mask)

    def value(self, obs: Obs) -> Tensor:
        """The value of the team, the mean over agents that decide (the paper's estimate of it); 0 without any. `[N]`"""
        active = obs[TEAM_ACTIVE]
        values = self.transformer.values(self.transformer.encode(self.observe(obs), active))
        return values.masked_fill(~active, 0.0).sum(-1) / active.sum(-1).clamp(min=1)

    def _scores(self, seen: Obs) -> Tensor:
        raise TypeError("scores of an agent depend on what those before it do: use `following`")

    def update_statistics(self, obs: Obs, collective: Collective) -> None:
        """Add what agents that decide see in `obs` (`[N, A, *shape]`) to the running statistics, where normalisation is on."""
        for key, normaliser in self.normalisers.items():
            normaliser.update(obs[key][obs[TEAM_ACTIVE]], collective)


class EncoderDecoder(nn.Module):
    """The encoder of what all agents see, and the decoder of what they choose."""

    _ids: Tensor

    def __init__(
        self, agent_spec: EnvSpec, config: NetConfig, *, num_agents: int, width: int, heads: int, blocks: int, seed: int
    ) -> None:
        super().__init__()
        leaves = {**agent_spec.obs, AGENT: ArraySpec((num_agents,))}
        self.keys, self.num_agents, self.num_actions = tuple(agent_spec.obs), num_agents, agent_spec.action.num_actions
        self.torso = make_torso(leaves, config, seed=make_seed(seed, "torso"))
        inner = self.torso.settle(config)
        self.embed = MLP(self.torso.width, width, config=inner, head_gain=2.0**0.5, seed=make_seed(seed, "embed"))
        # an action one-hot, and whose it was; the last place says that nobody comes before
        self.embed_action = _linear(self.num_actions + num_agents + 1, width, make_seed(seed, "embed action"))
        self.seen_norm, self.done_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        act = config.activation
        self.encoder = nn.ModuleList(EncoderBlock(width, heads, act, seed=make_seed(seed, "encoder", i)) for i in range(blocks))
        self.decoder = nn.ModuleList(DecoderBlock(width, heads, act, seed=make_seed(seed, "decoder", i)) for i in range(blocks))
        last = replace(config, hidden=(width,))
        self.actor = MLP(width, self.num_actions, config=last, head_gain=GAINS[0], seed=make_seed(seed, "actor"))
        self.critic = MLP(width, 1, config=last, head_gain=GAINS[1], seed=make_seed(seed, "critic"))
        self.register_buffer("_ids", torch.eye(num_agents), persistent=False)

    def encode(self, obs: Obs, active: Tensor) -> Tensor:
        """Representations `[N, A, H]` of leaves `[N, A, *shape]`."""
        num = active.shape[1]
        leaves = {key: obs[key] for key in self.keys} | {AGENT: self._ids.expand(len(active), num, num)}
        # the place of an agent that does not decide still holds what the one before it did, so others read it in the decoder
        x = self.seen_norm(self.embed(self.torso(leaves))).masked_fill(~active.unsqueeze(-1), 0.0)
        # everybody is a key of its own, so that no softmax is over nothing; what it gives is not read where nobody decides
        allowed = active.unsqueeze(1) | torch.eye(num, dtype=torch.bool, device=active.device)
        for block in self.encoder:
            x = block(x, allowed)
        return cast(Tensor, x)

    def values(self, seen: Tensor) -> Tensor:
        """`[N, A, H] -> [N, A]`"""
        values: Tensor = self.critic(seen).squeeze(-1)
        return values

    def decode(self, seen: Tensor, action: Tensor, active: Tensor) -> Tensor:
        """Scores of the first agents, of which `action` `[N, a]` says what they do: each reads what those before it do.
        `[N, a, H] -> [N, a, n]`"""
        num = action.shape[1]
        y = self.done_norm(self.embed_action(self._before(action, active)))
        # place j holds what agent j - 1 did: it is read from j on, unless that agent did not decide
        told = F.pad(active[:, :-1], (1, 0), value=True)
        own = torch.eye(num, dtype=torch.bool, device=action.device)
        allowed = (told.unsqueeze(1) | own) & torch.ones_like(own).tril()
        for block in self.decoder:
            y = block(y, seen, allowed)
        scores: Tensor = self.actor(y)
        return scores

    def _before(self, action: Tensor, active: Tensor) -> Tensor:
        """What the agent before each did, and which it was; zeros where it did not decide. `[N, a, n + A + 1]`"""
        did = F.one_hot(action[:, :-1].long(), self.num_actions).to(torch.float32)
        who = self._ids[: action.shape[1] - 1].expand(len(action), -1, -1)
        told = torch.cat([did, who], -1).masked_fill(~active[:, :-1].unsqueeze(-1), 0.0)
        rows = F.pad(told, (0, 1, 1, 0))
        rows[:, 0, -1] = 1.0
        return rows


class EncoderBlock(nn.Module):
    """Attention of all to all, and a perceptron."""

    def __init__(self, width: int, heads: int, activation: str, *, seed: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, seed=make_seed(seed, "attention"))
        self.inner = _Inner(width, activation, seed=make_seed(seed, "inner"))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, allowed))
        found: Tensor = self.norms[1](x + self.inner(x))
        return found


class DecoderBlock(nn.Module):
    """Attention among actions, of representations to actions, and a perceptron."""

    def __init__(self, width: int, heads: int, activation: str, *, seed: int) -> None:
        super().__init__()
        self.among = Attention(width, heads, seed=make_seed(seed, "among"))
        self.across = Attention(width, heads, seed=make_seed(seed, "across"))
        self.inner = _Inner(width, activation, seed=make_seed(seed, "inner"))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, y: Tensor, seen: Tensor, allowed: Tensor) -> Tensor:
        y = self.norms[0](y + self.among(y, y, allowed))
        y = self.norms[1](seen + self.across(seen, y, allowed))
        found: Tensor = self.norms[2](y + self.inner(y))
        return found


class Attention(nn.Module):
    """Scaled dot products (Vaswani et al. 2017, arXiv:1706.03762, eq. 1), in `heads` parts of the width."""

    def __init__(self, width: int, heads: int, *, seed: int) -> None:
        super().__init__()
        self.heads, self._scale = heads, (width // heads) ** -0.5
        names = ("query", "key", "value", "out")
        self.query, self.key, self.value, self.out = (_linear(width, width, make_seed(seed, name)) for name in names)

    def forward(self, x: Tensor, source: Tensor, allowed: Tensor) -> Tensor:
        """`[N, Q, H]`, `[N, S, H]` and who may read what, `[N, Q, S]` bool, to `[N, Q, H]`."""
        q, k, v = (self._split(part) for part in (self.query(x), self.key(source), self.value(source)))
        scores = (q @ k.transpose(-1, -2)) * self._scale
        weights = mask_logits(scores, allowed.unsqueeze(1)).softmax(-1)
        found: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return found

    def _split(self, x: Tensor) -> Tensor:
        """`[N, S, H] -> [N, heads, S, H / heads]`"""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class _Inner(nn.Module):
    """Two layers of one width."""

    def __init__(self, width: int, activation: str, *, seed: int) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.first, self.second = (_linear(width, width, make_seed(seed, i)) for i in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self._activation(self.first(x)))
        return found


def _linear(num_in: int, num_out: int, seed: int) -> MLP:
    return MLP(num_in, num_out, config=NetConfig(hidden=()), head_gain=1.0, seed=seed)
