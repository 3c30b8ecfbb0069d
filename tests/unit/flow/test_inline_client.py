"""The inline client, and what a checkpoint keeps of it. (The client over a mailboxes: tests/contract/test_transport.py.)"""

from __future__ import annotations

import pytest
import torch
from fakes_flow import FakeInferencer, channel_of

from runnel.core.errors import CheckpointError
from runnel.core.records import Batch
from runnel.flow.inference.inline import InlineClient
from runnel.flow.params import ChannelSubscriber, LocalChannel


def client_of(channel: LocalChannel, inferencer: FakeInferencer | None = None) -> InlineClient:
    return InlineClient(inferencer or FakeInferencer(), ChannelSubscriber(channel))


def rows(value: float) -> Batch:
    return Batch(x=torch.tensor([value]))


def value_of(client: InlineClient, ticket: int) -> float | None:
    reply = client.ready(ticket)
    return None if reply is None else float(reply.rows["x"][0])


def test_an_immediate_inferencer_has_answered_when_submit_returns() -> None:
    client = client_of(channel_of(0, 1))
    assert client.version == -1
    assert client.sync()
    ticket = client.submit(rows(2.0))
    assert client.pending() == 0
    reply = client.ready(ticket)
    assert reply is not None
    assert (float(reply.rows["x"][0]), reply.version, reply.id) == (1002.0, 1, ticket)
    assert client.ready(ticket) is None


def test_an_engine_answers_when_it_is_polled() -> None:
    client = client_of(channel_of(0), FakeInferencer(immediate=False, per_step=1))
    client.sync()
    first, second = client.submit(rows(1.0)), client.submit(rows(2.0))
    assert (client.pending(), client.ready(first)) == (2, None)
    assert client.poll() == 2
    assert (value_of(client, first), client.ready(second), client.pending()) == (1.0, None, 1)
    assert client.poll() == 1
    assert value_of(client, second) == 2.0
    assert client.poll() == 0


def test_sync_brings_exactly_the_version_that_was_asked_for() -> None:
    channel = channel_of()
    client = client_of(channel)
    assert not client.sync()
    assert not client.sync(0)
    for version in range(3):
        channel.publish(version, {"w": torch.tensor(float(version))})
    assert client.sync(1)
    assert client.version == 1
    assert not client.sync(3)
    assert client.version == 1
    assert client.sync()
    assert client.version == 2
    assert client.sync(0)
    assert value_of(client, client.submit(rows(0.0), version=0)) == 0.0
    with pytest.raises(AssertionError, match="call sync first"):
        client.submit(rows(0.0), version=2)


def test_an_aborted_ticket_leaves_nothing_behind() -> None:
    inferencer = FakeInferencer(immediate=False)
    client = client_of(channel_of(0), inferencer)
    client.sync()
    answered, pending = client.submit(rows(1.0)), 1
    client.poll()
    pending = client.submit(rows(2.0))
    client.abort([answered, pending])
    client.poll()
    assert (client.ready(answered), client.ready(pending), client.pending()) == (None, None, 0)
    assert client.snapshot()["replies"] == {}


@pytest.mark.parametrize("gone", [False, True])
def test_a_restored_client_goes_on(gone: bool) -> None:
    """With the version that it had loaded, from the channel or, if that has moved on, from its own snapshot."""
    channel = channel_of(0, 1, depth=2)
    client = client_of(channel, FakeInferencer(immediate=False, per_step=1))
    client.sync(0)
    answered = client.submit(rows(1.0))
    client.poll()
    pending = client.submit(rows(2.0))
    if gone:
        channel.publish(2, {"w": torch.tensor(2.0)})
    state = client.snapshot()
    assert (state["params"] is not None) == gone
    twin = client_of(channel, FakeInferencer(immediate=False, per_step=1))
    twin.restore(state)
    for each in (client, twin):
        assert each.version == 0
        each.poll()
        assert value_of(each, answered) == 1.0
        assert value_of(each, pending) == 2.0
        assert each.submit(rows(3.0)) == 2
        assert each.sync()
        assert each.version == (2 if gone else 1)


def test_shared_parameters_that_moved_on_are_not_saved() -> None:
    channel = channel_of(0, shared=True)
    client = client_of(channel)
    client.sync()
    channel.publish(1, {"w": torch.tensor(1.0)})
    state = client.snapshot()
    assert (state["version"], state["params"]) == (-1, None)
    twin = client_of(channel)
    twin.restore(state)
    assert twin.sync(1)
    assert value_of(twin, twin.submit(rows(0.0))) == 1000.0


def test_a_version_that_nobody_has_is_an_error() -> None:
    client = client_of(channel_of(0))
    client.sync()
    with pytest.raises(CheckpointError, match=r"holds no parameters of the version .*: version 0 of 'policy'; it has 1$"):
        client_of(channel_of(1)).restore(client.snapshot())


def test_what_the_saved_channel_lacks_is_saved_though_the_channel_here_has_it() -> None:
    """On several nodes the channel of an actor's node may be behind the trainer's, which is the one that is saved."""
    here, saved = channel_of(0, 1), channel_of(0, 1, 2, 3, 4)
    client = client_of(here)
    client.sync(1)
    assert client.snapshot()["params"] is None, "alone, the channel here counts"
    state = client.snapshot({"policy": [*saved.stamps()]})
    twin = client_of(saved)
    twin.restore(state)
    assert (twin.version, value_of(twin, twin.submit(rows(0.0)))) == (1, 1000.0)
