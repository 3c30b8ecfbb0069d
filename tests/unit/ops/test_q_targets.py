"""Targets of several critics: by hand, and against numpy."""

import numpy as np
import torch

from runnel.core.rng import make_rng
from runnel.ops.targets import min_target, soft_target, soft_target_discrete


def tensor(x):
    return torch.tensor(x, dtype=torch.float32)


def test_min_target_by_hand():
    """Critics say 2 and 3, then 5 and 4; the second transition terminated."""
    y = min_target(tensor([1.0, 1.0]), tensor([0.9, 0.0]), tensor([[2.0, 5.0], [3.0, 4.0]]))
    torch.testing.assert_close(y, tensor([1.0 + 0.9 * 2.0, 1.0]))


def test_soft_target_by_hand():
    y = soft_target(tensor([1.0]), tensor([0.5]), tensor([[2.0], [3.0]]), next_logprob=tensor([-4.0]), temperature=tensor(0.25))
    torch.testing.assert_close(y, tensor([1.0 + 0.5 * (2.0 + 0.25 * 4.0)]))


def test_soft_target_of_discrete_actions_by_hand():
    """pi = (1/4, 3/4), min Q = (1, 2), temperature 1: V = 1/4 (1 + log 4) + 3/4 (2 + log 4/3)."""
    logprobs = tensor([[0.25, 0.75]]).log()
    next_q = tensor([[[1.0, 9.0]], [[8.0, 2.0]]])
    y = soft_target_discrete(tensor([0.5]), tensor([0.9]), next_q, next_logprobs=logprobs, temperature=tensor(1.0))
    value = 0.25 * (1.0 + np.log(4.0)) + 0.75 * (2.0 + np.log(4.0 / 3.0))
    torch.testing.assert_close(y, tensor([0.5 + 0.9 * value]))


def test_targets_agree_with_numpy():
    rng, n = make_rng(0, "targets"), 32
    r, d, lp = rng.normal(size=n), rng.uniform(0, 1, n), rng.normal(size=n)
    q, alpha = rng.normal(size=(2, n)), 0.3
    expected = [r[i] + d[i] * min(q[0, i], q[1, i]) for i in range(n)]
    np.testing.assert_allclose(min_target(tensor(r), tensor(d), tensor(q)).numpy(), expected, rtol=1e-5, atol=1e-6)
    soft = [r[i] + d[i] * (min(q[0, i], q[1, i]) - alpha * lp[i]) for i in range(n)]
    found = soft_target(tensor(r), tensor(d), tensor(q), next_logprob=tensor(lp), temperature=tensor(alpha))
    np.testing.assert_allclose(found.numpy(), soft, rtol=1e-5, atol=1e-6)
    qa, probs = rng.normal(size=(2, n, 3)), rng.dirichlet(np.ones(3), size=n)
    full = [
        r[i] + d[i] * sum(p * (min(qa[0, i, a], qa[1, i, a]) - alpha * np.log(p)) for a, p in enumerate(probs[i]))
        for i in range(n)
    ]
    found = soft_target_discrete(
        tensor(r), tensor(d), tensor(qa), next_logprobs=tensor(np.log(probs)), temperature=tensor(alpha)
    )
    np.testing.assert_allclose(found.numpy(), full, rtol=1e-4, atol=1e-5)


def test_a_forbidden_action_adds_nothing():
    logprobs = torch.tensor([[0.0, -1e9]])
    next_q = torch.tensor([[[1.0, 1e6]], [[2.0, 1e6]]])
    y = soft_target_discrete(tensor([0.0]), tensor([1.0]), next_q, next_logprobs=logprobs, temperature=tensor(1.0))
    assert y.item() == 1.0
