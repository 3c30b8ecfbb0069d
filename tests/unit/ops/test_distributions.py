"""Distributions against scipy-free formulas, frequencies and torch.distributions (which the library does not use)."""

import math

import numpy as np
import pytest
import torch

from runnel.ops import distributions as dist


def test_categorical_sample_inverts_the_cumulative_distribution():
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(5, 3)
    noise = torch.tensor([[0.0], [0.19], [0.21], [0.49], [0.51]])
    action, logprob = dist.categorical_sample(logits, noise)
    assert action.tolist() == [0, 0, 1, 1, 2]
    torch.testing.assert_close(logprob.exp(), torch.tensor([0.2, 0.2, 0.3, 0.3, 0.5]))


def test_categorical_frequencies_follow_the_probabilities():
    noise = torch.from_numpy(np.random.default_rng(0).random((40_000, 1), dtype=np.float32))
    logits = torch.tensor([1.0, -1.0, 0.5, 0.0]).expand(40_000, 4)
    action, _ = dist.categorical_sample(logits, noise)
    frequency = torch.bincount(action, minlength=4) / 40_000
    torch.testing.assert_close(frequency, logits[0].softmax(-1), atol=0.01, rtol=0)


def test_masked_actions_are_never_chosen_even_at_the_ends_of_the_noise():
    mask = torch.tensor([False, True, False, True, False]).expand(1000, 5)
    noise = torch.linspace(0, 1, 1000)[:, None]
    logits = dist.mask_logits(torch.zeros(1000, 5), mask)
    action, logprob = dist.categorical_sample(logits, noise)
    assert sorted(set(action.tolist())) == [1, 3]
    torch.testing.assert_close(logprob, torch.full((1000,), math.log(0.5)))
    assert dist.categorical_mode(logits)[0].unique().tolist() in ([1], [3])


def test_categorical_evaluate_and_entropy_under_a_mask():
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    masked = dist.mask_logits(logits, torch.tensor([[True, True, False]]))
    logprob, entropy = dist.categorical_evaluate(masked, torch.tensor([1]))
    p = 1 / (1 + math.exp(-1.0))
    assert logprob.item() == pytest.approx(math.log(p))
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    (logprob + entropy).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0.0


def test_sample_and_evaluate_agree():
    generator = torch.Generator().manual_seed(0)
    logits, noise = torch.randn(64, 7, generator=generator), torch.rand(64, 1, generator=generator)
    action, logprob = dist.categorical_sample(logits, noise)
    torch.testing.assert_close(dist.categorical_evaluate(logits, action)[0], logprob)
    mean, log_std = torch.randn(64, 3, generator=generator), torch.tensor([-1.0, 0.0, 0.5])
    action, logprob = dist.gaussian_sample(mean, log_std, torch.rand(64, 3, generator=generator))
    torch.testing.assert_close(dist.gaussian_evaluate(mean, log_std, action)[0], logprob, atol=1e-4, rtol=1e-4)


def test_gaussian_equals_the_textbook():
    mean, log_std = torch.tensor([[0.5, -1.0]]), torch.tensor([0.0, math.log(2.0)])
    action = torch.tensor([[1.5, 1.0]])
    logprob, entropy = dist.gaussian_evaluate(mean, log_std, action)
    reference = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(logprob, reference.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, reference.entropy().sum(-1))
    assert logprob.item() == pytest.approx(-0.5 - 0.5 - math.log(2.0) - math.log(2 * math.pi))


def test_gaussian_sample_has_the_right_moments_and_is_finite_at_the_ends():
    noise = torch.from_numpy(np.random.default_rng(1).random((50_000, 1), dtype=np.float32))
    action, _ = dist.gaussian_sample(torch.full((50_000, 1), 3.0), torch.tensor([math.log(2.0)]), noise)
    assert action.mean().item() == pytest.approx(3.0, abs=0.05)
    assert action.std().item() == pytest.approx(2.0, abs=0.05)
    ends, logprob = dist.gaussian_sample(torch.zeros(2, 1), torch.zeros(1), torch.tensor([[0.0], [1.0]]))
    assert ends.isfinite().all()
    assert logprob.isfinite().all()
    mode, at_mode = dist.gaussian_mode(torch.ones(1, 2), torch.zeros(2))
    assert mode.tolist() == [[1.0, 1.0]]
    assert at_mode.item() == pytest.approx(-math.log(2 * math.pi))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.cuda
@pytest.mark.parametrize("num", [2, 5, 64, 100])
def test_on_a_device_the_same_actions_are_drawn(num):
    generator = torch.Generator().manual_seed(0)
    logits, noise = 3.0 * torch.randn(5000, num, generator=generator), torch.rand(5000, 1, generator=generator)
    logits[:, 1::2] = torch.finfo(torch.float32).min  # never drawn
    action, logprob = dist.categorical_sample(logits, noise)
    there, there_logprob = dist.categorical_sample(logits.cuda(), noise.cuda())
    same = there.cpu() == action
    assert same.float().mean() > 0.999
    assert not (there % 2).any()
    torch.testing.assert_close(there_logprob.cpu()[same], logprob[same])
