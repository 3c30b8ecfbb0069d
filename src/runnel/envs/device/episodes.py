"""Records of finished episodes, with a bound: 65,536 environments must not make 100,000 Python objects for each segment.

Up to a number of episodes between two readings, all are returned; of more, that many evenly chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from runnel.core.state import Array, State
from runnel.core.trajectories import episode_metric
from runnel.envs.vector.contract import Episode

MAX_RECORDS = 256
SEGMENT_RECORDS = 100
"""Bound for a whole segment, which has thousands: a run's mean return is over as many (`run/ledger.py`)."""
STEP_RECORDS = 4096
"""Bound for single steps on a device: an evaluation has up to 1,024 environments and must not miss an episode."""
_FIRST_ROWS, _FIRST_STEPS = 1024, 64


class NumpyLog:
    """Episodes in numpy columns that grow by doubling: environment, return, length, and the sum of each of `channels`."""

    def __init__(self, channels: Sequence[str] = ()) -> None:
        self._channels = channels
        self._columns = np.zeros((3 + len(channels), _FIRST_ROWS))
        self._count = 0

    def add(self, rows: Array, lengths: Array, totals: Array, *sums: Array) -> None:
        for column, x in zip(self.room(len(rows)), (rows, totals, lengths, *sums), strict=True):
            column[: len(rows)] = x
        self.keep(len(rows))

    def room(self, num: int) -> Array:
        """Memory for `num` more episodes: environment, return, length, sums. Call `keep` after writing. `[3 + C, >= num]`"""
        while self._count + num > self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        return self._columns[:, self._count :]

    def keep(self, num: int) -> None:
        """Keep the first `num` episodes that were written into `room`."""
        self._count += num

    def take(self, index0: int, most: int = MAX_RECORDS) -> list[Episode]:
        """Episodes that were added since the last call, at most `most`."""
        count, self._count = self._count, 0
        return records(self._columns[:, evenly(count, most)], index0, self._channels)

    def clear(self) -> None:
        self._count = 0

    def save(self) -> State:
        return {"columns": self._columns[:, : self._count].copy()}

    def load(self, state: State) -> None:
        self.clear()
        rows, totals, lengths, *sums = np.asarray(state["columns"])
        self.add(rows, lengths, totals, *sums)


class TorchLog:
    """All steps with their ends, in memory on a device that grows by doubling. Only `take` waits for the device."""

    def __init__(self, num_envs: int, device: torch.device, channels: Sequence[str] = ()) -> None:
        self._channels = channels
        self._over = torch.zeros(_FIRST_STEPS, num_envs, dtype=torch.bool, device=device)
        self._numbers = torch.zeros(2 + len(channels), _FIRST_STEPS, num_envs, dtype=torch.float64, device=device)
        self._count = 0

    def add(self, over: Tensor, total: Tensor, length: Tensor, *sums: Tensor) -> None:
        if self._count == len(self._over):
            self._over = torch.cat([self._over, torch.zeros_like(self._over)])
            self._numbers = torch.cat([self._numbers, torch.zeros_like(self._numbers)], dim=1)
        self._over[self._count].copy_(over)
        for column, x in zip(self._numbers, (total, length, *sums), strict=True):
            column[self._count].copy_(x)
        self._count += 1

    def take(self, index0: int) -> list[Episode]:
        """Episodes that ended since the last call, at most `STEP_RECORDS`. Waits for the device."""
        count, self._count = self._count, 0
        times, rows = self._over[:count].nonzero(as_tuple=True)
        chosen = torch.from_numpy(evenly(len(times), STEP_RECORDS)).to(times.device)
        times, rows = times[chosen], rows[chosen]
        return records(torch.stack((rows.double(), *self._numbers[:, times, rows])), index0, self._channels)

    def clear(self) -> None:
        self._count = 0

    def save(self) -> State:
        return {"over": self._over[: self._count].clone(), "numbers": self._numbers[:, : self._count].clone()}

    def load(self, state: State) -> None:
        self.clear()
        over, numbers = (torch.as_tensor(state[k]).to(self._over.device) for k in ("over", "numbers"))
        for t in range(len(over)):
            self.add(over[t], *numbers[:, t])


