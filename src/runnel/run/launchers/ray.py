"""The Ray launcher: groups are Ray actors, on one machine or on a cluster. Ray places and connects them; we supervise.

Each node that has a group of the run has an agent too, which makes the shared memory of the node (`flow/transports/node.py`)
and answers for it to other nodes.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from runnel.core.config import to_data
from runnel.core.errors import WorkerFailure
from runnel.flow.transports.map import Map
from runnel.flow.transports.ray import NAMESPACE, agent_name
from runnel.run.experiment import Experiment
from runnel.run.launchers.line import Message
from runnel.run.launchers.ray_actors import AgentActor, GroupActor
from runnel.run.launchers.supervisor import START_TIMEOUT_S, Seat, supervise
from runnel.run.session import Session
from runnel.run.wiring import PARAMS, Edges, available_cores

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Ray takes 127.0.0.1 for a slip and puts the machine's own address in its place."""
MANY = 100_000
"""Calls that an agent may have open at once."""


def launch(session: Session) -> str:
    """Run to the end; returns the status."""
    with connected(session):
        return supervise(session, RayHost(session))


@contextmanager
def connected(session: Session) -> Iterator[None]:
    """A cluster: the one we are in, the one at `cluster.address`, or a new one on this machine that ends with the run."""
    if ray.is_initialized():
        yield
        return
    cluster = session.experiment.config.cluster
    address = cluster.address or os.environ.get("RAY_ADDRESS", "")
    quiet: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "warning"}
    if address:
        ray.init(address=address, **quiet)
    else:
        cores = max(available_cores(), len(session.groups) * session.experiment.config.placement.threads)
        ray.init(address="local", num_cpus=cores, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


class RayLine:
    """Our end of a group's control line: orders are calls, and one question is always open that its words answer."""

    def __init__(self, actor: Any) -> None:
        self.closed = False
        self.lost = ""
        self._actor = actor
        self._left: list[Message] = []
        self._sent = 0
        self.open: Any = None

    def begin(self) -> None:
        self.open = self._actor.listen.remote()

    def fileno(self) -> int:
        raise NotImplementedError("a host waits for the question that is open")

    def send(self, message: Message) -> None:
        if not self.closed:
            self._actor.order.remote(self._sent, json.dumps(message).encode())
            self._sent += 1

    def receive(self) -> list[Message]:
        """What has arrived; sets `lost` when the group is gone."""
        while self.open is not None and ray.wait([self.open], timeout=0)[0]:
            try:
                self._left += json.loads(ray.get(self.open))
                self.open = self._actor.listen.remote()
            except RayError as error:
                self.lost, self.open = _reason(error), None
        found, self._left = self._left, []
        return found


def _reason(error: RayError) -> str:
    """Ray's account of a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"was lost: {' '.join(lines)[:400]}"


class RaySeat:
    """A group as a Ray actor. It is placed by Ray in its own time; then it begins."""

    def __init__(self, group: str, actor: Any, numbers: dict[str, int]) -> None:
        self.group, self.actor, self.numbers = group, actor, numbers
        self.line = RayLine(actor)
        self.place: Any = actor.where.remote()
        """The question where Ray has put it, until that is known."""
        self.node = ""
        self.ip = ""
        self.begun = False
        self._failed = ""

    def placed(self) -> bool:
        """Whether Ray has found a node for it by now."""
        if self.place is not None and ray.wait([self.place], timeout=0)[0]:
            try:
                found = json.loads(ray.get(self.place))
                self.node, self.ip = found["node"], found["ip"]
            except RayError as error:
                self._failed = _reason(error)
            self.place = None
        return bool(self.node)

    def died(self) -> str:
        return self._failed or self.line.lost

    def fail(self, how: str) -> None:
        """Its node is not usable any more."""
        self._failed = self._failed or how
        ray.kill(self.actor)

    def stack(self) -> str:
        try:
            text: str = ray.get(self.actor.stack.remote(), timeout=5.0)
        except (RayError, TimeoutError):
            return "(it does not answer)"
        return text

    def end(self, timeout_s: float) -> None:
        self.line.closed = True
        if self.begun and timeout_s > 0 and not self.died():
            ray.wait([self.actor.ended.remote()], timeout=timeout_s)
        ray.kill(self.actor)


class Node:
    """A node of the cluster that takes part: its agent, and where its memory is."""

    def __init__(self, name: str, agent: Any, opening: Any) -> None:
        self.name, self.agent, self.opening = name, agent, opening
        self.memory: dict[str, Any] | None = None
        self.alive = agent.live.remote()
        self.next_place = 1

    def ready(self) -> bool:
        if self.memory is None and ray.wait([self.opening], timeout=0)[0]:
            self.memory = json.loads(ray.get(self.opening))
        return self.memory is not None

    def gone(self) -> bool:
        return bool(ray.wait([self.alive], timeout=0)[0])


class RayHost:
    """`supervisor.Host` on a Ray cluster."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._id = ""
        self._seats: dict[str, RaySeat] = {}
        self._nodes: dict[str, Node] = {}

    # ------------------------------------------------------------------------------------------------------------ start
    def open(self, groups: Collection[str]) -> None:
        """Have every group placed: only then is it known which edges leave a node."""
        self._id = f"{self._session.folder.path.name[-40:]}-{secrets.token_hex(4)}"
        actors = {name: self._actor(name) for name in groups}
        self._seats = {name: RaySeat(name, actor, {}) for name, actor in actors.items()}
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(seat.placed() for seat in self._seats.values()):
            for seat in self._seats.values():
                if seat.died():
                    raise WorkerFailure(seat.group, seat.died())
            if time.monotonic() > deadline:
                late = next(s.group for s in self._seats.values() if not s.placed())
                raise WorkerFailure(late, f"found no place on the cluster in {START_TIMEOUT_S:g} s")
            time.sleep(0.02)

    def _actor(self, group: str) -> Any:
        config = self._session.experiment.config
        options: dict[str, Any] = {"num_cpus": config.placement.threads, "max_concurrency": 64}
        name = f"runnel-{self._id}-{group}-{secrets.token_hex(2)}"
        return ray.remote(GroupActor).options(name=name, namespace=NAMESPACE, **options).remote()

    def start(self, group: str, *, epoch: int, incarnation: int) -> RaySeat:
        seat = self._seats.get(group)
        if seat is None or seat.numbers:
            seat = self._seats[group] = RaySeat(group, self._actor(group), {})
        seat.numbers = {"epoch": epoch, "incarnation": incarnation}
        self._advance()
        return seat

    def _advance(self) -> None:
        """Bring every group that waits a step further: Ray places it, its node gets an agent, it begins."""
        self._drop_lost_nodes()
        for seat in self._seats.values():
            if seat.begun or not seat.numbers or not seat.placed():
                continue
            if seat.node not in self._nodes:
                self._nodes[seat.node] = self._node(seat.node)
                self._tell_map()
            node = self._nodes[seat.node]
            if node.ready():
                self._begin(seat, node)

    def _node(self, name: str) -> Node:
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=name, soft=False)
        agent = (
            ray.remote(AgentActor)
            .options(
                name=agent_name(self._id, name),
                namespace=NAMESPACE,
                num_cpus=0,
                max_concurrency=MANY,
                scheduling_strategy=strategy,
            )
            .remote()
        )
        orders = {**self._orders(), "node": name, "map": self._map().to_data()}
        return Node(name, agent, agent.open.remote(json.dumps(orders).encode()))

    def _begin(self, seat: RaySeat, node: Node) -> None:
        orders = {
            **self._orders(),
            **seat.numbers,
            "group": seat.group,
            "run": str(self._session.folder.path.resolve()),
            "node": node.name,
            "memory": node.memory,
            "place": node.next_place,
            "map": self._map().to_data(),
        }
        node.next_place += 1
        seat.actor.begin.remote(json.dumps(orders).encode())
        seat.line.begin()
        seat.begun = True
        self._tell_map()

    def _orders(self) -> dict[str, Any]:
        experiment = self._session.experiment
        return {
            "id": self._id,
            "recipe": self._session.folder.read_run_info()["recipe"],
            "config": to_data(experiment.config),
            "cwd": os.getcwd(),
            "sys_path": [p for p in sys.path if p],
        }

    # -------------------------------------------------------------------------------------------------------------- map
    def _map(self) -> Map:
        groups, experiment = self._session.groups, self._session.experiment
        where = {w: self._seats[g].node if g in self._seats else "" for g, members in groups.items() for w in members}
        edges = Edges(experiment, groups)
        streams = {name: where[experiment.reader_of(name)] for name in edges.streams}
        nodes = sorted({*(n for n in where.values() if n), *self._nodes})
        return Map(streams, _boards(experiment, edges, where), {PARAMS: (where["trainer"], nodes)})

    def _tell_map(self) -> None:
        data = json.dumps(self._map().to_data()).encode()
        for node in self._nodes.values():
            if node.memory is not None:
                node.agent.update.remote(data)

    def _drop_lost_nodes(self) -> None:
        """A node whose agent is gone is lost to the run, with all that is on it."""
        for name in [name for name, node in self._nodes.items() if node.gone()]:
            del self._nodes[name]
            for seat in self._seats.values():
                if seat.node == name and not seat.died():
                    seat.fail(f"was lost with its node {name[:8]}")

    # ---------------------------------------------------------------------------------------------------------- waiting
    def wait(self, seats: Collection[Seat], timeout_s: float) -> None:
        self._advance()
        questions = [seat.line.open for seat in self._seats.values() if seat.line.open is not None]
        if questions:
            ray.wait(questions, timeout=timeout_s)
        else:
            time.sleep(timeout_s)

    def output(self) -> str:
        return self._session.folder.log.read_text(errors="replace")[-2000:] if self._session.folder.log.exists() else ""

    def close(self) -> None:
        for seat in self._seats.values():
            ray.kill(seat.actor)
        for node in self._nodes.values():
            ray.kill(node.agent)
        self._seats, self._nodes = {}, {}


def _boards(experiment: Experiment, edges: Edges, where: dict[str, str]) -> dict[str, dict[str, list[int]]]:
    """By inference stream and node, the policy workers there."""
    found: dict[str, dict[str, list[int]]] = {}
    for stream in experiment.inference:
        if stream.name not in edges.boards:
            continue
        nodes: dict[str, list[int]] = {}
        for index in range(stream.num_workers):
            if node := where[f"{stream.name}-{index}"]:
                nodes.setdefault(node, []).append(index)
        found[stream.name] = nodes
    return found
