"""The fused perceptron: its written-out backward pass against autograd, one network and stacks, with and without heads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.nets.mlp import ACTIVATIONS, MLP, NetConfig, _weight_grads, _weight_grads_of_many


def reference(net: MLP, x: Tensor, *, stacked: bool = False) -> list[Tensor]:
    """The same network in plain operations, copy by copy."""
    outputs, num_trunk = [], len(net.weight) - (net.heads or 1)
    for i in range(max(net.copies, 1)):
        h = x[i] if stacked else x
        for w, b in zip(list(net.weight)[:num_trunk], list(net.bias)[:num_trunk], strict=True):
            h = ACTIVATIONS[net.activation](h @ (w[i] if net.copies else w) + (b[i] if net.copies else b))
        at = num_trunk + (i if net.heads else 0)
        w, b = net.weight[at], net.bias[at]
        outputs.append(h @ (w[i] if net.copies and not net.heads else w) + (b[i] if net.copies and not net.heads else b))
    return outputs


CASES = list(itertools.product([(), (5,), (7, 6), (4, 3, 5)], ["tanh", "relu", "silu"], [0, 1, 3], [False, True]))


@pytest.mark.parametrize(("hidden", "activation", "copies", "heads"), CASES)
def test_forward_and_gradients(hidden: tuple[int, ...], activation: str, copies: int, heads: bool) -> None:
    if heads and not copies:
        pytest.skip("heads belong to copies")
    num_outputs = tuple(range(1, copies + 1)) if heads else 2
    net = MLP(3, num_outputs, config=NetConfig(hidden=hidden, activation=activation), head_gain=1.0, seed=1, copies=copies)  # type: ignore[arg-type]
    for bias in net.bias:
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 3, generator=generator, requires_grad=True)
    got = net(x)
    outputs = list(got) if heads else (list(got.unbind(0)) if copies else [got])
    expected = reference(net, x)
    for a, b in zip(outputs, expected, strict=True):
        torch.testing.assert_close(a, b)
    weights = [torch.randn(o.shape, generator=generator) for o in expected]
    grads = [
        torch.autograd.grad(sum((o * w).sum() for o, w in zip(out, weights, strict=True)), [x, *net.parameters()])  # type: ignore[arg-type]
        for out in (outputs, expected)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        plain = net(x)
        for a, b in zip(plain if heads else (plain.unbind(0) if copies else [plain]), expected, strict=True):
            torch.testing.assert_close(a, b)
        for i, b in enumerate(expected):
            np.testing.assert_allclose(net.host(x.detach().numpy(), copy=i), b.detach().numpy(), rtol=1e-5, atol=1e-6)
            if copies:
                torch.testing.assert_close(net.one(x, i), b)


def test_own_input_for_each_copy_and_more_dimensions() -> None:
    net = MLP(3, 2, config=NetConfig(hidden=(4,)), head_gain=1.0, seed=1, copies=2)
    x = torch.randn(2, 5, 3, requires_grad=True)
    out = net(x, stacked=True)
    expected = torch.stack(reference(net, x, stacked=True))
    torch.testing.assert_close(out, expected)
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), [x, *net.parameters()]) for o in (out, expected)), strict=True):
        torch.testing.assert_close(a, b)
    deep = torch.randn(4, 5, 3)
    assert net(deep).shape == (2, 4, 5, 2)
    assert MLP(3, 2, config=NetConfig(), head_gain=1.0, seed=1)(deep).shape == (4, 5, 2)
    pair = MLP(3, (2, 1), config=NetConfig(), head_gain=1.0, seed=1, copies=2)(deep)
    assert [tuple(p.shape) for p in pair] == [(4, 5, 2), (4, 5, 1)]


def test_loading_by_assignment_is_seen() -> None:
    net = MLP(3, 2, config=NetConfig(), head_gain=1.0, seed=1)
    other = MLP(3, 2, config=NetConfig(), head_gain=1.0, seed=2)
    x = torch.randn(4, 3)
    net(x)
    net.host(x.numpy())
    net.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(net(x), other(x))
    np.testing.assert_allclose(net.host(x.numpy()), other(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_rows", [4096, 4100, 4097])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_many_rows_are_sums_of_parts(num_rows: int, shared: bool) -> None:
    """What a CUDA device is given, against the plain products."""
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(2, num_rows, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(*(() if shared else (2,)), num_rows, 3, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(_weight_grads_of_many(x, grad, stacked=True), _weight_grads(x, grad, stacked=True), strict=True):
        torch.testing.assert_close(ours, theirs)
    if shared:
        pairs = zip(_weight_grads_of_many(x, grad[0], stacked=False), _weight_grads(x, grad[0], stacked=False), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)


def test_no_rows_give_no_outputs() -> None:
    """A segment in which no episode ended has no final observations."""
    net = MLP(3, (2, 1), config=NetConfig(), head_gain=1.0, seed=0, copies=2)
    assert net.one(torch.zeros(0, 3), 1).shape == (0, 1)
    assert [y.shape for y in net(torch.zeros(4, 0, 3))] == [(4, 0, 2), (4, 0, 1)]
