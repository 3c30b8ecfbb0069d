"""Networks that learn from one transition at a time (Elsayed et al. 2024, arXiv:2410.14606, sec. 3): sparse initial weights,
and layer normalisation before each activation, so that one transition moves few features and none of them far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.nets.layers import DEFAULT_HIDDEN, NetConfig, RunningMeanStd, Torso
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import make_head

SPARSITY = 0.9
"""Share of a unit's inputs with an initial weight of 0."""


class StreamMLP(nn.Module):
    """`x = leaky_relu(norm(W x + b))` for each hidden layer, then a linear one. `[..., I] -> [..., O]`"""

    def __init__(self, num_inputs: int, num_outputs: int, *, config: NetConfig, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        widths = [num_inputs, *(config.hidden or DEFAULT_HIDDEN), num_outputs]
        weights = [sparse_weights(i, o, generator) for i, o in pairwise(widths)]
        self.weight = nn.ParameterList(weights)
        self.bias = nn.ParameterList(torch.zeros(len(w)) for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        *hidden, (last, bias) = zip(self.weight, self.bias, strict=True)
        for w, b in hidden:
            x = F.leaky_relu(F.layer_norm(F.linear(x, w, b), w.shape[:1]))
        return F.linear(x, last, bias)


def sparse_weights(num_inputs: int, num_outputs: int, generator: torch.Generator) -> Tensor:
    """Uniform in +-1 / sqrt(inputs), and `SPARSITY` of each unit's weights 0 (alg. 1 of the paper). `-> [O, I]`"""
    bound = 1.0 / math.sqrt(num_inputs)
    weight = torch.rand(num_outputs, num_inputs, generator=generator) * 2.0 * bound - bound
    ranks = torch.rand(num_outputs, num_inputs, generator=generator).argsort(-1)
    return weight.masked_fill(ranks.argsort(-1) < math.ceil(SPARSITY * num_inputs), 0.0)


def _vectors(env_spec: EnvSpec, config: NetConfig) -> Torso:
    torso = Torso(env_spec.obs, config, seed=0)
    if torso.convolves:
        raise ConfigError("env", "images", "these networks read vectors; flatten the image, or use ppo or dqn")
    return torso


class StreamBody(nn.Module):
    """Policy and value of a stream, with no layer in common."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        self.torso, num_scores = _vectors(env_spec, config), make_head(env_spec.action).num_scores
        self.actor = StreamMLP(self.torso.width, num_scores, config=config, seed=make_seed(seed, "actor"))
        self.critic = StreamMLP(self.torso.width, 1, config=config, seed=make_seed(seed, "critic"))

    def policy(self, obs: Mapping[str, Tensor]) -> Tensor:
        scores: Tensor = self.actor(self.torso(obs))
        return scores

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        value: Tensor = self.critic(self.torso(obs)).squeeze(-1)
        return value


class StreamQNet(QNet):
    """Q of every action, on observations that are normalised by running statistics."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__(env_spec, replace(config, hidden=()), seed=seed)
        self.torso = _vectors(env_spec, config)
        self.head = StreamMLP(self.torso.width, self.num_actions, config=config, seed=make_seed(seed, "q"))  # type: ignore[assignment]
        self.statistics = RunningMeanStd((self.torso.width,))

    def scores(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self._join(self.head(self.statistics(self.torso(obs))))

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """As of every `QNet`, with the action's log-probability `[B]`, which segments of a policy have."""
        reply = super().act(rows, greedy=greedy)
        if greedy:
            return reply
        mask = rows.get("action_mask")
        q = self.q(rows)
        open_actions = torch.ones_like(q, dtype=torch.bool) if mask is None else mask
        best = q.masked_fill(~open_actions, -math.inf).argmax(-1)
        prob = self.epsilon / open_actions.sum(-1) + (1.0 - self.epsilon) * (best == reply["action"])
        return Batch({**reply, "logprob": prob.log()})
