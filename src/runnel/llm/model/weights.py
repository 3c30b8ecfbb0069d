"""A weight as the blocks of a model use it: its value, the sum of its gradients if it is trained, and its low-rank adapters
(Hu et al. 2021, arXiv:2106.09685).

`x W^T + scale * (x A^T) B^T` is computed only here, so that an engine and a learner with the same weights agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


def is_half(x: Tensor) -> bool:
    """Whether `x` is in half precision, as flash attention and products with float32 sums need it."""
    return x.dtype in (torch.bfloat16, torch.float16)


@dataclass(eq=False)
class Weight:
    """A weight; if it is trained, the sum of its gradients (`grad_sum`, at least float32); its adapters, if any (`low`)."""

    value: Tensor
    grad_sum: Tensor | None = None
    low: LowRank | None = None

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and (self.grad_sum is not None or (self.low is not None and self.low.down.trains))

    def product(self, x: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """`x value^T + bias`, plus the product of the adapters. `[N, in] -> [N, out]`"""
        if self.low is None:
            return functional.linear(x, self.value, bias) if out is None else torch.mm(x, self.value.t(), out=out)
        # adapters first: in half precision their product is rounded once more, and it is small beside the result
        made = x.new_empty((x.shape[0], self.value.shape[0])) if out is None else out
        return self.low.product_into(x, made, bias).addmm_(x, self.value.t())

    def scores(self, x: Tensor) -> Tensor:
        """`product` in float32 even for half-precision inputs, for logits. `[N, in] -> [N, out]`"""
        if not x.is_cuda or not is_half(x):
            return self.product(x).float()
        out = torch.mm(x, self.value.t(), out_dtype=torch.float32)
        if self.low is not None:
            inner = self.low.inner(x)
            for up in self.low.ups:
                out[:, up.rows] += torch.mm(inner[:, up.ranks], up.weight.value.t(), out_dtype=torch.float32)
        return out

    def inner_grad(self, grad: Tensor) -> Tensor | None:
        """The gradient of the adapters' `x A^T`; None without adapters. `[N, out] -> [N, R]`

        It is a step of its own because `input_grad` and `add_grads` both need it, and it reads all of `grad`.
        """
        return None if self.low is None else self.low.inner_grad(grad)

    def input_grad(self, grad: Tensor, inner_grad: Tensor | None, *, out: Tensor | None = None) -> Tensor:
        """The gradient of the input `x`. `[N, out] -> [N, in]`"""
        found = torch.mm(grad, self.value, out=out)
        return found if self.low is None or inner_grad is None else found.addmm_(inner_grad, self.low.down.value)

    def add_grads(self, grad: Tensor, inner_grad: Tensor | None, x: Tensor) -> None:
        """Add to the sums of gradients of the weight and the adapters, if they are trained. `[N, out], [N, in]`"""
        if self.grad_sum is not None:
            self.add_product(grad, x)
        if self.low is not None and inner_grad is not None and self.low.down.grad_sum is not None:
            self.low.add_grads(grad, inner_grad, x)

    def add(self, grad: Tensor) -> None:
        """Add `grad` to the sum of gradients."""
        assert self.grad_sum is not None
        self.grad_sum.add_(grad.view(self.grad_sum.shape))

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """Add `a^T b` to the sum of gradients, in float32. `[N, out], [N, in]`"""
        assert self.grad_sum is not None
        if a.dtype == self.grad_sum.dtype:
            self.grad_sum.addmm_(a.t(), b)
        elif a.is_cuda:
            torch.addmm(self.grad_sum, a.t(), b, out_dtype=torch.float32, out=self.grad_sum)
        else:
            self.grad_sum.add_(torch.mm(a.t(), b))


@dataclass(eq=False)
class Up:
    """Matrix `B` of one adapter. `rows` are its rows of the joined weight, `ranks` its columns of the joined `x A^T`."""

    weight: Weight
    rows: slice
    ranks: slice


@dataclass(eq=False)
class LowRank:
    """The adapters of one matrix, or of several that are multiplied as one. `down` holds `A` of all, one after the other."""

    down: Weight
    ups: tuple[Up, ...]
    scale: float
    joint: Tensor | None = None
    """`B` of all in one block-diagonal matrix `[out, R]`: an engine that decodes a few rows then launches one kernel instead of
    several. It is a copy, which `join` makes and updates."""

    def join(self, num_rows: int) -> None:
        """Use one joined matrix for all `num_rows` rows from now on; call it again after values have changed in place."""
        first = self.ups[0].weight.value
        if len(self.ups) == 1 and first.shape[0] == num_rows:
            self.joint = first  # nothing to join, so no copy
            return
        if self.joint is None:
            self.joint = first.new_zeros((num_rows, self.down.value.shape[0]))
        for up in self.ups:
            self.joint[up.rows, up.ranks] = up.weight.value

    def inner(self, x: Tensor) -> Tensor:
        """`scale * x A^T`. `[N, in] -> [N, R]`"""
        a = self.down.value
        # beta=0 ignores the uninitialised output, and alpha scales inside the product: one kernel instead of two
        return x.new_empty((x.shape[0], a.shape[0])).addmm_(x, a.t(), beta=0, alpha=self.scale)

    def product_into(self, x: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """`out = scale * x A^T B^T + bias`; columns without an adapter get the bias, or 0. `[N, in], [N, out]`"""
        inner = self.inner(x)
        if self.joint is not None:
            joint = self.joint.t()
            return torch.mm(inner, joint, out=out) if bias is None else torch.addmm(bias, inner, joint, out=out)
        covered = sum(up.rows.stop - up.rows.start for up in self.ups)
        overwrites = bias is None and covered == out.shape[1]  # every column is written below, so none needs a first value
        if bias is not None:
            out.copy_(bias)
        elif not overwrites:
            out.zero_()
        for up in self.ups:
            out[:, up.rows].addmm_(inner[:, up.ranks], up.weight.value.t(), beta=0 if overwrites else 1)
        return out

    def inner_grad(self, grad: Tensor) -> Tensor:
        """The gradient of `x A^T`. `[N, out] -> [N, R]`"""
        out = grad.new_empty((grad.shape[0], self.down.value.shape[0]))
        for up in self.ups:
            out[:, up.ranks].addmm_(grad[:, up.rows], up.weight.value, beta=0, alpha=self.scale)
        return out

    def add_grads(self, grad: Tensor, inner_grad: Tensor, x: Tensor) -> None:
        """Add to the sums of gradients of `A` and `B`; `inner_grad` is the gradient of `x A^T`. `[N, out], [N, R], [N, in]`"""
        self.down.add_product(inner_grad, x)
        inner = self.inner(x)
        for up in self.ups:
            up.weight.add_product(grad[:, up.rows], inner[:, up.ranks])
