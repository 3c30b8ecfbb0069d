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


def test_ensemble_td_loss_by_hand():
    """Errors (1, -2) of the first critic and (3, 0) of the second, weights (1, 1/2): (1 + 9 + (4 + 0) / 2) / 2 / 2 = 3."""
    q = tensor([[2.0, 0.0], [4.0, 2.0]])
    slope = ensemble_td_loss(q, tensor([1.0, 2.0]), weight=tensor([1.0, 0.5]), denominator=2)
    assert slope.value.item() == pytest.approx(3.0)
    assert slope.error.tolist() == [2.0, 1.0]
    torch.testing.assert_close(slope.grad, tensor([[0.5, -0.5], [1.5, 0.0]]))


def test_soft_actor_loss_by_hand():
    """min Q = (1, 2), log pi = (-1, 3), temperature 1/2: ((-1/2 - 1) + (3/2 - 2)) / 2 = -1; the entropy is (1 - 3) / 2."""
    q = tensor([[1.0, 4.0], [3.0, 2.0]])
    slope = soft_actor_loss(q, logprob=tensor([-1.0, 3.0]), temperature=tensor(0.5), denominator=2)
    assert slope.value.item() == pytest.approx(-1.0)
    assert slope.entropy.item() == pytest.approx(-1.0)
    assert slope.to_q.tolist() == [[-0.5, 0.0], [0.0, -0.5]]
    assert slope.to_policy.tolist() == [0.25, 0.25]


def test_gradients_are_those_of_autograd():
    rng = make_rng(3, "slopes")
    q, logprob, logits = (tensor(rng.normal(size=s), grad=True) for s in ((2, 8), 8, (8, 4)))
    target, weight, values, alpha = (tensor(rng.normal(size=s)) for s in (8, 8, (2, 8, 4), ()))
    loss = (weight * (q - target).square()).sum() / 16
    slope = ensemble_td_loss(q.detach(), target, weight=weight, denominator=8)
    torch.testing.assert_close((slope.value, slope.grad), (loss.detach(), torch.autograd.grad(loss, q)[0]))
    loss = (alpha * logprob - torch.minimum(q[0], q[1])).mean()
    soft = soft_actor_loss(q.detach(), logprob=logprob.detach(), temperature=alpha, denominator=8)
    torch.testing.assert_close((soft.to_q, soft.to_policy), torch.autograd.grad(loss, (q, logprob)))
    logs = logits.log_softmax(-1)
    loss = (logs.exp() * (alpha * logs - values.amin(0))).sum() / 8
    choice = soft_actor_loss_discrete(values, logprobs=logs.detach(), temperature=alpha, denominator=8)
    torch.testing.assert_close((choice.value, choice.to_policy), (loss.detach(), torch.autograd.grad(loss, logits)[0]))
    assert choice.to_q.numel() == 0


def test_soft_actor_loss_of_discrete_actions_against_numpy():
    rng, n = make_rng(1, "actor"), 16
    q, logits, alpha = rng.normal(size=(2, n, 4)), rng.normal(size=(n, 4)), 0.3
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.mean(
        [sum(p * (alpha * np.log(p) - min(q[0, b, a], q[1, b, a])) for a, p in enumerate(probs[b])) for b in range(n)]
    )
    logprobs = tensor(logits).log_softmax(-1)
    slope = soft_actor_loss_discrete(tensor(q), logprobs=logprobs, temperature=tensor(alpha), denominator=n)
    assert slope.value.item() == pytest.approx(expected, rel=1e-5)
    assert slope.entropy.item() == pytest.approx(-(probs * np.log(probs)).sum(-1).mean(), rel=1e-5)


def test_soft_actor_loss_of_discrete_actions_is_least_at_the_softmax_of_q():
    q = tensor([[[1.0, 2.0, 0.0]], [[1.0, 2.0, 0.0]]])
    slope = soft_actor_loss_discrete(q, logprobs=(q[0] / 0.5).log_softmax(-1), temperature=tensor(0.5), denominator=1)
    torch.testing.assert_close(slope.to_policy, torch.zeros(1, 3), atol=1e-6, rtol=0.0)


def test_deterministic_actor_loss_by_hand():
    slope = deterministic_actor_loss(tensor([[1.0, 3.0]]), denominator=2)
    assert slope.value.item() == -2.0
    assert slope.grad.tolist() == [[-0.5, -0.5]]


@pytest.mark.parametrize(("entropy", "sign"), [(-2.0, -1.0), (0.5, 1.0)])
def test_the_temperature_rises_while_the_entropy_is_too_low(entropy, sign):
    """Target -1: with entropy -2 the gradient is negative (the temperature rises), with 0.5 it is positive."""
    log_temperature = tensor(np.log(0.2), grad=True)
    loss = temperature_loss(log_temperature.exp(), tensor(entropy), target_entropy=-1.0)
    assert loss.value.item() == pytest.approx(0.2 * (entropy + 1.0))
    (grad,) = torch.autograd.grad(loss.value, log_temperature)
    assert grad.item() == pytest.approx(loss.value.item()), "the loss is its own gradient, as SAC's learner uses"
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
