"""Sums over ranks through gloo: the same bits on each rank and at each time, and an error that names who is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import torch
from made_ranks import together

from runnel.core.errors import RankError
from runnel.flow.collective import TorchCollective

OTHER = """
import sys, time, torch
from runnel.flow.collective import TorchCollective
rank, world, address, sums = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ranks = TorchCollective(rank, world, address=address, timeout_s=20.0)
for _ in range(sums):
    ranks.all_reduce(torch.ones(3))
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("num", [2, 3])
def test_sums_are_those_of_all_ranks_and_the_same_bits_on_each_at_any_time(num: int) -> None:
    parts = [torch.randn(10_007, generator=torch.Generator().manual_seed(rank)) for rank in range(num)]

    def work(ranks: TorchCollective) -> list[torch.Tensor]:
        return [ranks.all_reduce(parts[ranks.rank].clone()) for _ in range(3)]

    found = [total for sums in together(num, work) for total in sums]
    torch.testing.assert_close(found[0], torch.stack(parts).sum(0))
    assert all(torch.equal(found[0], other) for other in found)


def test_types_shapes_and_views() -> None:
    def work(ranks: TorchCollective) -> list[torch.Tensor]:
        wide = torch.arange(6.0).view(2, 3)
        return [
            ranks.all_reduce(torch.tensor(float(ranks.rank + 1))),
            ranks.all_reduce(torch.full((2,), 0.5, dtype=torch.float64)),
            ranks.all_reduce(wide.t()),
        ]

    for scalar, double, turned in together(2, work):
        assert scalar.shape == ()
        assert scalar.item() == 3.0
        assert double.tolist() == [1.0, 1.0]
        assert turned.tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]


def test_gather_gives_every_rank_what_each_said() -> None:
    assert together(3, lambda ranks: ranks.gather([ranks.rank, 10.0])) == [[[0.0, 10.0], [1.0, 10.0], [2.0, 10.0]]] * 3


def test_it_listens_on_the_loopback_and_says_where() -> None:
    ranks = TorchCollective(0, 2)
    address = ranks.listen()
    assert address.startswith("127.0.0.1:")
    assert ranks.listen() == address
    ranks.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the whole of 127.0.0.0/8 is the loopback there")
def test_each_rank_is_found_at_the_address_of_its_own_node() -> None:
    """Nothing of a rank listens anywhere else."""
    ranks = [TorchCollective(rank, 3, host=f"127.0.0.{2 + rank}", timeout_s=20.0) for rank in range(3)]
    address = ranks[0].listen()
    assert address.startswith("127.0.0.2:")
    for other in ranks[1:]:
        other.address = address
    before = listening()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda one: one.gather([one.rank]), ranks)) == [[[0.0], [1.0], [2.0]]] * 3
    assert listening() == before | {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    for one in ranks:
        one.close()


def listening() -> set[str]:
    """Addresses at which this process accepts connections."""
    mine = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine_here = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
    return {str(IPv4Address(int(place.partition(":")[0], 16).to_bytes(4, "little"))) for place in mine_here}


@contextmanager
def others(address: str, world: int, sums: dict[int, int]) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Ranks in processes of their own, each of which takes part in so many sums and then sleeps."""
    started = {
        rank: subprocess.Popen([sys.executable, "-c", OTHER, str(rank), str(world), address, str(n)], stdout=subprocess.PIPE)
        for rank, n in sums.items()
    }
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def test_a_rank_that_dies_is_named_with_the_stage() -> None:
    ranks = TorchCollective(0, 3, timeout_s=30.0)
    ranks.stage = "update"
    with others(ranks.listen(), 3, {1: 5, 2: 1}) as processes:
        ranks.all_reduce(torch.ones(3))
        assert processes[2].stdout is not None
        processes[2].stdout.readline()
        processes[2].kill()
        start = time.monotonic()
        with pytest.raises(RankError, match=r"rank 2 \(worker trainer-2\) is gone, seen in stage update") as caught:
            ranks.all_reduce(torch.ones(3))
        assert caught.value.ranks == [2]
        assert time.monotonic() - start < 10.0
    ranks.close()


def test_a_rank_that_is_late_is_named() -> None:
    ranks = TorchCollective(0, 2, timeout_s=30.0)
    with others(ranks.listen(), 2, {1: 1}):
        ranks.all_reduce(torch.ones(3))
        ranks._sum.timeout = timedelta(seconds=0.5)
        with pytest.raises(RankError, match="rank 1"):
            ranks.all_reduce(torch.ones(3))
    ranks.close()


def test_nobody_at_the_address_is_an_error_that_says_so() -> None:
    ranks = TorchCollective(1, 2, address="127.0.0.1:9", timeout_s=1.0)
    with pytest.raises(RankError, match=r"rank 0 \(worker trainer\) cannot be reached.*127\.0\.0\.1:9"):
        ranks.all_reduce(torch.ones(1))
