"""Free memory, refusals before the fact, and what is said when an allocator fails."""

from __future__ import annotations

import pytest
import torch

from runnel.core import memory
from runnel.core.errors import ConfigError, OutOfMemoryError
from runnel.core.memory import UNKNOWN, check_room, free_memory, memory_for


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch):
    assert 0 < free_memory() < 1 << 50
    check_room(1 << 20, "cpu", field="engine.num_slots", value=4)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 30)
    with pytest.raises(
        ConfigError, match=r"engine\.num_slots = 100: needs 2\.0 GiB, and cpu has 1\.0 GiB free; use at most 45, or"
    ):
        check_room(2 << 30, "cpu", field="engine.num_slots", value=100, other=", or less")


def test_where_nothing_tells_everything_fits(monkeypatch):
    monkeypatch.setattr(memory.Path, "is_file", lambda self: False)
    assert free_memory() == UNKNOWN


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError()])
def test_an_allocator_that_fails_names_what_to_lower(error):
    with pytest.raises(OutOfMemoryError, match="the learner ran out of memory: lower x"), memory_for("the learner", "lower x"):
        raise error


def test_a_real_allocation_that_is_too_large():
    with pytest.raises(OutOfMemoryError, match="a test ran out of memory: ask for less"), memory_for("a test", "ask for less"):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), memory_for("a test", "lower x"):
        raise RuntimeError("shapes do not match")
