"""Targets over a support: by hand, against plain numpy loops, and their means."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops.targets import c51_target, hl_gauss_target


def c51_in_loops(probs, reward, discount, support):
    """Algorithm 1 of Bellemare et al. 2017, as written there."""
    width, last = support[1] - support[0], len(support) - 1
    m = np.zeros_like(probs)
    for row in range(len(probs)):
        for j in range(len(support)):
            y = min(max(reward[row] + discount[row] * support[j], support[0]), support[-1])
            b = min((y - support[0]) / width, last)
            low, up = math.floor(b), math.ceil(b)
            if low == up:
                m[row, low] += probs[row, j]
            else:
                m[row, low] += probs[row, j] * (up - b)
                m[row, up] += probs[row, j] * (b - low)
    return m


def test_c51_by_hand():
    """Support 0, 1, 2. Reward 0.5 at the end of an episode: half of all mass on 0, half on 1. With discount 1 and reward 1,
    the atoms move to 1, 2 and (clipped) 2."""
    probs, support = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]]), torch.tensor([0.0, 1.0, 2.0])
    target = c51_target(probs, torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0]), support=support)
    torch.testing.assert_close(target, torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_c51_is_the_algorithm_of_the_paper(seed, num_atoms):
    rng = np.random.default_rng(seed)
    probs, support = rng.dirichlet(np.ones(num_atoms), 5), np.linspace(-2.0, 3.0, num_atoms)
    reward, discount = rng.normal(size=5) * 2, rng.random(5) * (rng.random(5) < 0.7)
    tensors = [torch.from_numpy(x) for x in (probs, reward, discount)]
    target = c51_target(*tensors, support=torch.from_numpy(support)).numpy()
    np.testing.assert_allclose(target, c51_in_loops(probs, reward, discount, support), atol=1e-9)
    np.testing.assert_allclose(target.sum(-1), 1.0)


def test_c51_takes_leading_dimensions():
    probs = torch.rand(4, 3, 7).softmax(-1)
    reward, discount, support = torch.randn(4, 3), torch.rand(4, 3), torch.linspace(-1, 1, 7)
    flat = c51_target(probs.flatten(0, 1), reward.flatten(), discount.flatten(), support=support)
    assert torch.equal(c51_target(probs, reward, discount, support=support), flat.view(4, 3, 7))


def test_hl_gauss_by_hand():
    """Support -1, 0, 1 (edges -1.5, -0.5, 0.5, 1.5), sigma 1 bin, value 0: Phi(0.5) - Phi(-0.5) = 0.38292 in the middle of
    Phi(1.5) - Phi(-1.5) = 0.86639."""
    target = hl_gauss_target(torch.tensor([0.0]), support=torch.tensor([-1.0, 0.0, 1.0]), sigma=1.0)
    middle = 0.382925 / 0.866386
    torch.testing.assert_close(target, torch.tensor([[(1 - middle) / 2, middle, (1 - middle) / 2]]), atol=1e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_hl_gauss_against_numpy(seed):
    rng = np.random.default_rng(seed)
    support, values, sigma = np.linspace(-3.0, 5.0, 17), rng.normal(size=6) * 4, float(rng.uniform(0.3, 2.0))
    edges = np.concatenate([support - 0.25, support[-1:] + 0.25])
    expected = []
    for v in np.clip(values, -3.0, 5.0):
        phi = np.array([0.5 * (1 + math.erf((e - v) / (sigma * 0.5 * math.sqrt(2)))) for e in edges])
        expected.append(np.diff(phi) / (phi[-1] - phi[0]))
    found = hl_gauss_target(torch.from_numpy(values), support=torch.from_numpy(support), sigma=sigma).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_means_come_back():
    """Inside the support both targets have the mean that they were made for."""
    support, values = torch.linspace(-10.0, 10.0, 101, dtype=torch.float64), torch.linspace(-8.0, 8.0, 33, dtype=torch.float64)
    gauss = hl_gauss_target(values, support=support, sigma=0.75)
    torch.testing.assert_close(gauss @ support, values, atol=2e-3, rtol=0)
    point = torch.zeros(33, 101, dtype=torch.float64)
    point[:, 50] = 1.0
    shifted = c51_target(point, values, torch.ones(33, dtype=torch.float64), support=support)
    torch.testing.assert_close(shifted @ support, values)
    assert hl_gauss_target(torch.tensor([1e9]), support=support.float(), sigma=0.75).argmax().item() == 100
    assert hl_gauss_target(torch.tensor([7.0]), support=support.float(), sigma=0.75).sum().item() == pytest.approx(1.0)
