"""Predicts the speed of a placement of workers from the costs of its stages: a model of a few lines, to be checked by hand.

Actors (with their inference) make a batch, and trainers train on it. In one process the time of an update is the sum of both.
In several processes, synchronous training also takes the sum. One step off and a window take the longer of the two. In every
case the work that computes must fit on the cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.flow.staleness import StalenessConfig
from runnel.plan.costs import Costs
from runnel.plan.simulate import NetworkConfig, reduce_seconds

Inference = Literal["inline", "split", "central"]


@dataclass(frozen=True)
class Placement:
    """Which workers there are, and where inference and training run."""

    actors: int = bounded(1, at_least=1)
    inference: Inference = "inline"
    """inline: in each actor. split: policy workers of their own. central: policy workers beside the trainers (colocated)."""
    servers: int = 0
    num_env_groups: int = bounded(1, at_least=1)
    rows: float = 0.0
    """Rows of a request; 0 is what was measured."""
    trainers: int = bounded(1, at_least=1)
    batch_segments: int = bounded(1, at_least=1)
    """Segments of one update, of all trainers together."""
    staleness: StalenessConfig = field(default_factory=StalenessConfig)
    one_process: bool = False
    """Everything in one thread (launcher inproc)."""
    devices: bool = False
    """Policy workers and trainers have accelerators, and take no cores."""
    cores: int = bounded(1, at_least=1)
    """Cores of all nodes together."""
    network: NetworkConfig | None = None
    """Links between nodes. None: one machine."""

    def check(self) -> None:
        check_bounds(self)
        if self.inference != "inline" and self.servers < 1:
            raise ConfigError("servers", self.servers, f"{self.inference} inference needs at least 1")

    @property
    def open_segments(self) -> int:
        """Segments that are being filled at once: one for each env group whose policy is elsewhere, else one for each actor."""
        return self.actors * (self.num_env_groups if self.inference != "inline" else 1)


@dataclass(frozen=True)
class Prediction:
    """The predicted speed of a placement."""

    placement: Placement
    units_per_s: float
    """Steps or tokens a second."""
    updates_per_s: float
    bottleneck: str
    seconds: dict[str, float]
    """Seconds of one batch: make, train, cores, and the links sample and param. They may overlap, so they need not add up."""
    utilisation: dict[str, float]
    staleness: float
    """Mean number of versions that a segment is behind when it is trained on."""
    max_staleness: int


def predict(costs: Costs, placement: Placement) -> Prediction:
    """Predict rates, bottleneck and staleness of a placement.

    >>> from runnel.plan.costs import LinearCost
    >>> c = Costs(num_steps=10, step=LinearCost(0, 0.01), infer=LinearCost(), update=LinearCost(0.1), publish_s=0.0, load_s=0.0)
    >>> round(predict(c, Placement(cores=2)).updates_per_s, 3)  # synchronous: 0.1 s of playing, then 0.1 s of training
    5.0
    >>> round(predict(c, Placement(cores=2, staleness=StalenessConfig(mode="one_step"))).updates_per_s, 3)
    10.0
    """
    placement.check()
    costs = replace(costs, rows=placement.rows or costs.rows)
    return _replay(costs, placement) if costs.update_ratio else _batches(costs, placement)


def step_cycle(costs: Costs, p: Placement) -> float:
    """Seconds of one step of an env group whose policy is elsewhere, while all env groups are at work.

    A server processes the requests that arrived since its last batch. Each of its `n` env groups sends one request in a cycle.
    So a batch holds the requests that arrive during the batch before, and a request waits for half of that batch and for its
    own.
    """
    n, think = max(1.0, p.actors * p.num_env_groups / p.servers), costs.step(costs.rows) + costs.message_s
    latency = 2 * (costs.wake_s + (p.network.latency_us * 1e-6 if p.network else 0.0))
    each = costs.serve.per_row * costs.rows + costs.respond_s
    low = max(p.num_env_groups * think, n * each)
    high = low + think + 2 * _served(costs, n) + latency
    for _ in range(60):  # bisection: a longer cycle means smaller batches and shorter waits, so there is one solution
        cycle = (low + high) / 2
        batch = min(n, max(1.0, n * costs.serve.base / max(cycle - n * each, 1e-12)))
        service = _served(costs, batch)
        busy = min(1.0, n / cycle / batch * service) * (n - 1) / n
        low, high = (cycle, high) if think + service * (1.0 + busy / 2) + latency > cycle else (low, cycle)
    return high


def _served(costs: Costs, requests: float) -> float:
    return costs.serve(requests * costs.rows) + requests * costs.respond_s


def segment_seconds(costs: Costs, p: Placement) -> float:
    """Seconds to fill a segment, if the actor has a core of its own."""
    if p.inference == "inline":
        return costs.num_steps * (costs.step(costs.rows) + costs.infer(costs.rows))
    if p.one_process:
        return costs.num_steps * (costs.step(costs.rows) + costs.message_s + _served(costs, 1.0))
    return costs.num_steps * step_cycle(costs, p)


def core_seconds(costs: Costs, p: Placement) -> tuple[float, float]:
    """Seconds of computing on cores: of the actor and its inference for one segment, and of one update."""
    playing = costs.num_steps * costs.step(costs.rows) * costs.step_cpu
    if p.inference == "inline":
        playing += costs.num_steps * costs.infer(costs.rows)
    else:
        playing += costs.num_steps * (costs.message_s + (0.0 if p.devices else _served(costs, 1.0)))
    units = costs.update_units or p.batch_segments * costs.segment_units
    update = costs.update(units / p.trainers) * p.trainers
    training = 0.0 if p.devices else update * min(1.0, costs.update_cpu)
    return playing, training + costs.ledger_s + costs.publish_s + costs.copy_s


def _batches(costs: Costs, p: Placement) -> Prediction:
    """Without replay (on-policy and language models): each batch is trained on once."""
    units = p.batch_segments * costs.segment_units
    segment, (playing, training) = segment_seconds(costs, p), core_seconds(costs, p)
    lag = p.staleness.lag
    train = costs.update(units / p.trainers) + costs.publish_s + costs.copy_s * (lag > 0 or not p.one_process)
    if p.network is not None:
        train += reduce_seconds(p.trainers, costs.param_bytes, p.network)
    if p.inference == "central" and lag:  # the device that trains also does inference, meanwhile
        train += p.batch_segments * costs.num_steps * costs.serve(costs.rows * p.open_segments) / p.open_segments / p.trainers
    if p.one_process:
        make = p.batch_segments * segment + p.actors * costs.load_s
        cycle = make + train + costs.ledger_s
        return _prediction(costs, p, cycle, {"make": make, "train": train}, segment)
    parallel = p.open_segments if lag == 0 else min(p.open_segments, max(1, lag) * p.batch_segments)
    rounds = p.batch_segments / parallel
    make = segment * (math.ceil(rounds) if lag == 0 else rounds) + costs.load_s
    sample_s, param_s = _links(costs, p)
    if lag == 0:
        make = max(make, p.batch_segments * playing / p.cores)
        cycle = make + train + param_s + sample_s + 2 * costs.wake_s
        return _prediction(costs, p, cycle, {"make": make, "train": train, "sample": sample_s, "param": param_s}, segment)
    cores = (p.batch_segments * playing + training) / p.cores
    parts = {"make": make, "train": train, "cores": cores, "sample": sample_s, "param": param_s}
    return _prediction(costs, p, max(parts.values()), parts, segment)


def _links(costs: Costs, p: Placement) -> tuple[float, float]:
    """Seconds on the links: of the segments of a batch, and of one version for all processes that load it."""
    if p.network is None:
        return 0.0, 0.0
    readers = p.servers if p.inference != "inline" else -(-p.actors // p.network.actors_per_host)
    sample = p.batch_segments / p.trainers * costs.segment_bytes / p.network.bytes_per_s
    return sample, readers * costs.param_bytes / p.network.bytes_per_s


def _replay(costs: Costs, p: Placement) -> Prediction:
    """With replay: each segment allows some updates, and the next segment may start when all but `lag` of them are done."""
    segment, (playing, training) = segment_seconds(costs, p), core_seconds(costs, p)
    due, lag = costs.update_ratio * costs.segment_units, p.staleness.lag
    update = costs.update(costs.update_units) + costs.select_s + costs.publish_s + costs.copy_s * (lag > 0 or not p.one_process)
    train = costs.insert_s + due * update
    if p.one_process:
        cycle = segment + train + due * costs.ledger_s
        return _prediction(costs, p, cycle, {"make": segment, "train": train}, segment, batch=1, updates=due)
    parallel = min(p.open_segments, 1 + int(lag / max(due, 1e-9)))
    serial = segment + train - min(lag, due) * update if parallel == 1 else 0.0
    cores = (playing + costs.insert_s + due * (training + costs.select_s)) / p.cores
    parts = {"make": max(segment / parallel, serial - train if serial > train else 0.0), "train": train, "cores": cores}
    cycle = max(segment / parallel, train, serial, cores)
    return _prediction(costs, p, cycle, parts, segment, batch=1, updates=due)


def _prediction(
    costs: Costs, p: Placement, cycle: float, parts: dict[str, float], segment: float, *, batch: int = 0, updates: float = 1.0
) -> Prediction:
    """Convert the seconds of a batch into rates, and find the bottleneck and the age of samples (Little's law)."""
    lag, longest = p.staleness.lag, max(parts, key=lambda k: parts[k])
    names = {"make": "actors" if p.inference == "inline" else "actors and their round trips", "train": "trainer"}
    names |= {"cores": "cores", "sample": "sample path", "param": "parameter path"}
    if p.inference != "inline" and longest == "make":
        full = _served(costs, p.actors * p.num_env_groups / p.servers) > 0.8 * step_cycle(costs, p)
        names["make"] = "policy workers" if full else names["make"]
    segments = batch or p.batch_segments
    step_s = costs.step(costs.rows) + (costs.infer(costs.rows) if p.inference == "inline" else costs.message_s)
    busy = {"actors": segments * costs.num_steps * step_s / cycle / p.actors, "trainers": parts["train"] / cycle}
    behind = 0.0
    if p.staleness.mode == "one_step":
        behind = 1.0
    elif lag:  # a segment takes `segment` seconds to fill; if the trainer is the bottleneck, it also waits in a full queue
        waits = longest == "train" and p.inference != "central"
        behind = float(lag) if waits else min(float(lag), segment / cycle)
    return Prediction(
        placement=p,
        units_per_s=segments * costs.segment_units / cycle,
        updates_per_s=updates / cycle,
        bottleneck=names[longest],
        seconds=parts,
        utilisation={k: min(1.0, v) for k, v in busy.items()},
        staleness=behind,
        max_staleness=lag,
    )
