"""The parts of a transformer block: embedding, projections, normalisation, rotary positions, gated units. One definition for
learner and engine.

Each small part is one kernel on CUDA or one compiled loop in float32 on the CPU (`kernels/lm`: `block_kernels.py`,
`block_loops.py`), since a block of plain torch operations spends more time on launches and memory than on its products;
elsewhere a few passes of torch (`block_host.py`). Backward passes are our own: gradients of weights go straight into their
float32 sums, whatever the precision of the products.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import block_kernels
from runnel.llm.model import cpu_blocks as block_host
from runnel.llm.model.cpu_blocks import wide
from runnel.llm.model.weights import Weight

HOST_ROWS = 512
"""Rows that the host takes through a gated part at a time."""
SKINNY = range(16, 64)
"""Numbers of rows for which MKL multiplies `weight x^T` twice as fast as `x weight^T` (2 cores with AVX-512)."""


def kernels(x: Tensor) -> Any:
    """The small parts for the device and the precision of `x`."""
    if x.is_cuda:
        return block_kernels
    return _loops() if loops(x) else block_host


@cache
def _loops() -> Any:
    from runnel.kernels.lm.numba import block_loops  # Numba is loaded where it is used

    return block_loops


def anchor(device: torch.device) -> Tensor:
    """What autograd starts from where gradients of weights go to their sums: an empty leaf. A new one for each pass: a leaf
    remembers the stream of its first pass, which a recording must not wait for."""
    return torch.empty(0, device=device, requires_grad=True)


def embed(tokens: Tensor, weight: Weight, *, trains: bool) -> Tensor:
    """Rows of `weight`, in at least float32: the start of the residual stream. `[N] -> [N, W]`

    With `trains`, gradients come back to here: of this weight, or on their way to what is trained behind it.

    The stream stays in float32 whatever the precision of the products: rounding it at every sum would make an engine and a
    learner, which sum in different orders, drift apart.
    """
    if trains:
        return cast(Tensor, run(_Embed, anchor(tokens.device), tokens, weight))
    return wide(functional.embedding(tokens, weight.value))


def project(x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
    """`x weight^T + bias`, with the adapters of `weight`. `[N, in] -> [N, out]`"""
    if differentiates(x, weight):
        return cast(Tensor, run(_Project, x, weight, bias))
    given = None if bias is None else bias.value
    if weight.low is not None:
        return weight.product(x, given)
    if x.is_cpu and x.dtype == torch.float32 and x.shape[0] in SKINNY:
        out = torch.mm(weight.value, x.t()).t().contiguous()
        return out if given is None else out.add_(given)
    return functional.linear(x, weight.value, given)


def rms_norm(x: Tensor, weight: Weight, *, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim (Zhang & Sennrich 2019, arXiv:1910.07467). `[..., W]`"""
    if torch.is_grad_enabled():
        return cast(Tensor, run(_Norm, x, None, weight, eps)[1])
    return cast(Tensor, kernels(weight.value).rms_forward(x, None, weight.value, eps)[0])


def add_rms_norm(x: Tensor, delta: Tensor, weight: Weight, *, eps: float) -> tuple[Tensor, Tensor]:
    """`s = x + delta`, and `rms_norm(s)`: the residual stream, as precise as `x`, and what the next part reads, as precise as
    the weight. `[N, W], [N, W] -> 2 x [N, W]`"""
    if torch.is_grad_enabled():
        return cast(tuple[Tensor, Tensor], run(_Norm, x, delta, weight, eps))
    total = torch.empty_like(x)
    return total, kernels(weight.value).rms_forward(x, (delta, total), weight.value, eps)[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), the two halves of a head as pairs. `[N, H, D], 2 x [N, D/2]`"""
    if torch.is_grad_enabled():
        return cast(Tensor, run(_Rotate, x, cos, sin, x.shape[1])[0])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernels(x).rotate(x, cos, sin, out, back=False)
    return out


def rotate_some(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The first `heads` heads rotated, and the others as they are. `[N, H, D] -> [N, heads, D], [N, H - heads, D]`"""
    if torch.is_grad_enabled():
        return cast(tuple[Tensor, Tensor], run(_Rotate, x, cos, sin, heads))
    return rotate(x[:, :heads], cos, sin), x[:, heads:]


def gated_mlp(x: Tensor, gate_up: Weight, down: Weight, *, recompute: bool = False) -> Tensor:
    """`down(silu(gate) * up)`, `[gate, up] = gate_up(x)` (Shazeer 2020, arXiv:2002.05202). `[N, W] -> [N, W]`

    With `recompute`, the backward pass computes the inner states again instead of keeping them.
    """
    if differentiates(x, gate_up, down):
        return cast(Tensor, run(_GatedMlp, x, gate_up, down, recompute))
    return project(swiglu(project(x, gate_up)), down)


