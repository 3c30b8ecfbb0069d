"""A weight as the parts of a block use it: its value, the sum of its gradients where it is trained, and low-rank adapters
beside it (Hu et al. 2021, arXiv:2106.09685).

`x W^T + scale * (x A^T) B^T` is computed here and nowhere else: an engine and a learner that hold the same numbers say the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional


def is_half(x: Tensor) -> bool:
    """Whether `x` is in half precision: what flash attention takes, and products with float32 sums."""
    return x.dtype in (torch.bfloat16, torch.float16)


@dataclass(eq=False)
class Weight:
    """A weight, and where it is trained the sum of its gradients (`sink`, at least float32), or adapters beside it (`low`)."""

    value: Tensor
    sink: Tensor | None = None
    low: LowRank | None = None

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and (self.sink is not None or (self.low is not None and self.low.down.trains))

    def product(self, x: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """`x value^T + bias`, and what the adapters add. `[N, in] -> [N, out]`"""
        if self.low is None:
            return functional.linear(x, self.value, bias) if out is None else torch.mm(x, self.value.t(), out=out)
        # the small sum first: what is rounded to half precision in between is small beside the result
        made = x.new_empty((x.shape[0], self.value.shape[0])) if out is None else out
        return self.low.put(x, made, bias).addmm_(x, self.value.t())

    def scores(self, x: Tensor) -> Tensor:
        """`product` in float32, also of half precision: what a distribution is made of. `[N, in] -> [N, out]`"""
        if not x.is_cuda or not is_half(x):
            return self.product(x).float()
        out = torch.mm(x, self.value.t(), out_dtype=torch.float32)
        if self.low is not None:
            inner = self.low.inner(x)
            for up in self.low.ups:
                out[:, up.rows] += torch.mm(inner[:, up.ranks], up.weight.value.t(), out_dtype=torch.float32)
        return out

    def pulled(self, grad: Tensor) -> Tensor | None:
        """What `pull` and `learn` both need of the adapters: the gradient of `x A^T`. It reads all of `grad`, so it is made
        once. `[N, out] -> [N, R]`"""
        return None if self.low is None else self.low.pulled(grad)

    def pull(self, grad: Tensor, pulled: Tensor | None, *, out: Tensor | None = None) -> Tensor:
        """The gradient of what was multiplied. `[N, out] -> [N, in]`"""
        found = torch.mm(grad, self.value, out=out)
        return found if self.low is None or pulled is None else found.addmm_(pulled, self.low.down.value)

    def learn(self, grad: Tensor, pulled: Tensor | None, x: Tensor) -> None:
        """Add to the sums of gradients of what is trained. `[N, out], [N, in]`"""
        if self.sink is not None:
            self.add_product(grad, x)
        if self.low is not None and pulled is not None and self.low.down.sink is not None:
            self.low.learn(grad, pulled, x)

    def add(self, grad: Tensor) -> None:
        """Add to the sum of gradients."""
        assert self.sink is not None
        self.sink.add_(grad.view(self.sink.shape))

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """Add `a^T b`, summed in float32. `[N, out], [N, in]`"""
        assert self.sink is not None
        if a.dtype == self.sink.dtype:
            self.sink.addmm_(a.t(), b)
        elif a.is_cuda:
            torch.addmm(self.sink, a.t(), b, out_dtype=torch.float32, out=self.sink)
        else:
            self.sink.add_(torch.mm(a.t(), b))


@dataclass(eq=False)
class Up:
    """`B` `[rows, ranks]` of one adapter: which rows of the matrix it is beside, and which ranks are its own."""

    weight: Weight
    rows: slice
    ranks: slice


@dataclass(eq=False)
class LowRank:
    """Adapters beside one matrix, or beside neighbours that are multiplied as one: `A` of all lie one after the other."""

    down: Weight
    ups: tuple[Up, ...]
    scale: float
    joint: Tensor | None = None
    """`B` of all in one matrix `[out, R]`, with zeros between them, for whoever launches one kernel rather than several (an
    engine that decodes a few rows). It is a copy: `renew` brings it up to date."""

    def join(self, num_rows: int) -> None:
        """Multiply by one matrix for all of the `num_rows` rows from now on."""
        only = self.ups[0].weight.value
        if len(self.ups) == 1 and only.shape[0] == num_rows:
            self.joint = only
            return
        self.joint = only.new_zeros((num_rows, self.down.value.shape[0]))
        self.renew()

    def renew(self) -> None:
        """After the adapters have changed where they lie."""
        if self.joint is not None and self.joint is not self.ups[0].weight.value:
            for up in self.ups:
                self.joint[up.rows, up.ranks] = up.weight.value

    def each(self, change: Callable[[Weight], Weight]) -> LowRank:
        """The same adapters with `change` applied to every weight."""
        ups = tuple(replace(up, weight=change(up.weight)) for up in self.ups)
        return LowRank(change(self.down), ups, self.scale)

    def inner(self, x: Tensor) -> Tensor:
        """`scale * x A^T`. `[N, in] -> [N, R]`"""
        a = self.down.value
        return x.new_empty((x.shape[0], a.shape[0])).addmm_(x, a.t(), beta=0, alpha=self.scale)

    def put(self, x: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """`out = scale * x A^T B^T + bias`; rows without an adapter get the bias, or 0. `[N, in], [N, out]`"""
        inner = self.inner(x)
        if self.joint is not None:
            by = self.joint.t()
            return torch.mm(inner, by, out=out) if bias is None else torch.addmm(bias, inner, by, out=out)
        covered = sum(up.rows.stop - up.rows.start for up in self.ups)
        whole = bias is None and covered == out.shape[1]
        if bias is not None:
            out.copy_(bias)
        elif not whole:
            out.zero_()
        for up in self.ups:
            out[:, up.rows].addmm_(inner[:, up.ranks], up.weight.value.t(), beta=0 if whole else 1)
        return out

    def pulled(self, grad: Tensor) -> Tensor:
        """The gradient of `x A^T`. `[N, out] -> [N, R]`"""
        out = grad.new_empty((grad.shape[0], self.down.value.shape[0]))
        for up in self.ups:
            out[:, up.ranks].addmm_(grad[:, up.rows], up.weight.value, beta=0, alpha=self.scale)
        return out

    def learn(self, grad: Tensor, pulled: Tensor, x: Tensor) -> None:
        """Add to the sums of gradients; `pulled` is that of `x A^T`. `[N, out], [N, R], [N, in]`"""
        self.down.add_product(pulled, x)
        inner = self.inner(x)
        for up in self.ups:
            up.weight.add_product(grad[:, up.rows], inner[:, up.ranks])
