"""The scripted cooks, which trained ones are held against."""

from __future__ import annotations

import pytest
from benchmarks.learning import anchors
from benchmarks.learning.cooks import serve

from runnel.envs.device import Kitchen, TeamView


@pytest.mark.parametrize(("layout", "soups"), [("cramped_room", 9), ("coordination_ring", 9), ("asymmetric_advantages", 13)])
def test_a_pair_by_a_script_delivers(layout: str, soups: int) -> None:
    """One episode each. Measured over 20: 197, 234 and 280 points on average, at 20 a soup."""
    (points,) = anchors.play(lambda: TeamView(Kitchen(layout)), serve(layout), episodes=1, seed=1)
    assert points >= 20 * soups
    assert points % 20 == 0


def test_random_cooks_deliver_next_to_nothing() -> None:
    """Measured over 100 episodes: three soups."""
    make = lambda: TeamView(Kitchen())  # noqa: E731
    points = anchors.play(make, anchors.at_random(make().action_space, seed=1), episodes=3, seed=1)
    assert points.mean() <= 20
