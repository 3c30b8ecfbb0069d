"""Small actor-critics on a CUDA device, with activations that never leave the chip (`steps.py` has the kernels).

For a network of two hidden layers torch launches some forty kernels in an optimiser step and writes every activation to memory.
Here one kernel computes the gradient, one sums it, and one is Adam. They work on the flat vector of the parameters
(`nets/optim.py`), so they see every update, also one by torch.

Matrices are multiplied in tf32, so gradients differ from float32 by 0.2 to 0.5 %. The first call compiles for about 7 seconds.
Triton keeps the result on disk, and later runs need 0.3 seconds.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from runnel.agents.ppo import PPOConfig
from runnel.kernels.small.numpy_act import vector_leaf, why_not_plain
from runnel.nets.actor_critic import ActorCritic, SeparateBody
from runnel.nets.optim import Adam
from runnel.ops.distributions import ContinuousHead

_BLOCK = 64
_SHARES = 132
"""Programs for each of actor and critic: two fit on one of an H200's 132 multiprocessors."""
_WIDTHS = (16, 32, 64)
_METRICS = 8
"""Numbers stored after the gradient: five metrics, and three unused ones for alignment."""
_COLUMNS = 128


def why_not(net: ActorCritic) -> str:
    """The reason why the kernels do not serve this network; empty if they do.

    They serve one float vector without normalisation, no mask, two hidden layers of 16, 32 or 64 with tanh or relu, and at most
    16 scores, on a CUDA device.
    """
    if reason := why_not_plain(net):
        return reason
    spec, body, first = net.env_spec, net.body, next(net.parameters())
    assert isinstance(body, SeparateBody)
    if not vector_leaf(spec, body.torso) or spec.has_mask:
        return "kernels are for one float vector, without a mask"
    if net.normalisers:
        return "kernels do not normalise observations"
    if spec.action.size > 16:
        return "kernels are for one action with at most 16 scores"
    widths = [w.shape[-1] for w in body.nets.weight][:-2]
    if len(widths) != 2 or any(w not in _WIDTHS for w in widths) or body.nets.num_inputs >= 64:
        return f"kernels are for two hidden layers of 16, 32 or 64 over fewer than 64 inputs, and the network has {widths}"
    if body.nets.activation not in ("tanh", "relu"):
        return f"kernels are for tanh and relu, not for {body.nets.activation}"
    if not first.is_cuda or first.dtype != torch.float32:
        return "kernels are for float32 on a CUDA device"
    return "" if importlib.util.find_spec("triton") is not None else "Triton is not installed"


