"""Every transport keeps the same promises: the public contract checks, property by property, over `inproc`, `shm` and `remote`.

How `ray` carries the same calls is in test_ray_transport.py."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from remote_ends import Remote, lose_reader

from runnel.core.contracts.inference import Reply
from runnel.core.contracts.samples import SampleReader
from runnel.core.errors import DataError
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.state import State
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.lossy import make_reader
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import AdmissionRule, LagRule
from runnel.flow.transports.cluster import remote
from runnel.flow.transports.inproc import InprocTransport
from runnel.flow.transports.shm import Doorbells, ShmTransport
from runnel.testing.inference_properties import InferenceEnds
from runnel.testing.param_properties import ParamEnds, params_of
from runnel.testing.sample_properties import spec_of, write
from runnel.testing.transport import (
    INFERENCE,
    PARAMS,
    RANKS,
    SAMPLES,
    check_inference,
    check_params,
    check_ranks,
    check_samples,
)

PEER = Path(__file__).with_name("shm_peer.py")


class TableStream:
    """Writers on one attachment of a table, readers and checkpoints on the other."""

    def __init__(self, writing: SlotTable, reading: SlotTable) -> None:
        self.writing, self.reading = writing, reading

    def writer(self, index: int) -> TableWriter:
        return TableWriter(self.writing, index)

    def reader(self, name: str) -> SampleReader:
        return make_reader(self.reading, name)

    def rank(self, rank: int, ranks: int) -> TableReader:
        return TableReader(self.writing, "trainer")

    def cancel_writer(self, writer: int, reason: str) -> int:
        return self.reading.cancel_writer(writer, reason)

    def lose_reader(self, name: str, consumed_before: int) -> int:
        return lose_reader(self.reading, name, consumed_before)

    def snapshot(self) -> State:
        return self.reading.snapshot()

    def restore(self, state: State) -> None:
        self.reading.restore(state)


class Inproc:
    """Everything by reference."""

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> TableStream:
        table = InprocTransport().samples(spec, policy)
        return TableStream(table, table)

    def params(self, depth: int) -> ParamEnds:
        channel = InprocTransport().params("policy", depth=depth, shared=False)
        assert isinstance(channel, LocalChannel)

        def damage(version: int) -> None:
            flip(channel._versions[version][0]["net.weight"])

        return ParamEnds(channel, ChannelSubscriber(channel), damage)

    def inference(self, spec: InferenceSpec) -> InferenceEnds:
        return ends_of(spec, MailboxTable.local(spec), MailboxTable.local(spec), self.params(4), same=True)


class Shm:
    """Two attachments of the same descriptors, as two processes would have."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.pipes = Doorbells.make(["a", "b"])

    def _attach(self, fds: dict[str, int]) -> tuple[ShmTransport, ShmTransport]:
        self.fds += fds.values()
        return ShmTransport(fds, Doorbells(self.pipes, "a")), ShmTransport(fds, Doorbells(self.pipes, "b"))

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> TableStream:
        a, b = self._attach(ShmTransport.allocate({spec.name: spec}, [], {}))
        return TableStream(a.samples(spec, policy), b.samples(spec, policy))

    def params(self, depth: int) -> ParamEnds:
        fds = ShmTransport.allocate({}, ["policy"], {})
        a, b = self._attach(fds)
        channel = a.params("policy", depth=depth)

        def damage(version: int) -> None:
            other = b.params("policy", depth=depth)
            assert other.has(version)
            slot = int(np.argmax(other._versions() == version))
            flip(other._buffers[slot]["net.weight"])

        return ParamEnds(channel, ChannelSubscriber(b.params("policy", depth=depth)), damage)

    def inference(self, spec: InferenceSpec) -> InferenceEnds:
        a, b = self._attach(ShmTransport.allocate({}, [], {spec.name: spec}))
        return ends_of(spec, a.inference(spec), b.inference(spec), self.params(4))

    def close(self) -> None:
        for fd in (*self.fds, *(fd for pair in self.pipes.values() for fd in pair)):
            os.close(fd)


def flip(x: torch.Tensor) -> None:
    x.view(torch.uint8).view(-1)[3] ^= 1


def ends_of(
    spec: InferenceSpec, asking: MailboxTable, serving: MailboxTable, params: ParamEnds, same: bool = False
) -> InferenceEnds:
    serving = asking if same else serving
    clients = [MailboxClient(asking, i, params.subscriber) for i in range(spec.num_clients)]
    servers = [MailboxServer(serving, i) for i in range(spec.num_servers)]
    return InferenceEnds(clients, servers, lambda version: params.publisher.publish(version, params_of(version)))


