"""Losses of Q-learning by hand, against numpy, and their gradients."""

import math

import numpy as np
import pytest
import torch

from runnel.losses.td import categorical_td_loss, huber_td_loss


def test_huber_by_hand():
    """Errors 0.5 and 3: 0.125 and 2.5, the second weighted by a half."""
    q = torch.tensor([0.5, 3.0], requires_grad=True)
    target, weight = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5])
    loss = huber_td_loss(q, target, weight=weight, denominator=2)
    assert loss.value.item() == pytest.approx((0.125 + 0.5 * 2.5) / 2)
    assert loss.error.tolist() == [0.5, 3.0]
    (grad,) = torch.autograd.grad(loss.value, q)
    assert grad.tolist() == [0.25, 0.25]
    assert not loss.error.requires_grad


def test_huber_and_its_gradient_against_numpy():
    rng = np.random.default_rng(0)
    q, target, weight = (torch.from_numpy(rng.normal(size=(4, 3)) * s) for s in (2.0, 0.5, 1.0))
    weight = weight.abs()
    e = q.numpy() - target.numpy()
    loss = huber_td_loss(q.requires_grad_(), target, weight=weight, denominator=12, delta=0.7)
    huber = np.where(np.abs(e) <= 0.7, 0.5 * e**2, 0.7 * (np.abs(e) - 0.35))
    assert loss.value.item() == pytest.approx((weight.numpy() * huber).mean())
    np.testing.assert_allclose(loss.error.numpy(), np.abs(e))
    (grad,) = torch.autograd.grad(loss.value, q)
    np.testing.assert_allclose(grad.numpy(), weight.numpy() * np.clip(e, -0.7, 0.7) / 12)


def test_without_a_bound_errors_are_squared():
    q, target, weight = (torch.tensor(x) for x in ([5.0, -1.0], [1.0, 1.0], [1.0, 0.5]))
    loss = huber_td_loss(q.requires_grad_(), target, weight=weight, denominator=2, delta=math.inf)
    assert loss.value.item() == pytest.approx((0.5 * 16.0 + 0.5 * 0.5 * 4.0) / 2)
    assert torch.autograd.grad(loss.value, q)[0].tolist() == [2.0, -0.5]


def test_cross_entropy_by_hand():
    """Predictions (1/2, 1/2) against a certain target: log 2 each; weights 1 and 3 over a denominator of 4 give log 2."""
    logits, target = torch.zeros(2, 2, requires_grad=True), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    loss = categorical_td_loss(logits, target, weight=torch.tensor([1.0, 3.0]), denominator=4)
    assert loss.value.item() == pytest.approx(math.log(2))
    torch.testing.assert_close(loss.error, torch.tensor([math.log(2), 0.0]))
    (grad,) = torch.autograd.grad(loss.value, logits)
    torch.testing.assert_close(grad, torch.tensor([[-0.125, 0.125], [0.0, 0.0]]))
    assert not loss.error.requires_grad


def test_cross_entropy_and_its_gradient_against_numpy():
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 4, 6)), rng.dirichlet(np.ones(6), (3, 4)), rng.random((3, 4))
    logits, target, weight = (torch.from_numpy(x) for x in arrays)
    p = np.exp(arrays[0]) / np.exp(arrays[0]).sum(-1, keepdims=True)
    loss = categorical_td_loss(logits.requires_grad_(), target, weight=weight, denominator=12)
    assert loss.value.item() == pytest.approx(-(arrays[2][..., None] * arrays[1] * np.log(p)).sum() / 12)
    np.testing.assert_allclose(loss.error.numpy(), (arrays[1] * np.log(arrays[1] / p)).sum(-1), atol=1e-9)
    (grad,) = torch.autograd.grad(loss.value, logits)
    np.testing.assert_allclose(grad.numpy(), arrays[2][..., None] * (p - arrays[1]) / 12, atol=1e-12)
