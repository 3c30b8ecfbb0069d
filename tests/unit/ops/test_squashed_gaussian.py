"""The tanh-squashed Gaussian against torch.distributions, numpy and numerical integration."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from runnel.ops import distributions as dist


def case(seed=0, num=64, dims=3):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(num, dims, generator=g, dtype=torch.float64)
    log_std = torch.randn(num, dims, generator=g, dtype=torch.float64) * 0.5
    noise = torch.rand(num, dims, generator=g, dtype=torch.float64)
    return mean, log_std, noise


def reference(mean, log_std):
    return TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])


def test_sample_and_evaluate_agree_with_torch_distributions():
    mean, log_std, noise = case()
    action, logprob = dist.squashed_gaussian_sample(mean, log_std, noise)
    assert action.shape == (64, 3)
    assert (action.abs() < 1).all()
    torch.testing.assert_close(logprob, reference(mean, log_std).log_prob(action).sum(-1))
    torch.testing.assert_close(dist.squashed_gaussian_evaluate(mean, log_std, action), logprob)
    mode, at_mode = dist.squashed_gaussian_mode(mean, log_std)
    torch.testing.assert_close(mode, mean.tanh())
    torch.testing.assert_close(at_mode, reference(mean, log_std).log_prob(mode).sum(-1))


def test_a_number_by_hand():
    """mean 0, std 1, a = tanh(1): log p = -1/2 - log(2 pi) / 2 - log(1 - tanh(1)^2)."""
    action = torch.tensor([[math.tanh(1.0)]], dtype=torch.float64)
    wanted = -0.5 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(1.0) ** 2)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert dist.squashed_gaussian_evaluate(zero, zero, action).item() == pytest.approx(wanted)
    phi_of_one = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    got, logprob = dist.squashed_gaussian_sample(zero, zero, torch.full((1, 1), phi_of_one, dtype=torch.float64))
    assert got.item() == pytest.approx(math.tanh(1.0))
    assert logprob.item() == pytest.approx(wanted)


def test_the_density_integrates_to_one():
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    mean, log_std = torch.tensor([0.4], dtype=torch.float64), torch.tensor([-0.3], dtype=torch.float64)
    density = dist.squashed_gaussian_evaluate(mean, log_std, grid).exp().numpy()
    assert np.trapezoid(density, dx=1e-5) == pytest.approx(1.0, abs=1e-4)


def test_float32_far_out_stays_right():
    """At u = 20, `log(1 - tanh(u)^2)` is minus infinity when written as it reads; the answer is 2 (log 2 - 20)."""
    mean, log_std = torch.tensor([[20.0], [-20.0], [80.0]]), torch.full((3, 1), -3.0)
    action, logprob = dist.squashed_gaussian_sample(mean, log_std, torch.full((3, 1), 0.5))
    exact = [3.0 - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u) for u in (20.0, 20.0, 80.0)]
    torch.testing.assert_close(logprob, torch.tensor(exact), rtol=1e-5, atol=1e-4)
    assert action.flatten().tolist() == [1.0, -1.0, 1.0]
    assert dist.squashed_gaussian_evaluate(mean, log_std, action).isfinite().all()


def test_gradients_go_through_the_sample():
    mean, log_std, noise = case(seed=1, num=5, dims=2)
    mean.requires_grad_()
    log_std.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: dist.squashed_gaussian_sample(m, s, noise), (mean, log_std))
    far = torch.tensor([[50.0, -50.0]], requires_grad=True)
    action, logprob = dist.squashed_gaussian_sample(far, torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    (action.sum() + logprob.sum()).backward()
    assert far.grad.isfinite().all()


def test_one_deviation_for_all_rows_is_allowed():
    mean, _, noise = case(num=4)
    log_std = torch.tensor([0.1, -0.2, 0.0], dtype=torch.float64)
    shared = dist.squashed_gaussian_sample(mean, log_std, noise)
    rows = dist.squashed_gaussian_sample(mean, log_std.expand(4, 3), noise)
    assert all(torch.equal(a, b) for a, b in zip(shared, rows, strict=True))
