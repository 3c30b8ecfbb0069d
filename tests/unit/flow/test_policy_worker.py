from __future__ import annotations

import torch
from fakes_flow import FakeInferencer, channel_of

from runnel.core.clock import ManualClock
from runnel.core.records import Batch
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.workers.policy import PolicyWorker


class Rig:
    def __init__(self, channel: LocalChannel, *, num_clients: int = 3, inferencer: FakeInferencer | None = None) -> None:
        spec = InferenceSpec("policy", num_clients=num_clients, depth=2, max_bytes=1024)
        mailboxes = MailboxTable.local(spec)
        self.channel, self.inferencer = channel, inferencer or FakeInferencer()
        self.clients = [MailboxClient(mailboxes, i, ChannelSubscriber(channel)) for i in range(num_clients)]
        self.worker = PolicyWorker(
            "policy-0",
            ManualClock(),
            server=MailboxServer(mailboxes, 0),
            inferencer=self.inferencer,
            subscriber=ChannelSubscriber(channel),
        )

    def ask(self, client: int, value: float, version: int = -1) -> int:
        return self.clients[client].submit(Batch(x=torch.tensor([value])), version=version)

    def answer(self, client: int, ticket: int) -> tuple[float, int] | None:
        self.clients[client].poll()
        reply = self.clients[client].ready(ticket)
        return None if reply is None else (float(reply.rows["x"][0]), reply.version)


def publish(channel: LocalChannel, version: int) -> None:
    channel.publish(version, {"w": torch.tensor(float(version))})


def test_nothing_to_do_without_requests() -> None:
    rig = Rig(channel_of(0))
    assert rig.worker.poll() == 0
    assert rig.worker.waits_for() == "requests"
    assert rig.inferencer.loaded == []


def test_whatever_is_pending_is_answered_together() -> None:
    rig = Rig(channel_of(1))
    tickets = [(i, rig.ask(i, float(i))) for i in (0, 1, 2, 0)]
    assert rig.worker.poll() == 8
    assert rig.inferencer.batches == [4]
    assert [rig.answer(i, t) for i, t in tickets] == [(1000.0, 1), (1001.0, 1), (1002.0, 1), (1000.0, 1)]
    rig.ask(1, 5.0)
    rig.worker.poll()
    assert rig.inferencer.batches == [4, 1]


def test_requests_wait_for_the_first_parameters() -> None:
    rig = Rig(channel := channel_of())
    ticket = rig.ask(0, 1.0)
    assert rig.worker.poll() == 0
    assert rig.worker.waits_for() == "parameters of version 0"
    publish(channel, 0)
    assert rig.worker.poll() > 0
    assert rig.answer(0, ticket) == (1.0, 0)


def test_open_requests_take_the_newest_version_at_once() -> None:
    rig = Rig(channel := channel_of(0))
    first = rig.ask(0, 1.0)
    rig.worker.poll()
    publish(channel, 1)
    publish(channel, 2)
    second = rig.ask(1, 1.0)
    rig.worker.poll()
    assert (rig.answer(0, first), rig.answer(1, second)) == ((1.0, 0), (2001.0, 2))
    assert rig.inferencer.loaded == [0, 2]


def test_exact_versions_are_served_in_order_and_by_no_other() -> None:
    rig = Rig(channel := channel_of(0, 1))
    late, early = rig.ask(0, 5.0, version=1), rig.ask(1, 6.0, version=0)
    future = rig.ask(2, 7.0, version=2)
    rig.worker.poll()
    assert (rig.answer(1, early), rig.answer(0, late)) == ((6.0, 0), None)
    rig.worker.poll()
    assert rig.answer(0, late) == (1005.0, 1)
    assert rig.worker.poll() == 0
    assert rig.worker.waits_for() == "parameters of version 2"
    publish(channel, 2)
    rig.worker.poll()
    assert rig.answer(2, future) == (2007.0, 2)
    assert rig.inferencer.loaded == [0, 1, 2]


def test_parameters_change_only_when_an_exact_version_is_answered_in_full() -> None:
    rig = Rig(channel_of(0, 1), inferencer=FakeInferencer(immediate=False, per_step=1))
    tickets = [(i, rig.ask(i, 0.0, version=0)) for i in (0, 1)]
    rig.worker.poll()
    later = rig.ask(2, 0.0, version=1)
    rig.worker.poll()
    assert [rig.answer(i, t) for i, t in tickets] == [(0.0, 0), (0.0, 0)]
    rig.worker.poll()
    assert rig.answer(2, later) == (1000.0, 1)


def test_an_aborted_request_is_not_worked_on() -> None:
    rig = Rig(channel_of(0), inferencer=FakeInferencer(immediate=False, per_step=1))
    first, second = rig.ask(0, 1.0), rig.ask(0, 2.0)
    rig.worker.poll()
    rig.clients[0].abort([second])
    rig.worker.poll()
    assert len(rig.inferencer.aborted) == 1
    assert rig.inferencer.pending() == 0
    assert (rig.answer(0, first), rig.answer(0, second)) == ((1.0, 0), None)


def test_an_abort_reaches_a_request_that_waits_for_its_version() -> None:
    rig = Rig(channel := channel_of(0))
    waiting = rig.ask(0, 1.0, version=1)
    assert rig.worker.poll() == 0
    rig.clients[0].abort([waiting])
    other = rig.ask(1, 3.0, version=1)
    assert rig.worker.poll() == 0
    publish(channel, 1)
    rig.worker.poll()
    assert rig.answer(1, other) == (1003.0, 1)
    assert rig.answer(0, waiting) is None
    assert rig.inferencer.batches == [1]


def test_open_requests_are_answered_while_an_exact_one_waits_for_its_version() -> None:
    rig = Rig(channel_of(0))
    exact, free = rig.ask(0, 1.0, version=1), rig.ask(1, 2.0)
    rig.worker.poll()
    assert rig.answer(0, exact) is None
    assert rig.answer(1, free) == (2.0, 0)


def test_a_publication_waits_for_exact_requests_that_are_under_way() -> None:
    rig = Rig(channel := channel_of(0), inferencer=FakeInferencer(immediate=False, per_step=1))
    tickets = [(i, rig.ask(i, 0.0, version=0)) for i in (0, 1)]
    rig.worker.poll()
    publish(channel, 1)
    rig.worker.poll()
    assert [rig.answer(i, t) for i, t in tickets] == [(0.0, 0), (0.0, 0)]
    free = rig.ask(2, 0.0)
    rig.worker.poll()
    assert rig.answer(2, free) == (1000.0, 1)
