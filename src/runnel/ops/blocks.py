"""The small parts of a transformer block: normalisation, rotary positions, gated units. One definition for learner and engine.

On CUDA each is one Triton kernel, forward and backward (`block_kernels.py`): a block of plain torch operations spends more time
on launches and memory than on its products. Elsewhere they are plain torch. Sums are taken in float32 in both.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from runnel.ops import block_kernels

kernels: Any = block_kernels


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim (Zhang & Sennrich 2019, arXiv:1910.07467). `[N, W] -> [N, W]`"""
    if x.is_cuda:
        return cast(Tensor, run(_RmsNorm, x, weight, eps))
    y = x.float()
    return weight * (y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """`s = x + delta`, and `rms_norm(s)`: the residual stream and what the next part reads. `[N, W], [N, W] -> 2 x [N, W]`"""
    if x.is_cuda:
        return cast(tuple[Tensor, Tensor], run(_AddRmsNorm, x, delta, weight, eps))
    total = x + delta
    return total, rms_norm(total, weight, eps=eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), the two halves of a head as pairs. `[N, H, D], 2 x [N, D/2]`"""
    if x.is_cuda:
        return cast(Tensor, run(_Rotate, x, cos, sin))
    a, b = x.chunk(2, dim=-1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


def swiglu(x: Tensor) -> Tensor:
    """`silu(gate) * up` of `x = [gate, up]` (Shazeer 2020, arXiv:2002.05202). `[N, 2 I] -> [N, I]`"""
    if x.is_cuda:
        return cast(Tensor, run(_SwiGlu, x))
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def run(function: Any, *args: Any) -> Any:
    """A differentiable function on its arguments."""
    return function.apply(*args)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Any:
        out, inverse = kernels.rms_forward(x, None, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        dx, dweight = kernels.rms_backward(grad, None, x, weight, inverse)
        return dx, dweight, None


class _AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = torch.empty_like(x)
        out, inverse = kernels.rms_forward(x, (delta, total), weight, eps)
        ctx.save_for_backward(total, weight, inverse)
        return total, out

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        total, weight, inverse = ctx.saved_tensors
        dx, dweight = kernels.rms_backward(grad, dtotal, total, weight, inverse)
        return dx, dx, dweight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        ctx.save_for_backward(cos, sin)
        return kernels.rotate(x, cos, sin, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return kernels.rotate(grad, cos, sin, back=True), None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return kernels.swiglu_forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return kernels.swiglu_backward(grad, x)
