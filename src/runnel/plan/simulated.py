"""The workers of a simulated cluster: actors, policy servers, trainers, and the broadcast of parameters between them.

Their work takes simulated time and computes nothing. Their decisions are made by the real code: segments go through the slot
table of `flow/slots.py` under the admission rule of `flow/staleness.py`, which also accounts for them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np

from runnel.core.records import Segment, Slot
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.plan.costs import Costs
from runnel.plan.events import Agenda, Device, SimulatedLink

BLOCK = 32
"""Random numbers that are drawn at once: one call for each is slow, and many of them for 10,000 actors fill the memory."""


def draws(rng: np.random.Generator, jitter: float, num_steps: float) -> Iterator[float]:
    """Endless random durations of `num_steps` steps, relative to their mean: a sum of Gamma variables of deviation `jitter`
    each."""
    if jitter <= 0:
        yield from repeat(1.0)
    shape = num_steps / jitter**2
    while True:
        yield from (rng.standard_gamma(shape, BLOCK) / shape).tolist()


class SimulatedHost:
    """A destination of parameters: a process, or a node whose processes share them."""

    def __init__(self) -> None:
        self.version = -1
        self.queued = False
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def when(self, version: int, call: Callable[[], None]) -> None:
        """Call `call` as soon as `version` is here; if it is negative, as soon as any version is."""
        if self.version >= max(version, 0):
            call()
        else:
            self._waiting.append((max(version, 0), call))

    def arrive(self, version: int) -> None:
        """A version has arrived: make the calls that wait for it."""
        self.version = version
        ready = [call for need, call in self._waiting if need <= version]
        self._waiting = [(need, call) for need, call in self._waiting if need > version]
        for call in ready:
            call()


class Broadcast:
    """Sends parameters over one link to all hosts in turn. Each host gets the version that is the newest at its turn."""

    def __init__(self, agenda: Agenda, hosts: Sequence[SimulatedHost], *, link: SimulatedLink, costs: Costs) -> None:
        self._agenda, self._hosts, self._link, self._costs = agenda, hosts, link, costs
        self._turns: deque[SimulatedHost] = deque()
        self._sending = False
        self.version = -1

    def publish(self, version: int) -> None:
        self.version = version
        for host in self._hosts:
            if not host.queued:
                host.queued = True
                self._turns.append(host)
        if not self._sending:
            self._next()

    def _next(self) -> None:
        self._sending = bool(self._turns)
        if self._turns:
            host = self._turns.popleft()
            host.queued = False
            arrival = self._link.send(self._costs.param_bytes)
            self._agenda.at(arrival + self._costs.load_s, host.arrive, self.version)
            self._agenda.at(self._link.free_at, self._next)


class Stream:
    """The sample stream of one trainer: a real slot table at the end of a link, and the env groups that wait for room in it."""

    def __init__(self, agenda: Agenda, table: SlotTable, link: SimulatedLink, costs: Costs) -> None:
        self._agenda, self.table, self._link, self._costs = agenda, table, link, costs
        self.reader = TableReader(table, table.spec.readers[0])
        self._writers = [TableWriter(table, writer) for writer in range(table.spec.num_writers)]
        self.waiting: deque[tuple[int, Callable[[Slot], None]]] = deque()
        """Writers that wait for room, with the calls that are due when they get it."""
        self.finished = 0
        """Segments that are committed, and neither taken nor dropped yet."""
        self._in_order: Counter[int] = Counter()
        """With an exact rule: the number of committed segments of each batch."""
        self._num_batches = 0
        """Batches that the trainer has taken."""
        self.on_commit: Callable[[], None] = lambda: None

    def reserve(self, writer: int, call: Callable[[Slot], None]) -> None:
        """Call `call` with a slot as soon as the admission rule allows one."""
        slot = None if self.waiting else self._writers[writer].reserve()  # first come, first served
        if slot is None:
            self.waiting.append((writer, call))
        else:
            call(slot)

    def retry(self) -> None:
        """There may be room again: try to reserve for those that wait, in order. A window refuses all of them alike, so the
        first refusal ends the round; an exact rule may admit a later one."""
        for _ in range(len(self.waiting)):
            writer, call = self.waiting.popleft()
            slot = self._writers[writer].reserve()
            if slot is not None:
                call(slot)
            elif self.table.policy.exact:
                self.waiting.append((writer, call))
            else:
                self.waiting.appendleft((writer, call))
                return

    def send(self, slot: Slot) -> None:
        """Send a full segment to the trainer's node. It is committed when it arrives there."""
        self._agenda.at(self._link.send(self._costs.segment_bytes), self._commit, slot)

    def _commit(self, slot: Slot) -> None:
        self._writers[slot.header.writer].commit(slot, num_steps=round(self._costs.segment_units))
        self.finished += 1
        self._in_order[slot.header.sequence // self.table.spec.batch_segments] += 1
        self.on_commit()

    def take(self) -> list[Segment]:
        """The next batch, or nothing if it is not complete. The table looks at all slots, so it is called only if it may have
        a batch."""
        batch = self.table.spec.batch_segments
        have = self._in_order[self._num_batches] if self.table.policy.exact else self.finished
        segments = self.reader.take(batch) if have >= batch else []
        if segments:
            self._num_batches += 1
            self.finished -= batch
        elif have >= batch:  # some were too old, and are dropped
            self.finished = self.reader.available()
            self.retry()
        return segments


class InlineActor:
    """Plays a segment as one event: environments and policy share a core, so several env groups would change nothing."""

    def __init__(
        self, agenda: Agenda, writer: int, *, stream: Stream, host: SimulatedHost, costs: Costs, noise: Iterator[float]
    ) -> None:
        self._agenda, self._writer, self._stream, self._host, self._noise = agenda, writer, stream, host, noise
        self._seconds = costs.num_steps * (costs.step(costs.rows) + costs.infer(costs.rows))
        self.busy_s = 0.0

    def start(self) -> None:
        self._stream.reserve(self._writer, self._open)

    def _open(self, slot: Slot) -> None:
        self._host.when(slot.header.required_version, lambda: self._play(slot))

    def _play(self, slot: Slot) -> None:
        need = slot.header.required_version
        slot.header.version_min = slot.header.version_max = need if need >= 0 else self._host.version
        seconds = self._seconds * next(self._noise)
        self.busy_s += seconds
        self._agenda.at(self._agenda.time + seconds, self._finish, slot)

    def _finish(self, slot: Slot) -> None:
        self._stream.send(slot)
        self.start()


@dataclass(slots=True)
class SimulatedEnvGroup:
    """One env group of an actor, with the segment that it fills."""

    actor: RemoteActor
    slot: Slot | None = None
    left: int = 0
    """Steps that the segment still needs."""


@dataclass(eq=False)
class RemoteActor:
    """Steps an env group that has its reply, then asks the server for that group's next action."""

    agenda: Agenda
    writer: int
    stream: Stream
    server: SimulatedServer
    costs: Costs
    noise: Iterator[float]
    num_env_groups: int
    busy_s: float = 0.0
    _ready: deque[SimulatedEnvGroup] = field(default_factory=deque)
    _working: bool = False

    def __post_init__(self) -> None:
        self._num_steps = round(self.costs.num_steps)
        self._seconds = self.costs.step(self.costs.rows) + self.costs.message_s

    def start(self) -> None:
        for _ in range(self.num_env_groups):
            self._reserve(SimulatedEnvGroup(self))

    def _reserve(self, group: SimulatedEnvGroup) -> None:
        def opened(slot: Slot) -> None:
            slot.header.version_min = -1
            group.slot, group.left = slot, self._num_steps
            self.server.ask(group)

        self.stream.reserve(self.writer, opened)

    def reply(self, group: SimulatedEnvGroup) -> None:
        self._ready.append(group)
        if not self._working:
            self._step()

    def _step(self) -> None:
        self._working = bool(self._ready)
        if self._ready:
            seconds = self._seconds * next(self.noise)
            self.busy_s += seconds
            self.agenda.at(self.agenda.time + seconds, self._stepped, self._ready.popleft())

    def _stepped(self, group: SimulatedEnvGroup) -> None:
        group.left -= 1
        if group.left:
            self.server.ask(group)
        else:
            assert group.slot is not None
            self.stream.send(group.slot)
            group.slot = None
            self._reserve(group)
        self._step()


@dataclass(eq=False)
class SimulatedServer:
    """A policy worker: each batch holds the requests that arrived since the last one. A request that names a version waits for
    it."""

    agenda: Agenda
    device: Device
    host: SimulatedHost
    inward: SimulatedLink
    outward: SimulatedLink
    costs: Costs
    num_batches: int = 0
    num_requests: int = 0
    _queue: deque[tuple[float, SimulatedEnvGroup]] = field(default_factory=deque)
    """Requests with the time of their arrival."""
    _awake: bool = False

    def ask(self, group: SimulatedEnvGroup) -> None:
        assert group.slot is not None
        arrival = self.inward.send(self.costs.request_bytes)
        need = group.slot.header.required_version
        self.host.when(need, lambda: self._enter(max(arrival, self.agenda.time), group))

    def _enter(self, arrival: float, group: SimulatedEnvGroup) -> None:
        self._queue.append((arrival, group))
        if not self._awake:
            self._awake = True
            self.agenda.at(arrival, self._serve)

    def _serve(self) -> None:
        batch: list[SimulatedEnvGroup] = []
        while self._queue and self._queue[0][0] <= self.agenda.time:
            batch.append(self._queue.popleft()[1])
        if batch:
            self.num_batches += 1
            self.num_requests += len(batch)
            seconds = self.costs.serve(len(batch) * self.costs.rows) + len(batch) * self.costs.respond_s
            self.device.use("serve", seconds, partial(self._reply, batch, self.host.version))
        elif self._queue:
            self.agenda.at(self._queue[0][0], self._serve)
        else:
            self._awake = False

    def _reply(self, batch: list[SimulatedEnvGroup], version: int) -> None:
        for group in batch:
            assert group.slot is not None
            header = group.slot.header
            made = header.required_version if header.required_version >= 0 else version
            header.version_max = made
            if header.version_min < 0:
                header.version_min = made
        self.agenda.at(self.outward.send(len(batch) * self.costs.reply_bytes), self._deliver, batch)
        self._serve()

    def _deliver(self, batch: list[SimulatedEnvGroup]) -> None:
        for group in batch:
            group.actor.reply(group)


@dataclass(eq=False)
class Trainers:
    """Data-parallel trainers: each takes its part of the batch from its own stream. An update ends for all of them at once."""

    agenda: Agenda
    streams: Sequence[Stream]
    devices: Sequence[Device]
    broadcast: Broadcast
    update_s: float
    reduce_s: float
    until: int
    on_update: Callable[[int], None]
    version: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    queued: list[int] = field(default_factory=list)
    _batches: dict[int, list[Segment]] = field(default_factory=dict)
    """The batch that each trainer works on now."""
    _ready: int = 0

    def __post_init__(self) -> None:
        for i, stream in enumerate(self.streams):
            stream.on_commit = partial(self._take, i)

    def start(self) -> None:
        self.broadcast.publish(0)
        for stream in self.streams:
            stream.reader.advance(0)

    def _take(self, index: int) -> None:
        stream = self.streams[index]
        if index in self._batches or self.version >= self.until:
            return
        queued = stream.finished
        segments = stream.take()
        if not segments:
            return
        self.queued.append(queued)
        self._batches[index] = segments
        self.staleness.update(self.version - s.header.version_min for s in segments)
        self.devices[index].use("update", self.update_s, self._updated)

    def _updated(self) -> None:
        self._ready += 1  # the last one to finish starts the all-reduce of all
        if self._ready == len(self.streams):
            self.agenda.at(self.agenda.time + self.reduce_s, self._advance)

    def _advance(self) -> None:
        self._ready, self.version = 0, self.version + 1
        self.broadcast.publish(self.version)
        batches, self._batches = self._batches, {}
        for index, stream in enumerate(self.streams):
            stream.reader.release(batches[index])
            stream.reader.advance(self.version)
        self.on_update(self.version)
        for index, stream in enumerate(self.streams):
            stream.retry()
            self._take(index)
