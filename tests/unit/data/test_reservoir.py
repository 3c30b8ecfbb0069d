"""Memories of decisions: what is kept, how uniformly, and that a restored one goes on alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.errors import ConfigError
from runnel.core.rng import make_rng
from runnel.core.spaces import ArraySpec
from runnel.data.reservoir import DecisionMemory, DecisionReservoir, RecentDecisions

COLUMNS = {"number": ArraySpec((), torch.int64), "obs": ArraySpec((2,))}


def rows(start: int, stop: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(start, stop)
    return {"number": numbers, "obs": torch.stack([numbers, -numbers], 1).float()}


def kept(memory: DecisionMemory) -> list[int]:
    found = memory.state_dict()["rows"]
    assert torch.equal(found["obs"][:, 0].long(), found["number"]), "columns of one row stay together"
    return sorted(found["number"].tolist())


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 20, 2), (7,), (40, 1)])
def test_the_newest_are_kept(sizes: tuple[int, ...]) -> None:
    memory, rng, at = RecentDecisions(5, COLUMNS, field="f"), make_rng(0), 0
    for size in sizes:
        memory.insert(rows(at, at + size), rng)
        at += size
        assert kept(memory) == list(range(max(at - 5, 0), at))


def test_a_reservoir_keeps_all_that_there_were_alike() -> None:
    """10 of 100 rows, in batches of many sizes: each row is kept in a tenth of 1,000 reservoirs."""
    counts = np.zeros(100)
    for seed in range(1_000):
        memory, rng = DecisionReservoir(10, COLUMNS, field="f"), np.random.default_rng(seed)
        for start, stop in ((0, 1), (1, 17), (17, 18), (18, 75), (75, 100)):
            memory.insert(rows(start, stop), rng)
        found = kept(memory)
        assert len(set(found)) == memory.num_rows == 10
        counts[found] += 1
    # 100 each, of standard deviation 9.5; of 100 rows the farthest is about 2.6 of them away
    assert np.abs(counts - 100).max() < 4.5 * 9.5
    # no part of the stream is favoured: 20 rows together, of standard deviation 38 (the sum of all is fixed)
    assert np.abs(counts.reshape(5, 20).sum(1) - 2_000).max() < 4.5 * 38


@pytest.mark.parametrize("kind", [RecentDecisions, DecisionReservoir])
def test_a_restored_memory_goes_on_alike(kind: type[DecisionMemory]) -> None:
    memory, rng = kind(8, COLUMNS, field="f"), make_rng(3)
    memory.insert(rows(0, 13), rng)
    other, same = kind(8, COLUMNS, field="f"), make_rng(5)
    other.load_state_dict(memory.state_dict())
    rng = make_rng(5)
    for one, r in ((memory, rng), (other, same)):
        one.insert(rows(13, 40), r)
    assert memory.draw(30, rng)["obs"].tolist() == other.draw(30, same)["obs"].tolist()
    with pytest.raises(ConfigError, match="has 8 places"):
        kind(9, COLUMNS, field="f").load_state_dict(memory.state_dict())


def test_a_memory_that_does_not_fit_says_so_at_once() -> None:
    with pytest.raises(ConfigError, match=r"nfsp.replay_size = 1000000000000: needs .* GiB"):
        RecentDecisions(10**12, COLUMNS, field="nfsp.replay_size")