def swiglu(x: Tensor) -> Tensor:
    """`silu(gate) * up` of `x = [gate, up]`. `[N, 2 I] -> [N, I]`"""
    return cast(Tensor, kernels(x).swiglu_forward(x))


def _parts(x: Tensor) -> list[slice]:
    """Rows that go through a gated part at a time: on the host, what lies between its products then stays in the cache."""
    return [slice(None)] if x.is_cuda else [slice(i, i + HOST_ROWS) for i in range(0, x.shape[0], HOST_ROWS)]


def differentiates(x: Tensor, *weights: Weight) -> bool:
    """Whether a backward pass will come: to one of the weights, or through them to what lies before."""
    return any(w.trains for w in weights) or (x.requires_grad and torch.is_grad_enabled())


def run(function: Any, *args: Any) -> Any:
    """A differentiable function on its arguments."""
    return function.apply(*args)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor, weight: Weight) -> Tensor:
        ctx.tokens, ctx.weight = tokens, weight
        return wide(functional.embedding(tokens, weight.value))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.weight.sink is not None:
            ctx.weight.sink.index_add_(0, ctx.tokens, grad.to(ctx.weight.sink.dtype))
        return None, None, None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weights = weight, bias
        return weight.product(x, None if bias is None else bias.value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,), (weight, bias) = ctx.saved_tensors, ctx.weights
        grad = grad.contiguous()
        pulled = weight.pulled(grad)
        weight.learn(grad, pulled, x)
        if bias is not None and bias.sink is not None:
            bias.add(grad.sum(dim=0, dtype=bias.sink.dtype))
        return weight.pull(grad, pulled), None, None


class _Norm(torch.autograd.Function):
    """Sum (where there is a `delta`) and its normalised form; the sum is what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Weight, eps: float) -> tuple[Tensor, Tensor]:
        total = x if delta is None else torch.empty_like(x)
        add = None if delta is None else (delta, total)
        out, inverse = kernels(weight.value).rms_forward(x, add, weight.value, eps)
        ctx.save_for_backward(total, inverse)
        ctx.weight, ctx.adds = weight, delta is not None
        if delta is None:
            ctx.mark_non_differentiable(total := x.new_empty(0))
        return total, out

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor, grad: Tensor) -> Any:
        total, inverse = ctx.saved_tensors
        dx, dweight = kernels(grad).rms_backward(grad, dtotal if ctx.adds else None, total, ctx.weight.value, inverse)
        if ctx.weight.sink is not None:
            ctx.weight.add(dweight)
        return dx, dx.to(grad.dtype) if ctx.adds else None, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.shape, ctx.heads = x.shape, heads
        turned = torch.empty((x.shape[0], heads, x.shape[2]), dtype=x.dtype, device=x.device)
        kernels(x).rotate(x[:, :heads], cos, sin, turned, back=False)
        return turned, x[:, heads:].contiguous()

    @staticmethod
    def backward(ctx: Any, dturned: Tensor, drest: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        dx = torch.empty(ctx.shape, dtype=dturned.dtype, device=dturned.device)
        kernels(dturned).rotate(dturned, cos, sin, dx[:, : ctx.heads], back=True)
        dx[:, ctx.heads :] = drest
        return dx, None, None, None


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Weight, down: Weight, recompute: bool) -> Tensor:
        inner, out = x.new_empty((x.shape[0], gate_up.value.shape[0])), torch.empty_like(x)
        for part in _parts(x):
            gate_up.product(x[part], out=inner[part])
            down.product(swiglu(inner[part]), out=out[part])
        ctx.save_for_backward(x, None if recompute else inner)
        ctx.weights = gate_up, down
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x, inner), (gate_up, down) = ctx.saved_tensors, ctx.weights
        grad, dx = grad.contiguous(), torch.empty_like(x)
        for part in _parts(x):
            mine = gate_up.product(x[part]) if inner is None else inner[part]
            pulled = down.pulled(grad[part])
            dinner, out = kernels(grad).swiglu_backward(down.pull(grad[part], pulled), mine)
            down.learn(grad[part], pulled, out)
            del mine, out
            pulled = gate_up.pulled(dinner)
            gate_up.learn(dinner, pulled, x[part])
            gate_up.pull(dinner, pulled, out=dx[part])
        return dx, None, None, None
