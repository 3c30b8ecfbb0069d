"""Curves on a screen's grid: nothing lost that an eye would see, means and intervals as the reports have them."""

from __future__ import annotations

import numpy as np
import pytest

from runnel.board.curves import Aligned, across_seeds, align, clean, plain, smooth
from runnel.eval.statistics import mean_interval
from runnel.track.history import across


def test_few_points_are_shown_as_they_are():
    a, b = (np.array([1.0, 2.0, 4.0]), np.array([5.0, 6.0, 7.0])), (np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    grid = align([a, b], points=100)
    assert grid.x.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert grid.y[0].tolist()[:2] + grid.y[0].tolist()[3:] == [5.0, 6.0, 7.0]
    assert np.isnan(grid.y[0][2])
    assert grid.y[1][1:3].tolist() == [1.0, 2.0]


def test_no_peak_is_lost_and_no_value_is_invented():
    rng = np.random.default_rng(0)
    x, y = np.arange(100_000.0), rng.normal(size=100_000)
    y[12_345], y[77_777] = 50.0, -50.0
    grid = align([(x, y)], points=600)
    assert len(grid.x) == 600
    assert np.nanmax(grid.y) == 50.0
    assert np.nanmin(grid.y) == -50.0
    assert np.isin(grid.y[0], y).all()
    assert abs(grid.x[np.nanargmax(grid.y)] - 12_345) < 2 * 100_000 / 300


def test_bins_hold_the_mean():
    x, y = np.arange(1000.0), np.arange(1000.0)
    grid = align([(x, y), (x[:500], y[:500])], points=10, means=True)
    assert grid.y[0].tolist() == pytest.approx([49.5 + 100 * i for i in range(10)], abs=1.0)
    assert np.isnan(grid.y[1][5:]).all()


def test_a_zoom_sees_more():
    x = np.arange(100_000.0)
    y = np.sin(x)
    near = clean((x, y), (500.0, 520.0))
    assert near[0][0] == 499.0
    assert near[0][-1] == 521.0
    assert np.array_equal(align([near], points=600).y[0], y[499:522])


def test_positions_out_of_order_and_gaps_are_mended():
    x, y = clean((np.array([3.0, 1.0, 2.0]), np.array([30.0, np.nan, 20.0])))
    assert (x.tolist(), y.tolist()) == ([2.0, 3.0], [20.0, 30.0])
    empty = align([clean((np.zeros(0), np.zeros(0)))], points=10)
    assert empty.y.shape == (1, 0)


def test_smoothing_is_an_unbiased_moving_average():
    y = np.array([[1.0, np.nan, 3.0, 3.0]])
    out = smooth(y, 0.5)[0]
    assert out[0] == 1.0
    assert np.isnan(out[1])
    assert out[2] == pytest.approx((0.25 * 1 + 0.5 * 3) / 0.75)
    constant = smooth(np.full((1, 50), 4.0), 0.9)
    assert constant == pytest.approx(4.0)


def test_the_mean_over_seeds_is_that_of_the_reports():
    rng = np.random.default_rng(1)
    x = np.linspace(0, 100, 200)
    curves = [(x, rng.normal(size=200).cumsum()) for _ in range(4)]
    grid, mean, low, _ = across(curves, num_points=200)
    aligned = align(curves, points=400)
    got = across_seeds(aligned, range(4))
    assert np.array_equal(aligned.x, grid)
    assert got[0] == pytest.approx(mean)
    assert got[1] == pytest.approx(low)


def test_the_mean_ends_where_the_shortest_seed_ends():
    y = np.array([[1.0, 1.0, 1.0], [3.0, 3.0, np.nan]])
    mean, low, high = across_seeds(Aligned(np.arange(3.0), y), [0, 1])
    half = mean_interval(np.array([[1.0], [3.0]]))[1][0]
    assert mean[:2].tolist() == [2.0, 2.0]
    assert np.isnan(mean[2])
    assert (low[0], high[0]) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_numbers_for_json_are_short():
    assert plain(np.array([1 / 3, np.nan, 2.0, 1e9])) == [0.333333, None, 2.0, 1e9]
