"""Agents of nodes under Ray, by themselves: what samples.py and params.py measure between."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runnel.core.records import StreamSpec
from runnel.flow.inference.codec import Bytes
from runnel.flow.params import Channel
from runnel.flow.slots import TableReader
from runnel.flow.staleness import AdmissionRule
from runnel.flow.transports.cluster.agent import NodeAgent
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.node import AGENT_PLACE, NodeBells, NodeMemory, make_memory
from runnel.flow.transports.cluster.ray import NAMESPACE, RayNet, agent_name
from runnel.flow.transports.cluster.remote import RemoteWriter

CHANNEL = "policy"


def start_ray(num_nodes: int = 1, store_bytes: int = 1 << 30) -> Any:
    """Nodes on loopback addresses; returns what ends them."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    options = {"num_cpus": 2, "object_store_memory": store_bytes}
    head = {**options, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for i in range(1, num_nodes):
        cluster.add_node(**options, node_ip_address=f"127.0.0.{2 + i}")
    quiet = {"log_to_driver": False, "logging_level": "error", "_node_ip_address": "127.0.0.2"}
    ray.init(address=cluster.address, namespace=NAMESPACE, **quiet)
    return cluster


class AgentHost:
    """The agent of one node as a Ray actor, with nothing of a run around it."""

    async def open(self, run: str, node: str, where: bytes, stream: Any, depth: int) -> bytes:
        streams = {stream[0].name: stream[0]} if stream else {}
        memory = make_memory(streams, [CHANNEL], {}, places=4)
        bells = NodeBells(memory, AGENT_PLACE)
        shm = memory.transport(bells)
        tables = {name: shm.samples(spec, stream[1]) for name, spec in streams.items()}
        channels = {CHANNEL: shm.params(CHANNEL, depth=depth)}
        map_ = ClusterMap.from_data(json.loads(where))
        self._agent = NodeAgent(node, map_, RayNet(run), tables=tables, mailbox_tables={}, channels=channels, bells=bells)
        self._channel: Channel = channels[CHANNEL]
        self._agent.start()
        return json.dumps(memory.to_data()).encode()

    async def call(self, method: str, head: bytes, body: Bytes | None = None) -> tuple[bytes, Bytes | None]:
        answer, found = await self._agent.call(method, json.loads(head), body)
        return json.dumps(answer).encode(), found

    async def newest(self, version: int) -> None:
        """Returns when the node has that version."""
        while self._channel.newest() < version:
            await asyncio.sleep(0.0005)


class WriterHost:
    """A writer on another node: it fills segments as fast as they are taken."""

    def start(self, run: str, node: str, spec: StreamSpec) -> None:
        net, self._woken = RayNet(run), threading.Event()
        self._writer = RemoteWriter(lambda: net.peer(node), spec, 0, wake=self._woken.set)
        self._source = torch.rand(spec.shape("x"))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        torch.set_num_threads(1)
        while True:
            slot = self._writer.reserve()
            if slot is None:
                self._woken.wait(1.0)
                self._woken.clear()
                continue
            slot.arrays["x"].copy_(self._source)
            slot.header.version_min = slot.header.version_max = 0
            self._writer.commit(slot, num_steps=1)


def open_agent(
    run: str, node: str, where: ClusterMap, *, stream: Any = None, depth: int = 2, place: Any = None
) -> tuple[Any, NodeMemory]:
    """Start the agent of a node; where its memory is, if it is on this one."""
    options: dict[str, Any] = {"name": agent_name(run, node), "namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": 1000}
    options |= {"scheduling_strategy": place} if place is not None else {}
    host = ray.remote(AgentHost).options(**options).remote()
    data = ray.get(host.open.remote(run, node, json.dumps(where.to_data()).encode(), stream, depth))
    return host, NodeMemory.from_data(json.loads(data))


class SampleEnds:
    """A stream under an agent, a writer in another process that reaches it by calls, and its reader here."""

    def __init__(self, spec: StreamSpec, policy: AdmissionRule) -> None:
        self._cluster, run = start_ray(), secrets.token_hex(4)
        where = ClusterMap({spec.name: "node"}, {}, {})
        self._host, memory = open_agent(run, "node", where, stream=(spec, policy))
        self._bells = NodeBells(memory, 1)
        self.reader = TableReader(memory.transport(self._bells).samples(spec, policy), "trainer")
        self._writer = ray.remote(WriterHost).options(num_cpus=0).remote()
        ray.get(self._writer.start.remote(run, "node", spec))

    def wait(self, timeout_s: float) -> bool:
        return self._bells.wait(timeout_s)

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


class ParamEnds:
    """A channel that is published here, and copies of it on other nodes that their agents keep."""

    def __init__(self, num_nodes: int, depth: int = 2) -> None:
        self._cluster, run = start_ray(num_nodes), secrets.token_hex(4)
        here = ray.get_runtime_context().get_node_id()
        others = [n["NodeID"] for n in ray.nodes() if n["NodeID"] != here]
        where = ClusterMap({}, {}, {CHANNEL: (here, [here, *others])})
        self._hosts = []
        for node in (*others, here):  # who publishes comes last, and finds the others
            place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            host, memory = open_agent(run, node, where, depth=depth, place=place)
            self._hosts.append(host)
        self.channel = memory.transport(NodeBells(memory, 1)).params(CHANNEL, depth=depth)

    def arrivals(self, version: int) -> list[Any]:
        """What is answered when each node has that version."""
        return [host.newest.remote(version) for host in self._hosts]

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()
