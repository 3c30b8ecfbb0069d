"""Passes through a perceptron in memory that is laid out once, differentiated by hand.

A learner from replay makes the same few passes at every update, so their memory can stay where it is: nothing is allocated,
activations are still in the cache when the backward pass needs them, gradients are written straight into one flat vector,
and no graph is built. At two layers of 256 and 256 rows that takes a quarter off an update.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from runnel.nets.mlp import MLP


class Passes:
    """Forward and backward passes of `mlp`. A backward pass belongs to the last forward pass, whose memory it uses.

    Weights are found at the first pass: they must have their final address by then (make the optimiser first).
    """

    def __init__(self, mlp: MLP) -> None:
        self._mlp, self._num_rows, self._copies = mlp, 0, 0

    @staticmethod
    def fit(mlp: MLP) -> bool:
        """Whether `mlp` can be run so."""
        return mlp.activation in ("relu", "tanh") and not mlp.heads

    def forward(self, x: Tensor, *, copies: int = 0) -> Tensor:
        """`[N, I] -> [S, N, O]` by the first `copies` networks of the stack (0: all; a single network is a stack of one)."""
        if len(x) != self._num_rows:
            self._lay_out(len(x))
        self._copies = n = copies or len(self._weights[0])
        relu = self._mlp.activation == "relu"
        self._input = x = x.expand(n, *x.shape)
        for i, (weight, bias, out) in enumerate(zip(self._weights, self._biases, self._outputs, strict=True)):
            x = torch.bmm(x, weight[:n], out=out[:n]).add_(bias[:n])
            if i < len(self._outputs) - 1:
                x = x.relu_() if relu else x.tanh_()
        return x

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of all parameters in the order of `parameters()`, flat, from that of the output. `[S, N, O] -> [P]`"""
        for i in range(len(self._weights) - 1, -1, -1):
            x = self._outputs[i - 1] if i else self._input
            torch.bmm(x.transpose(1, 2), grad, out=self._to_weights[i])
            torch.bmm(self._ones, grad, out=self._to_biases[i])
            if i:
                grad = self._below(i, grad)
        return self._flat

    def to_input(self, grad: Tensor) -> Tensor:
        """The gradient of the input, and none of the weights. `[S, N, O] -> [N, I]`"""
        for i in range(len(self._weights) - 1, 0, -1):
            grad = self._below(i, grad)
        return torch.bmm(grad, self._weights[0][: self._copies].transpose(1, 2)).sum(0)

    def _below(self, i: int, grad: Tensor) -> Tensor:
        """From the gradient of what layer i gives to that of what layer i - 1 gives before its nonlinearity."""
        n = self._copies
        after, below = self._outputs[i - 1][:n], self._deltas[i - 1][:n]
        torch.bmm(grad, self._weights[i][:n].transpose(1, 2), out=below)
        if self._mlp.activation == "relu":
            torch.ops.aten.threshold_backward.grad_input(below, after, 0.0, grad_input=below)
        else:
            torch.ops.aten.tanh_backward.grad_input(below, after, grad_input=below)
        return below

    def _lay_out(self, num_rows: int) -> None:
        parameters = [p.detach() for p in self._mlp.parameters()]
        sizes = [p.numel() for p in parameters]
        self._flat = torch.empty(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        grads = [g.view_as(p) for g, p in zip(torch.split(self._flat, sizes), parameters, strict=True)]
        num = len(parameters) // 2
        self._weights, self._to_weights = ([_stacked(p) for p in part[:num]] for part in (parameters, grads))
        self._biases, self._to_biases = ([_stacked(p) for p in part[num:]] for part in (parameters, grads))
        size, new = len(self._weights[0]), self._flat.new_empty
        self._outputs = [new(size, num_rows, w.shape[2]) for w in self._weights]
        self._deltas = [torch.empty_like(out) for out in self._outputs[:-1]]
        self._ones = torch.ones_like(self._outputs[0][:, :1, :1]).expand(size, 1, num_rows).contiguous()
        self._num_rows = num_rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Passes:
        """A copied network makes its own passes."""
        return Passes(copy.deepcopy(self._mlp, memo))


def _stacked(p: Tensor) -> Tensor:
    """Weights `[I, O]` as `[1, I, O]`, biases `[O]` as `[1, 1, O]`; those of a stack as they are."""
    return p if p.dim() == 3 else p.reshape(1, -1, p.shape[-1])