class TritonActorCritic:
    """Kernels for networks like `net`, with their parameters in `vector` `[members * total]`, one network after the other.

    With several members (a population of networks), the first B / members columns of rows `[T, B]` belong to the first one,
    and so on.
    """

    def __init__(self, net: ActorCritic, vector: Tensor, *, members: int = 1) -> None:
        assert isinstance(net.body, SeparateBody)
        nets, spec = net.body.nets, net.env_spec
        ((self._leaf, leaf),) = spec.obs.items()
        self._leaf_dims = len(leaf.shape)
        self._vector, self._action_shape, self._members = vector, spec.action.shape, members
        num_inputs, num_scores, total = nets.num_inputs, spec.action.size, vector.numel() // members
        self._num_scores = num_scores
        # constants of compilation: with the sizes known, Triton unrolls the layers and keeps them in registers
        self._shape: dict[str, int | str] = {
            "NI": num_inputs,
            "H1": nets.weight[0].shape[-1],
            "H2": nets.weight[1].shape[-1],
            "A": num_scores,
            "GAUSS": isinstance(net.head, ContinuousHead),
            "RELU": nets.activation == "relu",
            "IP": _padded(num_inputs + 1),
            "AP": _padded(num_scores),
            "PREC": "tf32",
            "BLOCK": _BLOCK,
        }
        self._total, self._stride = total, math.ceil((total + _METRICS) / 64) * 64
        self._shares = max(1, _SHARES // members)
        self._partial = vector.new_zeros(members * self._shares * self._stride)
        self.grad = vector.new_zeros(members, self._stride)
        self._squares = vector.new_zeros(members, math.ceil(self._stride / _COLUMNS))

    def act(self, obs: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities of one step of all environments. `[B, I], [B, n] -> [B, *action.shape], [B]`"""
        from runnel.kernels.small.triton import steps as kernels

        rows = obs[self._leaf].contiguous()
        num, each = len(rows), len(rows) // self._members
        logprob = rows.new_empty(num)
        if self._shape["GAUSS"]:
            action = rows.new_empty(num, self._num_scores)
        else:
            action = torch.empty(num, dtype=torch.int64, device=rows.device)
        grid = (math.ceil(each / _BLOCK), self._members)
        kernels.act_kernel[grid](rows, noise.contiguous(), self._vector, action, logprob, each, self._total, **self._shape)
        return action.view(num, *self._action_shape), logprob

    def values(self, obs: Mapping[str, Tensor], *, width: int = 0) -> Tensor:
        """The critic. With several members, rows lie as `[T, width, I]`, the members side by side. `[..., I] -> [...]`"""
        from runnel.kernels.small.triton import steps as kernels

        rows = obs[self._leaf].contiguous()
        out = rows.new_empty(rows.shape[: rows.dim() - self._leaf_dims])
        each, width = out.numel() // self._members, width or out.numel()
        grid = (min(math.ceil(each / _BLOCK), max(1, 8 * _SHARES // self._members)), self._members)
        kernels.value_kernel[grid](rows, self._vector, out, each, width // self._members, width, self._total, **self._shape)
        return out

    def passes(self, batch: Mapping[str, Tensor], orders: Tensor, *, size: int, optimiser: Adam, config: PPOConfig) -> Tensor:
        """A `step` for each `size` rows of each of `orders` `[epochs, N]`. `[steps, 7]`"""
        pieces = [(order, (first, first + size)) for order in orders for first in range(0, orders.shape[-1], size)]
        return torch.cat([self.step(batch, order, rows=rows, optimiser=optimiser, config=config) for order, rows in pieces])

    def step(
        self,
        batch: Mapping[str, Tensor],
        order: Tensor,
        *,
        rows: tuple[int, int],
        width: int = 0,
        optimiser: Adam,
        config: PPOConfig,
    ) -> Tensor:
        """An optimiser step of PPO (`PPOLearner.step`), over the rows `order[first:last]` of `batch` `[N, ...]`.

        `order` is `[N]`, or `[members, N / members]`; `width` is as in `values`. Gives total, policy and value loss, entropy,
        kl, clip fraction, and the gradient's norm before clipping. `[members, 7]`
        """
        from runnel.kernels.small.triton import steps as kernels

        c, first, num, width = config, rows[0], rows[1] - rows[0], width or len(batch["logprob"])
        weights, mean, square, numbers = optimiser.on_device()
        assert weights.data_ptr() == self._vector.data_ptr(), "the optimiser of another network"
        programs = min(self._shares, math.ceil(num / _BLOCK))
        kernels.gradient_kernel[(programs, 2, self._members)](
            *(batch[k] for k in (self._leaf, "action", "logprob", "advantage", "return", "value")),
            order,
            self._vector,
            self._partial,
            num,
            first,
            order.numel() // self._members,
            width // self._members,
            width,
            self._total,
            self._stride,
            1.0 / num,
            c.clip_range,
            c.dual_clip or 0.0,
            c.value_clip or 0.0,
            c.value_coef,
            c.entropy_coef,
            ALONE=self._members == 1,
            DUAL=c.dual_clip is not None,
            CLIP_VALUE=c.value_clip is not None,
            num_warps=4,
            num_stages=2,
            **self._shape,
        )
        num_squares = self._squares.shape[1]
        kernels.reduce_kernel[(num_squares, self._members)](
            self._partial,
            self.grad,
            self._squares,
            numbers,
            programs,
            self._stride,
            self._total,
            ROWS=32,
            BLOCK=_COLUMNS,
        )
        report, (b1, b2) = self.grad.new_empty(self._members, 7), optimiser.betas
        kernels.adam_kernel[(math.ceil(self._total / 256), self._members)](
            self._vector,
            self.grad,
            mean,
            square,
            self._squares,
            numbers,
            report,
            self._total,
            self._stride,
            num_squares,
            c.max_grad_norm,
            c.value_coef,
            c.entropy_coef,
            b1,
            b2,
            math.log(b1),
            math.log(b2),
            optimiser.eps,
            SQUARES=_padded(num_squares),
            BLOCK=256,
        )
        return report


def _padded(n: int) -> int:
    """The next power of 2 from 16 up: what a matrix instruction takes."""
    return 1 << max(4, (n - 1).bit_length())
