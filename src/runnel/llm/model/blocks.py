"""The parts of a transformer block: embedding, projections, normalisation, rotary positions, gated units. One definition for
learner and engine.

Each small part is one kernel on CUDA, or one compiled loop on the CPU in float32 (`kernels/lm`: `block_kernels.py`,
`block_loops.py`): in plain torch a block would spend more time on launches and memory than on its products. In all other cases
it is a few torch operations (`cpu_blocks.py`). Backward passes are written out here, so that gradients of weights are added
straight to float32 sums, whatever the precision of the products.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from runnel.kernels.lm.numba.loops import loops
from runnel.kernels.lm.triton import block_kernels
from runnel.llm.model import cpu_blocks
from runnel.llm.model.cpu_blocks import wide
from runnel.llm.model.weights import Weight

HOST_ROWS = 512
"""Rows that go through a gated unit at a time on the CPU."""
SKINNY = range(16, 64)
"""Numbers of rows for which MKL multiplies `weight x^T` twice as fast as `x weight^T` (2 cores with AVX-512)."""
Context = Any
"""The object that autograd passes from `forward` to `backward`. It accepts any attribute, so it has no narrower type."""


def kernels(x: Tensor) -> ModuleType:
    """The module that holds the small parts for the device and the precision of `x`."""
    if x.is_cuda:
        return block_kernels
    if not loops(x):
        return cpu_blocks
    from runnel.kernels.lm.numba import block_loops  # not at the top: Numba is optional and slow to load

    return block_loops


def anchor(device: torch.device) -> Tensor:
    """An empty leaf tensor that makes autograd call `backward` although no weight is an autograd leaf itself.

    Each pass needs a new one: a leaf remembers the CUDA stream of its first pass, and a CUDA graph that is being captured must
    not wait for another stream.
    """
    return torch.empty(0, device=device, requires_grad=True)


def embed(tokens: Tensor, weight: Weight, *, trains: bool) -> Tensor:
    """Rows of `weight` in at least float32: the start of the residual stream. `[N] -> [N, W]`

    With `trains` the pass is differentiated, because this weight is trained or a later one is.

    The residual stream stays in float32 whatever the precision of the products. An engine and a learner sum in different
    orders; if the stream were rounded at every sum, their results would drift apart.
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
    if x.is_cpu and x.dtype == torch.float32 and x.shape[0] in SKINNY:  # the transposed product is faster: see SKINNY
        out = torch.mm(weight.value, x.t()).t().contiguous()
        return out if given is None else out.add_(given)
    return functional.linear(x, weight.value, given)


def rms_norm(x: Tensor, weight: Weight, *, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim (Zhang & Sennrich 2019, arXiv:1910.07467). `[..., W]`"""
    if torch.is_grad_enabled():
        return cast(Tensor, run(_Norm, x, None, weight, eps)[1])
    return cast(Tensor, kernels(weight.value).rms_forward(x, None, weight.value, eps)[0])


def add_rms_norm(x: Tensor, delta: Tensor, weight: Weight, *, eps: float) -> tuple[Tensor, Tensor]:
    """`s = x + delta` and `rms_norm(s)`. The sum (the residual stream) has the dtype of `x`, the normalised form that of the
    weight. `[N, W], [N, W] -> 2 x [N, W]`"""
    if torch.is_grad_enabled():
        return cast(tuple[Tensor, Tensor], run(_Norm, x, delta, weight, eps))
    total = torch.empty_like(x)
    return total, kernels(weight.value).rms_forward(x, (delta, total), weight.value, eps)[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The first `heads` heads with rotary positions (Su et al. 2021, arXiv:2104.09864), the two halves of a head as pairs; and
    the other heads unchanged. `[N, H, D], 2 x [N, D/2] -> [N, heads, D], [N, H - heads, D]`"""
    if torch.is_grad_enabled():
        return cast(tuple[Tensor, Tensor], run(_Rotate, x, cos, sin, heads))
    out = torch.empty((x.shape[0], heads, x.shape[2]), dtype=x.dtype, device=x.device)
    kernels(x).rotate(x[:, :heads], cos, sin, out, back=False)
    return out, x[:, heads:]


def gated_mlp(x: Tensor, gate_up: Weight, down: Weight, *, recompute: bool = False) -> Tensor:
    """`down(silu(gate) * up)`, `[gate, up] = gate_up(x)` (Shazeer 2020, arXiv:2002.05202). `[N, W] -> [N, W]`

    With `recompute` the backward pass computes the inner states again, so they are not stored.
    """
    if differentiates(x, gate_up, down):
        return cast(Tensor, run(_GatedMlp, x, gate_up, down, recompute))
    return project(swiglu(project(x, gate_up)), down)


def swiglu(x: Tensor) -> Tensor:
    """`silu(gate) * up` of `x = [gate, up]`. `[N, 2 I] -> [N, I]`"""
    return cast(Tensor, kernels(x).swiglu_forward(x))


def _row_chunks(x: Tensor) -> list[slice]:
    """Rows that go through a gated unit at a time. On the CPU these are few, so that inner states stay in the processor's
    cache."""
    return [slice(None)] if x.is_cuda else [slice(i, i + HOST_ROWS) for i in range(0, x.shape[0], HOST_ROWS)]


def differentiates(x: Tensor, *weights: Weight) -> bool:
    """Whether a backward pass will come: for one of the weights, or for `x`."""
    return any(w.trains for w in weights) or (x.requires_grad and torch.is_grad_enabled())


def run(function: Any, *args: object) -> Any:
    """Apply a `torch.autograd.Function`, whose `apply` has no types."""
    return function.apply(*args)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, anchor: Tensor, tokens: Tensor, weight: Weight) -> Tensor:
        ctx.tokens, ctx.weight = tokens, weight
        return wide(functional.embedding(tokens, weight.value))

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.weight.grad_sum is not None:
            ctx.weight.grad_sum.index_add_(0, ctx.tokens, grad.to(ctx.weight.grad_sum.dtype))
        return None, None, None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weights = weight, bias
        return weight.product(x, None if bias is None else bias.value)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (weight, bias) = ctx.saved_tensors, ctx.weights
        grad = grad.contiguous()
        inner_grad = weight.inner_grad(grad)
        weight.add_grads(grad, inner_grad, x)
        if bias is not None and bias.grad_sum is not None:
            bias.add(grad.sum(dim=0, dtype=bias.grad_sum.dtype))
        return weight.input_grad(grad, inner_grad), None, None


