"""The contract of transports over real Ray calls: agents in another process, their memory opened under /proc."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray.exceptions import ObjectStoreFullError
from ray_cluster import local_ray
from ray_nodes import AgentsActor, Answers, HostNet
from remote_ends import EagerClient, FakeNet, Remote, RemoteStream, SpreadChannel, board_map
from test_transport import flip

from runnel.core.errors import DataError
from runnel.core.records import StreamSpec
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxServer
from runnel.flow.params import ChannelSubscriber
from runnel.flow.staleness import AdmissionRule, LagRule
from runnel.flow.transports.cluster import remote
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.node import NodeBells, NodeMemory
from runnel.flow.transports.cluster.ray import Faults, LostPeer, RayNet, RayPeer
from runnel.flow.transports.cluster.remote import PeerLost, RemoteWriter
from runnel.flow.transports.shm import ShmTransport
from runnel.testing.inference_properties import InferenceEnds
from runnel.testing.param_properties import ParamEnds, params_of
from runnel.testing.sample_properties import fill, spec_of, values
from runnel.testing.transport import INFERENCE, PARAMS, RANKS, SAMPLES


class OverRay:
    """Writers, clients and publications reach agents in another process by Ray; readers and servers attach their memory."""

    def __init__(self, host: Any) -> None:
        self.host, self.net = host, HostNet(host)
        self._count = 0

    def _open(self, where: ClusterMap, node: str, *, stream: Any = None, mailboxes: Any = None, depth: int = 4) -> ShmTransport:
        data = ray.get(self.host.open.remote(node, json.dumps(where.to_data()).encode(), stream, mailboxes, depth))
        memory = NodeMemory.from_data(json.loads(data))
        return memory.transport(NodeBells(memory, 1))

    def _new(self) -> str:
        self._count += 1
        return f"node-{self._count}"

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> RemoteStream:
        node = self._new()
        shm = self._open(ClusterMap({spec.name: node}, {}, {}), node, stream=(spec, policy))
        return RemoteStream(shm.samples(spec, policy), lambda: self.net.peer(node))

    def params(self, depth: int) -> ParamEnds:
        home = self._new()
        away = f"{home}-away"
        where = ClusterMap({}, {}, {"policy": (home, [home, away])})
        there, here = (self._open(where, node, depth=depth).params("policy", depth=depth) for node in (away, home))

        def damage(version: int) -> None:
            assert there.has(version)
            flip(there._buffers[list(there._versions()).index(version)]["net.weight"])

        def settle() -> None:
            ray.get(self.host.settle.remote(home))

        return ParamEnds(SpreadChannel(here, settle), ChannelSubscriber(there), damage)

    def inference(self, spec: InferenceSpec) -> InferenceEnds:
        node = self._new()
        shm = self._open(board_map(spec, node), node, mailboxes=spec)
        mailboxes, channel = shm.inference(spec), shm.params("policy", depth=4)
        clients = [self._client(node, spec, i, ChannelSubscriber(channel)) for i in range(spec.num_clients)]
        servers = [MailboxServer(mailboxes, i) for i in range(spec.num_servers)]
        return InferenceEnds(clients, servers, lambda v: channel.publish(v, params_of(v)))

    def _client(self, node: str, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber) -> EagerClient:
        client = EagerClient(lambda: self.net.peer(node), spec, index, subscriber, wake=lambda: None)
        client.settle = lambda: int(ray.get(self.host.settle.remote(node, spec.name, index)))
        return client


@pytest.fixture(scope="module")
def transport() -> Iterator[OverRay]:
    with pytest.MonkeyPatch.context() as patch, local_ray():
        patch.setattr(remote, "LONG_POLL_S", 0.0)
        yield OverRay(ray.remote(AgentsActor).options(max_concurrency=1000, num_cpus=0).remote())


@pytest.mark.parametrize("check", SAMPLES.values(), ids=SAMPLES)
def test_samples(transport: Any, check: Callable[[Any], None]) -> None:
    check(transport.samples)


@pytest.mark.parametrize("check", RANKS.values(), ids=RANKS)
def test_ranks(transport: Any, check: Callable[[Any], None]) -> None:
    check(transport.samples)


@pytest.mark.parametrize("check", PARAMS.values(), ids=PARAMS)
def test_params(transport: Any, check: Callable[[Any], None]) -> None:
    check(transport.params)


@pytest.mark.parametrize("check", INFERENCE.values(), ids=INFERENCE)
def test_inference(transport: Any, check: Callable[[Any], None]) -> None:
    check(transport.inference)


# ----------------------------------------------------------------------------------------------------------------- errors
def test_an_error_of_the_agent_stays_what_it_is(transport: OverRay) -> None:
    transport._open(ClusterMap({}, {}, {}), "empty")
    with pytest.raises(DataError, match="an agent has no method 'eval'"):
        transport.net.peer("empty").call("eval", {}).result(10)


def test_an_agent_that_is_gone_is_lost_and_its_successor_is_found(transport: OverRay) -> None:
    """Also by those who had called the one before it."""
    net = RayNet("run")
    assert isinstance(net.peer("node"), LostPeer)
    with pytest.raises(PeerLost, match="node node has no agent"):
        net.peer("node").call("watch", {}).result(1)
    for _ in range(2):
        actor = ray.remote(Answers).options(name="runnel-run-agent-node", namespace="runnel", num_cpus=0).remote()
        ray.get(actor.call.remote("", b"{}"))
        assert net.peer("node").call("hello", {}).result(20)[0] == {"said": "hello"}
        ray.kill(actor)
        with pytest.raises(PeerLost):
            _call_until_it_fails(net)


def _call_until_it_fails(net: RayNet) -> None:
    for _ in range(100):
        net.peer("node").call("hello", {}).result(20)


def test_faults_are_read_from_text_and_refused_by_name() -> None:
    assert Faults.from_text("") is None
    assert Faults.from_text("drop=0.25,delay=0.5") == Faults(0.25, 0.5)
    with pytest.raises(Exception, match="use drop=SHARE,delay=SECONDS"):
        Faults.from_text("lose=1")


class FullStore:
    """A Ray handle (`call.remote`) in whose store there is room again after so many tries; carries to an agent of ours."""

    def __init__(self, peer: Any, full: int) -> None:
        self.call, self._peer, self.full = self, peer, full

    def remote(self, method: str, head: bytes, body: Any) -> Any:
        if body is not None and self.full:
            self.full -= 1
            raise ObjectStoreFullError("no room")
        return Carried(self._peer.call(method, json.loads(head), body))


class Carried:
    def __init__(self, answer: Future[Any]) -> None:
        self._answer, self._data = answer, Future[Any]()
        answer.add_done_callback(lambda done: self._data.set_result((json.dumps(done.result()[0]).encode(), done.result()[1])))

    def future(self) -> Future[Any]:
        return self._data


class Ticking:
    """A hundredth of a second passes at each look."""

    def __init__(self) -> None:
        self._count = 0

    def now(self) -> float:
        self._count += 1
        return self._count / 100


@pytest.mark.parametrize("full", [0, 3])
def test_segments_wait_for_room_in_the_object_store_and_none_is_lost(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CLOCK", Ticking())
    nodes = Remote()
    stream = nodes.samples(spec_of(), LagRule(lag=9, batch=1, exact=True))
    handle = FullStore(nodes.net.peer("node-0"), full)
    writer, reader = RemoteWriter(lambda: RayPeer(handle), stream.table.spec, 0, wake=lambda: None), stream.reader("trainer")
    waited, written = 0, 0
    for _ in range(4000):
        slot = writer.reserve()
        waited += slot is None
        if slot is not None:
            fill(slot, float(written))
            writer.commit(slot, num_steps=1)
            written += 1
        if written == 4:
            break
        nodes.loop.settle()
    writer.flush()
    assert handle.full == 0
    assert values(reader.take(4)) == [0.0, 1.0, 2.0, 3.0]
    assert reader.accounting().balance == 0
    assert waited or not full, "who cannot send does not go on"
    nodes.close()


class FullNet(FakeNet):
    full = 3

    def stash(self, body: Any) -> Any:
        if self.full:
            self.full -= 1
            raise PeerLost("no room")
        return super().stash(body)


def test_parameters_wait_for_room_in_the_object_store() -> None:
    nodes = Remote()
    nodes.wire = nodes.net = full = FullNet(nodes.loop)
    ends = nodes.params(2)
    ends.publisher.publish(0, params_of(0))
    for _ in range(4):
        nodes.spread("node-0")
    found = ends.subscriber.poll()
    assert (full.full, found is not None and found.version) == (0, 0)
    nodes.close()
