"""Perceptrons over observation leaves, and the contract of a network that PPO trains.

The contract (a user's own network follows it too): a factory `make(env_spec, seed) -> nn.Module` whose module has

    policy(obs: Batch) -> Tensor[..., env_spec.action.size]    logits of a discrete action, mean of a continuous one
    value(obs: Batch) -> Tensor[...]                           the critic

`obs` holds the leaves of `env_spec.obs` under their keys, each `[..., *leaf.shape]`, already normalised where that is on.
`policy` and `value` must treat rows independently. `MLPConfig.build` is such a factory, and the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec


class Body(Protocol):
    """The two methods that a network for PPO has, beside being an `nn.Module`."""

    def policy(self, obs: Mapping[str, Tensor]) -> Tensor: ...

    def value(self, obs: Mapping[str, Tensor]) -> Tensor: ...


MakeNet = Callable[[EnvSpec, int], nn.Module]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "silu": F.silu}


@dataclass(frozen=True)
class MLPConfig:
    """Fully connected layers; separate ones for actor and critic."""

    hidden: tuple[int, ...] = (64, 64)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Nonlinearity between layers."""

    def build(self, env_spec: EnvSpec, seed: int) -> ActorCriticMLP:
        """The default network for `env_spec`, with weights drawn from `seed` alone."""
        return ActorCriticMLP(env_spec, self, seed=seed)


class MLP(nn.Module):
    """Linear layers, `[..., I] -> [..., O]`; orthogonal weights (gain sqrt 2, `head_gain` for the last), zero biases."""

    def __init__(self, num_inputs: int, num_outputs: int, *, config: MLPConfig, head_gain: float, seed: int) -> None:
        super().__init__()
        if any(width < 1 for width in config.hidden):
            raise ConfigError("mlp.hidden", config.hidden, "each layer needs a width of at least 1")
        generator = torch.Generator().manual_seed(seed)
        widths = [num_inputs, *config.hidden, num_outputs]
        gains = [2.0**0.5] * len(config.hidden) + [head_gain]
        self.layers = nn.ModuleList(
            _orthogonal_linear(i, o, gain=gain, generator=generator)
            for i, o, gain in zip(widths[:-1], widths[1:], gains, strict=True)
        )
        self._activation = ACTIVATIONS[config.activation]
        self._pairs: list[tuple[Tensor, Tensor]] | None = None
        self.register_load_state_dict_post_hook(_forget_pairs)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        # Finding weights through modules costs as much as a small layer; `assign=True` on loading replaces them.
        if self._pairs is None:
            self._pairs = [(layer.weight, layer.bias) for layer in cast(list[nn.Linear], list(self.layers))]
        *hidden, head = self._pairs
        for weight, bias in hidden:
            x = self._activation(F.linear(x, weight, bias))
        return F.linear(x, *head)


def _forget_pairs(module: nn.Module, incompatible: object) -> None:
    assert isinstance(module, MLP)
    module._pairs = None


class ActorCriticMLP(nn.Module):
    """An actor and a critic that share nothing: the default network of PPO."""

    def __init__(self, env_spec: EnvSpec, config: MLPConfig, *, seed: int) -> None:
        super().__init__()
        self._leaves = sorted(env_spec.obs.items())
        width = leaves_width(env_spec.obs)
        self.actor = MLP(width, env_spec.action.size, config=config, head_gain=0.01, seed=make_seed(seed, "actor"))
        self.critic = MLP(width, 1, config=config, head_gain=1.0, seed=make_seed(seed, "critic"))

    def policy(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.actor(flatten_leaves(obs, self._leaves))  # type: ignore[no-any-return]

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.critic(flatten_leaves(obs, self._leaves)).squeeze(-1)  # type: ignore[no-any-return]


def leaves_width(obs: Mapping[str, ArraySpec]) -> int:
    """Numbers in one observation, over all leaves."""
    return sum(torch.Size(leaf.shape).numel() for leaf in obs.values())


def flatten_leaves(obs: Mapping[str, Tensor], leaves: Sequence[tuple[str, ArraySpec]]) -> Tensor:
    """All leaves side by side, as float32, in the order of `leaves`. `{key: [..., *shape]} -> [..., width]`

    >>> spec = {"obs/a": ArraySpec((2, 2)), "obs/b": ArraySpec((), torch.int64)}
    >>> flatten_leaves({"obs/a": torch.ones(3, 2, 2), "obs/b": torch.zeros(3)}, sorted(spec.items())).shape
    torch.Size([3, 5])
    """
    parts = [_flat(obs[key], len(leaf.shape)) for key, leaf in leaves]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _flat(x: Tensor, num_dims: int) -> Tensor:
    if num_dims != 1:
        x = x.reshape(*x.shape[: x.dim() - num_dims], -1)
    return x if x.dtype == torch.float32 else x.to(torch.float32)


def _orthogonal_linear(num_inputs: int, num_outputs: int, *, gain: float, generator: torch.Generator) -> nn.Linear:
    # skip_init: the constructor of Linear would draw from torch's global generator
    layer = nn.utils.skip_init(nn.Linear, num_inputs, num_outputs)  # type: ignore[no-untyped-call]
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer  # type: ignore[no-any-return]
