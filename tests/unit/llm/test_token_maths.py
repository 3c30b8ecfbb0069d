from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.llm.model.logprobs import head_logprobs, logprobs_from_logits
from runnel.ops.credit import group_advantage, leave_one_out, token_gae


def groups(count, size):
    return torch.arange(count).repeat_interleave(size)


def test_group_advantage_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0])
    plain = group_advantage(rewards, groups(2, 4), scale=False)
    assert plain.tolist() == [0.75, -0.25, -0.25, -0.25, 0.0, 0.0, 0.0, 0.0]
    scaled = group_advantage(rewards, groups(2, 4), scale=True)
    torch.testing.assert_close(scaled[:4], torch.tensor([1.5, -0.5, -0.5, -0.5]), atol=1e-5, rtol=0)  # std is 0.5
    assert scaled[4:].tolist() == [0.0] * 4


def test_groups_may_differ_in_size():
    rewards, group = torch.tensor([1.0, 5.0, 3.0, 0.0]), torch.tensor([0, 1, 1, 0])
    assert group_advantage(rewards, group, scale=False).tolist() == [0.5, 1.0, -1.0, -0.5]
    assert leave_one_out(torch.tensor([4.0, 1.0, 3.0]), torch.tensor([0, 1, 1])).tolist() == [0.0, -2.0, 2.0]


def test_group_advantage_is_zero_for_equal_rewards_that_round():
    assert group_advantage(torch.full((7,), 0.1), groups(1, 7), scale=True).abs().max().item() == 0.0


def test_leave_one_out_against_numpy():
    rewards = np.random.default_rng(0).normal(size=(5, 6))
    expected = np.empty_like(rewards)
    for g in range(5):
        for i in range(6):
            expected[g, i] = rewards[g, i] - np.delete(rewards[g], i).mean()
    flat = torch.tensor(rewards).flatten()
    np.testing.assert_allclose(leave_one_out(flat, groups(5, 6)).numpy(), expected.flatten())
    # RLOO is the group mean form, times n / (n - 1)
    np.testing.assert_allclose(expected.flatten(), group_advantage(flat, groups(5, 6), scale=False).numpy() * 6 / 5)


def test_token_gae_follows_the_masked_tokens_of_each_row():
    # row 0: prompt, a, b; row 1: prompt, c, tool, d
    mask = torch.tensor([False, True, True, False, True, False, True])
    row = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    value = torch.tensor([9.0, 0.5, 0.2, 9.0, 0.1, 9.0, 0.4])
    reward = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.3, 0.0, 0.0])
    advantage, returns = token_gae(reward, value, mask, row, num_rows=2, gamma=0.9, lam=0.5)
    b, d = 1.0 - 0.2, 0.0 - 0.4
    a, c = 0.9 * 0.2 - 0.5 + 0.45 * b, 0.3 + 0.9 * 0.4 - 0.1 + 0.45 * d
    torch.testing.assert_close(advantage, torch.tensor([0.0, a, b, 0.0, c, 0.0, d]))
    torch.testing.assert_close(returns, torch.tensor([0.0, a + 0.5, b + 0.2, 0.0, c + 0.1, 0.0, d + 0.4]))


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
        logprob, entropy = head_logprobs(h, targets, head, temperature=0.8, chunk_size=chunk)
        (logprob.sum() + 0.3 * entropy.sum()).backward()
        grads.append((logprob.detach(), h.grad, head.weight.grad.clone()))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
