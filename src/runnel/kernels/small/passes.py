"""Forward and backward passes of a perceptron, with gradients by hand and in memory that is allocated once.

A learner from replay makes the same few passes at every update, so their memory is kept. Nothing is allocated, activations are
still in the cache when the backward pass reads them, gradients go directly into one flat vector, and no graph is built. Views
are made once, because on the CPU a view costs half as much as a small product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runnel.nets.layers import MLP


class GradientPasses:
    """Forward and backward passes of `mlp`. A backward pass uses the activations of the last forward pass.

    The first pass looks up the weights, so they must have their final address by then (make the optimiser first).
    """

    def __init__(self, mlp: MLP) -> None:
        self._mlp = mlp
        self._weights: list[Tensor] = []
        self._layouts: dict[tuple[int, int], _Layout] = {}

    @staticmethod
    def fit(mlp: MLP) -> bool:
        """Whether these passes can run `mlp`: hidden layers of relu or tanh, and outputs of one width."""
        return mlp.activation in ("relu", "tanh") and not mlp.heads and len(mlp.weight) > 1

    def forward(self, x: Tensor, *, copies: int = 0) -> Tensor:
        """`[N, I] -> [S, N, O]` by the first `copies` networks of the stack (0: all; a single network is a stack of one)."""
        at = self._at = self._layouts.get((len(x), copies)) or self._lay_out(len(x), copies)
        relu = self._mlp.activation == "relu"
        self._input = x = x.expand(len(at.last), *x.shape)
        for weight, bias, out in at.hidden:
            x = torch.bmm(x, weight, out=out).add_(bias)
            x = x.relu_() if relu else x.tanh_()
        for above, weight, bias, out in at.columns:
            torch.addmv(bias, above, weight, out=out)
        return at.last if at.columns else torch.bmm(x, at.weights[-1], out=at.last).add_(at.biases[-1])

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of all parameters from that of the output, flat and in the order of `parameters()`. `[S, n, O] -> [P]`

        `grad` may be for the last n rows of the forward pass only.
        """
        back = self._at.backward(grad.shape[1])
        for i in range(len(back.after), -1, -1):
            x = back.after[i - 1] if i else self._input[:, -grad.shape[1] :]
            if grad.shape[2] == 1:  # on the CPU a product with one column takes 4 to 7 times as long as its transpose
                torch.bmm(grad.mT, x, out=self._to_weights[i].mT)
            else:
                torch.bmm(x.mT, grad, out=self._to_weights[i])
            torch.bmm(back.ones, grad, out=self._to_biases[i])
            if i:
                grad = self._below(i, grad, back)
        return self._flat

    def to_input(self, grad: Tensor, size: int) -> Tensor:
        """The gradient of the last `size` inputs, without that of the weights. `[S, N, O] -> [N, size]`"""
        back = self._at.backward(grad.shape[1])
        for i in range(len(back.after), 0, -1):
            grad = self._below(i, grad, back)
        return torch.bmm(self._at.weights[0][:, -size:], grad.mT).sum(0).mT

    def _below(self, i: int, grad: Tensor, back: _Backward) -> Tensor:
        """From the gradient at layer i's output before its nonlinearity to the same of layer i - 1."""
        after, below = back.after[i - 1], back.deltas[i - 1]
        (torch.mul if grad.shape[2] == 1 else torch.bmm)(grad, self._at.turned[i], out=below)
        if self._mlp.activation == "relu":
            torch.ops.aten.threshold_backward.grad_input(below, after, 0.0, grad_input=below)
        else:
            torch.ops.aten.tanh_backward.grad_input(below, after, grad_input=below)
        return below

    def _lay_out(self, num_rows: int, copies: int) -> _Layout:
        if not self._weights:
            self._find()
        weights, biases = ([p[: copies or None] for p in kind] for kind in (self._weights, self._biases))
        return self._layouts.setdefault((num_rows, copies), _Layout(weights, biases, num_rows))

    def _find(self) -> None:
        """Look up weights `[S, I, O]` and biases `[S, 1, O]`, and make memory for their gradients."""
        parameters = [p.detach() for p in self._mlp.parameters()]
        sizes = [p.numel() for p in parameters]
        self._flat = torch.empty(sum(sizes), dtype=parameters[0].dtype)
        grads = [g.view_as(p) for g, p in zip(torch.split(self._flat, sizes), parameters, strict=True)]
        num = len(parameters) // 2
        self._weights, self._to_weights = ([_stacked(p) for p in kind[:num]] for kind in (parameters, grads))
        self._biases, self._to_biases = ([_stacked(p) for p in kind[num:]] for kind in (parameters, grads))


class _Layout:
    """Views of weights and memory of outputs, for passes over `num_rows` rows."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], num_rows: int) -> None:
        self.weights, self.biases, self.turned = weights, biases, [w.mT for w in weights]
        *self.after, self.last = (w.new_empty(len(w), num_rows, w.shape[2]) for w in weights)
        self.hidden = list(zip(weights[:-1], biases[:-1], self.after, strict=True))
        self.columns: list[tuple[Tensor, ...]] = []
        if self.last.shape[2] == 1:  # `addmv` takes a third of the time of a product with one column
            vectors = (x.flatten(1).unbind(0) for x in (weights[-1], biases[-1], self.last))
            self.columns = list(zip(self.after[-1].unbind(0), *vectors, strict=True))
        self._backward: dict[int, _Backward] = {}

    def backward(self, num_rows: int) -> _Backward:
        """The memory of a backward pass over the last `num_rows` rows, made at first use."""
        if num_rows not in self._backward:
            self._backward[num_rows] = _Backward([x[:, -num_rows:] for x in self.after])
        return self._backward[num_rows]


class _Backward:
    """Memory of a backward pass through hidden layers that gave `after` `[S, n, H]`."""

    def __init__(self, after: Sequence[Tensor]) -> None:
        self.after = after
        self.deltas = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in after]
        self.ones = after[0].new_ones(len(after[0]), 1, after[0].shape[1])


def _stacked(p: Tensor) -> Tensor:
    """Weights `[I, O]` as `[1, I, O]`, biases `[O]` as `[1, 1, O]`; those of a stack as they are."""
    return p if p.dim() == 3 else p.reshape(1, -1, p.shape[-1])
