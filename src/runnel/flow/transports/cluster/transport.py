"""The transport of a run on several nodes: shared memory inside a node, calls between nodes.

A sample stream is stored on its reader's node. Every node has its own mailboxes and its own copy of the parameter channel. The
agents carry requests to the nodes with policy workers, and published parameters to all nodes.
"""

from __future__ import annotations

from runnel.core.contracts.samples import RankReader, SampleWriter
from runnel.core.errors import ConfigError
from runnel.core.records import StreamSpec
from runnel.flow.collective import LOOPBACK
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer
from runnel.flow.params import Channel, ChannelSubscriber
from runnel.flow.slots import SlotTable
from runnel.flow.staleness import AdmissionRule
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.node import NodeBells, NodeMemory
from runnel.flow.transports.cluster.ranks import RemoteRankReader
from runnel.flow.transports.cluster.remote import CLOCK, FLUSH_S, Call, PeerLost, Peers, RemoteWriter


class ClusterTransport:
    """`run.wiring.Outer` for one process on one node."""

    def __init__(self, memory: NodeMemory, place: int, net: Peers, where: ClusterMap, *, node: str, first: int = 0) -> None:
        self._bells = NodeBells(memory, place)
        self._shm = memory.transport(self._bells)
        self._net, self.where, self.node, self._first = net, where, node, first
        self._remote: list[RemoteWriter] = []
        self._channels: dict[str, Channel] = {}

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        if self.where.streams[spec.name] != self.node:
            raise ConfigError("placement", spec.name, "its readers must be on the node of the stream; put them into one group")
        return self._shm.samples(spec, policy)

    def rank_reader(self, spec: StreamSpec, policy: AdmissionRule, rank: int, ranks: int) -> RankReader:
        home = self.where.streams[spec.name]
        if home == self.node:
            return self._shm.rank_reader(spec, policy, rank, ranks)
        wake, first = self._bells.wake, self._first
        return RemoteRankReader(lambda: self._net.peer(home), spec, spec.readers[0], rank, ranks, wake=wake, first=first)

    @property
    def meet_at(self) -> str:
        return self.where.meet_at.get(self.node, LOOPBACK)

    def writer(self, spec: StreamSpec, policy: AdmissionRule, index: int) -> SampleWriter:
        home = self.where.streams[spec.name]
        if home == self.node:
            return self._shm.writer(spec, policy, index)
        writer = RemoteWriter(lambda: self._net.peer(home), spec, index, wake=self._bells.wake, first=self._first)
        self._remote.append(writer)
        return writer

    def client(self, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber, *, first: int = 0) -> MailboxClient:
        """A client of this node's mailboxes; a policy worker here or the agent's relay serves them."""
        return self._shm.client(spec, index, subscriber, first=first)

    def server(self, spec: InferenceSpec, index: int) -> MailboxServer:
        return self._shm.server(spec, index)

    def params(self, name: str, *, depth: int) -> Channel:
        self._channels[name] = self._shm.params(name, depth=depth)
        return self._channels[name]

    def wait(self, timeout_s: float, *also: int) -> bool:
        return self._bells.wait(timeout_s, *also)

    def catch_up(self) -> None:
        for name, (home, nodes) in self.where.params.items():
            if home == self.node or self.node not in nodes or name not in self._channels:
                continue
            head = {"name": name}
            call = Call(lambda: self._net.peer(home), "stamps", head, wake=self._bells.wake)  # noqa: B023
            call.wait(FLUSH_S)
            wanted = {(version, crc) for version, crc in call.result()[0]["stamps"]}
            deadline = CLOCK.now() + FLUSH_S
            while wanted - set(self._channels[name].stamps().items()):
                if CLOCK.now() > deadline:
                    raise PeerLost(f"versions {sorted(v for v, _ in wanted)} of {name!r} did not arrive in {FLUSH_S:g} s")
                self._bells.wait(0.05)

    def flush(self) -> None:
        for writer in self._remote:
            writer.flush()
