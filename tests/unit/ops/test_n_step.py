"""Returns of several steps by hand and against a walk along each row."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops.targets import n_step_returns


def test_by_hand():
    """Rewards 1, 2, 4, 8, cut after step 1. Two steps, gamma 0.5."""
    rewards, none = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.zeros(4, dtype=torch.bool)
    ends = torch.tensor([False, True, False, False])
    total, discount, last = n_step_returns(rewards, none, ends, gamma=0.5, n=2)
    assert (total.tolist(), discount.tolist(), last.tolist()) == ([2.0, 2.0, 8.0, 8.0], [0.25, 0.5, 0.25, 0.5], [1, 1, 3, 3])
    total, discount, last = n_step_returns(rewards, ends, none, gamma=0.5, n=2)
    assert (total.tolist(), discount.tolist(), last.tolist()) == ([2.0, 2.0, 8.0, 8.0], [0.0, 0.0, 0.25, 0.5], [1, 1, 3, 3])
    total, discount, last = n_step_returns(rewards, ends, none, gamma=0.5, n=1)
    assert (total.tolist(), discount.tolist(), last.tolist()) == ([1.0, 2.0, 4.0, 8.0], [0.5, 0.0, 0.5, 0.5], [0, 1, 2, 3])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12))
def test_against_a_walk(seed, steps, n):
    rng = np.random.default_rng(seed)
    rewards, (terminated, truncated) = rng.normal(size=(steps, 3)), rng.random((2, steps, 3)) < 0.2
    tensors = [torch.from_numpy(x) for x in (rewards, terminated, truncated)]
    total, discount, last = (x.numpy() for x in n_step_returns(*tensors, gamma=0.9, n=n))
    for b in range(3):
        for t in range(steps):
            end = t
            while end - t + 1 < n and end < steps - 1 and not (terminated[end, b] or truncated[end, b]):
                end += 1
            expected = sum(0.9 ** (k - t) * rewards[k, b] for k in range(t, end + 1))
            np.testing.assert_allclose(total[t, b], expected)
            np.testing.assert_allclose(discount[t, b], 0.0 if terminated[end, b] else 0.9 ** (end - t + 1))
            assert last[t, b] == end
