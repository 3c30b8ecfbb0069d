"""The ends of streams on another node, made so that each step has arrived when it returns: what the contract checks expect.

`FakeNet` carries calls to agents in this process, on the thread of one event loop. `Faulty` loses, doubles and delays them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import SampleReader
from runnel.core.records import Slot, StreamSpec
from runnel.core.state import State
from runnel.flow.inference.codec import Bytes
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxServer, MailboxTable
from runnel.flow.lossy import make_reader
from runnel.flow.params import Channel, ChannelSubscriber, LocalChannel
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable
from runnel.flow.staleness import AdmissionRule
from runnel.flow.transports.cluster.agent import NodeAgent
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.ranks import RemoteRankReader
from runnel.flow.transports.cluster.remote import Head, Parcel, Peer, PeerLost, Peers, RemoteClient, RemoteWriter
from runnel.testing.param_properties import params_of
from runnel.testing.transport import InferenceEnds, ParamEnds

WAIT_S = 20.0


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def do(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        return self.run(call())

    def settle(self) -> None:
        """Until what was called has begun, and what was answered is here."""

        async def turn() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.run(turn())

    def close(self) -> None:
        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self.run(end())
        self.settle()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


class EventBells:
    """Doorbells between threads."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, timeout_s: float, *also: int) -> bool:
        rung = self._rung.wait(timeout_s)
        self._rung.clear()
        return rung


class FakeNet:
    """Agents by node, in this process. Heads travel as JSON, bodies as copies that cannot be written to."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop
        self.agents: dict[str, NodeAgent] = {}

    def peer(self, node: str) -> Peer:
        return FakePeer(self, node)

    def stash(self, body: Bytes) -> Bytes:
        return body.copy()


class FakePeer:
    def __init__(self, net: FakeNet, node: str) -> None:
        self._net, self._node = net, node

    def call(self, method: str, head: Head, body: Bytes | None = None) -> Future[Parcel]:
        agent = self._net.agents.get(self._node)
        if agent is None:
            lost: Future[Parcel] = Future()
            lost.set_exception(PeerLost(f"node {self._node} has no agent"))
            return lost
        return asyncio.run_coroutine_threadsafe(self._carry(agent, method, json.dumps(head), still(body)), self._net.loop.loop)

    async def _carry(self, agent: NodeAgent, method: str, head: str, body: Bytes | None) -> Parcel:
        answer, found = await agent.call(method, json.loads(head), body)
        return json.loads(json.dumps(answer)), still(found)


def still(body: Bytes | None) -> Bytes | None:
    """As Ray's object store gives it: a copy that cannot be written to."""
    if body is None:
        return None
    found: Bytes = body.copy()
    found.flags.writeable = False
    return found


class Faulty:
    """A net that treats each call as `fates` say: `ok`, `lost`, `unanswered`, `doubled`, `late` (after the next), `damaged`."""

    def __init__(self, net: Peers, fates: Iterator[str]) -> None:
        self._net, self._fates = net, fates
        self._held: list[Callable[[], Any]] = []

    def peer(self, node: str) -> Peer:
        return FaultyPeer(self, self._net.peer(node))

    def stash(self, body: Bytes) -> Any:
        return self._net.stash(body)

    def carry(self, send: Callable[[], Future[Parcel]], damaged: Callable[[], Future[Parcel]]) -> Future[Parcel]:
        fate, answer = next(self._fates), Future[Parcel]()
        held, self._held = self._held, []
        match fate:
            case "lost":
                pass
            case "unanswered":
                send()
            case "doubled":
                send()
                pass_on(send(), answer)
            case "damaged":
                pass_on(damaged(), answer)
            case "late":
                self._held.append(lambda: pass_on(send(), answer))
            case _:
                pass_on(send(), answer)
        for late in held:
            late()
        return answer


class FaultyPeer:
    def __init__(self, faulty: Faulty, peer: Peer) -> None:
        self._faulty, self._peer = faulty, peer

    def call(self, method: str, head: Head, body: Bytes | None = None) -> Future[Parcel]:
        kept = json.loads(json.dumps(head))  # as it was when it was sent
        return self._faulty.carry(
            lambda: self._peer.call(method, kept, body), lambda: self._peer.call(method, kept, spoilt(body))
        )


