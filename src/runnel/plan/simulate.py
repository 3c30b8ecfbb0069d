"""Simulates a cluster by discrete events: up to tens of thousands of actors, with the real admission rule and accounting.

`simulate(SimConfig(...), costs)` puts the workers of `plan/simulated.py` on links and devices, runs them on a simulated clock,
and returns rates, utilisation and staleness.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runnel.core.accounting import Accounting
from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError, DeadlockError
from runnel.core.records import StreamSpec
from runnel.core.rng import make_rng
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable
from runnel.flow.staleness import LagRule, StalenessConfig
from runnel.plan.costs import Costs
from runnel.plan.events import Agenda, Device, SimulatedLink
from runnel.plan.simulated import Broadcast, InlineActor, RemoteActor, SimulatedHost, SimulatedServer, Stream, Trainers, draws


@dataclass(frozen=True)
class NetworkConfig:
    """The links between nodes."""

    gbps: float = bounded(100.0, above=0)
    """Gigabits a second of each node's own link."""
    latency_us: float = bounded(50.0, at_least=0)
    """Microseconds that a message is on its way."""
    actors_per_node: int = bounded(128, at_least=1)
    """Actors (cores) of one node."""
    fan_out: Literal["node", "process"] = "node"
    """node: parameters are sent once to each node, whose processes share them. process: they are sent to each process."""

    @property
    def bytes_per_s(self) -> float:
        return self.gbps * 1e9 / 8

    @property
    def actors_per_host(self) -> int:
        """Actors that share one copy of the parameters."""
        return self.actors_per_node if self.fan_out == "node" else 1


