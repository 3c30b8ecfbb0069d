"""A process under Ray that hosts agents and their memory, for contract tests: fresh ones for every stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ray

from runnel.flow.inference.codec import Bytes
from runnel.flow.transports.cluster.agent import NodeAgent
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.node import AGENT_PLACE, NodeBells, make_memory
from runnel.flow.transports.cluster.ray import RayPeer
from runnel.flow.transports.cluster.remote import Peer


class Named:
    """A Ray actor's handle whose calls are for one of the agents in it."""

    def __init__(self, handle: Any, node: str) -> None:
        self.call = self
        self._handle, self._node = handle, node

    def remote(self, method: str, head: bytes, body: Any) -> Any:
        return self._handle.call.remote(self._node, method, head, body)


class HostNet:
    """The agents of one Ray actor, called over Ray, also from within it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def peer(self, node: str) -> Peer:
        return RayPeer(Named(self._handle, node))

    def stash(self, body: Bytes) -> Any:
        return ray.put(body)


class AgentsActor:
    """Agents by name in one process; the first argument of each call says whom it is for."""

    def __init__(self) -> None:
        self._agents: dict[str, NodeAgent] = {}

    async def open(self, name: str, where: bytes, stream: Any, mailboxes: Any, depth: int) -> bytes:
        """Make a node; returns where its memory is."""
        streams = {stream[0].name: stream[0]} if stream else {}
        mailbox_tables = {mailboxes.name: mailboxes} if mailboxes else {}
        memory = make_memory(streams, ["policy"], mailbox_tables, places=4)
        bells = NodeBells(memory, AGENT_PLACE)
        shm = memory.transport(bells)
        agent = self._agents[name] = NodeAgent(
            name,
            ClusterMap.from_data(json.loads(where)),
            HostNet(ray.get_runtime_context().current_actor),
            tables={n: shm.samples(spec, stream[1]) for n, spec in streams.items()},
            mailbox_tables={n: shm.inference(spec) for n, spec in mailbox_tables.items()},
            channels={"policy": shm.params("policy", depth=depth)},
            bells=bells,
        )
        agent.start()
        return json.dumps(memory.to_data()).encode()

    async def call(self, name: str, method: str, head: bytes, body: Bytes | None = None) -> tuple[bytes, Bytes | None]:
        answer, found = await self._agents[name].call(method, json.loads(head), body)
        return json.dumps(answer).encode(), found

    async def settle(self, name: str, stream: str = "", client: int = 0) -> int:
        """Until all that could be done is done; returns the requests of a client that are still open."""
        agent = self._agents[name]
        for _ in range(200):
            await _turns()
            agent._pulse()
            await _turns()
            if agent.spreader.idle():
                break
            await asyncio.sleep(0.002)
        return len(agent._asked.get((stream, client), {}))


async def _turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


class Answers:
    """Says what it was called."""

    def call(self, method: str, head: bytes, body: Any = None) -> tuple[bytes, None]:
        return json.dumps({"said": method}).encode(), None
