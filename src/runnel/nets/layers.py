"""Layers of all networks: perceptrons, the torso that turns an observation into one vector, running statistics.

For a small network most of a training step passes between the operations, not in them. So networks of equal shape (actor and
critic, twin critics) run as one stack of matrices on the CPU.

Running statistics (`RunningMeanStd`, `ReturnScale`) belong to the learner. Mean and variance are buffers, so they are
published, checkpointed and restored like weights, and acting uses exactly the statistics that the learner had at that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.resuming import OnResume, stays
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.trajectories import SHARED
from runnel.nets.convolutions import Channels, Conv, Kind, is_image
from runnel.nets.entity_masks import critic_masks
from runnel.ops.returns import returns_so_far

Activation = Literal["tanh", "relu", "silu"]
DEFAULT_HIDDEN = (64, 64)


@dataclass(frozen=True)
class NetConfig:
    """The parts of a network: convolutions for images, fully connected layers, a recurrent core."""

    on_resume: ClassVar[OnResume] = stays(
        *("hidden", "activation", "conv", "channels", "entities", "core", "core_size", "shared", "critic_only"),
        why="what was learned is of that network",
    )

    hidden: tuple[int, ...] | None = bounded(None, at_least=1)
    """Width of each hidden layer. None: 64, 64 for vectors; after convolutions one layer, 512 (nature) or 128 (small)."""
    activation: Activation = "tanh"
    """Nonlinearity between layers (convolutions always use relu)."""
    conv: Kind = "auto"
    """Convolutions for image leaves: `nature` (Mnih et al. 2015) for 84 x 84, `small` for 10 x 10 boards, by size if auto."""
    channels: Channels = "auto"
    """Which axis of an image leaf holds its channels: first is [C, H, W], last is [H, W, C]. auto goes by the shape (two equal
    neighbours are height and width, else the channels are by far the smallest); a shape that does not tell is refused."""
    entities: Literal["none", "attention", "mean"] = "none"
    """Parts of a Dict observation that are sets of entities (an array [N, F] called NAME beside a mask [N] called NAME_mask),
    by attention or as their mean: in no order, with parameters that fit sets of any size. none takes them as plain arrays."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core after the hidden layers; actor and critic then share all layers but the last."""
    core_size: int = bounded(64, at_least=1)
    """Width of the recurrent core."""
    shared: bool | None = None
    """Actor and critic share their layers. None: only where there are convolutions or a core."""
    critic_only: tuple[str, ...] = ()
    """Parts of a Dict observation that only the critic reads, by name (`goal`, or `goal/offset` inside another Dict): what a
    simulator knows and the world does not tell. The policy acts without them, in training and afterwards."""

    def check(self) -> None:
        """Raise a `ConfigError` for a network that cannot be built."""
        check_bounds(self, "net.")
        if self.core != "none" and self.shared is False:
            raise ConfigError("net.shared", False, "a recurrent core is shared by actor and critic; leave net.shared alone")
        if self.critic_only and (self.shared or self.core != "none"):
            fix = "actor and critic would share layers that read it; use net.core none and leave net.shared alone"
            raise ConfigError("net.critic_only", self.critic_only, fix)

    def policy_obs(self, obs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        """The leaves of `obs` that a policy reads: all but those of `critic_only`, the masks of entities that are not seen
        (`nets/entity_masks.py`), and the global state of a team."""
        seen = {key: leaf for key, leaf in obs.items() if not any(_is_part(key, name) for name in self.critic_only)}
        unseen = critic_masks(obs).values()
        seen = {key: leaf for key, leaf in seen.items() if not key.startswith(SHARED) and key not in unseen}
        for name in self.critic_only:
            if not any(_is_part(key, name) for key in obs):
                parts = (
                    ", ".join(key.removeprefix("obs/") for key in obs if key != "obs") or "none: it is one array, not a Dict"
                )
                raise ConfigError("net.critic_only", name, f"the observation has no such part; it has {parts}")
        if not seen:
            raise ConfigError("net.critic_only", self.critic_only, "nothing is left for the policy; name fewer parts")
        return seen


def _is_part(key: str, name: str) -> bool:
    """Whether the leaf `key` is, or lies in, the part `name` of an observation."""
    return f"{key}/".startswith(f"obs/{name}/")


class MLP(nn.Module):
    """Linear layers, `[..., I] -> [..., O]`; orthogonal weights (gain sqrt 2, `head_gain` for the last), zero biases.

    With `copies` = S it holds S networks of one shape: `[..., I] -> [S, ..., O]`. With `num_outputs` a tuple, copy i has a
    last layer of width `num_outputs[i]`, and a tuple comes back.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int | tuple[int, ...],
        *,
        config: NetConfig,
        head_gain: float | Sequence[float],
        seed: int | Sequence[int],
        copies: int = 0,
    ) -> None:
        super().__init__()
        config.check()
        hidden = DEFAULT_HIDDEN if config.hidden is None else config.hidden
        self.num_inputs, self.activation, self.copies = num_inputs, config.activation, copies
        outputs = num_outputs if isinstance(num_outputs, tuple) else (num_outputs,)
        self.heads = len(outputs) if isinstance(num_outputs, tuple) else 0
        assert self.heads in (0, copies), "one head for each copy"
        num_nets = max(copies, 1)
        seeds = [seed if num_nets == 1 else make_seed(seed, i) for i in range(num_nets)] if isinstance(seed, int) else seed
        gains = [head_gain] * num_nets if isinstance(head_gain, int | float) else head_gain
        widths = [outputs[i if self.heads else 0] for i in range(num_nets)]
        nets = [
            _orthogonal([num_inputs, *hidden, width], head_gain=gain, seed=s)
            for width, gain, s in zip(widths, gains, seeds, strict=True)
        ]
        trunk, heads = [list(net) for net in nets], []
        if self.heads:
            heads = [net.pop() for net in trunk]
        layers = [_stack([net[i] for net in trunk], stacked=copies > 0) for i in range(len(trunk[0]))]
        pairs = [*layers, *((w, torch.zeros(w.shape[1])) for w in heads)]
        self.weight = nn.ParameterList(nn.Parameter(w) for w, _ in pairs)
        self.bias = nn.ParameterList(nn.Parameter(b) for _, b in pairs)
        self._layers: list[tuple[Tensor, Tensor]] | None = None
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, *, copies: int = 0) -> Any:
        # without torch's hooks: the search for them costs as much as a small layer
        return self.forward(x, copies=copies)

    def forward(self, x: Tensor, *, copies: int = 0) -> Any:
        """`copies`: run only the first `copies` networks of the stack (0: all)."""
        lead, x = x.shape[:-1], x.reshape(-1, self.num_inputs)
        if self.copies and x.is_cuda:
            # one network after the other: cuBLAS spreads the sum over rows (the gradient of a weight) over the
            # multiprocessors in a single product, but not in a batched one
            parts = [self.one(x, i) for i in range(copies or self.copies)]
            outputs = tuple(parts) if self.heads else (torch.stack(parts),)
        else:
            outputs = self._run(x, copies)
        if len(lead) != 1:
            outputs = tuple(
                o.reshape(*(o.shape[:1] if self.copies and not self.heads else ()), *lead, o.shape[-1]) for o in outputs
            )
        return outputs if self.heads else outputs[0]

    def _run(self, x: Tensor, copies: int) -> tuple[Tensor, ...]:
        """All networks at once, `[N, I]` -> one output, or one for each head."""
        layers, act = self._found(), _IN_PLACE[self.activation]
        if copies:
            layers = [(w[:copies], b[:copies]) for w, b in layers]
        num_hidden = len(layers) - (self.heads or 1)
        for weight, bias in layers[:num_hidden]:
            x = act(_affine(x, weight, bias))
        if not self.heads:
            return (_last(x, *layers[-1]),)
        parts = x.unbind(0) if num_hidden else (x,) * self.heads
        return tuple(torch.addmm(b, h, w) for h, (w, b) in zip(parts, layers[num_hidden:], strict=True))

    def one(self, x: Tensor, copy: int) -> Tensor:
        """One network of the stack alone. `[..., I] -> [..., O]`"""
        lead, x = x.shape[:-1], x.reshape(-1, self.num_inputs)
        layers, act = self._found(), _IN_PLACE[self.activation]
        num_hidden = len(layers) - (self.heads or 1)
        for weight, bias in layers[:num_hidden]:
            x = act(torch.addmm(bias[copy], x, weight[copy]))
        weight, bias = layers[num_hidden + copy] if self.heads else (layers[-1][0][copy], layers[-1][1][copy])
        return torch.addmm(bias, x, weight).reshape(*lead, weight.shape[-1])

    def hidden(self, x: Tensor) -> list[Tensor]:
        """The activations of each hidden layer of a single network. `[N, I] -> [N, H]` each"""
        assert not self.copies, "of one network"
        found = []
        for weight, bias in self._found()[:-1]:
            x = ACTIVATIONS[self.activation](torch.addmm(bias, x, weight))
            found.append(x)
        return found

    def _found(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases by layer."""
        if self._layers is None:  # kept, because a look-up through modules costs as much as a small layer
            self._layers = list(zip(self.weight, self.bias, strict=True))
        return self._layers


class NormedMLP(MLP):
    """An `MLP` without separate heads, whose hidden layers are normalised (Ba et al. 2016, arXiv:1607.06450) before the
    nonlinearity, with a scale and a shift that are learned."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        config: NetConfig,
        head_gain: float | Sequence[float],
        seed: int | Sequence[int],
        copies: int = 0,
    ) -> None:
        super().__init__(num_inputs, num_outputs, config=config, head_gain=head_gain, seed=seed, copies=copies)
        hidden = list(self.bias)[:-1]
        self.scale = nn.ParameterList(nn.Parameter(torch.ones_like(b)) for b in hidden)
        self.shift = nn.ParameterList(nn.Parameter(torch.zeros_like(b)) for b in hidden)

    def _run(self, x: Tensor, copies: int) -> tuple[Tensor, ...]:
        num = copies or None
        layers = [(w[:num], b[:num]) for w, b in self._found()] if self.copies else self._found()
        for (weight, bias), scale, shift in zip(layers, self.scale, self.shift, strict=False):
            some = slice(None, num if self.copies else None)
            x = self._hidden(_affine(x, weight, bias), scale[some], shift[some])
        return (_last(x, *layers[-1]),)

    def one(self, x: Tensor, copy: int) -> Tensor:
        lead, x = x.shape[:-1], x.reshape(-1, self.num_inputs)
        layers = self._found()
        for (weight, bias), scale, shift in zip(layers, self.scale, self.shift, strict=False):
            x = self._hidden(torch.addmm(bias[copy], x, weight[copy]), scale[copy], shift[copy])
        weight, bias = layers[-1]
        return torch.addmm(bias[copy], x, weight[copy]).reshape(*lead, weight.shape[-1])

    def _hidden(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """`act(scale (x - mean) / std + shift)`, mean and deviation over the layer's own units."""
        return _IN_PLACE[self.activation](torch.addcmul(shift, F.layer_norm(x, x.shape[-1:]), scale))


def _forget(module: nn.Module, incompatible: object) -> None:
    """`load_state_dict(assign=True)` replaces parameters."""
    assert isinstance(module, MLP)
    module._layers = None


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x W + b`, for one network or for a stack `[S, I, O]` on a shared `[N, I]` or own `[S, N, I]` input."""
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight)
    if x.dim() == 2:
        x = x.expand(weight.shape[0], *x.shape)
    # in place: the system maps new memory first, which takes longer than the sum
    return torch.bmm(x, weight).add_(bias)


def _last(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`_affine` for the last layer."""
    if weight.dim() == 2 or weight.shape[2] > 1 or x.dim() == 2 or not x.shape[1]:  # `addmv` returns one row for none
        return _affine(x, weight, bias)
    # a product with a one-column matrix takes four times as long as one with a vector
    parts = (torch.addmv(b, h, w) for h, w, b in zip(x, weight.squeeze(-1), bias.flatten(1), strict=True))
    return torch.stack(list(parts)).unsqueeze(-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "silu": F.silu}
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_, "silu": F.silu}
"""Applied to a layer's own output. In place where it can be: the gradients of tanh and relu need only their result."""


# ------------------------------------------------------------------------------------------------------------- weights
def _orthogonal(widths: Sequence[int], *, head_gain: float, seed: int) -> list[Tensor]:
    """Weights `[I, O]` of one network, drawn from `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    gains = [2.0**0.5] * (len(widths) - 2) + [head_gain]
    drawn = []
    for num_in, num_out, gain in zip(widths[:-1], widths[1:], gains, strict=True):
        weight = torch.empty(num_out, num_in)
        weight = nn.init.orthogonal_(weight, gain=gain, generator=generator)
        # `contiguous` keeps odd strides where a width is 1, and BLAS rounds differently with other strides
        drawn.append(weight.t().clone(memory_format=torch.contiguous_format))
    return drawn


def _stack(weights: Sequence[Tensor], *, stacked: bool) -> tuple[Tensor, Tensor]:
    """One layer of all copies: `[S, I, O]` and `[S, 1, O]`, or plain `[I, O]` and `[O]`."""
    if not stacked:
        return weights[0], torch.zeros(weights[0].shape[1])
    return torch.stack(list(weights)), torch.zeros(len(weights), 1, weights[0].shape[1])


# -------------------------------------------------------------------------------------------------------------- leaves
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


class Torso(nn.Module):
    """Observation leaves `[..., *shape]` -> `[..., width]`."""

    sets: tuple[str, ...] = ()
    """Leaves of sets of entities and of their masks, which are not normalised one place at a time (`nets/entities.py`)."""

    def __init__(self, obs: Mapping[str, ArraySpec], config: NetConfig, *, seed: int) -> None:
        super().__init__()
        if config.entities != "none":
            why = "this network has no layer for sets of entities; on-policy recipes have"
            raise UnusedSettingError("net.entities", config.entities, f"{why}; leave it at 'none'")
        if masks := critic_masks(obs):
            fix = "use attention or mean with ippo or mappo, or an environment that does not tell it"
            why = f"{', '.join(masks.values())} tells critics what there is, seen or not; this network has no use for it"
            raise ConfigError("net.entities", config.entities, f"{why}; {fix}")
        images = {k: leaf for k, leaf in obs.items() if is_image(leaf)} if config.conv != "none" else {}
        self._vectors = [(k, leaf) for k, leaf in sorted(obs.items()) if k not in images]
        if config.channels != "auto" and not images:
            why = "no part of the observation is convolved, so none has channels"
            raise UnusedSettingError("net.channels", config.channels, f"{why}; leave it at 'auto'")
        self.convs = nn.ModuleDict(
            {k: Conv(x, config.conv, config.channels, key=k, seed=make_seed(seed, k)) for k, x in sorted(images.items())}
        )
        self._convs: list[tuple[str, Conv]] = [(k, c) for k, c in self.convs.items() if isinstance(c, Conv)]
        self.width = leaves_width(dict(self._vectors)) + sum(c.width for _, c in self._convs)

    @property
    def convolves(self) -> bool:
        """Whether there is an image among the leaves."""
        return bool(self._convs)

    def settle(self, config: NetConfig) -> NetConfig:
        """`config` with hidden layers: the default for this torso where `config` has none."""
        if config.hidden is not None:
            return config
        kinds = [c.kind for _, c in self._convs]
        return replace(config, hidden=DEFAULT_HIDDEN if not kinds else ((512,) if "nature" in kinds else (128,)))

    def __call__(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.forward(obs)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        if not self._convs:
            return flatten_leaves(obs, self._vectors)
        parts = [conv(obs[key]) for key, conv in self._convs]
        if self._vectors:
            parts.append(flatten_leaves(obs, self._vectors))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class RunningMeanStd(nn.Module):
    """Mean and population variance over all rows seen; `forward` gives `clip((x - mean) / std)`. Before data: identity.

    The merge of two sets (n, m, v) is that of Chan et al. 1983, in float64:
    `m = m_a + d n_b / n`, `v n = v_a n_a + v_b n_b + d^2 n_a n_b / n` with `d = m_b - m_a`.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., *shape] -> [..., *shape]`, in the type of `x`."""
        scale = (self.var + self.epsilon).rsqrt().to(x.dtype)
        # in place, because memory is what this costs
        return (x - self.mean.to(x.dtype)).mul_(scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor, collective: Collective) -> None:
        """Add the rows of `x` of every rank. `[N, *shape]`. In place, so that published tensors keep their address."""
        # sums around the old mean: they lose far fewer digits than sums around 0
        shift = x.to(torch.float64) - self.mean
        rows = torch.full_like(self.mean, x.shape[0])
        total = shift.sum(0)
        num_new, total, square = collective.all_reduce(torch.stack([rows, total, shift.square_().sum(0)]))
        # where rows are left out (agents that wait), there may be none: then everything stays as it is
        delta = total / num_new.clamp(min=1.0)
        count = (self.count + num_new).clamp(min=1.0)
        spread = self.var * self.count + (square - total * delta) + delta.square() * self.count * num_new / count
        self.mean.add_(delta * num_new / count)
        self.var.copy_(torch.where(num_new > 0, spread / count, self.var))
        self.count.add_(num_new.flatten()[0].to(self.count.dtype))


class ReturnScale(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return, so that values stay near 1.

        G_t = gamma G_{t-1} (1 - ended_{t-1}) + r_t,  r'_t = clip(r_t / sqrt(Var G))

    NormalizeReward of Gymnasium and VecNormalize of Stable-Baselines3 do the same. The mean is not subtracted: that would
    change which policy is best. Episodes go on over segments, so each segment brings the returns so far (`carried`).
    """

    def __init__(self, *, gamma: float, clip: float = 10.0) -> None:
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.statistics = RunningMeanStd(())

    def forward(
        self, rewards: Tensor, ended: Tensor, carried: Tensor, collective: Collective, *, counts: Tensor | None = None
    ) -> Tensor:
        """Add the rewards of a segment to the statistics, and scale them. `[T, B], [T, B] bool, [B] -> [T, B]`

        With `counts` `[T, B]` bool, statistics are of those entries alone.
        """
        returns = returns_so_far(rewards, ended, carried, gamma=self.gamma)
        self.statistics.update(returns.flatten() if counts is None else returns[counts], collective)
        scale = (self.statistics.var + self.statistics.epsilon).rsqrt().to(rewards.dtype)
        return (rewards * scale).clamp(-self.clip, self.clip)
