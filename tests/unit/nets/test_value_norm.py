"""The scale of returns that a central critic learns on, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.contracts.learning import SingleProcess
from runnel.nets.central import ValueNorm


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.99999])
def test_mean_and_deviation_are_averages_that_forget(beta: float) -> None:
    rng = np.random.default_rng(1)
    norm, batches = ValueNorm(beta=beta), [rng.normal(30.0 * i, 2.0 + i, size=5 + i) for i in range(4)]
    for batch in batches:
        norm.update(torch.from_numpy(batch).float(), SingleProcess())
    # the newest batch counts 1, the one before beta, then beta^2, ...
    weights = np.array([beta ** (len(batches) - 1 - i) for i in range(len(batches))])
    weights /= weights.sum()
    mean = sum(w * b.mean() for w, b in zip(weights, batches, strict=True))
    square = sum(w * (b**2).mean() for w, b in zip(weights, batches, strict=True))
    assert norm.mean.item() == pytest.approx(mean, rel=1e-6)
    assert norm.deviation.item() == pytest.approx(np.sqrt(square - mean**2), rel=1e-5)
    x = torch.tensor([[1.0, -7.0]])
    torch.testing.assert_close(
        norm.normalise(x), (x - mean) / np.sqrt(square - mean**2), rtol=1e-5, atol=1e-6, check_dtype=False
    )
    torch.testing.assert_close(norm.denormalise(norm.normalise(x)), x, rtol=1e-4, atol=1e-4)


def test_before_data_and_without_rows_nothing_changes() -> None:
    norm, x = ValueNorm(beta=0.99), torch.tensor([3.0, -4.0])
    assert torch.equal(norm.normalise(x), x)
    norm.update(torch.zeros(0), SingleProcess())
    assert torch.equal(norm.denormalise(x), x)
    norm.update(x, SingleProcess())
    before = norm.normalise(x)
    norm.update(torch.zeros(0), SingleProcess())
    assert torch.equal(norm.normalise(x), before)


def test_equal_returns_are_not_blown_up() -> None:
    norm = ValueNorm(beta=0.99)
    norm.update(torch.full((6,), 5.0), SingleProcess())
    assert norm.deviation.item() == pytest.approx(0.1)
