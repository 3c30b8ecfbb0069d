"""Perceptrons: a whole network as one differentiable operation, alone or several side by side.

For small networks most of a training step is spent between the operations, not in them. So forward and backward of all
layers are one autograd node with a backward pass written out, and networks of equal shape (actor and critic, twin critics,
the members of a population) run as one stack of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, stays
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec

Array = NDArray[Any]
Activation = Literal["tanh", "relu", "silu"]
Tape = tuple[list[Tensor], list[Tensor]]
DEFAULT_HIDDEN = (64, 64)
MANY_ROWS = 4096
"""Rows from which a CUDA device is given the gradients of weights in pieces."""


@dataclass(frozen=True)
class NetConfig:
    """What a network is made of: convolutions for images, fully connected layers, a recurrent core."""

    on_resume: ClassVar[OnResume] = stays(
        "hidden", "activation", "conv", "channels", "core", "core_size", "shared", why="what was learned is of that network"
    )

    hidden: tuple[int, ...] | None = None
    """Width of each hidden layer. None: 64, 64 for vectors; after convolutions one layer, 512 (nature) or 128 (small)."""
    activation: Activation = "tanh"
    """Nonlinearity between layers (convolutions always use relu)."""
    conv: Literal["auto", "none", "nature", "small"] = "auto"
    """Convolutions for image leaves: `nature` (Mnih et al. 2015) for 84 x 84, `small` for 10 x 10 boards, by size if auto."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Which axis of an image leaf holds its channels: first is [C, H, W], last is [H, W, C]. auto goes by the shape (two equal
    neighbours are height and width, else the channels are by far the smallest); a shape that does not tell is refused."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core after the hidden layers; actor and critic then share all layers but the last."""
    core_size: int = 64
    """Width of the recurrent core."""
    shared: bool | None = None
    """Actor and critic share their layers. None: only where there are convolutions or a core."""

    def check(self) -> None:
        """Raise a `ConfigError` for a network that cannot be built."""
        if any(width < 1 for width in self.hidden or ()):
            raise ConfigError("net.hidden", self.hidden, "each layer needs a width of at least 1")
        if self.core_size < 1:
            raise ConfigError("net.core_size", self.core_size, "use at least 1")
        if self.core != "none" and self.shared is False:
            raise ConfigError("net.shared", False, "a recurrent core is shared by actor and critic; leave net.shared alone")


class MLP(nn.Module):
    """Linear layers, `[..., I] -> [..., O]`; orthogonal weights (gain sqrt 2, `head_gain` for the last), zero biases.

    With `copies` = S it holds S networks of one shape: `[..., I] -> [S, ..., O]`, or `[S, N, I] -> [S, N, O]` with
    `stacked`. With `num_outputs` a tuple, copy i has a last layer of width `num_outputs[i]`, and a tuple comes back.
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
        self._flat: list[Tensor] | None = None
        self._host: list[Array] | None = None
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, *, stacked: bool = False) -> Any:
        # without hooks: finding them costs as much as a small layer
        return self.forward(x, stacked=stacked)

    def forward(self, x: Tensor, *, stacked: bool = False) -> Any:
        # Finding weights through modules costs as much as a small layer; `assign=True` on loading replaces them.
        if self._flat is None:
            self._flat = [t for pair in zip(self.weight, self.bias, strict=True) for t in pair]
        lead = x.shape[1:-1] if stacked else x.shape[:-1]
        if x.dim() != (3 if stacked else 2):
            x = x.reshape(*(x.shape[:1] if stacked else ()), -1, self.num_inputs)
        if torch.is_grad_enabled():
            outputs = _Layers.apply(x, self.activation, self.heads, *self._flat)  # type: ignore[no-untyped-call]
        else:
            outputs, _, _ = _forward(x, self.activation, self.heads, self._flat)
        if len(lead) != 1:
            outputs = tuple(
                o.reshape(*(o.shape[:1] if self.copies and not self.heads else ()), *lead, o.shape[-1]) for o in outputs
            )
        return outputs if self.heads else outputs[0]

    def tape(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tape]:
        """Outputs of `[N, I]`, and what `grads` needs: a forward pass that is differentiated by hand."""
        if self._flat is None:
            self._flat = [t for pair in zip(self.weight, self.bias, strict=True) for t in pair]
        outputs, inputs, before = _forward(x, self.activation, self.heads, self._flat)
        return outputs, (inputs, before)

    def grads(self, tape: Tape, grads: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of all parameters, in the order of `parameters()`, from those of the outputs."""
        assert self._flat is not None
        inputs, before = tape
        _, found = _backward(
            grads, inputs, self._flat, before, activation=self.activation, num_heads=self.heads, to_input=False, to_weights=True
        )
        return [g for g in (*found[::2], *found[1::2]) if g is not None]

    def one(self, x: Tensor, copy: int) -> Tensor:
        """One network of the stack alone. `[..., I] -> [..., O]`"""
        lead, x = x.shape[:-1], x.reshape(-1, self.num_inputs)
        weights, biases, num_trunk = list(self.weight), list(self.bias), len(self.weight) - (self.heads or 1)
        for w, b in zip(weights[:num_trunk], biases[:num_trunk], strict=True):
            x = ACTIVATIONS[self.activation](torch.addmm(b[copy], x, w[copy]))
        at = num_trunk + (copy if self.heads else 0)
        w, b = (weights[at], biases[at]) if self.heads else (weights[at][copy], biases[at][copy])
        return torch.addmm(b, x, w).reshape(*lead, w.shape[-1])

    def host(self, x: Array, *, copy: int = 0) -> Array:
        """`forward` of one network of the stack in numpy, `[N, I] -> [N, O]`: half of torch's time for a few rows."""
        if self._host is None:
            self._host = [t.detach().numpy() for pair in zip(self.weight, self.bias, strict=True) for t in pair]
        tensors, n = self._host, self.heads
        trunk, last = (tensors[: len(tensors) - 2 * n], 2 * copy - 2 * n) if n else (tensors[:-2], -2)
        for i in range(0, len(trunk), 2):
            w, b = (trunk[i][copy], trunk[i + 1][copy]) if self.copies else (trunk[i], trunk[i + 1])
            x = _HOST[self.activation](np.add(h := x @ w, b, out=h))
        w, b = tensors[len(tensors) + last], tensors[len(tensors) + last + 1]
        if self.copies and not n:
            w, b = w[copy], b[copy]
        y: Array = np.add(h := x @ w, b, out=h)
        return y


