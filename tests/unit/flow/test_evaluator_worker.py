from __future__ import annotations

import torch
from fakes_flow import FakeEvaluation, FakeInferencer, channel_of

from runnel.core.clock import ManualClock
from runnel.flow.inference import InlineClient
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.workers.evaluator import EvaluatorWorker


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
    assert event == {"kind": "eval", "version": 2, "returns": [2000.0], "extra": {"length": [3.0]}, "samples": [{"text": "a"}]}
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
