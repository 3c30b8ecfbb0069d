"""The Ray actors of a run: one for each group of workers, and one for the agent of each node."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import ray

from runnel.core.errors import ConfigError
from runnel.core.framing import Message
from runnel.core.resolve import load_object
from runnel.flow.inference.codec import Bytes
from runnel.flow.transports.cluster.agent import NodeAgent
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.node import AGENT_PLACE, NodeBells, NodeMemory, make_memory
from runnel.flow.transports.cluster.ray import RayNet
from runnel.flow.transports.cluster.transport import ClusterTransport
from runnel.run.launchers.member import Member, read_experiment, tell_error
from runnel.run.wiring import Edges, place

FLUSH_S = 0.25


def enter(orders: Message) -> None:
    """Use the working folder and the module paths of the launching process."""
    for path in reversed(orders["sys_path"]):
        if path not in sys.path:
            sys.path.insert(0, path)
    if Path(orders["cwd"]).is_dir():
        os.chdir(orders["cwd"])


class QueueLine:
    """The group's end of a control line. The supervisor's end calls it over Ray."""

    def __init__(self) -> None:
        self.closed = False
        self._in: list[Message] = []
        self._out: list[Message] = []
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._something = asyncio.Event()
        # A pipe beside the list, because the group waits with `select` for orders and doorbells at once.
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def send(self, message: Message) -> None:
        with self._lock:
            self._out.append(message)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._something.set)

    def receive(self) -> list[Message]:
        with self._lock:
            found, self._in = self._in, []
        if found:
            with suppress(BlockingIOError):
                os.read(self._read, 4096)
        return found

    # ------------------------------------------------------------------------------------------- the end that Ray calls
    def put(self, message: Message) -> None:
        with self._lock:
            self._in.append(message)
        try:
            os.write(self._write, b"!")
        except BlockingIOError:  # the pipe is full, so it wakes the reader anyway
            return

    async def take(self) -> list[Message]:
        """Return the messages that were sent; wait at most `FLUSH_S` for the first."""
        try:
            await asyncio.wait_for(self._something.wait(), FLUSH_S)
        except TimeoutError:
            return []
        self._something.clear()
        with self._lock:
            found, self._out = self._out, []
        return found


class ProcessActor:
    """A process as a Ray actor. Its work runs on its own thread; Ray's calls run on the event loop."""

    def __init__(self) -> None:
        self._line: QueueLine | None = None
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._orders: dict[int, Message] = {}
        self._next = 0

    async def where(self) -> bytes:
        """The node on which Ray has placed this actor, its process id and its address."""
        context = ray.get_runtime_context()
        return json.dumps({"node": context.get_node_id(), "pid": os.getpid(), "ip": ray.util.get_node_ip_address()}).encode()

    async def begin(self, data: bytes) -> None:
        self._line = QueueLine()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(json.loads(data), self._line, loop), daemon=True).start()
        self._begun.set()

    def _run(self, order: Message, line: QueueLine, loop: asyncio.AbstractEventLoop) -> None:
        try:
            enter(order)
            load_object(order["work"], "work")(order, line)
        finally:
            loop.call_soon_threadsafe(self._ended.set)

    async def order(self, number: int, data: bytes) -> None:
        """Accept order `number`. Orders are numbered, because Ray may deliver calls in any order."""
        self._orders[number] = json.loads(data)
        await self._begun.wait()
        while self._next in self._orders and self._line is not None:
            self._line.put(self._orders.pop(self._next))
            self._next += 1

    async def listen(self) -> bytes:
        """Return the messages of the group."""
        await self._begun.wait()
        assert self._line is not None, "it has begun"
        return json.dumps(await self._line.take()).encode()

    async def stack(self) -> str:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    async def ended(self) -> None:
        """Wait until the workers are closed."""
        await self._ended.wait()

    async def leave(self) -> None:
        """End the process: the cluster has no head any more that could do it."""
        os._exit(0)


def run_group(order: Message, line: QueueLine) -> None:
    """The work of a process group's actor, from its start to its end."""
    try:
        member = _member(order, line)
    except Exception as error:
        tell_error(line, order["name"], error)
    else:
        member.serve()


def _member(order: Message, line: QueueLine) -> Member:
    log = Path(order["run"]) / "log.txt"
    if not log.parent.is_dir():
        raise ConfigError("out", order["run"], "this node cannot read the run's folder; put it on a shared file system")
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    transport = ClusterTransport(
        NodeMemory.from_data(order["memory"]),
        order["place"],
        RayNet(order["id"], order["faults"]),
        ClusterMap.from_data(order["map"]),
        node=order["node"],
        first=order["incarnation"] << 32,
    )
    experiment = read_experiment(order["recipe"], order["config"])
    return Member(experiment, order, line, transport, folder=log.parent)


class AgentActor:
    """The agent of a node as a Ray actor."""

    def __init__(self) -> None:
        self._agent: NodeAgent | None = None
        self._opened = asyncio.Event()

    async def open(self, data: bytes) -> bytes:
        """Make the node's shared memory; returns how other processes find it."""
        orders = json.loads(data)
        enter(orders)
        experiment = read_experiment(orders["recipe"], orders["config"])
        edges, node, where = Edges(experiment, place(experiment)), orders["node"], ClusterMap.from_data(orders["map"])
        streams = {name: spec for name, spec in edges.streams.items() if where.streams[name] == node}
        memory = make_memory(streams, experiment.channels, edges.mailbox_tables)
        bells = NodeBells(memory, AGENT_PLACE)
        shm = memory.transport(bells)
        self._agent = NodeAgent(
            node,
            where,
            RayNet(orders["id"], orders["faults"]),
            tables={name: shm.samples(spec, experiment.staleness[name]) for name, spec in streams.items()},
            mailbox_tables={name: shm.inference(spec) for name, spec in edges.mailbox_tables.items()},
            channels={name: shm.params(name, depth=experiment.channel_depth) for name in experiment.channels},
            bells=bells,
        )
        self._agent.start()
        self._opened.set()
        return json.dumps(memory.to_data()).encode()

    async def call(self, method: str, head: bytes, body: Bytes | None = None) -> tuple[bytes, Bytes | None]:
        """Serve a call of another node. It waits until `open` is done: Ray knows this actor's name earlier."""
        await self._opened.wait()
        assert self._agent is not None, "it is open"
        answer, found = await self._agent.call(method, json.loads(head), body)
        return json.dumps(answer).encode(), found

    async def update(self, data: bytes) -> None:
        """Replace the cluster map."""
        await self._opened.wait()
        assert self._agent is not None, "it is open"
        self._agent.update(ClusterMap.from_data(json.loads(data)))

    async def leave(self) -> None:
        """End the process: the cluster has no head any more that could do it."""
        os._exit(0)

    async def live(self) -> None:
        """Never return: the call fails when the agent dies, and so tells the caller."""
        await asyncio.Event().wait()
