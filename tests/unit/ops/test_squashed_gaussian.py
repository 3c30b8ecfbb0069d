"""The tanh-squashed Gaussian against torch.distributions, numpy and numerical integration, and its gradient."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from runnel.ops.distributions import squashed_gaussian


def case(seed=0, num=64, dims=3):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(num, dims, generator=g, dtype=torch.float64)
    log_std = torch.randn(num, dims, generator=g, dtype=torch.float64) * 0.5
    z = torch.randn(num, dims, generator=g, dtype=torch.float64)
    return mean, log_std, z


def reference(mean, log_std):
    return TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])


def test_it_agrees_with_torch_distributions():
    mean, log_std, z = case()
    action, logprob = squashed_gaussian(mean, log_std, z)
    assert action.shape == (64, 3)
    assert (action.abs() < 1).all()
    torch.testing.assert_close(action, (mean + log_std.exp() * z).tanh())
    torch.testing.assert_close(logprob, reference(mean, log_std).log_prob(action).sum(-1))
    mode, at_mode = squashed_gaussian(mean, log_std, torch.zeros_like(mean))
    torch.testing.assert_close(mode, mean.tanh())
    torch.testing.assert_close(at_mode, reference(mean, log_std).log_prob(mode).sum(-1))


def test_it_agrees_with_numpy():
    mean, log_std, z = case(seed=3)
    action, logprob = squashed_gaussian(mean, log_std, z)
    m, s, z = (x.numpy() for x in (mean, log_std, z))
    x = m + np.exp(s) * z
    density = np.exp(-0.5 * z**2) / (np.exp(s) * np.sqrt(2.0 * np.pi)) / (1.0 - np.tanh(x) ** 2)
    np.testing.assert_allclose(action.numpy(), np.tanh(x), atol=1e-12)
    np.testing.assert_allclose(logprob.numpy(), np.log(density).sum(-1), atol=1e-9)


def test_a_number_by_hand():
    """mean 0, std 1, a = tanh(1): log p = -1/2 - log(2 pi) / 2 - log(1 - tanh(1)^2)."""
    wanted = -0.5 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(1.0) ** 2)
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    got, logprob = squashed_gaussian(zero, zero, one)
    assert got.item() == pytest.approx(math.tanh(1.0))
    assert logprob.item() == pytest.approx(wanted)


def test_the_density_integrates_to_one():
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    mean, log_std = torch.tensor([0.4], dtype=torch.float64), torch.tensor([-0.3], dtype=torch.float64)
    action, logprob = squashed_gaussian(mean, log_std, (grid.atanh() - mean) / log_std.exp())
    torch.testing.assert_close(action, grid)
    assert np.trapezoid(logprob.exp().numpy(), dx=1e-5) == pytest.approx(1.0, abs=1e-4)


def test_float32_far_out_stays_right():
    """At u = 20, `log(1 - tanh(u)^2)` is minus infinity when written as it reads; the answer is 2 (log 2 - 20)."""
    mean, log_std = torch.tensor([[20.0], [-20.0], [80.0]]), torch.full((3, 1), -3.0)
    action, logprob = squashed_gaussian(mean, log_std, torch.zeros(3, 1))
    exact = [3.0 - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u) for u in (20.0, 20.0, 80.0)]
    torch.testing.assert_close(logprob, torch.tensor(exact), rtol=1e-5, atol=1e-4)
    assert action.flatten().tolist() == [1.0, -1.0, 1.0]


def test_gradients_go_through_action_and_density():
    mean, log_std, z = case(seed=1, num=5, dims=2)
    mean.requires_grad_()
    log_std.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: squashed_gaussian(m, s, z), (mean, log_std))
    far = torch.tensor([[50.0, -50.0]], requires_grad=True)
    action, logprob = squashed_gaussian(far, torch.zeros(1, 2), torch.tensor([[5.4, -5.4]]))
    (action.sum() + logprob.sum()).backward()
    assert far.grad.isfinite().all()


def test_the_gradient_is_the_chain_rule_by_hand():
    """With t = tanh(u): da/dmean = 1 - t^2, dlogp/dmean = 2 t; both times std z in log_std, and -1 for the density's."""
    mean, log_std, z = case(seed=2, num=32, dims=2)
    to_action, to_logprob = (torch.randn(shape, dtype=torch.float64) for shape in ((32, 2), (32,)))
    action, logprob = squashed_gaussian(mean.requires_grad_(), log_std.requires_grad_(), z)
    found = torch.autograd.grad((action, logprob), (mean, log_std), (to_action, to_logprob))
    t, spread = action.detach(), (log_std.exp() * z).detach()
    to_mean = to_action * (1.0 - t**2) + to_logprob[:, None] * 2.0 * t
    torch.testing.assert_close(found, (to_mean, to_mean * spread - to_logprob[:, None]))


def test_far_out_the_density_alone_still_has_its_gradient():
    mean = torch.tensor([[60.0], [-60.0]], requires_grad=True)
    action, logprob = squashed_gaussian(mean, torch.zeros(2, 1), torch.ones(2, 1))
    assert action.flatten().tolist() == [1.0, -1.0]
    (grad,) = torch.autograd.grad(logprob.sum(), mean)
    torch.testing.assert_close(grad, torch.tensor([[2.0], [-2.0]]))


def test_one_deviation_for_all_rows_is_allowed():
    mean, _, z = case(num=4)
    log_std = torch.tensor([0.1, -0.2, 0.0], dtype=torch.float64)
    shared = squashed_gaussian(mean, log_std, z)
    rows = squashed_gaussian(mean, log_std.expand(4, 3), z)
    assert all(torch.equal(a, b) for a, b in zip(shared, rows, strict=True))
