"""Meta-solvers: games with known equilibria, OpenSpiel's own solvers, scipy as a second opinion, and what they refuse."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runnel.core.errors import ConfigError, DataError
from runnel.ops import metagame
from runnel.ops.metagame import (
    META_SOLVERS,
    deviation_gains,
    meta_strategies,
    meta_strategy,
    nash,
    projected_replicator,
    risk_averse,
)

RPS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
PAYOFFS = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(-9, 9).map(lambda n: n / 4))


@settings(max_examples=60, deadline=None)
@given(PAYOFFS)
def test_nobody_can_leave_a_nash_equilibrium_and_both_values_are_one(a: np.ndarray) -> None:
    p, q = nash(a)
    for x in (p, q):
        assert (x >= 0).all()
        assert x.sum() == pytest.approx(1.0, abs=1e-12)
    assert max(deviation_gains(a, p, q)) <= 1e-9
    # the same equilibrium whatever unit results are in
    assert max(deviation_gains(a, *nash(1e6 * a + 5.0))) <= 1e-9


@pytest.mark.parametrize(("rock", "paper", "scissors"), [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (0.5, 3.0, 4.0)])
def test_biased_rock_paper_scissors_has_its_closed_form(rock: float, paper: float, scissors: float) -> None:
    # stakes: of rock against paper, of paper against scissors, of scissors against rock; each is played as often as the stake
    # of the other two is high
    a = np.array([[0.0, -rock, scissors], [rock, 0.0, -paper], [-scissors, paper, 0.0]])
    due = np.array([paper, scissors, rock]) / (rock + paper + scissors)
    assert nash(a)[0] == pytest.approx(due, abs=1e-12)
    assert risk_averse(a, aversion=0.0, tremble=0.0)[0] == pytest.approx(due, abs=1e-4)


def test_dominated_policies_are_not_played() -> None:
    a = np.vstack([RPS, RPS[0] - 0.5])
    a = np.hstack([a, np.append(-a[3], 0.0)[:, None][:4]])
    for solver in ("nash", "projected_replicator", "risk_averse"):
        assert meta_strategy(solver, a)[3] < 0.01, solver


@pytest.mark.parametrize("seed", range(3))
def test_projected_replicator_is_open_spiels_step_by_step(seed: int) -> None:
    peer = pytest.importorskip("open_spiel.python.algorithms.projected_replicator_dynamics").projected_replicator_dynamics
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 4, 3))
    found = projected_replicator(a, b, steps=300, dt=0.05, floor=0.02)
    due = peer([a, b], prd_iterations=300, prd_dt=0.05, prd_gamma=0.02)
    for x, y in zip(found, due, strict=True):
        assert x == pytest.approx(y, abs=1e-12)


def test_the_replicator_comes_near_an_equilibrium() -> None:
    a = RPS * np.array([[1.0], [2.0], [1.0]])
    assert max(deviation_gains(a, *projected_replicator(a))) < 0.05


def utility(a: np.ndarray, p: np.ndarray, q: np.ndarray, aversion: float, tremble: float) -> float:
    """Mean less variance, by its definition: over the draws of the opponent, one by one."""
    weights = (1 - tremble) * q + tremble / len(q)
    results = np.array([sum(p[k] * a[k, j] for k in range(len(p))) for j in range(len(q))])
    mean = float(sum(w * r for w, r in zip(weights, results, strict=True)))
    return mean - aversion * float(sum(w * (r - mean) ** 2 for w, r in zip(weights, results, strict=True)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aversion", [0.3, 2.0])
def test_no_player_can_leave_a_risk_averse_equilibrium(seed: int, aversion: float) -> None:
    """A second optimiser (SLSQP), on the utility as it is defined, finds nothing better for either player."""
    from scipy.optimize import minimize

    a = np.random.default_rng(seed).uniform(-1, 1, size=(5, 4))
    p, q = risk_averse(a, aversion=aversion, tremble=0.1)
    for own, other, paid in ((p, q, a), (q, p, -a.T)):
        here = utility(paid, own, other, aversion, 0.1)
        found = minimize(
            lambda x, paid=paid, other=other: -utility(paid, x, other, aversion, 0.1),
            np.full(len(own), 1 / len(own)),
            bounds=[(0, 1)] * len(own),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12},
        )
        assert found.success
        assert -found.fun <= here + 1e-5


def test_who_fears_variance_takes_the_safe_policy() -> None:
    """Both hunt a stag (5 each) or a hare (2 each); who hunts the stag alone gets nothing. In the middle between both, the stag
    pays more on average. With the tremble as it is, one hunter of the hare is enough to make it a risk."""
    hunt = np.array([[5.0, 0.0], [2.0, 2.0]])
    neutral = risk_averse(hunt, hunt.T, aversion=0.0)
    averse = risk_averse(hunt, hunt.T, aversion=0.5)
    assert [x.round(6).tolist() for x in neutral] == [[1.0, 0.0], [1.0, 0.0]]
    assert [x.round(6).tolist() for x in averse] == [[0.0, 1.0], [0.0, 1.0]]


def test_aversion_lowers_the_variance_of_results_at_a_price() -> None:
    """Gamble: a policy with a better mean and a wide spread against one that is nearly safe."""
    a = np.array([[2.0, -1.6], [0.1, 0.1]])
    against = np.array([0.5, 0.5])

    def spread(p: np.ndarray) -> float:
        return float(((p @ a - p @ a @ against) ** 2) @ against)

    # the opponent is held to a coin: its own pay-offs are all equal
    mixed = {c: risk_averse(a, np.zeros_like(a), aversion=c)[0] for c in (0.0, 0.1, 1.0)}
    assert spread(mixed[0.0]) > spread(mixed[0.1]) > spread(mixed[1.0])
    # the mixture in the middle is where mean and variance balance: 0.1 = 2 c p 3.24 for the share p of the gamble
    assert mixed[0.1][0] == pytest.approx(0.1 / (2 * 0.1 * 3.24), abs=2e-3)


def test_uniform_and_latest_and_names() -> None:
    p, q = meta_strategies("uniform", np.ones((2, 4)))
    assert p.tolist() == [0.5, 0.5]
    assert q.tolist() == [0.25] * 4
    assert meta_strategy("latest", RPS).tolist() == [0.0, 0.0, 1.0]
    for name, solver in META_SOLVERS.items():
        found = solver(RPS)
        assert [x.sum() for x in found] == pytest.approx([1.0, 1.0]), name
        assert [x.tolist() for x in solver(np.zeros((1, 1)))] == [[1.0], [1.0]], name


@pytest.mark.parametrize(
    ("payoffs", "columns", "words"),
    [
        (np.zeros((0, 2)), None, "at least one"),
        (np.zeros(3), None, "rows, columns"),
        (np.array([[np.nan]]), None, "finite"),
        (RPS, RPS[:2], "one shape"),
        (RPS, RPS.T + RPS * 3, "sum to a constant"),
    ],
)
def test_payoffs_that_cannot_be_solved_are_refused(payoffs: np.ndarray, columns: np.ndarray | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        nash(payoffs, columns)


def test_settings_that_cannot_work_are_refused() -> None:
    for solver, name in (
        (functools.partial(projected_replicator, floor=0.5), "floor"),
        (functools.partial(projected_replicator, steps=0), "steps"),
        (functools.partial(projected_replicator, dt=0.0), "dt"),
        (functools.partial(risk_averse, aversion=-1.0), "aversion"),
        (functools.partial(risk_averse, tremble=1.0), "tremble"),
    ):
        with pytest.raises(ConfigError, match=name):
            solver(RPS)
    with pytest.raises(ConfigError, match="nash"):
        meta_strategy("best", RPS)


def test_a_game_that_circles_is_an_error_and_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps along the gradient circle in Shapley's game, the more so where it is skewed; aversion calms them."""
    a, b = np.eye(3) + 0.3 * (RPS + np.diag([0.2, 0.5, 0.0])), np.eye(3)[:, [1, 2, 0]]
    monkeypatch.setattr(metagame, "STEPS", 500)
    with pytest.raises(DataError, match="could still gain"):
        risk_averse(a, b, aversion=0.0)
    assert risk_averse(a, b, aversion=3.0)[0].sum() == pytest.approx(1.0)
