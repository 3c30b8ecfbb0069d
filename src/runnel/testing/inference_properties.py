"""Properties of an inference stream between workers: the contracts are `InferenceClient` (core/contracts/inference.py) and
`InferenceServer` (flow/inference/mailboxes.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runnel.core.contracts.inference import Reply, Request
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.flow.inference.mailboxes import InferenceServer, InferenceSpec
from runnel.flow.workers.actor import SavedClient
from runnel.testing.expect import equal, raises, same_arrays, true


@dataclass
class InferenceEnds:
    """The clients and servers of one stream; `publish(version)` makes a parameter version known to the clients."""

    clients: Sequence[SavedClient]
    servers: Sequence[InferenceServer]
    publish: Callable[[int], None]


MakeInference = Callable[[InferenceSpec], InferenceEnds]


def rows_of(value: float) -> Batch:
    """A request's rows, of several types and shapes."""
    return Batch(
        {
            "obs/position": torch.full((2, 3), value),
            "noise": torch.full((2, 1), value, dtype=torch.float64),
            "mask": torch.tensor([[True, False]] * 2),
            "pixels": torch.full((2, 2), int(value) % 256, dtype=torch.uint8),
            "none": torch.zeros(0, 4),
            "token": torch.tensor(int(value), dtype=torch.int32),
            "half": torch.full((2,), value, dtype=torch.bfloat16),
        }
    )


def answer(server: InferenceServer, version: int = 3) -> list[Request]:
    """Serve everything pending: the reply to rows of value v has value v + 100."""
    requests = server.poll()
    server.reply([Reply(r.id, rows_of(float(r.rows["obs/position"][0, 0]) + 100), version) for r in requests])
    return requests


def a_request_comes_back_as_its_reply(make: MakeInference) -> None:
    """Rows arrive unchanged both ways, for every client at its own server. A reply is given once."""
    ends = make(InferenceSpec("ask", num_clients=3, num_servers=2, max_bytes=4096))
    tickets = [client.submit(rows_of(float(i))) for i, client in enumerate(ends.clients)]
    equal([client.ready(t) for client, t in zip(ends.clients, tickets, strict=True)], [None] * 3, "replies before service")
    for number, server in enumerate(ends.servers):
        requests = answer(server)
        equal([float(r.rows["noise"][0, 0]) for r in requests], [float(i) for i in range(3) if i % 2 == number], "who asked")
        for r in requests:
            same_arrays(r.rows, rows_of(float(r.rows["noise"][0, 0])), "rows of a request")
    for i, client in enumerate(ends.clients):
        equal(client.pending(), 1, "pending before the client has polled")
        equal(client.poll(), 1, "replies collected")
        reply = client.ready(tickets[i])
        if reply is None:
            raise AssertionError(f"client {i} got no reply")
        same_arrays(reply.rows, rows_of(i + 100.0), "rows of a reply")
        equal((reply.version, reply.id, client.version), (3, tickets[i], 3), "version, ticket, newest version known")
        equal((client.ready(tickets[i]), client.pending()), (None, 0), "a reply that was taken")


def more_requests_than_mailboxes_all_come_back(make: MakeInference) -> None:
    """Requests beyond the mailboxes wait in the client, in order."""
    ends = make(InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096))
    client, server = ends.clients[0], ends.servers[0]
    tickets = [client.submit(rows_of(float(i))) for i in range(7)]
    served: list[float] = []
    for _ in range(4):
        requests = answer(server)
        true(len(requests) <= 2, f"{len(requests)} requests in 2 mailboxes")
        served += [float(r.rows["obs/position"][0, 0]) for r in requests]
        client.poll()
    equal(served, [float(i) for i in range(7)], "the order of service")
    for i, ticket in enumerate(tickets):
        reply = client.ready(ticket)
        equal(None if reply is None else float(reply.rows["noise"][0, 0]), i + 100.0, f"the reply to request {i}")


def a_request_does_not_change_with_its_buffer(make: MakeInference) -> None:
    """A sampler may write its next observation into the tensors that it has just sent."""
    ends = make(InferenceSpec("ask", num_clients=1, depth=1, max_bytes=4096))
    rows, client = rows_of(1.0), ends.clients[0]
    client.submit(rows_of(0.0))
    client.submit(rows)
    rows["obs/position"].fill_(50.0)
    answer(ends.servers[0])
    client.poll()
    (request,) = ends.servers[0].poll()
    same_arrays(request.rows, rows_of(1.0), "a request that waited")


