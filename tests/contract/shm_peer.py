"""The other process of test_transport.py: a writer, publisher and client over descriptors that it was given."""

from __future__ import annotations

import json
import sys

import torch

from runnel.core.records import Batch, FieldSpec, StreamSpec
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient
from runnel.flow.params import ChannelSubscriber
from runnel.flow.slots import TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.transports.shm import Doorbells, ShmTransport

NUM = 40
SPEC = StreamSpec(
    "segments",
    {"x": FieldSpec(("F", "B"), torch.float64), "answer": FieldSpec(("B",))},
    {"B": 3, "F": 4},
    variable=("F",),
    capacity=4,
)
POLICY = LagRule(lag=1, batch=2, exact=True)
ASK = InferenceSpec("ask", num_clients=1, depth=2, max_bytes=1024)


def work(transport: ShmTransport) -> None:
    writer = TableWriter(transport.samples(SPEC, POLICY), 0)
    channel = transport.params("policy", depth=3)
    client = MailboxClient(transport.inference(ASK), 0, ChannelSubscriber(channel))
    for k in range(NUM):
        while (slot := writer.reserve()) is None:
            assert transport.wait(20.0), "the parent releases nothing"
        ticket = client.submit(Batch(v=torch.full((3,), float(slot.header.sequence))))
        while (reply := client.ready(ticket)) is None:
            if not client.poll():
                assert transport.wait(20.0), "the parent answers nothing"
        assert reply.version == 5
        slot.arrays["x"].fill_(slot.header.sequence)
        slot.arrays["answer"].copy_(reply.rows["v"])
        slot.header.version_min = slot.header.version_max = slot.header.required_version
        slot.header.used = {"F": slot.header.sequence % 4}
        channel.publish(k, {"w": torch.full((1000,), float(k))})
        writer.commit(slot, num_steps=7)


def hang(transport: ShmTransport) -> None:
    table = transport.samples(SPEC, POLICY)
    assert TableWriter(table, 0).reserve() is not None
    with table.lock:
        table.ring()
        sys.stdin.read()


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    bells = Doorbells({k: (r, w) for k, (r, w) in orders["pipes"].items()}, "peer")
    {"work": work, "hang": hang}[orders["mode"]](ShmTransport(orders["fds"], bells))
