"""Who is drawn from a pool, against the formulas of the papers; Elo recovers a ladder whose strengths are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.ops.matchmaking import DRAW, LOSS, PICKS, WIN, Standing, expected_score, rate, win_rates

WINS = torch.tensor([0.9, 0.2, 0.5, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("pick", "weights"),
    [
        ("uniform", [1.0, 1.0, 1.0, 1.0]),
        ("latest", [0.0, 0.0, 0.0, 1.0]),
        ("pfsp", [0.1**3, 0.8**3, 0.5**3, 0.0]),
        ("even", [0.09, 0.16, 0.25, 0.0]),
    ],
)
def test_a_pick_follows_its_formula(pick: str, weights: list[float]) -> None:
    expected = np.array(weights) / sum(weights)
    if pick in ("pfsp", "even"):
        expected = 0.8 * expected + 0.2 / 4
    found = PICKS[pick](Standing(WINS, torch.zeros(4, 4), power=3.0, floor=0.2))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_a_meta_solver_picks_by_results_between_members() -> None:
    """Rock, paper, scissors, and one that loses to all: it is met by the floor alone, whatever the live policy's own results
    (`WINS`) are."""
    rps = torch.tensor([[0.0, -2.0, 1.0, 1.0], [2.0, 0.0, -1.0, 1.0], [-1.0, 1.0, 0.0, 1.0], [-1.0, -1.0, -1.0, 0.0]])
    found = PICKS["nash"](Standing(WINS, rps, floor=0.2))
    np.testing.assert_allclose(found.numpy(), 0.8 * np.array([0.25, 0.25, 0.5, 0.0]) + 0.05, atol=1e-9)
    averse = PICKS["risk_averse"](Standing(WINS, rps, floor=0.2))
    assert float(averse[3]) == pytest.approx(0.05, abs=1e-3)
    assert float(averse.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("pick", list(PICKS))
def test_a_pick_is_a_distribution_also_where_everybody_is_beaten(pick: str) -> None:
    found = PICKS[pick](Standing(torch.ones(5), torch.zeros(5, 5), floor=0.0))
    assert float(found.sum()) == pytest.approx(1.0)
    assert bool((found >= 0.0).all())


def test_a_win_rate_is_the_mean_over_seats_however_many_games_each_had() -> None:
    counts = torch.zeros(2, 3, dtype=torch.float64)
    counts[0, WIN], counts[1, LOSS], counts[1, DRAW] = 999.0, 7.0, 2.0
    assert float(win_rates(counts)) == pytest.approx(((999.0 + 0.5) / 1000.0 + (1.0 + 0.5) / 10.0) / 2)


def test_ratings_of_a_known_ladder_are_recovered() -> None:
    """Four players of known strength (the first is the anchor): results drawn by Elo's own model, in updates of 20 games. After
    4,000 games of each pair ratings are within 40 points of the truth (within 25 on seeds 1 to 5 when it was written)."""
    truth = {3: 1000.0, 4: 1150.0, 1: 1400.0, 2: 900.0}
    ratings, rng = dict.fromkeys(truth, 1000.0), np.random.default_rng(1)
    pairs = [(a, b) for a in truth for b in truth if a < b]
    history = []
    for update in range(200):
        games = {(a, b): (float(rng.binomial(20, expected_score(truth[a], truth[b]))), 20) for a, b in pairs}
        rate(ratings, games, fixed=3)
        assert ratings[3] == 1000.0
        if update >= 100:
            history.append(dict(ratings))
    for player, strength in truth.items():
        assert np.mean([r[player] for r in history]) == pytest.approx(strength, abs=40.0)
