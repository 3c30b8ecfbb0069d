"""GAE against hand numbers and an independent loop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops.returns import discounted_suffix_sum, gae


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)[:, None]


def test_hand_numbers_without_an_end():
    # delta = r + 0.5 * V' - V = [1 + 1 - 1, 2 + 1.5 - 2, 3 + 2 - 3] = [1, 1.5, 2]; decay = 0.25
    advantages, returns = gae(
        column(1, 2, 3), column(1, 2, 3), column(2, 3, 4), flags(0, 0, 0), flags(0, 0, 0), gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantages, column(1 + 0.25 * 2.0, 1.5 + 0.25 * 2, 2))
    torch.testing.assert_close(returns, column(2.5, 4.0, 5.0))


def test_termination_does_not_bootstrap_and_truncation_does():
    rewards, values, next_values = column(1, 1), column(0, 0), column(10, 10)
    ended, _ = gae(rewards, values, next_values, flags(1, 1), flags(0, 0), gamma=0.9, lam=1.0)
    cut, _ = gae(rewards, values, next_values, flags(0, 0), flags(1, 1), gamma=0.9, lam=1.0)
    torch.testing.assert_close(ended, column(1, 1))
    torch.testing.assert_close(cut, column(10, 10))  # 1 + 0.9 * 10, and nothing from the next episode


def loop(rewards, values, next_values, terminated, truncated, gamma, lam):
    advantages, following = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] * (1 - terminated[t]) - values[t]
        following = delta + gamma * lam * (1 - np.maximum(terminated[t], truncated[t])) * following
        advantages[t] = following
    return advantages


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_backward_loop(num_steps, num_envs, seed, gamma, lam):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(num_steps, num_envs)) for _ in range(3)]
    ends = [rng.random((num_steps, num_envs)) < 0.15 for _ in range(2)]
    got, returns = gae(*map(torch.from_numpy, arrays + ends), gamma=gamma, lam=lam)
    want = loop(*arrays, *(e.astype(float) for e in ends), gamma, lam)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-9)
    np.testing.assert_allclose(returns.numpy(), want + arrays[1], atol=1e-9)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 128])
def test_suffix_sum_leaves_its_inputs_alone(num_steps):
    x, decay = torch.ones(num_steps, 1), torch.ones(num_steps, 1)
    assert discounted_suffix_sum(x, decay).flatten().tolist() == list(range(num_steps, 0, -1))
    assert x.sum() == num_steps
    assert decay.sum() == num_steps
