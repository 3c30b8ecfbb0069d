"""A sample stream and inference clients that fit in a test: no staleness policy, no processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from runnel.core.contracts.inference import Reply
from runnel.core.contracts.samples import Feedback
from runnel.core.records import Batch, Header, Slot, StreamSpec, trim


class FakeWriter:
    def __init__(self, spec: StreamSpec, required: Callable[[int], int] = lambda k: -1) -> None:
        self.spec, self._required = spec, required
        self._memory = [spec.allocate() for _ in range(spec.capacity)]
        self._free = list(range(spec.capacity))
        self.reserved: dict[int, Header] = {}
        self.committed: list[tuple[Header, Batch]] = []
        self._sequence = 0

    def reserve(self) -> Slot | None:
        if not self._free:
            return None
        index = self._free.pop(0)
        self.reserved[index] = Header(sequence=self._sequence, required_version=self._required(self._sequence))
        self._sequence += 1
        return Slot(index, self.spec, self.reserved[index], self._memory[index])

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        slot.header.num_steps = num_steps
        self.committed.append((slot.header, trim(self.spec, slot.arrays, slot.header.used).map(torch.clone)))
        del self.reserved[slot.index]
        self._free.append(slot.index)

    def cancel(self, slot: Slot, reason: str) -> None:
        raise AssertionError(reason)

    def reclaim(self, index: int) -> Slot:
        return Slot(index, self.spec, self.reserved[index], self._memory[index])

    def feedback(self) -> list[Feedback]:
        return []

    def twin(self) -> FakeWriter:
        """The same stream after a restart: reserved slots are known, their contents are gone."""
        other = copy.deepcopy(self)
        for index in other.reserved:
            for x in other._memory[index].values():
                x.copy_(torch.full_like(x, 77))
        other.committed = []
        return other


def by_noise(rows: Batch) -> Batch:
    """A policy that depends on everything it was sent: two actions, from noise and observation."""
    obs = sum(x.reshape(len(x), -1).float().sum(1) for k, x in rows.items() if k.startswith("obs"))
    u = rows["noise"][:, 0]
    if "action_mask" in rows:
        action = (rows["action_mask"].float() * (1.0 + torch.arange(rows["action_mask"].shape[1]))).argmax(1)
    else:
        action = (u + 0.1 * torch.sin(obs) > 0.5).long()
    return Batch(action=action, logprob=torch.log(u))


def continuous(rows: Batch) -> Batch:
    return Batch(action=4.0 * (rows["noise"] - 0.5) - rows["obs"][:, :1], logprob=rows["noise"][:, 0])


class FakeClient:
    """Answers after `delay` polls (0: at once), or beside the sampler (`direct`). `published` is the newest version."""

    def __init__(
        self, policy: Callable[[Batch], Batch] = by_noise, delay: int = 0, published: int = 0, direct: bool = False
    ) -> None:
        self.direct = direct
        self.policy, self.delay, self.published, self.version = policy, delay, published, -1
        self.waiting: dict[int, tuple[int, Batch, int]] = {}
        self._next = 0

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        self._next += 1
        rows = Batch(rows) if self.delay == 0 else rows.map(torch.clone)
        self.waiting[self._next] = (self.delay, rows, self.version if version < 0 else version)
        return self._next

    def poll(self) -> int:
        self.waiting = {k: (max(0, left - 1), rows, v) for k, (left, rows, v) in self.waiting.items()}
        return 0

    def ready(self, ticket: int) -> Reply | None:
        left, rows, version = self.waiting[ticket]
        if left:
            return None
        del self.waiting[ticket]
        return Reply(ticket, self.policy(rows), version)

    def local(self) -> Callable[[Batch], Batch] | None:
        return self.policy if self.direct else None

    def row_policy(self) -> None:
        return None

    def abort(self, tickets: Sequence[int]) -> None:
        raise AssertionError

    def pending(self) -> int:
        return len(self.waiting)

    def sync(self, version: int = -1) -> bool:
        if self.published < 0 or version > self.published:
            return False
        self.version = self.published if version < 0 else version
        return True

    def twin(self) -> FakeClient:
        return copy.deepcopy(self)