def spoilt(body: Bytes | None) -> Bytes | None:
    """With one bit turned over in the last value."""
    if body is None:
        return None
    found: Bytes = body.copy()
    found[-1] ^= 1
    return found


def pass_on(done: Future[Parcel], answer: Future[Parcel]) -> None:
    def copy(found: Future[Parcel]) -> None:
        error = found.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found.result())

    done.add_done_callback(copy)


# ------------------------------------------------------------------------------------------------------------------ ends
class EagerWriter(RemoteWriter):
    """Waits for the answer to each of its questions."""

    def reserve(self) -> Slot | None:
        slot = super().reserve()
        if slot is None and self._asked is not None:
            self._asked.wait(WAIT_S)
            self._hear()
            slot, self._granted = self._granted, None
        return slot

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        super().commit(slot, num_steps=num_steps)
        self.flush()

    def cancel(self, slot: Slot, reason: str) -> None:
        super().cancel(slot, reason)
        self.flush()

    def _look(self) -> None:
        super()._look()
        assert self._watch is not None
        self._watch.wait(WAIT_S)
        self._see()


class EagerRankReader(RemoteRankReader):
    """Waits for the answer to its question."""

    def version(self) -> int:
        super().version()
        if self._asked is not None:
            self._asked.wait(WAIT_S)
            self._hear()
        return self._version


class EagerClient(RemoteClient):
    """`settle` waits until the agent has done all it could, and returns how many of our requests are still open there."""

    settle: Callable[[], int]

    def submit(self, *args: Any, **more: Any) -> int:
        ticket = super().submit(*args, **more)
        self.settle()
        return ticket

    def poll(self) -> int:
        still_open = self.settle()
        waiting = list(self._calls.values())
        while sum(not call._future.done() for call in waiting) > still_open:
            threading.Event().wait(0.002)
        return super().poll()

    def abort(self, tickets: Any) -> None:
        super().abort(tickets)
        self.settle()

    def restore(self, state: State) -> None:
        super().restore(state)
        self.settle()


def lose_reader(table: SlotTable, name: str, consumed_before: int) -> int:
    """What a process group does about a reader that is lost."""
    index = table.spec.all_readers.index(name)
    if name in table.spec.lossy_readers:
        return table.drop_held(index, "worker_lost")
    return table.take_back(index, consumed_before)


class RemoteStream:
    """Writers and ranks that follow call; readers and checkpoints are on the node of the stream."""

    def __init__(self, table: SlotTable, peer: Callable[[], Peer]) -> None:
        self.table, self._peer = table, peer
        self.writers: dict[int, EagerWriter] = {}

    def writer(self, index: int) -> EagerWriter:
        if index not in self.writers:
            self.writers[index] = EagerWriter(self._peer, self.table.spec, index, wake=lambda: None)
        return self.writers[index]

    def reader(self, name: str) -> SampleReader:
        return make_reader(self.table, name)

    def rank(self, rank: int, ranks: int) -> RemoteRankReader:
        return EagerRankReader(self._peer, self.table.spec, "trainer", rank, ranks, wake=lambda: None)

    def cancel_writer(self, writer: int, reason: str) -> int:
        return self.table.cancel_writer(writer, reason)

    def lose_reader(self, name: str, consumed_before: int) -> int:
        return lose_reader(self.table, name, consumed_before)

    def snapshot(self) -> State:
        return self.table.snapshot()

    def restore(self, state: State) -> None:
        self.table.restore(state)


class SpreadChannel:
    """A channel whose publications have arrived on the other node when `publish` returns."""

    def __init__(self, channel: Channel, settle: Callable[[], None]) -> None:
        self._channel, self._settle = channel, settle

    def publish(self, version: int, params: Mapping[str, torch.Tensor]) -> None:
        self._channel.publish(version, params)
        self._settle()

    def newest(self) -> int:
        return self._channel.newest()

    def has(self, version: int) -> bool:
        return self._channel.has(version)

    def stamps(self) -> dict[int, int]:
        return self._channel.stamps()

    def get(self, version: int) -> ParamSet | None:
        return self._channel.get(version)

    def snapshot(self) -> State:
        return self._channel.snapshot()

    def restore(self, state: State) -> None:
        self._channel.restore(state)
        self._settle()


