"""Clusters: each point is with its nearest centre, which is the mean of its points; far groups are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runnel.ops.clusters import k_means


@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.integers(-5, 5)), st.integers(1, 6))
def test_no_point_would_rather_be_elsewhere(points: np.ndarray, num: int) -> None:
    labels = k_means(points, num, np.random.default_rng(0))
    found = sorted(set(labels.tolist()))
    assert found == list(range(len(found)))
    assert len(found) <= min(num, len(np.unique(points, axis=0)))
    means = np.stack([points[labels == k].mean(axis=0) for k in found])
    apart = ((points[:, None] - means) ** 2).sum(axis=-1)
    assert apart[np.arange(len(points)), labels] == pytest.approx(apart.min(axis=1), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_groups_that_lie_far_apart_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0], [50.0, 50.0]])
    due = rng.integers(4, size=80)
    labels = k_means(centres[due] + rng.standard_normal((80, 2)), 4, rng)
    assert len({(a, b) for a, b in zip(due.tolist(), labels.tolist(), strict=True)}) == 4
