"""Losses of actors, critics and the temperature: by hand, against numpy, and their gradients."""

import numpy as np
import pytest
import torch

from runnel.core.rng import make_rng
from runnel.losses.actor import (
    deterministic_actor_loss,
    ensemble_td_loss,
    soft_actor_loss,
    soft_actor_loss_discrete,
    temperature_loss,
)


def tensor(x, *, grad=False):
    return torch.tensor(np.asarray(x), dtype=torch.float32, requires_grad=grad)


def grads(value, *of):
    """The gradient of `value` in each of `of`, as numpy arrays."""
    return [g.numpy() for g in torch.autograd.grad(value, of)]


def test_ensemble_td_loss_by_hand():
    """Errors (1, -2) of the first critic and (3, 0) of the second, weights (1, 1/2): (1 + 9 + (4 + 0) / 2) / 2 / 2 = 3."""
    q = tensor([[2.0, 0.0], [4.0, 2.0]], grad=True)
    loss = ensemble_td_loss(q, tensor([1.0, 2.0]), weight=tensor([1.0, 0.5]), denominator=2)
    assert loss.value.item() == pytest.approx(3.0)
    assert loss.error.tolist() == [2.0, 1.0]
    assert not loss.error.requires_grad
    np.testing.assert_allclose(*grads(loss.value, q), [[0.5, -0.5], [1.5, 0.0]], rtol=1e-6)


def test_soft_actor_loss_by_hand():
    """min Q = (1, 2), log pi = (-1, 3), temperature 1/2: ((-1/2 - 1) + (3/2 - 2)) / 2 = -1; the entropy is (1 - 3) / 2."""
    q, logprob = tensor([[1.0, 4.0], [3.0, 2.0]], grad=True), tensor([-1.0, 3.0], grad=True)
    loss = soft_actor_loss(q, logprob=logprob, temperature=tensor(0.5), denominator=2)
    assert loss.value.item() == pytest.approx(-1.0)
    assert loss.metrics["entropy"].item() == pytest.approx(-1.0)
    assert not loss.metrics["entropy"].requires_grad
    to_q, to_policy = grads(loss.value, q, logprob)
    assert to_q.tolist() == [[-0.5, 0.0], [0.0, -0.5]]
    assert to_policy.tolist() == [0.25, 0.25]


def test_where_critics_agree_the_gradient_takes_the_way_of_one():
    q = tensor([[1.0], [1.0]], grad=True)
    loss = soft_actor_loss(q, logprob=tensor([0.0]), temperature=tensor(0.5), denominator=1)
    assert sorted(grads(loss.value, q)[0].flatten().tolist()) == [-1.0, 0.0]


def test_gradients_are_the_formulas():
    """By hand: d/dq = weight (q - y) / n; -1[the smallest] / n and temperature / n; and for discrete actions with
    u_a = temperature log pi_a - min_i Q_i(a): d/dlogit_a = pi_a (u_a - sum_b pi_b u_b) / n."""
    rng = make_rng(3, "slopes")
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((2, 8), 8, (8, 4), 8, 8, (2, 8, 4))]
    q, logprob, logits = (tensor(x, grad=True) for x in arrays[:3])
    y, weight, values, alpha = arrays[3], np.abs(arrays[4]), arrays[5], 0.3
    loss = ensemble_td_loss(q, tensor(y), weight=tensor(weight), denominator=8)
    assert loss.value.item() == pytest.approx((weight * (arrays[0] - y) ** 2).sum() / 16, rel=1e-5)
    np.testing.assert_allclose(*grads(loss.value, q), weight * (arrays[0] - y) / 8, rtol=1e-5, atol=1e-7)
    loss = soft_actor_loss(q, logprob=logprob, temperature=tensor(alpha), denominator=8)
    to_q, to_policy = grads(loss.value, q, logprob)
    smallest = np.arange(2)[:, None] == arrays[0].argmin(0)
    np.testing.assert_allclose(to_q, smallest / -8.0)
    np.testing.assert_allclose(to_policy, np.full(8, alpha / 8), rtol=1e-6)
    stored = tensor(values, grad=True)
    loss = soft_actor_loss_discrete(stored, logprobs=logits.log_softmax(-1), temperature=tensor(alpha), denominator=8)
    pi = np.exp(arrays[2]) / np.exp(arrays[2]).sum(-1, keepdims=True)
    u = alpha * np.log(pi) - values.min(0)
    assert loss.value.item() == pytest.approx((pi * u).sum() / 8, rel=1e-5)
    (to_logits,) = grads(loss.value, logits)
    np.testing.assert_allclose(to_logits, pi * (u - (pi * u).sum(-1, keepdims=True)) / 8, rtol=1e-4, atol=1e-6)