def board_map(spec: InferenceSpec, serving: str) -> ClusterMap:
    """All policy workers are on one node."""
    return ClusterMap({}, {spec.name: {serving: list(range(spec.num_servers))}}, {})


class Remote:
    """Nodes in this process: an agent and a piece of memory each. Every stream that is made is on nodes of its own."""

    def __init__(self) -> None:
        self.loop = LoopThread()
        self.net = FakeNet(self.loop)
        self.wire: Peers = self.net
        """What the ends send by; a test may put a `Faulty` in its place."""

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> RemoteStream:
        bells, node = EventBells(), self.new_node()
        table = SlotTable(spec, policy, SlotMemory.local(spec), lock=threading.RLock(), ring=bells.ring)
        self.agent(node, ClusterMap({spec.name: node}, {}, {}), bells=bells, tables={spec.name: table})
        return RemoteStream(table, lambda: self.wire.peer(node))

    def params(self, depth: int) -> ParamEnds:
        home = self.new_node()
        away = f"{home}-away"
        channels = {node: LocalChannel("policy", shared=False, depth=depth) for node in (away, home)}
        for node, channel in channels.items():
            self.agent(node, ClusterMap({}, {}, {"policy": (home, [home, away])}), channels={"policy": channel})

        def damage(version: int) -> None:
            channels[away]._versions[version][0]["net.weight"].view(torch.uint8).view(-1)[3] ^= 1

        return ParamEnds(SpreadChannel(channels[home], lambda: self.spread(home)), ChannelSubscriber(channels[away]), damage)

    def inference(self, spec: InferenceSpec) -> InferenceEnds:
        node, channel = self.new_node(), LocalChannel("policy", shared=False, depth=4)
        mailboxes = self.mailboxes(spec, node, board_map(spec, node), channel)
        clients = [self.client(node, spec, i, ChannelSubscriber(channel)) for i in range(spec.num_clients)]
        servers = [MailboxServer(mailboxes, i) for i in range(spec.num_servers)]
        return InferenceEnds(clients, servers, lambda v: channel.publish(v, params_of(v)))

    def mailboxes(self, spec: InferenceSpec, node: str, where: ClusterMap, channel: Channel) -> MailboxTable:
        """The mailboxes of a node."""
        bells = EventBells()
        mailboxes = MailboxTable(spec, *board_memory(spec), lock=threading.RLock(), ring=bells.ring)
        self.agent(node, where, bells=bells, mailbox_tables={spec.name: mailboxes}, channels={"policy": channel})
        return mailboxes

    def client(self, node: str, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber) -> EagerClient:
        client = EagerClient(lambda: self.wire.peer(node), spec, index, subscriber, wake=lambda: None)

        def settle() -> int:
            self.loop.settle()
            self.loop.do(self.net.agents[node]._pulse)
            self.loop.settle()
            return len(self.net.agents[node]._asked.get((spec.name, index), {}))

        client.settle = settle
        return client

    def new_node(self) -> str:
        return f"node-{len(self.net.agents)}"

    def agent(self, node: str, where: ClusterMap, *, bells: EventBells | None = None, **memory: Any) -> NodeAgent:
        memory = {"tables": {}, "mailbox_tables": {}, "channels": {}, **memory}
        agent = self.loop.do(lambda: NodeAgent(node, where, self.wire, bells=bells or EventBells(), **memory))
        self.net.agents[node] = agent
        self.loop.do(agent.start)
        return agent

    def spread(self, node: str) -> None:
        """Until all that was published has been brought."""
        agent = self.net.agents[node]
        for _ in range(2000):
            self.loop.do(agent._pulse)
            self.loop.settle()
            if self.loop.do(agent.spreader.idle):
                return
        raise AssertionError("parameters were not brought")

    def close(self) -> None:
        for agent in self.net.agents.values():
            agent.close()
        self.loop.settle()
        self.loop.close()


def board_memory(spec: InferenceSpec) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.zeros(spec.num_numbers, np.int64), np.zeros(spec.num_boxes * spec.max_bytes, np.uint8)