def _forget(module: nn.Module, incompatible: object) -> None:
    assert isinstance(module, MLP)
    module._flat = module._host = None


# -------------------------------------------------------------------------------------------------- forward and backward
def _forward(
    x: Tensor, activation: str, num_heads: int, tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], list[Tensor], list[Tensor]]:
    """Outputs, the input of every layer, and (silu) the values before the nonlinearity."""
    hidden = tensors[: len(tensors) - 2 * (num_heads or 1)]
    inputs, before = [x], []
    for i in range(0, len(hidden), 2):
        x = _affine(x, hidden[i], hidden[i + 1])
        if activation == "silu":
            before.append(x)
            x = F.silu(x)
        else:
            x = x.tanh_() if activation == "tanh" else x.relu_()
        inputs.append(x)
    if not num_heads:
        return (_affine(x, tensors[-2], tensors[-1]),), inputs, before
    heads = tensors[len(hidden) :]
    parts = x.unbind(0) if hidden else (x,) * num_heads
    return tuple(torch.addmm(heads[2 * i + 1], h, heads[2 * i]) for i, h in enumerate(parts)), inputs, before


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x W + b`, for one network or for a stack `[S, I, O]` on a shared `[N, I]` or own `[S, N, I]` input."""
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight)
    if x.dim() == 2:
        x = x.expand(weight.shape[0], *x.shape)
    return torch.baddbmm(bias, x, weight) if x.is_cuda else torch.bmm(x, weight).add_(bias)


class _Layers(torch.autograd.Function):
    """All layers as one node. The gradient with respect to the input is computed only where it is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, num_heads: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, inputs, before = _forward(x, activation, num_heads, tensors)
        ctx.activation, ctx.num_heads, ctx.num_inputs, ctx.num_tensors = activation, num_heads, len(inputs), len(tensors)
        ctx.wants = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3:])
        ctx.save_for_backward(*inputs, *tensors, *before)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, n = ctx.saved_tensors, ctx.num_inputs
        parts = saved[:n], saved[n : n + ctx.num_tensors], saved[n + ctx.num_tensors :]
        to_input, to_weights = ctx.wants
        grad, found = _backward(
            grads, *parts, activation=ctx.activation, num_heads=ctx.num_heads, to_input=to_input, to_weights=to_weights
        )
        return (grad, None, None, *found)


def _backward(
    grads: Sequence[Tensor],
    inputs: Sequence[Tensor],
    tensors: Sequence[Tensor],
    before: Sequence[Tensor],
    *,
    activation: str,
    num_heads: int,
    to_input: bool,
    to_weights: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """From the gradients of the outputs to that of the input (if asked for) and those of `tensors` (weight, bias, ...)."""
    found: list[Tensor | None] = [None] * len(tensors)
    grad: Tensor | None = None
    start = len(tensors) - 2
    if num_heads:
        grad = _heads_backward(grads, inputs[-1], tensors, found, num_heads=num_heads, wanted=to_weights)
        start -= 2 * num_heads
    for i in range(start, -1, -2):
        out = grads[0] if grad is None else _activation_backward(grad, inputs[i // 2 + 1], activation, before, i // 2)
        x, weight = inputs[i // 2], tensors[i]
        if to_weights:
            found[i], found[i + 1] = _weight_grads(x, out, stacked=weight.dim() == 3)
        if i or to_input:
            grad = torch.mm(out, weight.t()) if weight.dim() == 2 else torch.bmm(out, weight.transpose(1, 2))
    if grad is not None and to_input and inputs[0].dim() < grad.dim():
        grad = grad.sum(0)
    return grad if to_input else None, found


def _heads_backward(
    grads: Sequence[Tensor], x: Tensor, tensors: Sequence[Tensor], found: list[Tensor | None], *, num_heads: int, wanted: bool
) -> Tensor:
    """Gradient with respect to the stack `[S, N, H]` under the heads; those of the heads go into `found`."""
    start = len(tensors) - 2 * num_heads
    parts = x.unbind(0) if x.dim() == 3 else (x,) * num_heads
    below = x.new_empty(num_heads, *parts[0].shape)
    for i, (h, g) in enumerate(zip(parts, grads, strict=True)):
        torch.mm(g, tensors[start + 2 * i].t(), out=below[i])
        if wanted:
            found[start + 2 * i], found[start + 2 * i + 1] = _weight_grads(h, g, stacked=False)
    return below


def _weight_grads(x: Tensor, grad: Tensor, *, stacked: bool) -> tuple[Tensor, Tensor]:
    if grad.is_cuda and grad.shape[-2] >= MANY_ROWS:
        return _weight_grads_of_many(x, grad, stacked=stacked)
    if not stacked:
        return torch.mm(x.t(), grad), grad.sum(0)
    if x.dim() == 2:
        x = x.expand(grad.shape[0], *x.shape)
    return torch.bmm(x.transpose(1, 2), grad), grad.sum(1, keepdim=True)


def _weight_grads_of_many(x: Tensor, grad: Tensor, *, stacked: bool) -> tuple[Tensor, Tensor]:
    """`_weight_grads` on a CUDA device: a batched product does not split the sum over rows between multiprocessors (single
    ones do), nor does a sum over the first dimension; so products are single, and the sum is one of sums."""
    parts = next(n for n in (128, 32, 8, 1) if grad.shape[-2] % n == 0)
    bias = grad.reshape(*grad.shape[:-2], parts, -1, grad.shape[-1]).sum(-2).sum(-2, keepdim=stacked)
    if not stacked:
        return torch.mm(x.t(), grad), bias
    inputs = x.unbind(0) if x.dim() == 3 else (x,) * len(grad)
    return torch.stack([torch.mm(rows.t(), g) for rows, g in zip(inputs, grad.unbind(0), strict=True)]), bias


def _activation_backward(grad: Tensor, after: Tensor, activation: str, before: Sequence[Tensor], layer: int) -> Tensor:
    if activation == "tanh":
        return torch.ops.aten.tanh_backward(grad, after)  # type: ignore[no-any-return]
    if activation == "relu":
        return torch.ops.aten.threshold_backward(grad, after, 0.0)  # type: ignore[no-any-return]
    return torch.ops.aten.silu_backward(grad, before[layer])  # type: ignore[no-any-return]


def _silu(x: Array) -> Array:
    out: Array = x / (1.0 + np.exp(-x))
    return out


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "silu": F.silu}
_HOST: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "silu": _silu,
}


# ------------------------------------------------------------------------------------------------------------- weights
def _orthogonal(widths: Sequence[int], *, head_gain: float, seed: int) -> list[Tensor]:
    """Weights `[I, O]` of one network, drawn from `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    gains = [2.0**0.5] * (len(widths) - 2) + [head_gain]
    drawn = []
    for num_in, num_out, gain in zip(widths[:-1], widths[1:], gains, strict=True):
        weight = torch.empty(num_out, num_in)
        weight = nn.init.orthogonal_(weight, gain=gain, generator=generator)
        # `contiguous` would keep odd strides where a width is 1, and BLAS rounds differently by strides
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
