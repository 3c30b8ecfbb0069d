"""Who may take over from whom: at equal points, whoever came there first, and whatever the others have done since."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.tune.folder import Book, StudyFolder, write_json
from runnel.tune.pbt import TrialPopulation
from runnel.tune.settings import Setup, TuneConfig, make_setup
from runnel.tune.show import View

TOTAL, INTERVAL = 400, 100
POINTS = TOTAL // INTERVAL


@functools.cache
def setup_of(members: int, direction: Any) -> Setup:
    """Made once for each size: it tries every setting that the population may change."""
    options = TuneConfig(scheduler="pbt", members=members, interval=INTERVAL, metric="return", direction=direction)
    fast = {"total_steps": TOTAL, "num_steps": 10, "num_envs": 2, "ppo.num_minibatches": 1, "eval.episodes": 0}
    return make_setup("ppo", fast, options)


def population(path: Path, scores: list[list[float]], *, direction: Any = "maximize") -> TrialPopulation:
    """Members with these scores at their first points; each has kept the state of every point."""
    setup = setup_of(len(scores), direction)
    folder = StudyFolder(path)
    folder.make()
    pool: Any = type("NoPool", (), {"handles": {}})()
    found = TrialPopulation(setup, folder, pool, Book(folder, setup), View("", 0))
    for number, values in enumerate(scores):
        member = found.members[number]
        member |= {"reached": len(values), "values": {str(i + 1): v for i, v in enumerate(values)}}
        for point in range(1, len(values) + 1):
            state = found._state_of(number, point)
            state.mkdir(parents=True, exist_ok=True)
            write_json(state / "member.json", {"step": point * INTERVAL, "params": member["params"]})
    return found


def test_a_slow_member_is_compared_with_what_others_had_at_its_point(tmp_path: Path) -> None:
    """It has 5 after one interval. The others have much more by now, but had less than it or little more there."""
    fair = population(tmp_path / "fair", [[5.0], [1.0, 50.0, 90.0], [2.0, 60.0, 80.0], [6.0, 40.0, 70.0]])
    assert fair.parents_for(0) == []
    assert fair.known_at(1) == {0: 1, 1: 1, 2: 1, 3: 1}
    worst = population(tmp_path / "worst", [[0.5], [1.0, 50.0, 90.0], [2.0, 60.0, 80.0], [6.0, 40.0, 70.0]])
    assert worst.parents_for(0) == [3], "the best of that point, though it is the worst by now"


def test_a_fast_member_is_compared_with_the_newest_of_the_others(tmp_path: Path) -> None:
    """It is worse at its third point than others were at their first: it takes over from one that is behind."""
    found = population(tmp_path, [[1.0, 2.0, 3.0], [9.0], [4.0], [5.0]])
    assert found.known_at(3) == {0: 3, 1: 1, 2: 1, 3: 1}
    assert found.parents_for(0) == [1]
    assert population(tmp_path / "alone", [[1.0], [], [], []]).parents_for(0) == [], "nobody to be compared with"


def test_less_is_better_when_minimising(tmp_path: Path) -> None:
    assert population(tmp_path, [[9.0], [1.0], [2.0], [3.0]], direction="minimize").parents_for(0) == [1]
    assert population(tmp_path / "max", [[9.0], [1.0], [2.0], [3.0]]).parents_for(0) == []


def test_a_failed_member_takes_over_whatever_its_scores_were(tmp_path: Path) -> None:
    found = population(tmp_path, [[9.0], [1.0], [2.0], [3.0]])
    found.members[0]["error"] = "ValueError: broken"
    assert found.parents_for(0) == [3], "its own score counts no more"
    none = population(tmp_path / "none", [[], [], []])
    none.members[0]["error"] = "ValueError: broken"
    assert none.parents_for(0) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9).map(float), max_size=POINTS - 1), min_size=2, max_size=8), st.booleans())
def test_a_parent_is_always_better_and_never_further(
    tmp_path_factory: pytest.TempPathFactory, scores: list[list[float]], failed: bool
) -> None:
    found = population(tmp_path_factory.mktemp("study") / "x", scores)
    for number, values in enumerate(scores):
        found.members[number]["error"] = "broken" if failed else None
        reached = len(values) + failed
        parents = found.parents_for(number) if values or failed else []
        at = found.known_at(reached)
        assert number not in parents
        for parent in parents:
            assert at[parent] <= reached
            if not failed:
                assert scores[parent][at[parent] - 1] > values[-1]
        found.members[number]["error"] = None
