"""V-trace against hand numbers, against the sum of the paper written out in numpy, and against GAE on the policy's own data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops.returns import gae, vtrace


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)[:, None]


def test_hand_numbers_with_both_bars_at_work():
    # V = 1, 2; V' = 2, 4; r = 1, 2; gamma 0.5; ratios 3, 0.5; rho_bar 2, c_bar 1
    # delta0 = 2 (1 + 1 - 1) = 2, delta1 = 0.5 (2 + 2 - 2) = 1; e1 = 1, e0 = 2 + 0.5 * 1 * 1 = 2.5; v = 3.5, 3
    # A0 = 1 + 0.5 * v1 - 1 = 1.5, A1 = 2 + 0.5 * 4 - 2 = 2
    found = vtrace(
        column(1, 2),
        column(1, 2),
        column(2, 4),
        column(3, 0.5).log(),
        flags(0, 0),
        flags(0, 0),
        gamma=0.5,
        rho_bar=2.0,
        c_bar=1.0,
    )
    torch.testing.assert_close(found.targets, column(3.5, 3.0))
    torch.testing.assert_close(found.advantages, column(1.5, 2.0))
    torch.testing.assert_close(found.rhos, column(2.0, 0.5))


def test_termination_does_not_bootstrap_and_truncation_does():
    rewards, values, next_values, same = column(1, 1), column(0, 0), column(10, 10), column(0, 0)
    ended = vtrace(rewards, values, next_values, same, flags(1, 1), flags(0, 0), gamma=0.9)
    cut = vtrace(rewards, values, next_values, same, flags(0, 0), flags(1, 1), gamma=0.9)
    for got, want in ((ended, column(1, 1)), (cut, column(10, 10))):  # 1 + 0.9 * 10, and nothing from the next episode
        torch.testing.assert_close(got.targets, want)
        torch.testing.assert_close(got.advantages, want)


def paper(rewards, values, next_values, ratio, terminated, truncated, *, gamma, lam, rho_bar, c_bar):
    """Equation 1 as it stands: v_s = V_s + sum over t of gamma^(t-s) (prod of c) delta_t, up to where the episode ends."""
    num_steps, num_envs = rewards.shape
    rho, c = np.minimum(rho_bar, ratio), lam * np.minimum(c_bar, ratio)
    following = np.where(terminated, 0.0, next_values)
    targets, advantages = values.copy(), np.zeros_like(values)
    for b in range(num_envs):
        for s in range(num_steps):
            for t in range(s, num_steps):
                delta = rho[t, b] * (rewards[t, b] + gamma * following[t, b] - values[t, b])
                targets[s, b] += gamma ** (t - s) * np.prod(c[s:t, b]) * delta
                if terminated[t, b] or truncated[t, b]:
                    break
        for s in range(num_steps):
            last = s == num_steps - 1 or terminated[s, b] or truncated[s, b]
            ahead = following[s, b] if last else lam * targets[s + 1, b] + (1 - lam) * following[s, b]
            advantages[s, b] = rewards[s, b] + gamma * ahead - values[s, b]
    return targets, advantages


def draw(seed, num_steps, num_envs, *, off_policy=0.7):
    """Random data in which, as in a segment, V' is the next step's V unless an episode ended."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    rewards, values, log_ratio = rng.normal(size=shape), rng.normal(size=shape), off_policy * rng.normal(size=shape)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    next_values = np.concatenate([values[1:], rng.normal(size=(1, num_envs))])
    next_values = np.where(terminated | truncated, rng.normal(size=shape), next_values)
    return rewards, values, next_values, log_ratio, terminated, truncated


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 3), st.floats(0.5, 3))
def test_equals_the_sum_of_the_paper(num_steps, seed, gamma, lam, rho_bar, c_bar):
    data = draw(seed, num_steps, 2)
    got = vtrace(*map(torch.from_numpy, data), gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar)
    rewards, values, next_values, log_ratio, terminated, truncated = data
    bars = {"gamma": gamma, "lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    targets, advantages = paper(rewards, values, next_values, np.exp(log_ratio), terminated, truncated, **bars)
    np.testing.assert_allclose(got.targets.numpy(), targets, atol=1e-9)
    np.testing.assert_allclose(got.advantages.numpy(), advantages, atol=1e-9)


def test_on_policy_it_is_the_n_step_return():
    rewards, values, next_values, log_ratio, terminated, truncated = map(torch.from_numpy, draw(3, 40, 3, off_policy=0.0))
    got = vtrace(rewards, values, next_values, log_ratio, terminated, truncated, gamma=0.97)
    following = next_values[-1]
    for t in reversed(range(40)):  # the return of what is left of the episode, and the critic's word on what follows
        ahead = torch.where(terminated[t], 0.0, torch.where(truncated[t], next_values[t], following))
        following = rewards[t] + 0.97 * ahead
        torch.testing.assert_close(got.targets[t], following)
    torch.testing.assert_close(got.advantages, got.targets - values)


@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95, 1.0])
def test_on_policy_it_is_generalised_advantage_estimation(lam):
    rewards, values, next_values, log_ratio, terminated, truncated = map(torch.from_numpy, draw(4, 40, 3, off_policy=0.0))
    got = vtrace(rewards, values, next_values, log_ratio, terminated, truncated, gamma=0.97, lam=lam)
    advantages, returns = gae(rewards, values, next_values, terminated, truncated, gamma=0.97, lam=lam)
    torch.testing.assert_close(got.advantages, advantages)
    torch.testing.assert_close(got.targets, returns)


def test_policy_evaluation_off_policy_finds_the_value_of_the_target_policy():
    """Two actions in one state, each paying its own reward and going on for ever: with rho_bar above any ratio the fixed
    point of V-trace is the target policy's value, though the other policy made the data."""
    rng, gamma, reward = np.random.default_rng(5), 0.5, np.array([1.0, 3.0])
    behaviour, target = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    action = (rng.random((400, 200)) < behaviour[1]).astype(int)
    log_ratio = torch.from_numpy(np.log(target / behaviour)[action])
    end = torch.zeros(400, 200, dtype=torch.bool)
    value = torch.zeros(400, 200, dtype=torch.float64)
    for _ in range(40):
        bars = {"rho_bar": 10.0, "c_bar": 1.0}
        found = vtrace(torch.from_numpy(reward[action]), value, value, log_ratio, end, end, gamma=gamma, **bars)
        value = torch.full_like(value, found.targets.mean().item())
    assert value[0, 0].item() == pytest.approx((target @ reward) / (1 - gamma), rel=0.02)
