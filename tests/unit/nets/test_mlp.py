"""The perceptron against plain products, copy by copy: outputs and gradients, one network, stacks, and heads."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor

from runnel.nets.layers import ACTIVATIONS, MLP, NetConfig


def reference(net: MLP, x: Tensor) -> list[Tensor]:
    """The same network in plain operations, copy by copy."""
    outputs, num_trunk = [], len(net.weight) - (net.heads or 1)
    for i in range(max(net.copies, 1)):
        h = x
        for w, b in zip(list(net.weight)[:num_trunk], list(net.bias)[:num_trunk], strict=True):
            h = ACTIVATIONS[net.activation](h @ (w[i] if net.copies else w) + (b[i] if net.copies else b))
        at = num_trunk + (i if net.heads else 0)
        w, b = net.weight[at], net.bias[at]
        outputs.append(h @ (w[i] if net.copies and not net.heads else w) + (b[i] if net.copies and not net.heads else b))
    return outputs


STACKS = [(0, 1), (0, 2), (1, 1), (1, 2), (3, 1), (3, 2), (1, (1,)), (3, (1, 2, 3))]
CASES = [
    (*case, *stack) for case in itertools.product([(), (5,), (7, 6), (4, 3, 5)], ["tanh", "relu", "silu"]) for stack in STACKS
]


@pytest.mark.parametrize(("hidden", "activation", "copies", "num_outputs"), CASES)
def test_forward_and_gradients(
    hidden: tuple[int, ...], activation: str, copies: int, num_outputs: int | tuple[int, ...]
) -> None:
    config, heads = NetConfig(hidden=hidden, activation=activation), isinstance(num_outputs, tuple)  # type: ignore[arg-type]
    net = MLP(3, num_outputs, config=config, head_gain=1.0, seed=1, copies=copies)
    for bias in net.bias:
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 3, generator=generator, requires_grad=True)
    kept = x.detach().clone()
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
        for i, b in enumerate(expected if copies else ()):
            torch.testing.assert_close(net.one(x, i), b)
    assert torch.equal(x, kept), "layers write over outputs of their own, never over the input"


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("hidden", [(), (4,), (5, 4)])
def test_the_first_networks_of_a_stack_alone(hidden: tuple[int, ...], num_outputs: int, activation: str) -> None:
    """Outputs, and gradients: the others' weights have none."""
    config = NetConfig(hidden=hidden, activation=activation)  # type: ignore[arg-type]
    net, generator = MLP(3, num_outputs, config=config, head_gain=1.0, seed=1, copies=3), torch.Generator().manual_seed(3)
    x, weight = torch.randn(6, 3, generator=generator, requires_grad=True), torch.randn(2, 6, num_outputs, generator=generator)
    found, expected = net(x, copies=2), torch.stack(reference(net, x)[:2])
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(out, [x, *net.parameters()], weight) for out in (found, expected)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    assert all((g[2] == 0.0).all() for g in grads[0][1:])


@pytest.mark.parametrize("num_outputs", [2, (2, 1)])
def test_gradients_of_one_network_of_a_stack(num_outputs: int | tuple[int, ...]) -> None:
    net = MLP(3, num_outputs, config=NetConfig(hidden=(5, 4)), head_gain=1.0, seed=1, copies=2)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), requires_grad=True)
    pair = (net.one(x, 1), reference(net, x)[1])
    grads = [torch.autograd.grad(y.square().sum(), [x, *net.parameters()], materialize_grads=True) for y in pair]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_more_dimensions() -> None:
    deep = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(3))
    for outputs, copies in ((2, 2), (2, 0), ((2, 1), 2)):
        net = MLP(3, outputs, config=NetConfig(hidden=(4,)), head_gain=1.0, seed=1, copies=copies)
        found, flat = net(deep), net(deep.flatten(0, 1))
        if net.heads:
            assert [tuple(p.shape) for p in found] == [(4, 5, 2), (4, 5, 1)]
            assert all(torch.equal(a.flatten(0, 1), b) for a, b in zip(found, flat, strict=True))
        else:
            assert found.shape == ((2, 4, 5, 2) if copies else (4, 5, 2))
            assert torch.equal(found.flatten(-3, -2), flat)
        if copies:
            assert torch.equal(net.one(deep, 1).flatten(0, 1), net.one(deep.flatten(0, 1), 1))
    assert [tuple(y.shape) for y in net(deep[0, 0])] == [(2,), (1,)], "one row without a batch"


def test_loading_by_assignment_is_seen() -> None:
    net, other = (MLP(3, 2, config=NetConfig(), head_gain=1.0, seed=s) for s in (1, 2))
    x = torch.randn(4, 3)
    net(x)
    net.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(net(x), other(x))
    with torch.no_grad():
        other.weight[0].add_(0.1)
    assert torch.equal(net(x), other(x)), "the memory is shared"
    grads = [torch.autograd.grad(n(x).sum(), list(n.parameters())) for n in (net, other)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    stack, twin = (MLP(3, (2, 1), config=NetConfig(), head_gain=1.0, seed=s, copies=2) for s in (1, 2))
    stack.one(x, 0)
    stack.load_state_dict(twin.state_dict(), assign=True)
    assert torch.equal(stack.one(x, 1), twin.one(x, 1))


def test_a_copy_has_weights_of_its_own() -> None:
    net, x = MLP(3, 2, config=NetConfig(), head_gain=1.0, seed=1), torch.randn(4, 3)
    before = net(x)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    assert net(x).abs().max() == 0.0
    assert torch.equal(twin(x), before)


def test_no_rows_give_no_outputs() -> None:
    """A segment in which no episode ended has no final observations."""
    net = MLP(3, (2, 1), config=NetConfig(), head_gain=1.0, seed=0, copies=2)
    assert net.one(torch.zeros(0, 3), 1).shape == (0, 1)
    assert [y.shape for y in net(torch.zeros(4, 0, 3))] == [(4, 0, 2), (4, 0, 1)]


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_no_rows_give_no_outputs_of_a_stack(num_outputs: int) -> None:
    net = MLP(3, num_outputs, config=NetConfig(), head_gain=1.0, seed=0, copies=2)
    assert net(torch.zeros(0, 3)).shape == (2, 0, num_outputs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_rows", [6, 4096, 4097])
@pytest.mark.parametrize("num_outputs", [1, 2, (2, 1)])
def test_a_device_gives_what_the_host_gives(num_outputs: int | tuple[int, ...], num_rows: int) -> None:
    """There the networks of a stack run one after the other. In float64, which no setting rounds."""
    net = MLP(3, num_outputs, config=NetConfig(hidden=(7, 6)), head_gain=1.0, seed=1, copies=2).double()
    x = torch.randn(num_rows, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        there, rows = copy.deepcopy(net).to(device), x.to(device).requires_grad_()
        out = there(rows)
        outputs = list(out) if net.heads else [out]
        grads = torch.autograd.grad(sum(y.square().sum() for y in outputs), [rows, *there.parameters()])  # type: ignore[arg-type]
        found.append([y.detach().cpu() for y in (*outputs, *grads)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