@pytest.fixture(params=["inproc", "shm", "remote"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "inproc":
        yield Inproc()
        return
    monkeypatch.setattr(remote, "LONG_POLL_S", 0.0)
    made: Any = Shm() if request.param == "shm" else Remote()
    yield made
    made.close()


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


def test_the_public_checks_pass(transport: Any) -> None:
    assert check_samples(transport.samples) == []
    assert check_ranks(transport.samples) == []
    assert check_params(transport.params) == []
    assert check_inference(transport.inference) == []


# ------------------------------------------------------------------------------------------ the checks find what is wrong
def test_check_samples_finds_a_stream_that_loses_rows() -> None:
    class Leaky(SlotTable):
        def cancel(self, slot: Any, reason: str) -> None:
            self.state[slot.index] = 0

    def make(spec: StreamSpec, policy: AdmissionRule) -> TableStream:
        table = Leaky(spec, policy, InprocTransport().samples(spec, policy).memory)
        return TableStream(table, table)

    found = check_samples(make)
    assert {text.partition(":")[0] for text in found} == {
        "cancelled_sequence_is_issued_again",
        "every_row_is_accounted_for_at_every_moment",
    }


def test_check_ranks_finds_a_stream_that_gives_a_part_to_the_wrong_rank() -> None:
    class Mixed(SlotTable):
        def given(self, reader: int, rank: int, ranks: int) -> list[Any]:
            return super().given(reader, 1 + rank % (ranks - 1), ranks)

    def make(spec: StreamSpec, policy: AdmissionRule) -> TableStream:
        table = Mixed(spec, policy, InprocTransport().samples(spec, policy).memory)
        return TableStream(table, table)

    found = {text.partition(":")[0] for text in check_ranks(make)}
    assert found == {"every_rank_has_its_part_and_no_more", "trajectories_go_with_all_their_rows"}


def test_check_params_finds_a_channel_that_shares_the_learners_tensors() -> None:
    def make(depth: int) -> ParamEnds:
        channel = LocalChannel("policy", shared=True, depth=depth)
        return ParamEnds(channel, ChannelSubscriber(channel), lambda v: flip(channel._versions[v][0]["net.weight"]))

    found = {text.partition(":")[0] for text in check_params(make)}
    assert "copies_do_not_change_with_the_learner" in found
    assert "a_damaged_version_is_refused_and_counted" in found


def test_check_inference_finds_clients_that_are_mixed_up() -> None:
    def make(spec: InferenceSpec) -> InferenceEnds:
        ends = Inproc().inference(spec)
        return InferenceEnds(list(ends.clients)[::-1], ends.servers, ends.publish)

    assert [text.partition(":")[0] for text in check_inference(make)] == ["a_request_comes_back_as_its_reply"]


# ----------------------------------------------------------------------------------------------------- memory, devices
def test_inproc_passes_tensors_by_reference() -> None:
    by_reference("cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_inproc_passes_cuda_tensors_by_reference() -> None:
    by_reference("cuda")


def by_reference(device: str) -> None:
    stream = Inproc().samples(spec_of(device=device), LagRule(lag=1, batch=1, exact=True))
    slot = write(stream.writer(0), 3.0)
    (segment,) = stream.reader("trainer").take(1)
    assert segment.arrays["x"].device.type == device
    assert segment.arrays["x"].data_ptr() == slot.arrays["x"].data_ptr()
    assert segment.arrays["x"].tolist() == [3.0] * 3


def test_inproc_slots_live_on_the_device_of_the_stream() -> None:
    spec = spec_of(device="meta", sizes={"B": 3, "F": 5}, variable=("F",), fields={"x": FieldSpec(("F", "B"))})
    stream = Inproc().samples(spec, LagRule(lag=1, batch=1, exact=True))
    slot = stream.writer(0).reserve()
    assert slot is not None
    assert slot.arrays["x"].is_meta
    slot.header.used = {"F": 2}
    stream.writer(0).commit(slot, num_steps=1)
    (segment,) = stream.reader("trainer").take(1)
    assert segment.arrays["x"].is_meta
    assert segment.arrays["x"].shape == (2, 3)


def test_shm_attachments_are_two_mappings_of_one_memory() -> None:
    shm = Shm()
    stream = shm.samples(spec_of(), LagRule(lag=1, batch=1, exact=True))
    slot = write(stream.writer(0), 3.0)
    (segment,) = stream.reader("trainer").take(1)
    assert segment.arrays["x"].data_ptr() != slot.arrays["x"].data_ptr()
    slot.arrays["x"][1] = 8.0
    assert segment.arrays["x"].tolist() == [3.0, 8.0, 3.0]
    shm.close()


def test_shared_channel_gives_the_learners_own_tensors() -> None:
    channel = InprocTransport().params("policy", depth=2, shared=True)
    own = params_of(0)
    channel.publish(0, own)
    found = ChannelSubscriber(channel).poll()
    assert found is not None
    assert found.shared
    assert all(found.params[k] is own[k] for k in own)
    channel.publish(1, own)
    assert channel.get(0) is None
    assert channel.snapshot() == {"versions": {}}


def test_shm_refuses_streams_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from runnel.core.errors import ConfigError
    from runnel.flow.transports import shm

    monkeypatch.setattr(shm, "free_shared_memory", lambda: 1 << 20)
    spec = spec_of(fields={"x": FieldSpec(("B", 1 << 20))})
    with pytest.raises(ConfigError, match="only 1 MiB of shared memory is free"):
        ShmTransport.allocate({"check": spec}, [], {})


def test_a_doorbell_wakes_the_other_group_and_not_its_own() -> None:
    pipes = Doorbells.make(["a", "b"])
    a, b = Doorbells(pipes, "a"), Doorbells(pipes, "b")
    assert not b.wait(0.0)
    for _ in range(100_000):  # a full pipe must not block
        a.ring()
    assert not a.wait(0.0)
    assert b.wait(0.0)
    assert not b.wait(0.0)
    for pair in pipes.values():
        for fd in pair:
            os.close(fd)


# ------------------------------------------------------------------------------------------------- a real second process
def start_peer(mode: str, fds: dict[str, int], pipes: dict[str, tuple[int, int]]) -> subprocess.Popen[bytes]:
    passed = [*fds.values(), *(fd for pair in pipes.values() for fd in pair)]
    orders = json.dumps({"mode": mode, "fds": fds, "pipes": pipes})
    return subprocess.Popen([sys.executable, str(PEER), orders], pass_fds=passed, stdin=subprocess.PIPE)


@pytest.fixture
def peers() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_two_processes_exchange_segments_params_and_requests(peers: list[subprocess.Popen[bytes]]) -> None:
    """The peer asks, writes what it was answered and publishes; this process serves, reads and subscribes."""
    from shm_peer import ASK, NUM, POLICY, SPEC

    fds = ShmTransport.allocate({SPEC.name: SPEC}, ["policy"], {ASK.name: ASK})
    pipes = Doorbells.make(["parent", "peer"])
    transport = ShmTransport(fds, Doorbells(pipes, "parent"))
    reader, server = TableReader(transport.samples(SPEC, POLICY), "trainer"), MailboxServer(transport.inference(ASK), 0)
    subscriber = ChannelSubscriber(transport.params("policy", depth=3))
    peers.append(start_peer("work", fds, pipes))
    got: list[float] = []
    versions: list[int] = []
    batch = 0
    while len(got) < NUM:
        requests = server.poll()
        server.reply([Reply(r.id, r.rows.map(lambda x: x * 2 + 1), 5) for r in requests])
        found = subscriber.poll()
        if found is not None:
            assert (found.params["w"] == float(found.version)).all()
            versions.append(found.version)
        segments = reader.take(2)
        for s in segments:
            assert s.arrays["x"].shape == (s.header.sequence % 4, 3)
            assert (s.arrays["x"] == s.header.sequence).all()
            assert s.header.required_version == max(0, batch - 1)
            got.append(float(s.arrays["answer"][0]))
        if segments:
            batch += 1
            reader.release(segments)
            reader.advance(batch)
        account = reader.accounting()
        assert account.balance == 0
        if not segments and not requests:
            assert transport.wait(20.0), f"the peer went silent after {len(got)} segments"
    assert got == [2.0 * k + 1.0 for k in range(NUM)]
    assert peers[0].wait(20) == 0
    subscriber.poll()
    assert subscriber.newest() == NUM - 1
    assert versions == sorted(set(versions))
    assert subscriber.num_refused == 0
    account = reader.accounting()
    assert (account.dispatched, account.consumed, account.in_flight, account.steps) == (NUM * 3, NUM * 3, 0, NUM * 7)


def test_a_process_that_dies_holding_the_lock_holds_nobody_up(peers: list[subprocess.Popen[bytes]]) -> None:
    from shm_peer import POLICY, SPEC

    fds = ShmTransport.allocate({SPEC.name: SPEC}, [], {})
    pipes = Doorbells.make(["parent", "peer"])
    transport = ShmTransport(fds, Doorbells(pipes, "parent"))
    table = transport.samples(SPEC, POLICY)
    peers.append(start_peer("hang", fds, pipes))
    assert transport.wait(30.0), "the peer never rang"
    with pytest.raises(BlockingIOError):
        fcntl.lockf(fds["samples/segments"], fcntl.LOCK_EX | fcntl.LOCK_NB)
    peers[0].send_signal(signal.SIGKILL)
    peers[0].wait()
    account = TableReader(table, "trainer").accounting()
    assert (account.dispatched, account.in_flight) == (3, 3)
    assert table.cancel_writer(0, "worker_lost") == 3
    slot = TableWriter(table, 0).reserve()
    assert slot is not None
    assert slot.header.sequence == 0


def test_a_channel_between_processes_says_which_names_have_changed() -> None:
    shm = Shm()
    ends = shm.params(3)
    ends.publisher.publish(0, params_of(0))
    with pytest.raises(DataError, match=r"version 1 differs in \['more'\]"):
        ends.publisher.publish(1, params_of(1) | {"more": torch.ones(1)})
    shm.close()
