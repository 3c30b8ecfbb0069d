"""Proofs on their way: who publishes them, who checks them, and who is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fakes_flow import FakeInferencer, FakeLearner, channel_of, make_table, put, trainer_of
from torch import Tensor

from runnel.core.clock import ManualClock
from runnel.core.errors import RunnelError
from runnel.core.records import Batch
from runnel.core.weight_check import PREFIX, WeightCheck
from runnel.flow.inference.inline import InlineClient
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.staleness import LagRule
from runnel.flow.workers.evaluator import EvaluatorWorker
from runnel.flow.workers.policy import PolicyWorker
from runnel.flow.workers.trainer import Budget, Phase, TrainerWorker


class ProvingLearner(FakeLearner):
    """The log-probability of any token is minus its total."""

    def weight_check(self) -> WeightCheck | None:
        if not self.total:
            return None
        return WeightCheck(torch.tensor([1]), torch.tensor([2, 3]), -self.total.repeat(2), 1e-5)


class Engine(FakeInferencer):
    """Computes what `ProvingLearner` computes, off by `off`."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off, self.asked = off, 0

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        assert self.params is not None
        self.asked += 1
        return -self.params.params["w"].repeat(len(tokens)) + self.off


def published(learner: FakeLearner, *, num_updates: int, shared: bool) -> LocalChannel:
    channel, table = channel_of(shared=shared), make_table("s", LagRule(lag=9, batch=1, exact=False), capacity=4)
    phases, budget = [Phase({"s": 1})], Budget(total_updates=100)
    readers = {"s": trainer_of(table)}
    kept = {"learner": learner, "readers": readers, "publisher": channel, "phases": phases, "budget": budget}
    worker = TrainerWorker("trainer", ManualClock(), **kept)  # type: ignore[arg-type]
    worker.setup()
    for _ in range(num_updates):
        put(table, 1.0)
        worker.poll()
    return channel


@pytest.mark.parametrize("shared", [False, True])
def test_a_learner_that_proves_nothing_publishes_nothing_more(shared: bool) -> None:
    channel = published(FakeLearner(), num_updates=1, shared=shared)
    found = channel.get(1)
    assert found is not None
    assert list(found.params) == ["w"]
    taken = ChannelSubscriber(channel).poll()
    assert taken is not None
    assert taken.weight_check is None
    assert taken.params is found.params


@pytest.mark.parametrize("shared", [False, True])
def test_a_client_beside_its_engine_tells_of_each_version_once(shared: bool) -> None:
    engine = Engine()
    client = InlineClient(engine, ChannelSubscriber(published(ProvingLearner(), num_updates=0, shared=shared)))
    assert client.sync()
    assert (client.events(), engine.asked) == ([], 0), "the first version has no proof yet"
    client = InlineClient(engine, ChannelSubscriber(published(ProvingLearner(), num_updates=2, shared=shared)))
    assert client.sync()
    assert engine.params is not None
    assert not any(name.startswith(PREFIX) for name in engine.params.params)
    (event,) = client.events()
    assert (event["kind"], event["version"], event["metrics"]["mismatch/canary_kl"]) == ("proof", 2, 0.0)
    client.sync()
    assert (client.events(), engine.asked) == ([], 1)


def serve(engine: FakeInferencer, channel: LocalChannel) -> list[dict[str, object]]:
    mailboxes = MailboxTable.local(InferenceSpec("policy", num_clients=1, depth=2, max_bytes=1024))
    client = MailboxClient(mailboxes, 0, ChannelSubscriber(channel))
    kept = {"server": MailboxServer(mailboxes, 0), "inferencer": engine, "subscriber": ChannelSubscriber(channel)}
    worker = PolicyWorker("policy-0", ManualClock(), **kept)  # type: ignore[arg-type]
    client.submit(Batch(x=torch.zeros(1)))
    worker.poll()
    assert client.events() == []
    return worker.drain()


def evaluate(engine: FakeInferencer, channel: LocalChannel) -> list[dict[str, object]]:
    client = InlineClient(engine, ChannelSubscriber(channel))
    worker = EvaluatorWorker("evaluator", ManualClock(), evaluation=None, client=client, every=1)  # type: ignore[arg-type]
    worker._last = channel.newest()
    worker.evaluate()
    return worker.drain()


@pytest.mark.parametrize("use", [serve, evaluate])
def test_workers_tell_what_their_engine_found(use: Callable[..., list[dict[str, object]]]) -> None:
    (event,) = use(Engine(off=1e-4), published(ProvingLearner(), num_updates=1, shared=False))
    assert (event["kind"], event["version"]) == ("proof", 1)
    assert event["metrics"]["mismatch/canary_kl"] == pytest.approx(5e-9, rel=1e-2)  # type: ignore[index]
    assert use(FakeInferencer(), published(ProvingLearner(), num_updates=1, shared=False)) == [], "not every policy has tokens"


@pytest.mark.parametrize("use", [serve, evaluate])
def test_an_engine_that_is_off_stops_whoever_loads_it(use: Callable[..., list[dict[str, object]]]) -> None:
    with pytest.raises(RunnelError, match="version 1 disagrees"):
        use(Engine(off=0.1), published(ProvingLearner(), num_updates=1, shared=False))