@dataclass(frozen=True)
class SimConfig:
    """A cluster and its run."""

    actors: int = bounded(1000, at_least=1)
    """Actors, each on a core of its own."""
    trainers: int = bounded(1, at_least=1)
    """Data-parallel trainers, each with an accelerator; actors are divided among them."""
    inference: Literal["inline", "split", "central"] = "inline"
    """inline: in each actor. split: in policy servers with accelerators of their own. central: in servers on the trainers'
    accelerators (for a language model: colocated)."""
    servers: int = 0
    """Policy servers in all; 0 is two for each trainer (split) or one (central)."""
    num_env_groups: int = bounded(1, at_least=1)
    """Vectors of environments of each actor; while one waits for the policy, another steps."""
    batch_segments: int = 0
    """Segments that each trainer takes for an update; 0 is one of each vector."""
    updates: int = bounded(8, at_least=1)
    """Updates to simulate. The first quarter warms up and is not measured."""
    jitter: float = bounded(0.3, at_least=0)
    """Deviation of the time of one step, as a share of its mean: stragglers."""
    seed: int = 1
    """Seed of the random times of steps."""
    staleness: StalenessConfig = field(default_factory=lambda: StalenessConfig(mode="window", max_lag=4))
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def num_servers(self) -> int:
        if self.inference == "inline":
            return 0
        return self.servers or self.trainers * (2 if self.inference == "split" else 1)

    @property
    def env_groups(self) -> int:
        """Env groups (inline: actors) whose segments one trainer reads."""
        return self.actors // self.trainers * (1 if self.inference == "inline" else self.num_env_groups)

    @property
    def batch(self) -> int:
        """Segments of one update of one trainer."""
        return self.batch_segments or self.env_groups

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot be simulated."""
        check_bounds(self)
        self.staleness.check()
        if self.actors < self.trainers:
            raise ConfigError("actors", self.actors, f"each of {self.trainers} trainers needs one; use at least that")


@dataclass
class SimResult:
    """The result of a simulated run. Rates are over the measured updates."""

    config: SimConfig
    steps_per_s: float
    """Steps (or tokens) trained on in a second."""
    updates_per_s: float
    utilisation: dict[str, float]
    """The share of time that each kind was busy: actors, servers, trainers, and the links sample, param, request."""
    staleness: dict[int, int]
    """The number of segments by the versions that they were behind when they were trained on."""
    accounting: Accounting
    """The account of all streams together; it has been checked."""
    queue: float
    """Mean number of segments that were left in the queue when a trainer took a batch."""
    server_batch: float
    """Mean number of requests in an inference batch."""
    seconds: float
    """Simulated seconds."""
    events: int
    wall_s: float

    @property
    def mean_staleness(self) -> float:
        total = sum(self.staleness.values())
        return sum(lag * num for lag, num in self.staleness.items()) / total if total else 0.0

    @property
    def max_staleness(self) -> int:
        return max(self.staleness, default=0)


def simulate(config: SimConfig, costs: Costs | None = None, *, progress: Callable[[int], None] | None = None) -> SimResult:
    """Run the cluster for `config.updates` updates.

    >>> result = simulate(SimConfig(actors=8, updates=4, jitter=0.0))
    >>> round(result.steps_per_s), result.accounting.balance
    (258, 0)
    """
    config.check()
    return _Simulation(config, costs or Costs(), progress).run()


class _Simulation:
    def __init__(self, config: SimConfig, costs: Costs, progress: Callable[[int], None] | None) -> None:
        self.config, self.costs, self.progress = config, costs, progress
        self.agenda = Agenda()
        n, c = config.trainers, config
        self.inward, self.outward = [self._link() for _ in range(n)], [self._link() for _ in range(n)]
        shared = c.inference == "central"
        self.devices = [Device(self.agenda, slice_s=5e-3 if shared else math.inf) for _ in range(n)]
        self.streams = [Stream(self.agenda, self._table(i), self.inward[i], costs) for i in range(n)]
        self.servers = [self._server(i) for i in range(c.num_servers)]
        self.hosts = self._hosts()
        self.actors = [self._actor(i) for i in range(c.actors // n * n)]
        self.broadcast = Broadcast(self.agenda, self.hosts, link=self.outward[0], costs=costs)
        self.trainers = Trainers(
            self.agenda,
            self.streams,
            devices=self.devices,
            broadcast=self.broadcast,
            update_s=costs.update(c.batch * costs.segment_units) + costs.publish_s + costs.copy_s,
            reduce_s=reduce_seconds(n, costs.param_bytes, c.network),
            until=c.updates,
            on_update=self._note,
        )
        self._first = max(1, c.updates // 4)
        self._start: tuple[float, dict[str, float]] = (0.0, {})

    def _link(self) -> SimulatedLink:
        network = self.config.network
        return SimulatedLink(self.agenda, bytes_per_s=network.bytes_per_s, latency_s=network.latency_us * 1e-6)

    def _table(self, trainer: int) -> SlotTable:
        """A real slot table whose segments hold no arrays: the simulation needs only their slots and headers."""
        c, s = self.config, self.config.staleness
        policy = LagRule(
            lag=s.lag, batch=c.batch, exact=s.mode != "window", stop=c.updates + s.lag + 1, max_concurrent=s.max_concurrent
        )
        spec = StreamSpec(
            name=f"samples-{trainer}",
            fields={},
            sizes={"B": max(1, round(self.costs.rows))},
            capacity=max(c.batch * (s.lag + 1), c.env_groups),
            batch_segments=c.batch,
            num_writers=c.actors // c.trainers,
        )
        return SlotTable(spec, policy, SlotMemory.local(spec))

    def _server(self, index: int) -> SimulatedServer:
        c, trainer = self.config, index % self.config.trainers
        central = c.inference == "central"
        return SimulatedServer(
            self.agenda,
            device=self.devices[trainer] if central else Device(self.agenda, slice_s=math.inf),
            host=SimulatedHost(),
            inward=self.inward[trainer] if central else self._link(),
            outward=self.outward[trainer] if central else self._link(),
            costs=self.costs,
        )

    def _hosts(self) -> list[SimulatedHost]:
        c = self.config
        if c.inference != "inline":
            return [server.host for server in self.servers]
        return [SimulatedHost() for _ in range(-(-c.actors // c.network.actors_per_host))]

    def _actor(self, index: int) -> InlineActor | RemoteActor:
        c, costs = self.config, self.costs
        trainer, writer = index % c.trainers, index // c.trainers
        rng = make_rng(c.seed, "simulate", index)
        stream = self.streams[trainer]
        if c.inference == "inline":
            host = self.hosts[index // c.network.actors_per_host]
            noise = draws(rng, c.jitter, costs.num_steps)
            return InlineActor(self.agenda, writer, stream=stream, host=host, costs=costs, noise=noise)
        mine = list(range(trainer, len(self.servers), c.trainers)) or list(range(len(self.servers)))
        server = self.servers[mine[writer % len(mine)]]
        noise, num = draws(rng, c.jitter, 1.0), c.num_env_groups
        return RemoteActor(self.agenda, writer, stream=stream, server=server, costs=costs, noise=noise, num_env_groups=num)

    # --------------------------------------------------------------------------------------------------------- running
    def run(self) -> SimResult:
        began = time.perf_counter()
        self.trainers.start()
        for actor in self.actors:
            actor.start()
        while self.trainers.version < self.config.updates:
            if not self.agenda.step():
                waiting = sum(len(s.waiting) for s in self.streams)
                raise DeadlockError(f"nothing can move at version {self.trainers.version}: {waiting} env groups wait for room")
        return self._result(time.perf_counter() - began)

    def _note(self, version: int) -> None:
        if version == self._first:  # the warm-up is over: measure from here on
            self._start = self.agenda.time, self._busy()
            self.trainers.staleness.clear()
            self.trainers.queued.clear()
        if self.progress is not None:
            self.progress(version)

    def _busy(self) -> dict[str, float]:
        """The mean busy seconds of each kind."""
        found = {
            "actors": _mean([a.busy_s for a in self.actors]),
            "trainers": _mean([sum(d.busy_s.values()) for d in self.devices]),
            "sample": _mean([link.busy_s for link in self.inward]),
            "param": self.outward[0].busy_s,
        }
        if self.servers:
            found["servers"] = _mean([sum(s.device.busy_s.values()) for s in self.servers])
            found["request"] = _mean([s.inward.busy_s for s in self.servers])
        return found

    def _result(self, wall_s: float) -> SimResult:
        c, (start, before), now = self.config, self._start, self.agenda.time
        span, updates = max(now - start, 1e-12), c.updates - self._first
        accounts = [s.reader.accounting() for s in self.streams]
        for stream, account in zip(self.streams, accounts, strict=True):
            account.check(stream.table.spec.name)
        batches = sum(s.num_batches for s in self.servers)
        queued = self.trainers.queued
        return SimResult(
            config=c,
            steps_per_s=updates * c.trainers * c.batch * self.costs.segment_units / span,
            updates_per_s=updates / span,
            utilisation={k: min(1.0, (v - before.get(k, 0.0)) / span) for k, v in self._busy().items()},
            staleness=dict(sorted(self.trainers.staleness.items())),
            accounting=total(accounts),
            queue=_mean([n - c.batch for n in queued]),
            server_batch=sum(s.num_requests for s in self.servers) / batches if batches else 0.0,
            seconds=now,
            events=self.agenda.num_events,
            wall_s=wall_s,
        )


def reduce_seconds(trainers: int, param_bytes: int, network: NetworkConfig) -> float:
    """Seconds of a ring all-reduce of gradients, which are as large as the parameters.

    >>> reduce_seconds(1, 10**9, NetworkConfig())
    0.0
    """
    if trainers < 2:
        return 0.0
    moved = 2 * (trainers - 1) / trainers * param_bytes
    return moved / network.bytes_per_s + 2 * (trainers - 1) * network.latency_us * 1e-6


def total(accounts: Sequence[Accounting]) -> Accounting:
    """The sum of the accounts of several streams."""
    out = Accounting()
    for a in accounts:
        out.dispatched += a.dispatched
        out.consumed += a.consumed
        out.in_flight += a.in_flight
        out.queued += a.queued
        out.steps += a.steps
        for mine, theirs in ((out.dropped, a.dropped), (out.cancelled, a.cancelled)):
            for reason, rows in theirs.items():
                mine[reason] = mine.get(reason, 0) + rows
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
