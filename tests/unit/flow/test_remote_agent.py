"""The agent of a node: what it refuses, what it does once, and what becomes of segments whose writer is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from remote_ends import Faulty, Remote, RemoteStream, board_map

from runnel.core.errors import DataError
from runnel.core.records import Batch, FieldSpec
from runnel.core.worker import num_progressed
from runnel.flow.inference.codec import packed, unpack
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer
from runnel.flow.params import ChannelSubscriber, LocalChannel, checksum
from runnel.flow.staleness import LagRule
from runnel.flow.transports.cluster import remote
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.remote import Parcel, PeerLost, RemoteWriter
from runnel.testing.inference_properties import answer, rows_of
from runnel.testing.param_properties import params_of
from runnel.testing.sample_properties import ROWS, fill, spec_of, values, write

LIFE = 1 << 32


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setattr(remote, "LONG_POLL_S", 0.0)
    made = Remote()
    yield made
    made.close()


def call(nodes: Remote, stream: RemoteStream, method: str, head: dict[str, Any], body: Any = None) -> Parcel:
    head = {"stream": "check", "writer": 0, "wait_s": 0.0, **head}
    return nodes.loop.run(next(iter(nodes.net.agents.values())).call(method, head, body))


@pytest.fixture
def stream(nodes: Remote) -> RemoteStream:
    return nodes.samples(spec_of(capacity=2), LagRule(lag=3, batch=1, exact=True))


# -------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("name", ["__init__", "close", "_reserve", "eval", ""])
def test_only_the_methods_of_its_table_can_be_called(nodes: Remote, stream: RemoteStream, name: str) -> None:
    with pytest.raises(DataError, match="has no method"):
        call(nodes, stream, name, {"number": 1})


@pytest.mark.parametrize(
    "body", [np.zeros(4, np.float32), np.zeros((2, 2), np.uint8), b"bytes", [1, 2], "text", torch.zeros(4, dtype=torch.uint8)]
)
def test_a_body_is_bytes_in_one_array(nodes: Remote, stream: RemoteStream, body: Any) -> None:
    with pytest.raises(DataError, match="must be bytes in one array"):
        call(nodes, stream, "commit", {"number": 1, "index": 0, "header": {}}, body)


def test_a_stream_that_lies_elsewhere_is_refused_by_name(nodes: Remote, stream: RemoteStream) -> None:
    with pytest.raises(DataError, match=r"stream 'other' is not stored on this node; streams here: \['check'\]"):
        call(nodes, stream, "reserve", {"stream": "other", "number": 1})


def test_a_body_of_the_wrong_size_changes_nothing(nodes: Remote, stream: RemoteStream) -> None:
    slot = stream.writer(0).reserve()
    assert slot is not None
    fill(slot, 3.0)
    head = {"number": 900, "index": slot.index, "header": vars(slot.header)}
    with pytest.raises(ValueError, match="buffer"):
        call(nodes, stream, "commit", head, np.zeros(4, np.uint8))
    assert stream.reader("trainer").available() == 0
    stream.writer(0).commit(slot, num_steps=1)
    assert values(stream.reader("trainer").take(1)) == [3.0]


def test_a_message_that_is_not_data_is_refused(nodes: Remote) -> None:
    """A request whose header names a type that may not travel, or that is no header at all."""
    good = packed(Batch({"x": torch.ones(3)}))
    for wrong in (b'[["x", "object", [1]]]', b"\x80\x04}q\x00.", b'["x"]'):
        body = np.zeros(len(good) + 64, np.uint8)
        body[:8] = np.frombuffer(len(wrong).to_bytes(8, "little"), np.uint8)
        body[8 : 8 + len(wrong)] = np.frombuffer(wrong, np.uint8)
        with pytest.raises((KeyError, ValueError, TypeError)):
            unpack(body, len(body))


# --------------------------------------------------------------------------------------------------------- done once
def test_a_call_that_comes_again_gets_the_first_answer(nodes: Remote, stream: RemoteStream) -> None:
    first, again = (call(nodes, stream, "reserve", {"number": 7}) for _ in range(2))
    assert first == again
    assert stream.reader("trainer").accounting().dispatched == ROWS
    assert call(nodes, stream, "reserve", {"number": 8})[0]["header"]["sequence"] == 1


def test_a_commit_of_a_segment_that_was_given_up_is_refused_and_counted(nodes: Remote, stream: RemoteStream) -> None:
    writer, reader = stream.writer(0), stream.reader("trainer")
    slot = writer.reserve()
    assert slot is not None
    assert stream.cancel_writer(0, "worker_lost") == ROWS
    fill(slot, 1.0)
    writer.commit(slot, num_steps=5)
    assert writer.num_refused == 1
    account = reader.accounting()
    assert (account.steps, account.cancelled, account.in_flight) == (0, {"worker_lost": ROWS}, 0)
    write(writer, 2.0)
    assert values(reader.take(1)) == [2.0]


def test_a_commit_does_not_land_in_a_slot_that_has_a_new_owner(nodes: Remote, stream: RemoteStream) -> None:
    """The segment was given up, and its slot reserved again by the writer's next life."""
    late = stream.writer(0)
    slot = late.reserve()
    assert slot is not None
    stream.cancel_writer(0, "worker_lost")
    other = RemoteWriter(stream._peer, stream.table.spec, 0, wake=lambda: None, first=LIFE)
    other.reserve()
    nodes.loop.settle()
    fill(slot, 666.0)
    late.commit(slot, num_steps=5)
    mine = other.reserve()
    assert mine is not None
    assert (mine.index, mine.header.sequence) == (slot.index, 0)
    fill(mine, 1.0)
    other.commit(mine, num_steps=5)
    other.flush()
    assert (late.num_refused, other.num_refused) == (1, 0)
    assert values(stream.reader("trainer").take(1)) == [1.0]


