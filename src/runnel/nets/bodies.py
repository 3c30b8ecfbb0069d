"""Bodies of actor-critic networks, and the contract of one that PPO and its relatives train.

The contract (a user's own network follows it too): a factory `make(env_spec, seed) -> nn.Module` whose module has

    policy(obs: Batch) -> Tensor[..., num_scores]    logits of a discrete action, mean of a continuous one
    value(obs: Batch) -> Tensor[...]                 the critic

`obs` holds the leaves of `env_spec.obs` under their keys, each `[..., *leaf.shape]`, already normalised where that is on.
`policy` and `value` must treat rows independently. Bodies of this file also give both in one pass (`both`), or carry a
recurrent state (`RecurrentBody`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.heads import make_head
from runnel.nets.mlp import ACTIVATIONS, MLP, NetConfig
from runnel.nets.rnn import Core
from runnel.nets.torso import Torso

Obs = Mapping[str, Tensor]
GAINS = (0.01, 1.0)


class Body(Protocol):
    """The two methods that a network for PPO has, beside being an `nn.Module`."""

    def policy(self, obs: Obs) -> Tensor: ...

    def value(self, obs: Obs) -> Tensor: ...


def build_body(env_spec: EnvSpec, config: NetConfig, *, seed: int) -> nn.Module:
    """The body that `config` describes for `env_spec`, with weights drawn from `seed` alone."""
    config.check()
    if config.core != "none":
        return RecurrentBody(env_spec, config, seed=seed)
    torso = Torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
    if config.shared or (config.shared is None and torso.convolves):
        return SharedBody(env_spec, config, torso, seed=seed)
    return SeparateBody(env_spec, config, torso, seed=seed)


class SeparateBody(nn.Module):
    """An actor and a critic that share nothing but convolutions, run as one stack."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, torso: Torso, *, seed: int) -> None:
        super().__init__()
        self.torso = torso
        num_scores = make_head(env_spec.action).num_scores
        self.nets = MLP(
            torso.width,
            (num_scores, 1),
            config=torso.settle(config),
            head_gain=GAINS,
            seed=(make_seed(seed, "actor"), make_seed(seed, "critic")),
            copies=2,
        )

    def both(self, obs: Obs) -> tuple[Tensor, Tensor]:
        scores, value = self.nets(self.torso(obs))
        return scores, value.squeeze(-1)

    def policy(self, obs: Obs) -> Tensor:
        return self.nets.one(self.torso(obs), 0)

    def value(self, obs: Obs) -> Tensor:
        return self.nets.one(self.torso(obs), 1).squeeze(-1)


class SharedBody(nn.Module):
    """Actor and critic are two linear heads over the same layers."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, torso: Torso, *, seed: int) -> None:
        super().__init__()
        self.torso = torso
        self.trunk, width = _trunk(torso, config, seed=make_seed(seed, "trunk"))
        self._activation = ACTIVATIONS[config.activation]
        self.heads = _heads(width, env_spec, config, seed=seed)

    def features(self, obs: Obs) -> Tensor:
        return self._activation(self.trunk(self.torso(obs)))

    def both(self, obs: Obs) -> tuple[Tensor, Tensor]:
        scores, value = self.heads(self.features(obs))
        return scores, value.squeeze(-1)

    def policy(self, obs: Obs) -> Tensor:
        return self.heads.one(self.features(obs), 0)

    def value(self, obs: Obs) -> Tensor:
        return self.heads.one(self.features(obs), 1).squeeze(-1)


class RecurrentBody(nn.Module):
    """Layers, a recurrent core and two linear heads. Its state is zero at the start of an episode."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        assert config.core != "none"
        self.torso = Torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
        self.trunk, width = _trunk(self.torso, config, seed=make_seed(seed, "trunk"))
        self._activation = ACTIVATIONS[config.activation]
        self.core = Core(config.core, width, config.core_size, seed=make_seed(seed, "core"))
        self.heads = _heads(config.core_size, env_spec, config, seed=seed)
        self.state_spec: Mapping[str, ArraySpec] = self.core.state_spec

    def step(self, obs: Obs, state: Obs) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """One step of `[B, ...]` leaves: scores `[B, ...]`, value `[B]`, and the state after it."""
        y, after = self.core.step(self._activation(self.trunk(self.torso(obs))), state)
        scores, value = self.heads(y)
        return scores, value.squeeze(-1), after

    def unroll(self, obs: Obs, state: Obs, resets: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """`[T, B, ...]` leaves from `state`: scores, values `[T, B]`, and the states after each step `[T, B, ...]`."""
        y, after = self.core.unroll(self._activation(self.trunk(self.torso(obs))), state, resets)
        scores, value = self.heads(y)
        return scores, value.squeeze(-1), after


def _trunk(torso: Torso, config: NetConfig, *, seed: int) -> tuple[MLP, int]:
    """The hidden layers as a network whose last layer the caller puts a nonlinearity on; and its width."""
    hidden = torso.settle(config).hidden or (torso.width,)
    inner = replace(config, hidden=hidden[:-1])
    return MLP(torso.width, hidden[-1], config=inner, head_gain=2.0**0.5, seed=seed), hidden[-1]


def _heads(width: int, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> MLP:
    return MLP(
        width,
        (make_head(env_spec.action).num_scores, 1),
        config=replace(config, hidden=()),
        head_gain=GAINS,
        seed=(make_seed(seed, "actor"), make_seed(seed, "critic")),
        copies=2,
    )
