"""Token losses against hand numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from runnel.losses.preference import bradley_terry_loss, dpo_loss
from runnel.losses.token import (
    decoupled_policy_loss,
    entropy_loss,
    kl_loss,
    log_linear_proximal,
    policy_loss,
    reinforce_loss,
    sequence_policy_loss,
    sft_loss,
    token_value_loss,
    truncated_loss,
)


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64).requires_grad_(True)


def grad_of(loss, x):
    loss.value.backward()
    return x.grad.tolist()


def test_policy_loss_by_hand():
    # ratios 1.5, 0.5, 1.0 with advantages 2, -1, 1; clip to [0.8, 1.28]
    old = torch.zeros(3)
    logprob = torch.log(torch.tensor([1.5, 0.5, 1.0])).requires_grad_(True)
    settings = {"clip_low": 0.2, "clip_high": 0.28, "denominator": 10.0, "count": 5.0}
    loss = policy_loss(logprob, old, torch.tensor([2.0, -1.0, 1.0]), weight=torch.ones(3), **settings)
    # min(3, 2.56) = 2.56; min(-0.5, -0.8) = -0.8; 1
    assert loss.value.item() == pytest.approx(-(2.56 - 0.8 + 1.0) / 10, rel=1e-6)
    loss.value.backward()
    np.testing.assert_allclose(logprob.grad.numpy(), [0.0, 0.0, -0.1], atol=1e-7)
    assert loss.metrics["clip_fraction"].item() == pytest.approx(0.4)
    k3 = 0.5 - np.log(1.5) + (-0.5 - np.log(0.5))
    assert loss.metrics["approx_kl"].item() == pytest.approx(k3 / 5, rel=1e-5)


def test_a_dual_clip_and_bounds_that_are_none():
    # ratios 4, 4, 0.1 with advantages -1, 1, -1
    logprob = leaf(*np.log([4.0, 4.0, 0.1]))
    old, advantage = torch.zeros(3).double(), torch.tensor([-1.0, 1.0, -1.0]).double()
    settings = {"weight": torch.ones(3), "denominator": 1.0, "count": 3.0}
    loss = policy_loss(logprob, old, advantage, clip_low=None, clip_high=None, dual_clip=3.0, **settings)
    assert loss.value.item() == pytest.approx(3.0 - 4.0 + 0.1)
    assert loss.metrics["clip_fraction"].item() == pytest.approx(1 / 3)
    assert grad_of(loss, logprob) == pytest.approx([0.0, -4.0, 0.1])
    logprob = leaf(800.0)  # its ratio is not finite
    cut = policy_loss(
        logprob,
        old[:1],
        advantage[:1],
        weight=torch.ones(1),
        clip_low=0.2,
        clip_high=0.2,
        max_log_ratio=2.0,
        denominator=1.0,
        count=1.0,
    )
    assert cut.value.item() == pytest.approx(np.exp(2.0))
    assert grad_of(cut, logprob) == [0.0]


def test_sft_kl_and_entropy_by_hand():
    logprob = torch.tensor([-1.0, -2.0])
    assert sft_loss(logprob, weight=torch.tensor([1.0, 0.5]), denominator=4.0).value.item() == pytest.approx(0.5)
    assert kl_loss(logprob, logprob, weight=torch.ones(2), denominator=2.0, count=2.0).value.item() == 0.0
    loss = kl_loss(logprob, torch.tensor([-1.5, -2.0]), weight=torch.ones(2), denominator=4.0, count=2.0)
    assert loss.value.item() == pytest.approx((np.exp(-0.5) + 0.5 - 1) / 4)
    assert loss.metrics["kl"].item() == pytest.approx((np.exp(-0.5) + 0.5 - 1) / 2)
    assert entropy_loss(torch.tensor([1.0, 3.0]), weight=torch.ones(2), denominator=2.0).value.item() == -2.0


def test_sequence_policy_loss_by_hand():
    # row 0: gaps 0.2 and 0.6, mean 0.4; row 1: gap -1. Ratios exp(0.4) and exp(-1), clip to [0.9, 1.2].
    logprob, old = leaf(-1.0, -1.0, -2.0), torch.tensor([-1.2, -1.6, -1.0], dtype=torch.float64)
    loss = sequence_policy_loss(
        logprob,
        old,
        torch.tensor([2.0, 2.0, 1.0]),
        row=torch.tensor([0, 0, 1]),
        num_rows=2,
        weight=torch.tensor([0.5, 0.5, 1.0]),
        clip_low=0.1,
        clip_high=0.2,
        denominator=2.0,
        count=3.0,
    )
    assert loss.value.item() == pytest.approx(-(2.0 * 1.2 + math.exp(-1)) / 2)
    assert loss.metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert grad_of(loss, logprob) == pytest.approx([0.0, 0.0, -math.exp(-1) / 2])


def test_reinforce_and_truncated_weights_by_hand():
    logprob, advantage = leaf(-1.0, -2.0), torch.tensor([1.0, -3.0], dtype=torch.float64)
    plain = reinforce_loss(logprob, advantage, weight=torch.ones(2), denominator=2.0)
    assert plain.value.item() == pytest.approx(-(-1.0 + 6.0) / 2)
    assert grad_of(plain, logprob) == pytest.approx([-0.5, 1.5])
    logprob = leaf(-1.0, -2.0)
    old = torch.tensor([-3.0, -1.5], dtype=torch.float64)  # ratios e^2 (cut to 2) and e^-0.5
    loss = truncated_loss(logprob, old, advantage, weight=torch.ones(2), max_ratio=2.0, denominator=2.0, count=2.0)
    assert loss.metrics["clip_fraction"].item() == 0.5
    assert grad_of(loss, logprob) == pytest.approx([-2.0 / 2, math.exp(-0.5) * 3.0 / 2])


@pytest.mark.parametrize(("behaviour", "first"), [("clamp", 2.0), ("mask", 0.0)])
def test_decoupled_loss_by_hand(behaviour, first):
    # behaviour ratios e^1 (outside [0.5, 2]) and e^-0.5; policy ratios 1 and e^0.1, no clip
    logprob = leaf(-1.0, -1.9)
    proximal, old = torch.tensor([-1.0, -2.0]).double(), torch.tensor([-2.0, -1.5]).double()
    loss = decoupled_policy_loss(
        logprob,
        proximal,
        old,
        torch.tensor([1.0, -1.0]).double(),
        weight=torch.ones(2),
        clip_low=0.2,
        clip_high=0.2,
        behaviour=behaviour,
        behaviour_low=0.5,
        behaviour_high=2.0,
        denominator=2.0,
        count=2.0,
    )
    second = math.exp(-0.5) * math.exp(0.1)
    assert loss.value.item() == pytest.approx(-(first - second) / 2)
    assert loss.metrics["behaviour/outside"].item() == 0.5
    assert grad_of(loss, logprob) == pytest.approx([-first / 2, second / 2])


def test_the_log_linear_proximal_goes_from_behaviour_to_policy_with_age():
    logprob, old = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-2.0, -2.0, -2.0])
    found = log_linear_proximal(logprob, old, torch.tensor([7, 6, 4]), version=7)
    torch.testing.assert_close(found, torch.tensor([-2.0, -1.5, -1.25]))


def test_token_value_loss_by_hand():
    value, old, returns = leaf(1.0, 0.0), torch.tensor([0.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
    assert token_value_loss(value, old, returns, clip=None, denominator=2.0).value.item() == pytest.approx(0.25)
    loss = token_value_loss(value, old, returns, clip=0.2, denominator=2.0)  # the first stays at 0.2: error 0.64
    assert loss.value.item() == pytest.approx(0.5 * (0.64 + 1.0) / 2)
    assert grad_of(loss, value) == pytest.approx([0.0, -0.5])


def test_dpo_by_hand():
    # pair 0: chosen gains 0.5 + 0.5, rejected 0.4; pair 1: chosen -1, rejected 1
    logprob = leaf(-1.0, -1.0, -1.0, -3.0, -1.0)
    reference = torch.tensor([-1.5, -1.5, -1.4, -2.0, -2.0]).double()
    sign, unit = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0]).double(), torch.tensor([0, 0, 0, 1, 1])
    loss = dpo_loss(logprob, reference, sign, unit=unit, num_units=2, beta=0.5, denominator=2.0)
    margins = [0.5 * (1.0 - 0.4), 0.5 * (-1.0 - 1.0)]
    assert loss.value.item() == pytest.approx(sum(math.log1p(math.exp(-m)) for m in margins) / 2)
    assert loss.metrics["preference/accuracy"].item() == 0.5
    assert loss.metrics["preference/reward_chosen"].item() == pytest.approx(0.0)
    slopes = [0.5 / (1 + math.exp(m)) / 2 for m in margins]
    assert grad_of(loss, logprob) == pytest.approx([-slopes[0], -slopes[0], slopes[0], -slopes[1], slopes[1]])


def test_bradley_terry_by_hand():
    score = leaf(2.0, 1.0, 0.0, 3.0)
    sign, unit = torch.tensor([1.0, -1.0, 1.0, -1.0]).double(), torch.tensor([0, 0, 1, 1])
    loss = bradley_terry_loss(score, sign, unit=unit, num_units=2, denominator=2.0)
    assert loss.value.item() == pytest.approx((math.log1p(math.exp(-1.0)) + math.log1p(math.exp(3.0))) / 2)
    assert loss.metrics["preference/margin"].item() == pytest.approx(-1.0)
    assert loss.metrics["preference/accuracy"].item() == 0.5
