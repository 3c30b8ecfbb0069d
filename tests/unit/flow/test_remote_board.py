"""Mailboxes that policy workers share: one that is slow is taken for gone, and what it answers late reaches nobody."""

from __future__ import annotations

from runnel.core.contracts.inference import Reply
from runnel.flow.inference.mailboxes import ALIVE_S, InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.testing.inference_properties import answer, rows_of


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def shared(depth: int = 1) -> tuple[Hand, MailboxClient, list[MailboxServer]]:
    spec, clock = InferenceSpec("ask", num_clients=1, num_servers=2, depth=depth, max_bytes=4096, fixed=False), Hand()
    mailboxes = MailboxTable.local(spec)
    mailboxes.clock = clock
    client = MailboxClient(mailboxes, 0, ChannelSubscriber(LocalChannel("policy", shared=False, depth=2)))
    return clock, client, [MailboxServer(mailboxes, i) for i in range(2)]


def value(client: MailboxClient, ticket: int) -> float | None:
    client.poll()
    reply = client.ready(ticket)
    return None if reply is None else float(reply.rows["noise"][0, 0])


def test_who_is_silent_loses_its_requests_to_the_others() -> None:
    clock, client, (slow, other) = shared()
    first = client.submit(rows_of(1.0))
    (request,) = slow.poll()
    clock.time += 2 * ALIVE_S
    assert other.poll() == []
    client.poll()  # it hears that the request was lost, and asks again
    assert len(answer(other)) == 1
    assert value(client, first) == 101.0
    slow.reply([Reply(request.id, rows_of(666.0), 0)])
    assert value(client, first) is None


def test_a_late_reply_does_not_land_on_another_request() -> None:
    clock, client, (slow, other) = shared()
    first, second = client.submit(rows_of(1.0)), client.submit(rows_of(2.0))
    (request,) = slow.poll()
    clock.time += 2 * ALIVE_S
    other.poll()
    client.abort([first])
    client.poll()  # the box has the second request now
    slow.reply([Reply(request.id, rows_of(666.0), 0)])
    assert value(client, second) is None
    answer(other)
    assert value(client, second) == 102.0


def test_an_abort_is_told_to_who_serves_it_and_to_nobody_else() -> None:
    clock, client, (slow, other) = shared()
    first, second = client.submit(rows_of(1.0)), client.submit(rows_of(2.0))
    slow.poll()
    clock.time += 2 * ALIVE_S
    other.poll()
    client.abort([first])
    client.poll()
    (request,) = other.poll()
    client.abort([second])
    assert slow.aborted() == []
    assert other.aborted() == [request.id]


def client_of(mailboxes: MailboxTable, first: int) -> MailboxClient:
    return MailboxClient(mailboxes, 0, ChannelSubscriber(LocalChannel("policy", shared=False, depth=2)), first=first)


def test_two_that_use_the_same_boxes_take_only_their_own() -> None:
    """An actor has come to this node, while the agent still waits for what it had asked from another."""
    mailboxes = MailboxTable.local(InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096))
    agent, server = client_of(mailboxes, 1 << 62), MailboxServer(mailboxes, 0)
    old = agent.submit(rows_of(1.0))
    server.poll()
    late = agent.submit(rows_of(2.0))
    actor = client_of(mailboxes, 1 << 32)
    assert len(server.aborted()) == 1, "what the one before had asked goes on"
    new = actor.submit(rows_of(3.0))
    answer(server)
    assert (value(agent, old), value(agent, late)) == (None, None)
    assert value(actor, new) == 103.0
    again = [actor.submit(rows_of(float(i))) for i in (4, 5)]
    answer(server)
    assert [value(actor, t) for t in again] == [104.0, 105.0]


def test_the_boxes_of_a_client_that_is_gone_are_free_but_for_what_is_still_waited_for() -> None:
    """It lived here in between: the agent, which asks for it from another node, had the boxes before and has them again."""
    mailboxes = MailboxTable.local(InferenceSpec("ask", num_clients=2, depth=3, max_bytes=4096))
    agent, server = client_of(mailboxes, 1 << 62), MailboxServer(mailboxes, 0)
    actor = client_of(mailboxes, 1 << 32)
    answered, served = actor.submit(rows_of(1.0)), actor.submit(rows_of(2.0))
    (first, _), kept = server.poll(), agent.submit(rows_of(3.0))
    server.reply([Reply(first.id, rows_of(101.0), 0)])
    del actor, answered, served  # it is killed, and started elsewhere
    mailboxes.vacate(0, keep=agent.tickets())
    assert len(server.aborted()) == 1
    more = [agent.submit(rows_of(float(i))) for i in (4, 5)]
    answer(server)
    assert [value(agent, ticket) for ticket in (kept, *more)] == [103.0, 104.0, 105.0]


def test_a_box_that_was_given_up_is_free_when_who_served_it_is_gone() -> None:
    clock, client, (slow, other) = shared()
    first = client.submit(rows_of(1.0))
    slow.poll()
    client.abort([first])
    clock.time += 2 * ALIVE_S
    other.poll()
    second = client.submit(rows_of(2.0))
    answer(other)
    assert value(client, second) == 102.0


def test_fixed_policy_workers_share_the_clients_of_a_board_by_who_is_there() -> None:
    """Whoever comes or goes after the mailboxes was made."""
    mailboxes = MailboxTable.local(InferenceSpec("ask", num_clients=2, num_servers=2, max_bytes=4096))
    clients = [MailboxClient(mailboxes, i, ChannelSubscriber(LocalChannel("policy", shared=False, depth=2))) for i in range(2)]
    mailboxes.serve_by([1])
    servers = [MailboxServer(mailboxes, i) for i in range(2)]
    tickets = [client.submit(rows_of(float(i))) for i, client in enumerate(clients)]
    assert servers[0].poll() == []
    assert len(servers[1].poll()) == 2
    mailboxes.serve_by([0, 1])  # what the second was at goes back
    for client in clients:
        client.poll()
    assert [len(answer(server)) for server in servers] == [1, 1]
    assert [value(client, ticket) for client, ticket in zip(clients, tickets, strict=True)] == [100.0, 101.0]