def an_aborted_request_frees_its_mailbox(make: MakeInference) -> None:
    """An abort before, during or after service: no reply comes, the server is told, and the mailbox is free again."""
    ends = make(InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096))
    client, server = ends.clients[0], ends.servers[0]
    asked, serving, waiting = (client.submit(rows_of(float(i))) for i in range(3))
    client.abort([asked, waiting])
    (request,) = server.poll()
    equal(float(request.rows["noise"][0, 0]), 1.0, "the request that was not aborted")
    client.abort([serving])
    equal((server.aborted(), server.aborted()), ([request.id], []), "what the server hears of it")
    late = client.submit(rows_of(9.0))
    (request,) = server.poll()
    client.abort([late])
    server.reply([Reply(request.id, rows_of(109.0), 0)])
    equal(client.pending(), 0, "pending requests")
    answered = client.submit(rows_of(10.0))
    answer(server)
    client.abort([answered])
    client.poll()
    for ticket in (asked, serving, waiting, late, answered):
        equal(client.ready(ticket), None, f"the reply to aborted request {ticket}")
    again = [client.submit(rows_of(float(i))) for i in (20, 21)]
    equal(len(answer(server)), 2, "requests that fit after the aborts")
    client.poll()
    true(all(client.ready(t) is not None for t in again), "requests after an abort got no reply")


def exact_versions_travel_with_the_request(make: MakeInference) -> None:
    """The server sees which version must answer; the client knows which versions exist."""
    ends = make(InferenceSpec("ask", num_clients=1, max_bytes=4096))
    client = ends.clients[0]
    equal((client.sync(), client.sync(0), client.version), (False, False, -1), "before any publication")
    ends.publish(0)
    ends.publish(1)
    equal([client.sync(), client.sync(0), client.sync(1), client.sync(2)], [True, True, True, False], "sync")
    client.submit(rows_of(0.0), version=1)
    client.submit(rows_of(1.0))
    equal([r.version for r in ends.servers[0].poll()], [1, -1], "versions that must answer")


def too_large_a_message_names_the_setting(make: MakeInference) -> None:
    """The error names the setting to raise and its value, and exactly that value is enough."""
    ends = make(InferenceSpec("ask", num_clients=1, max_bytes=64))
    text = raises(ConfigError, lambda: ends.clients[0].submit(rows_of(0.0)), "a message over max_bytes")
    true("ask.max_bytes" in text, f"the error does not name ask.max_bytes: {text}")
    need = int("".join(c for c in text.partition("takes")[2].partition("bytes")[0] if c.isdigit()))
    ends = make(InferenceSpec("ask", num_clients=1, max_bytes=need))
    ends.clients[0].submit(rows_of(0.0))
    same_arrays(ends.servers[0].poll()[0].rows, rows_of(0.0), "a message of exactly max_bytes")


def a_restored_client_asks_again(make: MakeInference) -> None:
    """Requests without a reply are in the client's snapshot, under their tickets: the policy worker keeps none."""
    spec = InferenceSpec("ask", num_clients=1, depth=2, max_bytes=4096)
    ends, twin = make(spec), make(spec)
    client = ends.clients[0]
    tickets = [client.submit(rows_of(float(i)), version=i) for i in range(4)]
    answer(ends.servers[0])
    client.poll()
    true(client.ready(tickets[0]) is not None, "no reply to the first request")
    again = twin.clients[0]
    again.restore(client.snapshot())
    equal(again.pending(), 3, "requests that are asked again")
    for _ in range(3):
        again.poll()
        for r in answer(twin.servers[0]):
            equal(r.version, int(r.rows["noise"][0, 0]), "the version of a request that is asked again")
    again.poll()
    for i, ticket in enumerate(tickets[1:], start=1):
        reply = again.ready(ticket)
        equal(None if reply is None else float(reply.rows["noise"][0, 0]), i + 100.0, f"the reply to ticket {ticket}")
    true(again.submit(rows_of(5.0)) not in tickets, "a new request got an old ticket")


INFERENCE: dict[str, Callable[[MakeInference], None]] = {
    f.__name__: f
    for f in (
        a_request_comes_back_as_its_reply,
        more_requests_than_mailboxes_all_come_back,
        a_request_does_not_change_with_its_buffer,
        an_aborted_request_frees_its_mailbox,
        exact_versions_travel_with_the_request,
        too_large_a_message_names_the_setting,
        a_restored_client_asks_again,
    )
}
