from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.losses.token import kl_loss, policy_loss, sft_loss
from runnel.ops.credit import group_advantage, leave_one_out
from runnel.ops.logprobs import logprobs_from_logits, token_logprobs


def test_group_advantage_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0]])
    plain = group_advantage(rewards, scale=False)
    assert plain.tolist() == [[0.75, -0.25, -0.25, -0.25], [0.0] * 4]
    scaled = group_advantage(rewards, scale=True)
    torch.testing.assert_close(scaled[0], torch.tensor([1.5, -0.5, -0.5, -0.5]), atol=1e-5, rtol=0)  # std is 0.5
    assert scaled[1].tolist() == [0.0] * 4


def test_group_advantage_is_zero_for_equal_rewards_that_round():
    assert group_advantage(torch.full((1, 7), 0.1), scale=True).abs().max().item() == 0.0


def test_leave_one_out_against_numpy():
    rewards = np.random.default_rng(0).normal(size=(5, 6))
    expected = np.empty_like(rewards)
    for g in range(5):
        for i in range(6):
            expected[g, i] = rewards[g, i] - np.delete(rewards[g], i).mean()
    np.testing.assert_allclose(leave_one_out(torch.tensor(rewards)).numpy(), expected)
    # RLOO is the group mean form, times n / (n - 1)
    np.testing.assert_allclose(expected, group_advantage(torch.tensor(rewards), scale=False).numpy() * 6 / 5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_and_entropy_against_numpy(temperature):
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(4, 7)), rng.integers(7, size=4)
    p = np.exp(logits / temperature)
    p /= p.sum(axis=1, keepdims=True)
    logprob, entropy = logprobs_from_logits(torch.tensor(logits), torch.tensor(targets), temperature=temperature)
    np.testing.assert_allclose(logprob.numpy(), np.log(p[np.arange(4), targets]), rtol=1e-5)
    np.testing.assert_allclose(entropy.numpy(), -(p * np.log(p)).sum(axis=1), rtol=1e-5)


def test_chunks_change_neither_values_nor_gradients():
    torch.manual_seed(0)
    head = torch.nn.Linear(5, 11)
    hidden, targets = torch.randn(23, 5), torch.randint(11, (23,))
    grads = []
    for chunk in (100, 4):
        h = hidden.clone().requires_grad_(True)
        head.zero_grad()
        logprob, entropy = token_logprobs(h, targets, head=head, temperature=0.8, chunk_size=chunk)
        (logprob.sum() + 0.3 * entropy.sum()).backward()
        grads.append((logprob.detach(), h.grad, head.weight.grad.clone()))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_policy_loss_by_hand():
    # ratios 1.5, 0.5, 1.0 with advantages 2, -1, 1; clip to [0.8, 1.28]
    old = torch.zeros(3)
    logprob = torch.log(torch.tensor([1.5, 0.5, 1.0])).requires_grad_(True)
    loss = policy_loss(
        logprob, old, torch.tensor([2.0, -1.0, 1.0]), weight=torch.ones(3), clip_low=0.2, clip_high=0.28, denominator=10.0
    )
    # min(3, 2.56) = 2.56; min(-0.5, -0.8) = -0.8; 1
    assert loss.value.item() == pytest.approx(-(2.56 - 0.8 + 1.0) / 10, rel=1e-6)
    loss.value.backward()
    np.testing.assert_allclose(logprob.grad.numpy(), [0.0, 0.0, -0.1], atol=1e-7)
    assert loss.metrics["clip_fraction"].item() == pytest.approx(0.2)
    k3 = 0.5 - np.log(1.5) + (-0.5 - np.log(0.5))
    assert loss.metrics["approx_kl"].item() == pytest.approx(k3 / 10, rel=1e-5)


def test_sft_and_kl_by_hand():
    logprob = torch.tensor([-1.0, -2.0])
    assert sft_loss(logprob, weight=torch.tensor([1.0, 0.5]), denominator=4.0).value.item() == pytest.approx(0.5)
    assert kl_loss(logprob, logprob, weight=torch.ones(2), denominator=2.0).value.item() == 0.0
    value = kl_loss(logprob, torch.tensor([-1.5, -2.0]), weight=torch.ones(2), denominator=2.0).value.item()
    assert value == pytest.approx((np.exp(-0.5) + 0.5 - 1) / 2)
