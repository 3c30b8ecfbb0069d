"""The small parts of a block in plain torch, for where neither the CUDA kernels (`kernels/lm`: `block_kernels.py`) nor the
compiled loops (`block_loops.py`) can run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def wide(x: Tensor) -> Tensor:
    """`x` in at least float32: sums of half-precision numbers are not taken in half precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms_forward(x: Tensor, add: tuple[Tensor, Tensor] | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`add` is (delta, output tensor of the sum) or None. Returns the normalised rows, and `1 / rms` of each row."""
    if add is not None:
        x = torch.add(x, add[0], out=add[1])
    y = wide(x)
    inverse = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (y * inverse).mul_(weight).to(weight.dtype), inverse


def rms_backward(grad: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of the weight. `dtotal` is the gradient that reaches the rows past the norm, or None."""
    unit, g = wide(x) * inverse, wide(grad)
    dweight = (g * unit).flatten(0, -2).sum(dim=0)
    g = g * weight
    dx = g.addcmul_(unit, (g * unit).mean(dim=-1, keepdim=True), value=-1.0).mul_(inverse)
    return (dx if dtotal is None else dx.add_(dtotal)).to(x.dtype), dweight


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *, back: bool) -> None:
    """Rotate `x [N, H, D]` by the angles of its positions (with `back` by their negatives), into `out`."""
    a, b = wide(x).chunk(2, dim=-1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    sign, half = -1.0 if back else 1.0, x.shape[-1] // 2
    out[..., :half] = (a * c).addcmul_(b, s, value=-sign)
    out[..., half:] = (b * c).addcmul_(a, s, value=sign)


def swiglu_forward(x: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def swiglu_backward(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of gate and up, and `silu(gate) * up` again, which the gradient of the next weight needs."""
    gate, up = x.chunk(2, dim=-1)
    half, dx = gate.shape[-1], torch.empty_like(x)
    active = silu(gate)
    torch.mul(grad, active, out=dx[..., half:])
    dx[..., :half] = torch.ops.aten.silu_backward(grad * up, gate)
    return dx, active.mul_(up)
