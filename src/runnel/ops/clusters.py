"""Groups of points that lie together."""

from __future__ import annotations

import numpy as np

from runnel.core.state import Array

_PASSES = 50


def k_means(points: Array, num: int, rng: np.random.Generator) -> Array:
    """The cluster of each point, by Lloyd's algorithm, numbered from 0; fewer than `num` where points coincide. `[n, d] -> [n]`

    The first centre is any point; each further one is a point, drawn by its squared distance to the nearest centre (Arthur and
    Vassilvitskii 2007). Then, by turns, each point joins its nearest centre, and each centre moves to the mean of its points.

    >>> k_means(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, np.random.default_rng(0)).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """
    centres = [points[rng.integers(len(points))]]
    while len(centres) < num:
        far = _distances(points, np.stack(centres)).min(axis=1)
        if not far.any():  # all points are centres already
            break
        centres.append(points[rng.choice(len(points), p=far / far.sum())])
    found, labels = np.stack(centres), np.full(len(points), -1)
    for _ in range(_PASSES):
        nearest = _distances(points, found).argmin(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for k in np.unique(labels):  # a centre that has lost all its points stays where it is
            found[k] = points[labels == k].mean(axis=0)
    numbered: Array = np.unique(labels, return_inverse=True)[1].reshape(-1)
    return numbered


def _distances(points: Array, centres: Array) -> Array:
    """Squared distances. `[n, d], [k, d] -> [n, k]`"""
    found: Array = np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    return found
