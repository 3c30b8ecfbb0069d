"""Ranks that meet through gloo, as threads of one process: the real sums without the time to start processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from runnel.flow.collective import TorchCollective

R = TypeVar("R")


def together(num: int, work: Callable[[TorchCollective], R]) -> list[R]:
    """What `work` gives on each of `num` ranks; an error of one is raised here."""
    ranks = [TorchCollective(rank, num, timeout_s=20.0) for rank in range(num)]
    for other in ranks[1:]:
        other.address = ranks[0].listen()
    found: dict[int, R] = {}
    failed: list[Exception] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(ranks[rank])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in ranks:
        one.close()
    if failed:
        raise failed[0]
    return [found[rank] for rank in range(num)]
