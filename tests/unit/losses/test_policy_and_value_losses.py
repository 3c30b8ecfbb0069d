"""Losses: hand numbers, an independent numpy version, and gradients by finite differences."""

import math

import numpy as np
import pytest
import torch

from runnel.losses.on_policy import clipped_policy_loss, value_loss


def gradient_check(fn, x, atol=1e-6):
    """Central differences of a scalar function of a float64 vector."""
    (exact,) = torch.autograd.grad(fn(x.requires_grad_()), x)
    step = 1e-6
    numeric = torch.stack(
        [(fn(x.detach() + step * e) - fn(x.detach() - step * e)) / (2 * step) for e in torch.eye(len(x)).double()]
    )
    torch.testing.assert_close(exact, numeric, atol=atol, rtol=1e-5)


def random(seed, *, n=12, scale=0.5):
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=scale, size=n))


def test_clipped_policy_loss_by_hand():
    # ratios 1.5, 0.5, 1.5, 1.0 with clip 0.2: min(1.5, 1.2) * 2; min(-0.5, -0.8) -> -0.8; -1.5; 3
    logprob = torch.tensor([1.5, 0.5, 1.5, 1.0]).log()
    advantage = torch.tensor([2.0, -1.0, -1.0, 3.0])
    loss = clipped_policy_loss(logprob, torch.zeros(4), advantage, clip=0.2, denominator=4)
    assert loss.value.item() == pytest.approx(-(2.4 - 0.8 - 1.5 + 3.0) / 4)
    assert loss.metrics["clip_fraction"].item() == pytest.approx(0.75)
    kl = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5, 1.0)) / 4
    assert loss.metrics["kl"].item() == pytest.approx(kl, abs=1e-6)


def test_clipped_policy_loss_equals_numpy_and_respects_the_mask():
    new, old, adv = random(0), random(1), random(2, scale=1.0)
    mask = torch.arange(12) % 3 != 0
    ratio = np.exp(new.numpy() - old.numpy())
    terms = np.minimum(ratio * adv.numpy(), np.clip(ratio, 0.9, 1.1) * adv.numpy())
    loss = clipped_policy_loss(new, old, adv, clip=0.1, denominator=7, mask=mask)
    assert loss.value.item() == pytest.approx(-terms[mask.numpy()].sum() / 7)


def test_split_over_micro_batches_gives_the_same_gradient():
    new, old, adv = random(3).requires_grad_(), random(4), random(5)
    whole = clipped_policy_loss(new, old, adv, clip=0.2, denominator=12).value
    parts = [
        clipped_policy_loss(n, o, a, clip=0.2, denominator=12).value
        for n, o, a in zip(new.split(5), old.split(5), adv.split(5), strict=True)
    ]
    torch.testing.assert_close(torch.autograd.grad(whole, new), torch.autograd.grad(sum(parts), new))


def test_gradients_by_finite_differences():
    old, adv, target = random(6), random(7, scale=1.0), random(8)
    gradient_check(lambda x: clipped_policy_loss(x, old, adv, clip=0.2, denominator=12).value, random(9))
    gradient_check(lambda x: value_loss(x, target, denominator=12).value, random(10))
    gradient_check(lambda x: value_loss(x, target, denominator=12, behaviour_value=old, clip=0.3).value, random(11))


def test_value_loss_by_hand_with_and_without_clip():
    value, target, old = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 3.0]), torch.tensor([0.0, 1.0])
    assert value_loss(value, target, denominator=2).value.item() == pytest.approx(0.25)
    # held within 0.5 of old: [0.5, 1.5]; errors max(1, 0.25) and max(0, 2.25)
    clipped = value_loss(value, target, denominator=2, behaviour_value=old, clip=0.5)
    assert clipped.value.item() == pytest.approx(0.5 * (1.0 + 2.25) / 2)
