from __future__ import annotations

import torch
from fakes_flow import FakeEvaluation, FakeInferencer, channel_of

from runnel.core.clock import ManualClock
from runnel.core.worker import Worker
from runnel.flow.inference.inline import InlineClient
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.workers.evaluator import EvaluatorWorker
from runnel.run.group import ProcessGroup


def evaluator(channel: LocalChannel, every: int) -> tuple[EvaluatorWorker, FakeEvaluation]:
    evaluation = FakeEvaluation()
    client = InlineClient(FakeInferencer(), ChannelSubscriber(channel))
    return EvaluatorWorker("evaluator", ManualClock(), evaluation=evaluation, client=client, every=every), evaluation


def publish(channel: LocalChannel, version: int) -> None:
    channel.publish(version, {"w": torch.tensor(float(version))})


def test_due_versions_are_measured_once() -> None:
    channel = channel_of()
    worker, evaluation = evaluator(channel, every=5)
    assert worker.poll() == 0
    for version in range(16):
        publish(channel, version)
        assert worker.poll() == int(version in (5, 10, 15))
        assert worker.poll() == 0
    assert evaluation.runs == [(5, 0), (10, 1), (15, 2)]


def test_a_late_evaluator_measures_the_newest_and_waits_for_the_next_due() -> None:
    channel = channel_of(0)
    worker, evaluation = evaluator(channel, every=5)
    for version in (7, 9, 10, 12, 19, 20):
        publish(channel, version)
        worker.poll()
    assert [v for v, _ in evaluation.runs] == [7, 10, 19, 20]


def test_never_means_only_when_asked() -> None:
    channel = channel_of(0, 1)
    worker, evaluation = evaluator(channel, every=0)
    assert worker.poll() == 0
    worker.evaluate()
    worker.evaluate()
    assert evaluation.runs == [(1, 0)]


def test_nothing_is_measured_before_the_first_version() -> None:
    worker, evaluation = evaluator(channel_of(), every=1)
    worker.evaluate()
    assert evaluation.runs == []


def test_the_event_carries_the_result() -> None:
    worker, evaluation = evaluator(channel_of(2), every=1)
    worker.poll()
    (event,) = worker.drain()
    assert event == {
        "kind": "eval",
        "version": 2,
        "returns": [2000.0],
        "extra": {"length": [3.0]},
        "samples": [{"text": "a"}],
        "tables": {},
    }
    worker.close()
    assert evaluation.closed


def test_a_restored_evaluator_repeats_nothing() -> None:
    channel = channel_of(5)
    worker, _ = evaluator(channel, every=5)
    worker.poll()
    again, evaluation = evaluator(channel, every=5)
    again.restore(worker.snapshot())
    assert again.poll() == 0
    again.evaluate()
    publish(channel, 10)
    assert again.poll() == 1
    assert evaluation.runs == [(10, 1)]


def test_an_interrupted_evaluation_is_owed_and_told_once() -> None:
    channel = channel_of(5)
    worker, evaluation = evaluator(channel, every=5)
    evaluation.stop = True
    assert worker.poll() == 1
    assert worker.poll() == 1
    assert worker.owes
    (event,) = worker.drain()
    assert event == {"kind": "note", "text": "the evaluation of version 5 was interrupted"}
    again, evaluation = evaluator(channel, every=5)
    again.restore(worker.snapshot())
    assert again.owes
    again.poll()
    assert evaluation.runs == [(5, 0)], "the same version, the same round"
    assert not again.owes


def test_what_broke_in_an_evaluation_is_told() -> None:
    worker, evaluation = evaluator(channel_of(2), every=1)
    evaluation.faults = [{"kind": "env_failed", "env": 3, "episode": 0, "step": 7, "error": "x"}]
    worker.poll()
    assert [e["kind"] for e in worker.drain()] == ["env_failed", "eval"]


def test_an_owed_evaluation_goes_first_after_a_resume() -> None:
    """Before the trainer makes another version of it."""
    channel = channel_of(5)
    worker, evaluation = evaluator(channel, every=5)

    class Trains(Worker):
        def poll(self) -> int:
            publish(channel, channel.newest() + 1)
            return 1

    group = ProcessGroup("main", [Trains("actor-0", ManualClock()), worker], {}, {}, {})
    group.start({"worker-actor-0": {}, "worker-evaluator": {"round": 0, "last": -1, "owes": True}})
    group.round()
    group.round()
    assert evaluation.runs == [(5, 0)]


class Closing(FakeInferencer):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_everything_that_it_asks_is_closed_with_it() -> None:
    found = [Closing(), Closing()]
    own, other = (InlineClient(one, ChannelSubscriber(channel_of())) for one in found)
    worker = EvaluatorWorker(
        "evaluator", ManualClock(), evaluation=FakeEvaluation(), client=own, others={"judge": other}, every=1
    )
    worker.close()
    assert [one.closed for one in found] == [True, True]
