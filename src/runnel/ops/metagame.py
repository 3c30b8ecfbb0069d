"""Meta-strategies: how often to play each of several policies, given what each of them gets against each.

In an empirical game the moves are whole policies. `rows` `[K, L]` is the mean result of row policy k against column policy l,
for whoever chooses the row; `columns` `[K, L]` is that of whoever chooses the column. Without `columns` the game is zero-sum:
`columns = -rows`. A meta-solver gives probabilities of the rows `[K]` and of the columns `[L]`; policy-space response oracles
(PSRO, Lanctot et al. 2017, arXiv:1711.00832) train the next policy against them. All in float64, and without randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Array

Pair = tuple[Array, Array]
"""Probabilities of the rows `[K]` and of the columns `[L]`."""


class MetaSolver(Protocol):
    """Gives both populations their probabilities. Without `columns` the game is zero-sum. `[K, L], [K, L] -> [K], [L]`"""

    def __call__(self, rows: Array, columns: Array | None = None, /) -> Pair: ...


STEPS = 5_000
"""The most steps that `risk_averse` takes: a few hundred are usual for up to 60 policies."""
ENOUGH, TOO_FAR = 1e-5, 1e-3
"""Where `risk_averse` stops, and what it refuses to give back: what a player could still gain, as a share of all pay-offs."""


def meta_strategy(solver: str, payoffs: Array) -> Array:
    """The probabilities that `solver` gives the rows of a zero-sum game. `[K, L] -> [K]`

    >>> meta_strategy("nash", np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])).round(3).tolist()
    [0.333, 0.333, 0.333]
    """
    return meta_strategies(solver, payoffs)[0]


def meta_strategies(solver: str, rows: Array, columns: Array | None = None) -> Pair:
    """The probabilities that the solver of this name gives both populations. `[K, L], [K, L] -> [K], [L]`"""
    if solver not in META_SOLVERS:
        raise ConfigError("solver", solver, f"unknown; use one of {', '.join(META_SOLVERS)}")
    return META_SOLVERS[solver](rows, columns)


def deviation_gains(rows: Array, p: Array, q: Array, columns: Array | None = None) -> tuple[float, float]:
    """What the row player, and what the column player, could gain by one policy in place of its probabilities: both 0 at a Nash
    equilibrium. `[K, L], [K], [L]`

        max_k (A q)_k - p^T A q,   max_l (B^T p)_l - p^T B q

    >>> deviation_gains(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    (0.0, 1.0)
    """
    a, b = _both(rows, columns)
    return float((a @ q).max() - p @ a @ q), float((p @ b).max() - p @ b @ q)


# ------------------------------------------------------------------------------------------------------------------ solvers
def uniform(rows: Array, columns: Array | None = None) -> Pair:
    """All policies alike. Best responses to it are fictitious play (Brown 1951)."""
    a, _ = _both(rows, columns)
    return np.full(a.shape[0], 1.0 / a.shape[0]), np.full(a.shape[1], 1.0 / a.shape[1])


def latest(rows: Array, columns: Array | None = None) -> Pair:
    """The last policy alone: plain self-play, which can go in circles for ever.

    >>> latest(np.zeros((2, 3)))[1].tolist()
    [0.0, 0.0, 1.0]
    """
    a, _ = _both(rows, columns)
    return np.eye(a.shape[0])[-1], np.eye(a.shape[1])[-1]


def nash(rows: Array, columns: Array | None = None) -> Pair:
    """A Nash equilibrium of a zero-sum or constant-sum game, by two linear programs (von Neumann 1928; needs scipy).

        max v  subject to  A^T p >= v, sum p = 1, p >= 0        and the same for q with -A^T

    Of several equilibria it is a corner of their set, which may leave some of them out.
    """
    a, b = _both(rows, columns)
    total = a + b
    if np.ptp(total) > 1e-9 * max(1.0, float(np.abs(a).max())):
        fix = "a linear program finds the equilibrium of a zero-sum game alone; use projected_replicator or risk_averse"
        raise DataError(
            f"what both players get must sum to a constant, and here it is {total.min():g} to {total.max():g}; {fix}"
        )
    return _maximin(a), _maximin(-a.T)


def _maximin(a: Array) -> Array:
    """The mixture of rows whose worst column pays most."""
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise ConfigError("solver", "nash", "needs scipy: pip install 'runnel[games]'") from error
    num, spread = a.shape[0], float(np.ptp(a))
    if spread == 0.0:
        return np.full(num, 1.0 / num)
    scaled = (a - a.min()) / spread  # the solver's tolerances are absolute
    found = linprog(
        np.append(np.zeros(num), -1.0),
        A_ub=np.hstack([-scaled.T, np.ones((a.shape[1], 1))]),
        b_ub=np.zeros(a.shape[1]),
        A_eq=np.append(np.ones(num), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * num + [(None, None)],
        method="highs-ds",  # a simplex method: its answer is a corner, exact but for rounding
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.x is None:
        raise DataError(f"the linear program found no equilibrium ({found.message})")
    p = np.maximum(found.x[:num], 0.0)
    return np.asarray(p / p.sum())


def projected_replicator(
    rows: Array, columns: Array | None = None, *, steps: int = 10_000, dt: float = 0.01, floor: float = 1e-6
) -> Pair:
    """Projected replicator dynamics (Lanctot et al. 2017, sec. 3.3): the mean of `steps` steps from all policies alike.

        p <- P[p + dt p (A q - p^T A q)],    q <- P[q + dt q (B^T p - p^T B q)]

    P gives the nearest probabilities of at least `floor` each, so every policy goes on being met. In zero-sum games the mean
    comes near an equilibrium, the more the longer it runs.
    """
    a, b = _both(rows, columns)
    if not 0.0 <= floor <= 1.0 / max(a.shape):
        raise ConfigError("floor", floor, f"use 0 to {1.0 / max(a.shape):g}: probabilities of {max(a.shape)} policies sum to 1")
    if steps < 1 or dt <= 0.0:
        raise ConfigError("steps" if steps < 1 else "dt", steps if steps < 1 else dt, "use a number above 0")
    p, q = uniform(a)
    mean_p, mean_q = p, q
    for step in range(steps):
        paid_p, paid_q = a @ q, p @ b
        p, q = _onto(p + dt * p * (paid_p - p @ paid_p), floor), _onto(q + dt * q * (paid_q - paid_q @ q), floor)
        mean_p, mean_q = mean_p + (p - mean_p) / (step + 2), mean_q + (q - mean_q) / (step + 2)
    return mean_p, mean_q


def risk_averse(rows: Array, columns: Array | None = None, *, aversion: float = 1.0, tremble: float = 0.05) -> Pair:
    """An equilibrium of players who like a high mean result and dislike its variance, which the other's choice brings about.

        u(p; q) = p^T A q' - aversion p^T S(q') p
        S(q')   = A diag(q') A^T - (A q')(A q')^T,   q' = (1 - tremble) q + tremble / L

    and the same for q with B^T and p'. S is the covariance of what the policies of one player get, over the draws of the other.
    `p^T S p` is the variance of what p gets on average against a drawn opponent. The other trembles: each of its policies is
    drawn at times, so also one that it would never choose counts as a risk.

    From the risk-averse equilibrium of Slumbers et al. (2023, arXiv:2205.15434) this takes the idea of their abstract: every
    player weighs the variance that the strategy of the others causes, and the solution stands in place of Nash in PSRO. The
    mean less a multiple of the variance, the tremble and the solver are chosen here, so its numbers need not be theirs.

    u is concave in the player's own probabilities, so an equilibrium exists (Rosen 1965), and `max_k g_k - p^T g`, with g the
    gradient of u, bounds what a player could still gain. The extragradient method (Korpelevich 1976) with a step as long as the
    gradients allow goes on until that bound is 1e-5 of the range of pay-offs. Where it stays above 1e-3 (it can where the game
    is far from zero-sum), there is a `DataError` and no answer.
    """
    a, b = _both(rows, columns)
    if aversion < 0.0 or not 0.0 <= tremble < 1.0:
        name, value = ("aversion", aversion) if aversion < 0.0 else ("tremble", tremble)
        raise ConfigError(name, value, "use 0 or more" if aversion < 0.0 else "use 0 or more, and less than 1")
    spread = max(float(np.ptp(a)), float(np.ptp(b)))
    if spread == 0.0:
        return uniform(a)

    def slopes(z: Pair) -> Pair:
        return _slope(a, *z, aversion=aversion, tremble=tremble), _slope(b.T, *z[::-1], aversion=aversion, tremble=tremble)

    now, best, least, step = uniform(a), uniform(a), np.inf, 1.0 / spread
    for _ in range(STEPS):
        here = slopes(now)
        gain = max(float(g.max() - x @ g) for x, g in zip(now, here, strict=True)) / spread
        if gain < least:
            best, least = now, gain
        if least <= ENOUGH:
            break
        there, step = _longest(now, here, slopes, step)
        now = _moved(now, there, step)
    if least > TOO_FAR:
        fix = "use another solver, or less aversion"
        raise DataError(f"no risk-averse equilibrium was found: a player could still gain {least:.1%} of the pay-offs; {fix}")
    return best


def _slope(a: Array, p: Array, q: Array, *, aversion: float, tremble: float) -> Array:
    """The gradient of `u` with respect to p. `[K, L], [K], [L] -> [K]`"""
    feared = (1.0 - tremble) * q + tremble / len(q)
    mean, drawn = a @ feared, p @ a
    slope: Array = mean - 2.0 * aversion * (a @ (feared * (drawn - p @ mean)))
    return slope


def _longest(now: Pair, here: Pair, slopes: Callable[[Pair], Pair], step: float) -> tuple[Pair, float]:
    """A trial step as long as the gradient changes by no more than 0.9 of what was gone, from one a little longer than the last
    one: the gradients behind it, and its length."""
    step *= 1.05
    while True:
        ahead = _moved(now, here, step)
        there = slopes(ahead)
        if step * _apart(there, here) <= 0.9 * _apart(ahead, now):
            return there, step
        step *= 0.7


def _moved(z: Pair, slope: Pair, step: float) -> Pair:
    return _onto(z[0] + step * slope[0]), _onto(z[1] + step * slope[1])


def _apart(one: Pair, other: Pair) -> float:
    return float(np.sqrt(sum(((x - y) ** 2).sum() for x, y in zip(one, other, strict=True))))


def _onto(x: Array, floor: float = 0.0) -> Array:
    """The probabilities of at least `floor` that are nearest to `x` (Held, Wolfe and Crowder 1974). `[K] -> [K]`"""
    num = len(x)
    ordered = np.sort(x)[::-1]
    shift = (1.0 - np.cumsum(ordered) - floor * (num - np.arange(1, num + 1))) / np.arange(1, num + 1)
    last = int(np.flatnonzero(ordered + shift > floor)[-1]) if (ordered + shift > floor).any() else 0
    return np.asarray(np.maximum(x + shift[last], floor))


def _both(rows: Array, columns: Array | None) -> Pair:
    """The pay-offs of both players, checked."""
    a = np.asarray(rows, dtype=np.float64)
    b = -a if columns is None else np.asarray(columns, dtype=np.float64)
    if a.ndim != 2 or not a.size:
        raise DataError(f"pay-offs are [rows, columns], at least one of each; got shape {a.shape}")
    if b.shape != a.shape:
        raise DataError(f"both players have pay-offs of one shape; got {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise DataError("pay-offs must be finite; play the pairs that have not met, or leave their policies out")
    return a, b


META_SOLVERS: dict[str, MetaSolver] = {
    "nash": nash,
    "uniform": uniform,
    "latest": latest,
    "projected_replicator": projected_replicator,
    "risk_averse": risk_averse,
}
"""Meta-solvers by name, with their defaults; `functools.partial` gives others."""
