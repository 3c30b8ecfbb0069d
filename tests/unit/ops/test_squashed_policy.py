"""The squashed policy: against numpy, against the chain of operations in `distributions`, and its gradient by hand."""

import numpy as np
import torch

from runnel.core.rng import make_rng
from runnel.ops.distributions import squashed_gaussian_sample
from runnel.ops.squashed import squash, squash_backward

BOUNDS = (-20.0, 2.0)


def test_it_agrees_with_numpy():
    rng = make_rng(0, "squashed")
    mean, log_std, z = rng.normal(size=(64, 3)), rng.uniform(-2, 0.5, (64, 3)), rng.normal(size=(64, 3))
    policy = squash(torch.tensor(np.concatenate([mean, log_std], -1)), torch.tensor(z), log_std_bounds=BOUNDS)
    x = mean + np.exp(log_std) * z
    density = np.exp(-0.5 * z**2) / (np.exp(log_std) * np.sqrt(2.0 * np.pi)) / (1.0 - np.tanh(x) ** 2)
    np.testing.assert_allclose(policy.action.numpy(), np.tanh(x), atol=1e-12)
    np.testing.assert_allclose(policy.logprob.numpy(), np.log(density).sum(-1), atol=1e-9)


def test_values_and_gradients_are_those_of_the_chain_under_autograd():
    rng = make_rng(1, "squashed")
    scores = torch.tensor(rng.uniform(-1.5, 1.5, (32, 4)), requires_grad=True)
    noise = torch.tensor(rng.uniform(0.01, 0.99, (32, 2)))
    action, logprob = squashed_gaussian_sample(*scores.chunk(2, -1), noise)
    policy = squash(scores.detach(), torch.special.ndtri(noise), log_std_bounds=BOUNDS)
    torch.testing.assert_close((policy.action, policy.logprob), (action.detach(), logprob.detach()))
    to_action, to_logprob = torch.tensor(rng.normal(size=(32, 2))), torch.tensor(rng.normal(size=32))
    (expected,) = torch.autograd.grad((action, logprob), scores, (to_action, to_logprob))
    torch.testing.assert_close(squash_backward(policy, to_action=to_action, to_logprob=to_logprob), expected)


def test_a_clamped_deviation_has_no_gradient_and_the_ends_stay_finite():
    scores = torch.tensor([[60.0, 3.0], [-60.0, -30.0]])
    policy = squash(scores, torch.ones(2, 1), log_std_bounds=BOUNDS)
    assert policy.action.flatten().tolist() == [1.0, -1.0]
    assert policy.logprob.isfinite().all()
    grad = squash_backward(policy, to_action=torch.zeros(2, 1), to_logprob=torch.ones(2))
    torch.testing.assert_close(grad, torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))
