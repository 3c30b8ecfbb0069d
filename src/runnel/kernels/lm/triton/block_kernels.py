# mypy: ignore-errors
"""Triton kernels behind `llm/model/blocks.py`: rows of a residual stream, one program a row (or a part of one)."""

import torch

from runnel.kernels.lm.triton import tl, triton


# ------------------------------------------------------------------------------------------------------- normalisation
@triton.jit
def _rms_forward(X, DELTA, TOTAL, WEIGHT, OUT, INVERSE, stride, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    x = tl.load(X + row * stride + cols, mask=keep, other=0.0)
    if ADD:
        x = (x.to(tl.float32) + tl.load(DELTA + row * width + cols, mask=keep, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(TOTAL + row * width + cols, x, mask=keep)
    y = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(y * y) / width + eps)
    weight = tl.load(WEIGHT + cols, mask=keep, other=0.0).to(tl.float32)
    tl.store(OUT + row * width + cols, (weight * y * inverse).to(OUT.dtype.element_ty), mask=keep)
    tl.store(INVERSE + row, inverse)


@triton.jit
def _rms_backward(GRAD, DTOTAL, X, WEIGHT, INVERSE, DX, DWEIGHT, rows, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    weight = tl.load(WEIGHT + cols, mask=keep, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        at = row.to(tl.int64) * width + cols
        grad = tl.load(GRAD + at, mask=keep, other=0.0).to(tl.float32)
        inverse = tl.load(INVERSE + row)
        unit = tl.load(X + at, mask=keep, other=0.0).to(tl.float32) * inverse
        dweight += grad * unit
        grad = grad * weight
        dx = inverse * (grad - unit * (tl.sum(grad * unit) / width))
        if ADD:
            dx += tl.load(DTOTAL + at, mask=keep, other=0.0).to(tl.float32)
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=keep)
    tl.store(DWEIGHT + program * width + cols, dweight, mask=keep)


def rms_forward(x, add, weight, eps):
    """`add` is (delta, where the sum goes) or None. Returns the normalised rows and the inverse of each row's size."""
    width = x.shape[-1]
    rows = x.numel() // width
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
    delta, total = add or (x, x)
    block = triton.next_power_of_2(width)
    grid, stride = (rows,), x.stride(-2) if x.dim() > 1 else width
    warps = 8 if block >= 4096 else 4 if block >= 512 else 1
    _rms_forward[grid](
        x, delta, total, weight, out, inverse, stride, width, eps, ADD=add is not None, BLOCK=block, num_warps=warps
    )
    return out, inverse


def rms_backward(grad, dtotal, x, weight, inverse):
    """Gradients of the rows and of the weight (summed in float32)."""
    width = x.shape[-1]
    rows = x.numel() // width
    programs = min(rows, 1056)
    grad, x = grad.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    dweight = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    warps = 8 if block >= 4096 else 4
    total = x if dtotal is None else dtotal.contiguous()
    _rms_backward[(programs,)](
        grad, total, x, weight, inverse, dx, dweight, rows, width, ADD=dtotal is not None, BLOCK=block, num_warps=warps
    )
    return dx, dweight.sum(dim=0)


# ------------------------------------------------------------------------------------------------------------ rotation
@triton.jit
def _rotate(X, COS, SIN, OUT, x_row, x_head, out_row, out_head, heads, half, sign, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    keep = (head < heads) & (cols < half)
    cos = tl.load(COS + row * half + cols, mask=cols < half, other=0.0)
    sin = tl.load(SIN + row * half + cols, mask=cols < half, other=0.0) * sign
    at = row * x_row + head * x_head + cols
    a = tl.load(X + at, mask=keep, other=0.0).to(tl.float32)
    b = tl.load(X + at + half, mask=keep, other=0.0).to(tl.float32)
    to = row * out_row + head * out_head + cols
    kind = OUT.dtype.element_ty
    tl.store(OUT + to, (a * cos - b * sin).to(kind), mask=keep)
    tl.store(OUT + to + half, (b * cos + a * sin).to(kind), mask=keep)


def rotate(x, cos, sin, out, *, back):
    """`x [N, H, D]` turned by its positions, or back, into `out`; rows and heads of both may have any stride."""
    rows, heads, size = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    block_h, half = min(triton.next_power_of_2(heads), 16), size // 2
    grid, sign = (rows, triton.cdiv(heads, block_h)), -1.0 if back else 1.0
    strides = (x.stride(0), x.stride(1), out.stride(0), out.stride(1))
    block = triton.next_power_of_2(half)
    _rotate[grid](x, cos, sin, out, *strides, heads, half, sign, BLOCK_H=block_h, BLOCK=block, num_warps=2)


# --------------------------------------------------------------------------------------------------------- gated units
@triton.jit
def _swiglu_forward(X, OUT, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < inner
    gate = tl.load(X + row * 2 * inner + cols, mask=keep, other=0.0)
    up = tl.load(X + row * 2 * inner + inner + cols, mask=keep, other=0.0)
    g = gate.to(tl.float32)
    tl.store(OUT + row * inner + cols, (g * tl.sigmoid(g) * up.to(tl.float32)).to(gate.dtype), mask=keep)


@triton.jit
def _swiglu_backward(GRAD, X, DX, OUT, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < inner
    at = row * 2 * inner + cols
    grad = tl.load(GRAD + row * inner + cols, mask=keep, other=0.0).to(tl.float32)
    gate = tl.load(X + at, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(X + at + inner, mask=keep, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    kind = DX.dtype.element_ty
    tl.store(OUT + row * inner + cols, (gate * s * up).to(kind), mask=keep)
    tl.store(DX + at, (grad * up * s * (1.0 + gate * (1.0 - s))).to(kind), mask=keep)
    tl.store(DX + at + inner, (grad * gate * s).to(kind), mask=keep)


def swiglu_forward(x):
    """`silu(gate) * up`."""
    inner = x.shape[-1] // 2
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], inner), dtype=x.dtype, device=x.device)
    _swiglu_forward[(x.numel() // (2 * inner), triton.cdiv(inner, 1024))](x, out, inner, BLOCK=1024, num_warps=4)
    return out


def swiglu_backward(grad, x):
    """The gradient of gate and up, and `silu(gate) * up` once more."""
    inner = x.shape[-1] // 2
    grad, x = grad.contiguous(), x.contiguous()
    dx, out = torch.empty_like(x), torch.empty_like(grad)
    _swiglu_backward[(x.numel() // (2 * inner), triton.cdiv(inner, 1024))](grad, x, dx, out, inner, BLOCK=1024, num_warps=4)
    return dx, out
