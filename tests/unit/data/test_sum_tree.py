"""The sum tree against a running sum, and exact rebuilding from its leaves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.data.sum_tree import SumTree


@pytest.mark.parametrize("size", [1, 13, 32, 2048, 70_000])
def test_it_finds_what_a_running_sum_finds(size):
    rng = np.random.default_rng(0)
    tree, values = SumTree(size), rng.random(size)
    values[rng.random(size) < 0.2] = 0.0
    values[min(5, size - 1)] = 2.0
    tree.set(np.arange(size), values)
    tree.set(np.array([0, 0]), np.array([1.0, 3.0]))
    values[0] = 3.0
    mass = rng.random(500) * tree.total
    assert tree.total == pytest.approx(values.sum())
    found = tree.find(mass)
    assert (np.abs(found - np.searchsorted(values.cumsum(), mass, side="right")) <= 1).all()
    assert (found == np.searchsorted(values.cumsum(), mass, side="right")).mean() > 0.99
    assert (tree.get(found) > 0).all()
    assert tree.find(np.array([tree.total * 2]))[0] == np.flatnonzero(values)[-1]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 1000))
def test_leaves_alone_restore_it_bit_for_bit(size, seed):
    rng = np.random.default_rng(seed)
    tree, again = SumTree(size), SumTree(size)
    start = int(rng.integers(0, size))
    tree.fill(start, size, 0.7)
    for _ in range(5):
        tree.set(rng.integers(0, size, 20), rng.random(20))
    again.set(np.arange(size), tree.get(np.arange(size)))
    assert all(np.array_equal(a, b) for a, b in zip(tree._levels, again._levels, strict=True))
    assert tree.total == again.total