def evenly(count: int, most: int = MAX_RECORDS) -> Array:
    """Indices of at most `most` of `count` episodes, evenly spaced."""
    return np.arange(count) if count <= most else np.arange(most) * count // most


def records(columns: Array | Tensor, index0: int, channels: Sequence[str] = ()) -> list[Episode]:
    """Episodes from columns `[3 + C, n]`: environment, return, length, and the sum of each of `channels`."""
    return [
        Episode(int(e) + index0, total, int(n), channels=dict(zip(channels, sums, strict=True)))
        for e, total, n, *sums in columns.T.tolist()
    ]


def of_team(e: Episode, policies: Sequence[str], statistics: Sequence[str]) -> Episode:
    """An episode of several agents, whose channels are the return of each policy and what its world says of it."""
    said = {name: e.channels[episode_metric(name)] for name in statistics}
    return replace(e, by_policy={policy: e.channels[policy] for policy in policies}, statistics=said, channels={})


def ended_episodes(rewards: Sequence[Tensor], over: Tensor, totals: Sequence[Tensor], length: Tensor) -> tuple[Tensor, Tensor]:
    """At most `SEGMENT_RECORDS` of the episodes that ended in a segment, without waiting for the device.

    `rewards` (the reward, then other channels) and `over` (bool) are `[T, B]`. `totals` and `length` `[B]` are sums and length
    before the segment. Returns `[3 + C, SEGMENT_RECORDS]` (environment, return, length, sums) in order of time, and the number
    of valid columns, `[]`.
    """
    num_steps, num_envs = over.shape
    # shapes may not depend on data in a CUDA graph, so `nonzero` is out: the k-th end is found in the running count of ends
    rank = over.flatten().cumsum(0, dtype=torch.int32)
    count = rank[-1].long()
    numbers = torch.arange(SEGMENT_RECORDS, device=over.device)
    wanted = torch.where(count > SEGMENT_RECORDS, numbers * count // SEGMENT_RECORDS, numbers) + 1
    place = torch.searchsorted(rank, wanted.int()).clamp_(max=num_steps * num_envs - 1)
    end, row = place // num_envs, place % num_envs
    sums, steps = _since_the_last_end([reward[:, row] for reward in rewards], over[:, row], end)
    fresh = steps <= end
    total, *others = (torch.where(fresh, x, x + before[row]) for x, before in zip(sums, totals, strict=True))
    steps = torch.where(fresh, steps, steps + length[row])
    return torch.stack((row.double(), total, steps.double(), *others)), count.clamp(max=SEGMENT_RECORDS)


def carried(rewards: Sequence[Tensor], over: Tensor, totals: Sequence[Tensor], length: Tensor) -> tuple[list[Tensor], Tensor]:
    """Sums and length so far of the episodes that go on after a segment. Arguments as in `ended_episodes`. `[B]` each"""
    sums, steps = _since_the_last_end(rewards, over, torch.full_like(length, len(over)))
    fresh = over.any(dim=0)
    found = [torch.where(fresh, x, x + before) for x, before in zip(sums, totals, strict=True)]
    return found, torch.where(fresh, steps - 1, steps - 1 + length)


def _since_the_last_end(rewards: Sequence[Tensor], over: Tensor, end: Tensor) -> tuple[list[Tensor], Tensor]:
    """Sums and number of the steps up to `end` (inclusive) that follow the last `over` before it. `[T, B], [T, B], [B]`"""
    times = torch.arange(len(over), device=over.device).unsqueeze(1)
    last = torch.where(over & (times < end), times, -1).amax(dim=0)
    inside = (times > last) & (times <= end)
    return [(reward * inside).sum(dim=0, dtype=torch.float64) for reward in rewards], end - last
