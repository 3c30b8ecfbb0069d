from __future__ import annotations

import numpy as np
import pytest

from runnel.core.contracts.tasks import TaskSource
from runnel.core.errors import ConfigError
from runnel.llm.tasks import DifficultyConfig, DifficultySource, Example

EXAMPLES = [Example(str(i)) for i in range(10)]


def source_of(seed=1, **kwargs):
    return DifficultySource(EXAMPLES, DifficultyConfig(on=True, **kwargs), seed=seed)


def play(source, accuracy, n):
    """Play n prompts one by one and report each prompt's own accuracy."""
    ids = []
    for _ in range(n):
        (task,) = source.next(1)
        source.report(task.id, {"reward": accuracy[task.id]})
        ids.append(task.id)
    return ids


def test_new_prompts_are_all_tried_then_those_in_the_band():
    accuracy = [0.0, 1.0, 0.5, 0.3, 1.0, 0.0, 0.95, 0.05, 0.9, 0.1]
    source: TaskSource = source_of(retry_after=1000)
    ids = play(source, accuracy, 40)
    assert sorted(ids[:10]) == list(range(10))
    assert set(ids[10:]) == {2, 3, 8, 9}
    assert source.num_skipped > 0


def test_solved_and_unsolved_prompts_come_back_after_a_while():
    accuracy = [0.0] * 5 + [0.5] * 5
    source = source_of(retry_after=20)
    ids = play(source, accuracy, 60)
    visits = np.bincount(ids, minlength=10)
    assert all(1 < v < 5 for v in visits[:5])
    assert all(v > 6 for v in visits[5:])
    accuracy = [0.5] * 10
    play(source, accuracy, 60)
    assert np.isclose(source.success, 0.5, atol=0.3).all()


def test_it_never_runs_dry():
    source = source_of(retry_after=10**6)
    ids = play(source, [1.0] * 10, 35)
    assert sorted(ids[:10]) == list(range(10))
    assert np.bincount(ids).min() >= 3, "the one that rested longest goes next"


def test_history_is_kept_and_the_order_goes_on():
    accuracy = [0.0, 1.0, 0.5, 0.3, 1.0, 0.0, 0.95, 0.05, 0.9, 0.1]
    source = source_of(retry_after=7)
    play(source, accuracy, 23)
    other = source_of(seed=9, retry_after=7)
    other.restore(source.snapshot())
    assert play(other, accuracy, 40) == play(source, accuracy, 40)
    assert np.array_equal(other.success, source.success)


def test_bad_settings():
    for wrong in ({"low": 0.9, "high": 0.1}, {"momentum": 1.0}, {"retry_after": 0}):
        with pytest.raises(ConfigError, match=r"filter\."):
            DifficultyConfig(**wrong)