def test_critics_are_constants_for_a_discrete_actor():
    q, logits = tensor(np.zeros((2, 1, 3)), grad=True), tensor(np.zeros((1, 3)), grad=True)
    loss = soft_actor_loss_discrete(q, logprobs=logits.log_softmax(-1), temperature=tensor(0.5), denominator=1)
    to_q, _ = torch.autograd.grad(loss.value, (q, logits), allow_unused=True)
    assert to_q is None
    assert not loss.metrics["entropy"].requires_grad


def test_soft_actor_loss_of_discrete_actions_against_numpy():
    rng, n = make_rng(1, "actor"), 16
    q, logits, alpha = rng.normal(size=(2, n, 4)), rng.normal(size=(n, 4)), 0.3
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.mean(
        [sum(p * (alpha * np.log(p) - min(q[0, b, a], q[1, b, a])) for a, p in enumerate(probs[b])) for b in range(n)]
    )
    logprobs = tensor(logits).log_softmax(-1)
    loss = soft_actor_loss_discrete(tensor(q), logprobs=logprobs, temperature=tensor(alpha), denominator=n)
    assert loss.value.item() == pytest.approx(expected, rel=1e-5)
    assert loss.metrics["entropy"].item() == pytest.approx(-(probs * np.log(probs)).sum(-1).mean(), rel=1e-5)


def test_soft_actor_loss_of_discrete_actions_is_least_at_the_softmax_of_q():
    q = tensor([[[1.0, 2.0, 0.0]], [[1.0, 2.0, 0.0]]])
    logits = (q[0] / 0.5).requires_grad_()
    loss = soft_actor_loss_discrete(q, logprobs=logits.log_softmax(-1), temperature=tensor(0.5), denominator=1)
    np.testing.assert_allclose(*grads(loss.value, logits), np.zeros((1, 3)), atol=1e-6)


def test_deterministic_actor_loss_by_hand():
    q = tensor([[1.0, 3.0]], grad=True)
    loss = deterministic_actor_loss(q, denominator=2)
    assert loss.value.item() == -2.0
    assert grads(loss.value, q)[0].tolist() == [[-0.5, -0.5]]


@pytest.mark.parametrize(("entropy", "sign"), [(-2.0, -1.0), (0.5, 1.0)])
def test_the_temperature_rises_while_the_entropy_is_too_low(entropy, sign):
    """Target -1: with entropy -2 the gradient is negative (the temperature rises), with 0.5 it is positive."""
    log_temperature = tensor(np.log(0.2), grad=True)
    measured = tensor(entropy, grad=True)
    loss = temperature_loss(log_temperature, measured, target_entropy=-1.0)
    assert loss.value.item() == pytest.approx(0.2 * (entropy + 1.0))
    grad, to_entropy = torch.autograd.grad(loss.value, (log_temperature, measured), allow_unused=True)
    assert grad.item() == pytest.approx(loss.value.item()), "d/dlog t of t (H - target) is the loss itself"
    assert to_entropy is None, "the policy does not learn from it"
    assert np.sign(grad.item()) == sign


def test_a_split_batch_has_the_same_losses():
    rng = make_rng(2, "split")
    q, y, w, lp = (tensor(rng.normal(size=s)) for s in ((2, 8), 8, 8, 8))
    whole = ensemble_td_loss(q, y, weight=w, denominator=8).value
    halves = [ensemble_td_loss(q[:, i], y[i], weight=w[i], denominator=8).value for i in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(whole, sum(halves))
    whole = soft_actor_loss(q, logprob=lp, temperature=tensor(0.1), denominator=8).value
    halves = [
        soft_actor_loss(q[:, i], logprob=lp[i], temperature=tensor(0.1), denominator=8).value
        for i in (slice(0, 4), slice(4, 8))
    ]
    torch.testing.assert_close(whole, sum(halves))