def test_an_open_question_of_a_dead_writer_is_not_granted(nodes: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked while the stream was full, died, and its successor asks: the segment goes to the successor."""
    stream = nodes.samples(spec_of(capacity=1), LagRule(lag=9, batch=1, exact=True))
    dead, reader = stream.writer(0), stream.reader("trainer")
    write(dead, 0.0)
    monkeypatch.setattr(remote, "LONG_POLL_S", 5.0)
    assert RemoteWriter.reserve(dead) is None
    alive = RemoteWriter(stream._peer, stream.table.spec, 0, wake=lambda: None, first=LIFE)
    assert alive.reserve() is None
    nodes.loop.settle()
    reader.release(reader.take(1))
    assert alive._asked is not None
    alive._asked.wait(5.0)
    slot = alive.reserve()
    assert slot is not None
    assert reader.accounting().in_flight == ROWS


def test_what_a_dead_writer_was_granted_late_is_cancelled_when_its_successor_calls(nodes: Remote, stream: RemoteStream) -> None:
    """It died, its segments were given up, and only then its last question was granted."""
    stream.cancel_writer(0, "worker_lost")
    assert stream.writer(0).reserve() is not None
    alive = RemoteWriter(stream._peer, stream.table.spec, 0, wake=lambda: None, first=LIFE)
    alive.reserve()
    assert alive._asked is not None
    alive._asked.wait(5.0)
    slot = alive.reserve()
    assert slot is not None
    assert slot.header.sequence == 0, "the number that the dead one held"
    account = stream.reader("trainer").accounting()
    assert (account.cancelled, account.in_flight, account.balance) == ({"worker_lost": ROWS}, ROWS, 0)


@pytest.mark.parametrize("exact", [True, False])
def test_a_segment_that_was_granted_and_not_begun_goes_back_without_a_trace(nodes: Remote, exact: bool) -> None:
    stream = nodes.samples(spec_of(), LagRule(lag=9, batch=1, exact=exact))
    writer = stream.writer(0)
    before = stream.snapshot()["control"].copy()
    RemoteWriter.reserve(writer)
    writer.flush()
    fields = stream.snapshot()["control"]
    changed = np.flatnonzero(fields != before)
    slots = stream.table.spec.capacity * (1 + 11 + len(stream.table.spec.readers))
    assert all(i >= len(fields) - slots for i in changed), "a count was not taken back"
    first = write(writer, 1.0)
    assert (first.header.sequence, first.header.sample_id) == (0, 0)


# ------------------------------------------------------------------------------------------------------------ parameters
def test_damaged_parameters_are_counted_and_brought_again(nodes: Remote) -> None:
    nodes.wire = Faulty(nodes.net, iter(["damaged", "damaged", *["ok"] * 50]))
    ends = nodes.params(3)
    ends.publisher.publish(0, params_of(0))
    away = nodes.net.agents["node-0-away"]
    assert (ends.subscriber.poll(), away.num_refused) == (None, 1)
    for _ in range(3):
        nodes.spread("node-0")
    found = ends.subscriber.poll()
    assert found is not None
    assert checksum(found.params) == checksum(params_of(0))
    assert (away.num_refused, ends.subscriber.num_refused) == (2, 0)


def test_a_node_that_does_not_answer_holds_up_no_other(nodes: Remote) -> None:
    channels = {node: LocalChannel("policy", shared=False, depth=3) for node in ("home", "a", "b")}
    where = ClusterMap({}, {}, {"policy": ("home", ["a", "b", "home", "silent", "gone"])})
    for node, channel in channels.items():
        nodes.agent(node, where, channels={"policy": channel})
    nodes.agent("silent", where)
    nodes.net.agents["silent"]._methods["receive"] = _never
    for version in range(4):
        channels["home"].publish(version, params_of(version))
        for _ in range(20):
            nodes.loop.do(nodes.net.agents["home"]._pulse)
            nodes.loop.settle()
        assert [ChannelSubscriber(channels[n]).newest() for n in ("a", "b")] == [version, version]


async def _never(head: Any, body: Any) -> Any:
    await asyncio.Event().wait()


def test_a_node_that_comes_later_gets_the_versions_that_there_are(nodes: Remote) -> None:
    channels = {node: LocalChannel("policy", shared=False, depth=2) for node in ("home", "later")}
    agent = nodes.agent("home", ClusterMap({}, {}, {"policy": ("home", ["home"])}), channels={"policy": channels["home"]})
    for version in range(4):
        channels["home"].publish(version, params_of(version))
    where = ClusterMap({}, {}, {"policy": ("home", ["home", "later"])})
    nodes.agent("later", where, channels={"policy": channels["later"]})
    nodes.loop.do(lambda: agent.update(where))
    nodes.spread("home")
    assert sorted(channels["later"].stamps()) == [2, 3]


def test_a_new_agent_of_a_node_gets_what_the_one_before_had(nodes: Remote) -> None:
    where = ClusterMap({}, {}, {"policy": ("home", ["home", "away"])}, {"away": 1})
    channels = [LocalChannel("policy", shared=False, depth=2) for _ in range(3)]
    home = nodes.agent("home", where, channels={"policy": channels[0]})
    nodes.agent("away", where, channels={"policy": channels[1]})
    channels[0].publish(0, params_of(0))
    nodes.spread("home")
    nodes.agent("away", where, channels={"policy": channels[2]})
    nodes.spread("home")
    assert channels[2].newest() == -1, "nobody knows of it"
    nodes.loop.do(lambda: home.update(ClusterMap({}, {}, where.params, {"away": 2})))
    nodes.spread("home")
    assert [c.newest() for c in channels] == [0, 0, 0]


# -------------------------------------------------------------------------------------------------------------- inference
def test_requests_that_were_relayed_are_asked_again_when_policy_workers_come_here(nodes: Remote) -> None:
    """The agent had begun to bring them to a node that is gone; now they are served from the boxes in which they lie."""
    spec = InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096, fixed=False)
    channel = LocalChannel("policy", shared=False, depth=2)
    mailboxes = nodes.mailboxes(spec, "here", board_map(spec, "gone"), channel)
    client, agent = MailboxClient(mailboxes, 0, ChannelSubscriber(channel)), nodes.net.agents["here"]
    tickets = [client.submit(rows_of(float(i))) for i in range(4)]
    for _ in range(3):
        nodes.loop.do(agent._pulse)
    server = MailboxServer(mailboxes, 0)
    assert server.poll() == [], "the agent has them"
    nodes.loop.do(lambda: agent.update(board_map(spec, "here")))
    for _ in range(4):
        client.poll()
        answer(server)
        nodes.loop.do(agent._pulse)
    client.poll()
    found = [client.ready(ticket) for ticket in tickets]
    assert [float(r.rows["noise"][0, 0]) for r in found if r is not None] == [100.0, 101.0, 102.0, 103.0]


def test_an_actor_that_moves_twice_finds_its_boxes_free(nodes: Remote) -> None:
    """From a node without policy workers to one with, and back. There it is killed with answers in its boxes."""
    spec, channel = InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096), LocalChannel("policy", shared=False, depth=2)
    where = board_map(spec, "serving")
    mailbox_tables = {node: nodes.mailboxes(spec, node, where, channel) for node in ("away", "serving")}
    server = MailboxServer(mailbox_tables["serving"], 0)

    def pulse() -> None:
        for agent in nodes.net.agents.values():
            nodes.loop.do(agent._pulse)
        nodes.loop.settle()

    def live_on(node: str, life: int, *, reads: bool) -> list[float]:
        data = {**where.to_data(), "clients": {"ask": [node]}, "number": life}
        for agent in nodes.net.agents.values():
            nodes.loop.do(lambda agent=agent: agent.update(ClusterMap.from_data(data)))
        client = MailboxClient(mailbox_tables[node], 0, ChannelSubscriber(channel), first=life << 32)
        tickets, found = [client.submit(rows_of(float(i))) for i in range(3)], []
        for _ in range(8):
            pulse()
            answer(server)
            pulse()
            if reads:
                client.poll()
        for ticket in tickets:
            if (reply := client.ready(ticket)) is not None:
                found.append(float(reply.rows["noise"][0, 0]))
        return found

    assert live_on("away", 1, reads=True) == [100.0, 101.0, 102.0]
    assert live_on("serving", 2, reads=False) == []
    assert live_on("away", 3, reads=True) == [100.0, 101.0, 102.0]


def test_a_map_that_was_overtaken_changes_nothing(nodes: Remote) -> None:
    agent = nodes.agent("here", ClusterMap({}, {}, {}, number=2))
    nodes.loop.do(lambda: agent.update(ClusterMap({"old": "here"}, {}, {}, number=1)))
    assert agent.where.streams == {}


# ------------------------------------------------------------------------------------------------------------------ calls
def test_a_call_to_a_node_that_is_gone_says_so_in_time(nodes: Remote) -> None:
    spec = spec_of(feedback={"x": FieldSpec(("B",))})
    writer = RemoteWriter(lambda: nodes.net.peer("nowhere"), spec, 0, wake=lambda: None)
    assert writer.reserve() is None
    assert writer._asked is not None
    before = num_progressed()
    with pytest.raises(PeerLost, match=r"reserve of 'check' was not answered in 0\.3 s"):
        writer._asked.wait(0.3)
    assert num_progressed() > before, "it has a deadline of its own: who waits does not hang"


def test_a_node_that_comes_back_is_asked_again(nodes: Remote) -> None:
    writer = RemoteWriter(lambda: nodes.net.peer("node-0"), spec_of(), 0, wake=lambda: None)
    assert writer.reserve() is None
    nodes.samples(spec_of(), LagRule(lag=1, batch=1, exact=True))
    woken = threading.Event()
    for _ in range(100):
        if (slot := writer.reserve()) is not None:
            break
        woken.wait(0.01)
    assert slot is not None


# ---------------------------------------------------------------------------------------------------------------- ranks
@pytest.fixture
def shared(nodes: Remote) -> RemoteStream:
    """A batch of two segments that two ranks share."""
    spec = spec_of(capacity=2, feedback={"echo": FieldSpec(("B",))})
    stream = nodes.samples(spec, LagRule(lag=3, batch=1, exact=True))
    write(stream.writer(0), 1.0)
    write(stream.writer(0), 2.0)
    stream.reader("trainer").take(2, ranks=2)
    return stream


def test_a_share_holds_the_rows_of_one_rank_alone_and_the_agent_keeps_only_the_last(
    nodes: Remote, shared: RemoteStream
) -> None:
    head = {"reader": "trainer", "rank": 1, "ranks": 2, "had": -1}
    for number in range(1, 5):
        found, body = call(nodes, shared, "share", {**head, "number": number})
        assert [index for index, _ in found["segments"]] == [1]
        assert body is not None
        assert {k: v.tolist() for k, v in unpack(body, len(body)).items()} == {"0/x": [2.0] * ROWS}
    assert call(nodes, shared, "share", {**head, "had": 0, "number": 5}) == ({"version": 0, "segments": []}, None), (
        "it travels once"
    )
    kept = [known for sender, known in next(iter(nodes.net.agents.values()))._answers.items() if sender[0] == "share"]
    assert [list(known) for known in kept] == [[5]]


@pytest.mark.parametrize(
    "wrong", [{"version": 1}, {"segments": [[0, 0]]}, {"segments": [[1, 999]]}, {"rank": 2, "ranks": 3}], ids=str
)
def test_an_answer_counts_only_for_what_the_rank_has(nodes: Remote, shared: RemoteStream, wrong: dict[str, Any]) -> None:
    body, rank = packed(Batch({"0/echo": torch.full((ROWS,), 5.0)})), shared.rank(1, 2)
    assert rank.version() == 0
    (mine,) = rank.given(1, 2)
    good = {"reader": "trainer", "rank": 1, "ranks": 2, "version": 0, "segments": [[1, mine.header.sample_id]]}
    assert call(nodes, shared, "answer", {**good, "number": 1, **wrong}, body)[0] == {"refused": 1}
    assert shared.table.memory.feedback[0]["echo"].tolist() == [0.0] * ROWS
    assert call(nodes, shared, "answer", {**good, "number": 2}, body)[0] == {"refused": 0}
    assert shared.table.memory.feedback[1]["echo"].tolist() == [5.0] * ROWS


def test_a_rank_whose_word_is_refused_says_so(shared: RemoteStream) -> None:
    rank, reader = shared.rank(1, 2), shared.reader("trainer")
    assert rank.version() == 0
    mine = rank.given(1, 2)
    reader.advance(1)
    with pytest.raises(DataError, match="rank 1 sends feedback for a part of version 0 that it did not get"):
        rank.answer(mine, [{"echo": torch.ones(ROWS)}], rank=1)


@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (2, 2), (-1, 2)])
def test_only_ranks_that_follow_are_given_a_part(nodes: Remote, shared: RemoteStream, rank: int, ranks: int) -> None:
    with pytest.raises(DataError, match="has no part to fetch"):
        call(nodes, shared, "share", {"reader": "trainer", "rank": rank, "ranks": ranks, "had": -1, "number": 1})
