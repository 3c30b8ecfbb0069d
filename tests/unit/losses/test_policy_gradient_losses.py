"""The plain policy gradient, and the second clip of the surrogate: hand numbers, numpy, finite differences."""

import numpy as np
import pytest
import torch

from runnel.losses.on_policy import clipped_policy_loss, policy_gradient_loss


def random(seed, *, n=12, scale=0.5):
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=scale, size=n))


def numeric_gradient(fn, x, step=1e-6):
    return torch.stack([(fn(x + step * e) - fn(x - step * e)) / (2 * step) for e in torch.eye(len(x)).double()])


def test_policy_gradient_by_hand_and_by_its_gradient():
    logprob, advantage = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([3.0, -0.5])
    loss = policy_gradient_loss(logprob, advantage, denominator=2)
    assert loss.value.item() == pytest.approx((3.0 - 1.0) / 2)
    (grad,) = torch.autograd.grad(loss.value, logprob)
    torch.testing.assert_close(grad, torch.tensor([-1.5, 0.25]))


def test_policy_gradient_takes_no_gradient_through_advantages_and_obeys_its_mask():
    logprob, advantage = random(1).requires_grad_(), random(2).requires_grad_()
    mask = torch.arange(12) % 3 != 0
    loss = policy_gradient_loss(logprob, advantage, denominator=7, mask=mask)
    want = -(logprob.detach().numpy() * advantage.detach().numpy())[mask.numpy()].sum() / 7
    assert loss.value.item() == pytest.approx(want)
    assert torch.autograd.grad(loss.value, advantage, allow_unused=True) == (None,)


def test_dual_clip_by_hand():
    # ratios 5, 5, 2, 0.5 with clip 0.2 and dual clip 3: 1.2 * 1; max(-5, -3) = -3; max(-2, -3) = -2; max(-0.8, -3) = -0.8
    logprob, advantage = torch.tensor([5.0, 5.0, 2.0, 0.5]).log(), torch.tensor([1.0, -1.0, -1.0, -1.0])
    loss = clipped_policy_loss(logprob, torch.zeros(4), advantage, clip=0.2, denominator=4, dual_clip=3.0)
    assert loss.value.item() == pytest.approx(-(1.2 - 3.0 - 2.0 - 0.8) / 4)


def test_dual_clip_equals_numpy_and_its_gradient():
    new, old, adv = random(3, n=40, scale=1.5), random(4, n=40), random(5, n=40, scale=1.0)
    ratio, a = np.exp(new.numpy() - old.numpy()), adv.numpy()
    once = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a)
    want = -np.where(a < 0, np.maximum(once, 2.0 * a), once).sum() / 40

    def loss(x):
        return clipped_policy_loss(x, old, adv, clip=0.2, denominator=40, dual_clip=2.0).value

    assert loss(new).item() == pytest.approx(want)
    (exact,) = torch.autograd.grad(loss(new.requires_grad_()), new)
    torch.testing.assert_close(exact, numeric_gradient(loss, new.detach()), atol=1e-6, rtol=1e-5)
    assert (exact[torch.from_numpy((ratio > 2.0) & (a < 0))] == 0).all(), "an entry beyond the second clip earns nothing"


def test_without_dual_clip_nothing_changes():
    new, old, adv = random(6), random(7), random(8)
    one = clipped_policy_loss(new, old, adv, clip=0.2, denominator=12).value
    assert torch.equal(one, clipped_policy_loss(new, old, adv, clip=0.2, denominator=12, dual_clip=1e9).value)