class _Norm(torch.autograd.Function):
    """`x + delta` (or `x` alone) and its normalised form. The sum is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, delta: Tensor | None, weight: Weight, eps: float) -> tuple[Tensor, Tensor]:
        total = x if delta is None else torch.empty_like(x)
        add = None if delta is None else (delta, total)
        out, inverse = kernels(weight.value).rms_forward(x, add, weight.value, eps)
        ctx.save_for_backward(total, inverse)
        ctx.weight, ctx.adds = weight, delta is not None
        if delta is None:
            ctx.mark_non_differentiable(total := x.new_empty(0))  # a function must not return its own input as a new tensor
        return total, out

    @staticmethod
    def backward(ctx: Context, dtotal: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        total, inverse = ctx.saved_tensors
        # with a delta, `total` goes on as the residual stream, so its own gradient is added in the kernel
        dx, dweight = kernels(grad).rms_backward(grad, dtotal if ctx.adds else None, total, ctx.weight.value, inverse)
        if ctx.weight.grad_sum is not None:
            ctx.weight.add(dweight)
        return dx, dx.to(grad.dtype) if ctx.adds else None, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.shape, ctx.heads = x.shape, heads
        turned = torch.empty((x.shape[0], heads, x.shape[2]), dtype=x.dtype, device=x.device)
        kernels(x).rotate(x[:, :heads], cos, sin, turned, back=False)
        return turned, x[:, heads:].contiguous()

    @staticmethod
    def backward(ctx: Context, dturned: Tensor, drest: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        dx = torch.empty(ctx.shape, dtype=dturned.dtype, device=dturned.device)
        kernels(dturned).rotate(dturned, cos, sin, dx[:, : ctx.heads], back=True)
        dx[:, ctx.heads :] = drest
        return dx, None, None, None


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, gate_up: Weight, down: Weight, recompute: bool) -> Tensor:
        inner, out = x.new_empty((x.shape[0], gate_up.value.shape[0])), torch.empty_like(x)
        for rows in _row_chunks(x):
            gate_up.product(x[rows], out=inner[rows])
            down.product(swiglu(inner[rows]), out=out[rows])
        ctx.save_for_backward(x, None if recompute else inner)
        ctx.weights = gate_up, down
        return out

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, inner), (gate_up, down) = ctx.saved_tensors, ctx.weights
        grad, dx = grad.contiguous(), torch.empty_like(x)
        for rows in _row_chunks(x):
            mine = gate_up.product(x[rows]) if inner is None else inner[rows]
            inner_grad = down.inner_grad(grad[rows])
            dinner, out = kernels(grad).swiglu_backward(down.input_grad(grad[rows], inner_grad), mine)
            down.add_grads(grad[rows], inner_grad, out)
            del mine, out  # frees memory before the next product needs some
            inner_grad = gate_up.inner_grad(dinner)
            gate_up.add_grads(dinner, inner_grad, x[rows])
            gate_up.input_grad(dinner, inner_grad, out=dx[rows])
        return dx, None, None, None
