"""Messages between nodes that are lost, doubled, late or damaged: contents, order and accounts stay what they are without."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from remote_ends import Faulty, Remote, board_map

from runnel.core.contracts.samples import SampleReader
from runnel.core.records import FieldSpec, Segment
from runnel.core.sharding.batch_split import share_of
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.slot_memory import VERSION
from runnel.flow.slots import TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.transports.cluster import broadcast as spread
from runnel.flow.transports.cluster import remote
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.ranks import RemoteRankReader
from runnel.flow.transports.cluster.remote import RemoteWriter
from runnel.testing.inference_properties import answer, rows_of
from runnel.testing.param_properties import params_of
from runnel.testing.sample_properties import ROWS, fill, spec_of

FATES = ("ok", "ok", "lost", "unanswered", "doubled", "late")
QUIET = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
ROUNDS = 3000


@pytest.fixture(scope="module")
def nodes() -> Iterator[Remote]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "RETRY_S", 0.004)
        patch.setattr(remote, "LONG_POLL_S", 0.002)
        patch.setattr(spread, "PATIENCE_S", 0.004)
        made = Remote()
        yield made
        made.close()


def faulty(nodes: Remote, fates: list[str]) -> None:
    """From now on calls go by `fates`, and well when those are used up."""
    nodes.wire = Faulty(nodes.net, chain(fates, repeat("ok")))


# ---------------------------------------------------------------------------------------------------------------- samples
@QUIET
@given(st.lists(st.sampled_from(FATES), max_size=80), st.sets(st.integers(0, 15), max_size=4), st.booleans())
def test_segments_arrive_once_and_in_order(nodes: Remote, fates: list[str], cancelled: set[int], exact: bool) -> None:
    """Two writers, some segments cancelled on the way: every row is read once, every account balances at every step."""
    faulty(nodes, fates)
    spec = spec_of(num_writers=2, capacity=6, feedback={"echo": FieldSpec(("B",))})
    stream = nodes.samples(spec, LagRule(lag=1, batch=2, exact=exact))
    peer = stream._peer
    writers = [RemoteWriter(peer, spec, i, wake=lambda: None) for i in range(2)]
    reader, got, committed, heard = stream.reader("trainer"), list[tuple[int, float]](), dict[int, float](), list[int]()
    count = 0
    for _ in range(ROUNDS):
        for writer in writers:
            heard += [_checked(f.sample_id, f.values["echo"], committed) for f in writer.feedback()]
            slot = writer.reserve()
            if slot is None:
                continue
            if count in cancelled:
                writer.cancel(slot, "aborted")
            else:
                fill(slot, float(count), slot.header.required_version if exact else writer.version())
                committed[slot.header.sample_id] = float(count)
                writer.commit(slot, num_steps=5)
            count += 1
        got += _train(reader)
        assert reader.accounting().balance == 0
        nodes.loop.settle()
        if len(got) >= 12 and len(heard) >= 12:
            break
    for writer in writers:
        writer.flush()
    got += [pair for _ in range(9) for pair in _train(reader)]
    assert [writer.num_refused for writer in writers] == [0, 0]
    assert [committed[i] for i, _ in got] == [value for _, value in got], "contents"
    assert len({i for i, _ in got}) == len(got), "a segment was read twice"
    assert len(set(heard)) == len(heard), "feedback came twice"
    account = reader.accounting()
    assert account.cancelled.get("aborted", 0) == ROWS * len(cancelled & set(range(count)))
    assert account.consumed == ROWS * len(got)
    assert set(account.dropped) <= ({"stale"} if not exact else set())
    left = account.in_flight + sum(account.dropped.values())
    assert left == ROWS * (len(committed) - len(got)), "a segment that nobody holds"


def _checked(sample_id: int, echo: torch.Tensor, committed: dict[int, float]) -> int:
    assert echo.tolist() == [committed[sample_id]] * ROWS
    return sample_id


def _train(reader: SampleReader) -> list[tuple[int, float]]:
    """Take a batch if there is one; what it held, and its order."""
    segments = reader.take(2)
    found = [(s.header.sample_id, float(s.arrays["x"][0])) for s in segments]
    if segments:
        assert [s.header.sequence for s in segments] == sorted(s.header.sequence for s in segments)
        reader.release(segments, feedback=[{"echo": s.arrays["x"].clone()} for s in segments])
        reader.advance(reader.accounting().consumed // ROWS // 2)
    return found


# ------------------------------------------------------------------------------------------------------------------ ranks
@settings(QUIET, max_examples=50)  # an answer that is lost is waited for
@given(st.lists(st.sampled_from(FATES), max_size=60), st.sampled_from([(2, 2), (3, 1), (3, 2)]))
def test_ranks_on_other_nodes_get_each_part_once_and_are_heard(nodes: Remote, fates: list[str], shape: tuple[int, int]) -> None:
    """A rank takes a part only at its own version, and the leader releases when all have said what they think of theirs."""
    faulty(nodes, fates)
    (ranks, num), updates = shape, 4
    spec = spec_of(capacity=num, feedback={"echo": FieldSpec(("B",))})
    stream = nodes.samples(spec, LagRule(lag=1, batch=num, exact=True))
    writer, reader = TableWriter(stream.table, 0), stream.reader("trainer")
    ends = {r: RemoteRankReader(stream._peer, spec, "trainer", r, ranks, wake=lambda: None) for r in range(1, ranks)}
    at, heard, taken = dict.fromkeys(ends, 0), list[float](), list[Segment]()
    for _ in range(ROUNDS):
        version = stream.table.globals[VERSION]
        if not taken:
            while (slot := writer.reserve()) is not None:
                fill(slot, float(slot.header.sequence), slot.header.required_version)
                writer.commit(slot, num_steps=1)
            taken = reader.take(num, ranks=ranks) if version < updates else []
            reader.answer(mine := share_of(taken, 0, ranks), [{"echo": s.arrays["x"]} for s in mine], rank=0)
        for rank, end in ends.items():
            if end.version() != at[rank] or not (part := end.given(rank, ranks)):
                continue
            assert (at[rank], len(taken)) == (version, num), "a part of a batch that is not there"
            _same(part, share_of(taken, rank, ranks))
            end.answer(part, [{"echo": s.arrays["x"]} for s in part], rank=rank)
            at[rank] += 1
        assert reader.accounting().balance == 0
        if taken and all(v > version for v in at.values()):
            reader.release(taken, feedback=[{} for _ in taken])
            reader.advance(int(version) + 1)
            taken = []
            heard += [float(f.values["echo"].unique().item()) for f in writer.feedback()]
        nodes.loop.settle()
        if len(heard) == updates * num:
            break
    assert heard == [float(i) for i in range(updates * num)]
    assert reader.accounting().consumed == ROWS * updates * num


def _same(found: list[Segment], wanted: list[Segment]) -> None:
    assert [(s.index, s.num_rows, s.header) for s in found] == [(s.index, s.num_rows, s.header) for s in wanted]
    assert all(torch.equal(a.arrays["x"], b.arrays["x"]) for a, b in zip(found, wanted, strict=True))


# -------------------------------------------------------------------------------------------------------------- inference
@QUIET
@given(st.lists(st.sampled_from(FATES), max_size=60), st.sets(st.integers(0, 9), max_size=3), st.booleans())
def test_every_request_gets_its_own_reply_over_the_relay(
    nodes: Remote, fates: list[str], aborted: set[int], fixed: bool
) -> None:
    """Clients on a node without policy workers; their mailboxes are emptied by its agent, and served on another node."""
    faulty(nodes, fates)
    spec = InferenceSpec("ask", num_clients=2, num_servers=1, depth=2, max_bytes=4096, fixed=fixed)
    away = nodes.new_node()
    serving = f"{away}-serving"
    where, channel = board_map(spec, serving), LocalChannel("policy", shared=False, depth=4)
    asking, answering = (nodes.mailboxes(spec, node, where, channel) for node in (away, serving))
    clients = [MailboxClient(asking, i, ChannelSubscriber(channel)) for i in range(2)]
    server, asked, got = MailboxServer(answering, 0), dict[tuple[int, int], float](), dict[tuple[int, int], float]()
    for number in range(10):
        asked[(number % 2, clients[number % 2].submit(rows_of(float(number))))] = float(number)
    gone = {key for key, value in asked.items() if int(value) in aborted}
    for index, ticket in gone:
        clients[index].abort([ticket])
    for _ in range(ROUNDS):
        for node in (away, serving):
            nodes.loop.do(nodes.net.agents[node]._pulse)
        nodes.loop.settle()
        server.aborted()
        answer(server)
        for index, client in enumerate(clients):
            client.poll()
            for key in [k for k in asked if k[0] == index and k not in got]:
                if (reply := client.ready(key[1])) is not None:
                    got[key] = float(reply.rows["noise"][0, 0])
        if len(got) == len(asked) - len(gone):
            break
    assert got == {key: value + 100 for key, value in asked.items() if key not in gone}
    assert [client.pending() for client in clients] == [0, 0]


# ------------------------------------------------------------------------------------------------------------- parameters
@QUIET
@given(st.lists(st.sampled_from((*FATES, "damaged")), max_size=40), st.integers(1, 3))
@example(["ok", "ok", "ok", "late", "late"], 2)  # version 3 of the first publication arrives after that of the second
def test_versions_arrive_whole_and_never_go_back(nodes: Remote, fates: list[str], depth: int) -> None:
    """Damaged ones are counted and brought again; a version that is published again replaces the one before."""
    faulty(nodes, fates)
    home = nodes.new_node()
    away = f"{home}-away"
    channels = {node: LocalChannel("policy", shared=False, depth=depth) for node in (away, home)}
    for node, channel in channels.items():
        nodes.agent(node, ClusterMap({}, {}, {"policy": (home, [home, away])}), channels={"policy": channel})
    subscriber, seen = ChannelSubscriber(channels[away]), list[int]()
    for version in (0, 1, 2, 3, 3, 4):
        channels[home].publish(version, params_of(version + 100 if version == 3 and 3 not in seen else version))
        for _ in range(ROUNDS):
            nodes.loop.do(nodes.net.agents[home]._pulse)
            nodes.loop.settle()
            if channels[away].stamps().get(version) == channels[home].stamps()[version]:
                break
        found = subscriber.poll(version)
        assert found is not None
        seen.append(version)
    assert seen == [0, 1, 2, 3, 3, 4]
    assert subscriber.num_refused == 0
    assert nodes.net.agents[away].num_refused <= fates.count("damaged")
    for version in channels[away].stamps():
        kept = channels[away].get(version)
        assert kept is not None
        assert all(bool((kept.params[k] == v).all()) for k, v in params_of(version).items())
