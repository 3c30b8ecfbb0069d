from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from fakes_flow import FakeLearner, channel_of, make_table, put, trainer_of
from torch import Tensor

from runnel.core.clock import ManualClock
from runnel.core.contracts.learning import Update
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import CheckpointError, DataError, NonFiniteError
from runnel.core.records import Batch
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.slots import SlotTable, TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.workers.trainer import Budget, Phase, TrainerWorker

OPEN = LagRule(lag=9, batch=1, exact=False)


def trainer(
    tables: Mapping[str, SlotTable],
    learner: FakeLearner | None = None,
    channel: LocalChannel | None = None,
    **settings: Any,
) -> TrainerWorker:
    phases = settings.pop("phases", [Phase(dict.fromkeys(tables, 1))])
    return TrainerWorker(
        "trainer",
        ManualClock(),
        learner=learner or FakeLearner(),
        readers={k: trainer_of(t) for k, t in tables.items()},
        publisher=channel or channel_of(),
        phases=phases,
        budget=settings.pop("budget", Budget(total_updates=100)),
        **settings,
    )


def test_set_up_publishes_version_0_and_opens_the_stream() -> None:
    channel, table = channel_of(), make_table("s", LagRule(lag=0, batch=1, exact=True))
    worker = trainer({"s": table}, channel=channel)
    worker.version = 4
    worker.setup()
    assert channel.newest() == 4
    assert TableWriter(table, 0).version() == 4


def test_one_poll_is_one_update_and_publication_comes_before_release() -> None:
    log: list[str] = []
    table = make_table("s", OPEN, capacity=4)

    class Publisher:
        def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
            account = trainer_of(table).accounting()
            log.append(f"publish {version} total {float(params['w'])} consumed {account.consumed}")

    worker = trainer({"s": table}, FakeLearner(log), Publisher(), phases=[Phase({"s": 2})])  # type: ignore[arg-type]
    worker.setup()
    assert worker.poll() == 0
    assert worker.waits_for() == "2 segments on stream 's'"
    for value in (1.0, 2.0, 3.0):
        put(table, value)
    assert worker.poll() == 1
    assert log == ["publish 0 total 0.0 consumed 0", "prepare s:2", "update", "publish 1 total 6.0 consumed 0"]
    assert trainer_of(table).accounting().consumed == 4
    assert TableWriter(table, 0).version() == 1
    assert worker.poll() == 0
    assert worker.version == 1


def test_the_event_says_version_counts_progress_and_staleness() -> None:
    table = make_table("s", OPEN, capacity=4)
    worker = trainer({"s": table}, phases=[Phase({"s": 2})], budget=Budget(total_steps=40))
    worker.setup()
    worker.version = 5
    put(table, version=5)
    put(table, version=2)
    worker.poll()
    (event,) = worker.drain()
    assert {k: event[k] for k in ("kind", "version", "steps", "tokens", "progress", "metrics")} == {
        "kind": "update",
        "version": 6,
        "steps": 20,
        "tokens": 0,
        "progress": 0.5,
        "metrics": {"loss": 1.0, "staleness/mean": 1.5, "staleness/max": 3.0},
    }
    put(table, version=-1)
    put(table, version=4)
    worker.poll()
    (event,) = worker.drain()
    assert event["metrics"]["staleness/mean"] == 2.0


def test_phases_follow_the_version() -> None:
    log: list[str] = []
    demo, play = make_table("demo", OPEN, capacity=4), make_table("play", OPEN, capacity=4)
    phases = [Phase({"demo": 2}, until=1), Phase({"demo": 1, "play": 1}, until=2), Phase({"play": 2})]
    worker = trainer({"demo": demo, "play": play}, FakeLearner(log), phases=phases)
    worker.setup()
    for _ in range(3):
        put(demo)
        put(play)
    while worker.poll():
        continue
    assert [line for line in log if line.startswith("prepare")] == ["prepare demo:2", "prepare demo:1 play:1", "prepare play:2"]
    assert [TableWriter(t, 0).version() for t in (demo, play)] == [3, 3]


def test_nothing_is_taken_while_one_reader_is_short() -> None:
    demo, play = make_table("demo", OPEN), make_table("play", OPEN)
    worker = trainer({"demo": demo, "play": play})
    worker.setup()
    put(demo)
    assert worker.poll() == 0
    assert worker.waits_for() == "1 segments on stream 'play'"
    assert trainer_of(demo).available() == 1


def test_what_is_too_old_goes_from_every_stream_while_one_is_short() -> None:
    """Else a writer of both streams would find room on one alone."""
    rule = LagRule(lag=0, batch=1, exact=False)
    tables = {"a": make_table("a", rule, capacity=2), "b": make_table("b", rule, capacity=2)}
    worker = trainer(tables, phases=[Phase({"a": 1, "b": 1})])
    worker.setup()
    put(tables["b"], 1.0)  # made by version 0
    worker.version = 1
    for reader in worker.readers.values():
        reader.advance(1)
    assert worker.poll() == 0
    assert trainer_of(tables["b"]).accounting().dropped == {"stale": 2}


def test_units_of_the_budget_are_counted_apart() -> None:
    demo, play = make_table("demo", OPEN), make_table("play", OPEN)
    worker = trainer({"demo": demo, "play": play}, budget=Budget(total_steps=100, total_tokens=14), token_streams=["play"])
    worker.setup()
    put(demo, steps=10)
    put(play, steps=7)
    worker.poll()
    assert (worker.steps, worker.tokens, worker.progress) == (10, 7, 0.5)
    put(demo, steps=10)
    put(play, steps=7)
    worker.poll()
    assert worker.finished
    put(demo)
    put(play)
    assert worker.poll() == 0
    assert "budget is spent" in worker.waits_for()


@pytest.mark.parametrize(
    ("budget", "progress"),
    [
        (Budget(total_updates=4), 0.5),
        (Budget(total_steps=100), 0.3),
        (Budget(total_tokens=10), 1.0),
        (Budget(total_steps=100, total_updates=4), 0.5),
        (Budget(), 0.0),
    ],
)
def test_the_first_unit_that_is_spent_ends_the_run(budget: Budget, progress: float) -> None:
    assert budget.progress(steps=30, updates=2, tokens=12) == progress


def test_the_learner_sees_progress_before_the_update() -> None:
    table, learner = make_table("s", OPEN), FakeLearner()
    worker = trainer({"s": table}, learner, budget=Budget(total_updates=4))
    worker.setup()
    for _ in range(4):
        put(table)
        worker.poll()
    assert learner.progress == [0.0, 0.25, 0.5, 0.75]
    assert worker.finished


def test_feedback_goes_to_the_reader_that_it_names() -> None:
    a, b = make_table("a", OPEN), make_table("b", OPEN)
    worker = trainer({"a": a, "b": b}, FakeLearner(answers=["b"]))
    worker.setup()
    put(a, 1.0)
    put(b, 2.0)
    worker.poll()
    assert TableWriter(a, 0).feedback() == []
    (said,) = TableWriter(b, 0).feedback()
    assert said.values["priority"].tolist() == [2.5, 2.5]


def test_a_restored_trainer_goes_on() -> None:
    def play(worker: TrainerWorker, table: SlotTable, values: list[float]) -> None:
        for value in values:
            put(table, value)
            assert worker.poll() == 1

    tables = [make_table("s", OPEN) for _ in range(2)]
    whole, half = (trainer({"s": t}) for t in tables)
    whole.setup()
    half.setup()
    play(whole, tables[0], [1.0, 2.0, 3.0, 4.0])
    play(half, tables[1], [1.0, 2.0])
    state, table = half.snapshot(), make_table("s", OPEN)
    play(half, tables[1], [50.0])  # must not leak into the snapshot
    again = trainer({"s": table}, channel := FakeLearner())
    again.restore(state)
    again.setup()
    play(again, table, [3.0, 4.0])
    assert (again.version, again.steps) == (whole.version, whole.steps)
    assert torch.equal(channel.total, whole.learner.params()["w"])


def test_stages_are_timed() -> None:
    table = make_table("s", OPEN)
    worker = trainer({"s": table})
    worker.setup()
    put(table)
    worker.poll()
    assert set(worker.timer.drain()) == {"prepare", "update", "publish"}


def test_frozen_copies_are_published_when_they_are_fixed_and_before_the_version_that_goes_with_them() -> None:
    log: list[str] = []
    table = make_table("s", OPEN, capacity=4)

    class Publisher:
        def __init__(self, name: str) -> None:
            self.name = name

        def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
            log.append(f"{self.name} {version}")

    fixed: dict[str, ParamSet] = {}

    class Freezer(FakeLearner):
        def frozen(self) -> Mapping[str, ParamSet]:
            return fixed

    channels: dict[str, Any] = {"channel": Publisher("policy"), "frozen": {"reference": Publisher("reference")}}
    worker = trainer({"s": table}, Freezer(), **channels)
    worker.setup()
    for version in (1, 2, 3):
        put(table, 1.0)
        if version == 2:
            fixed["reference"] = ParamSet(2, {})
        worker.poll()
    worker.setup()
    assert log == ["policy 0", "policy 1", "reference 2", "policy 2", "policy 3", "reference 2", "policy 3"]


class Says(FakeLearner):
    """Says `metrics` of its updates, or gives `instead`."""

    def __init__(self, metrics: dict[str, Any], instead: Any = None) -> None:
        super().__init__()
        self.metrics, self.instead = metrics, instead

    def update(self, batch: Batch) -> Any:
        super().update(batch)
        return self.instead or Update(self.metrics)


def told(learner: FakeLearner, updates: int = 1) -> list[dict[str, Any]]:
    """What a trainer says of so many updates."""
    table = make_table("s", OPEN, capacity=4)
    worker = trainer({"s": table}, learner)
    worker.setup()
    for i in range(updates):
        put(table, float(i))
        worker.poll()
    return worker.drain()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            {"loss/total": float("nan")},
            r"^metric 'loss/total' is not finite at step 0: of learner .*test_trainer_worker.*:Says",
        ),
        ({"grad_norm": float("inf")}, r"^metric 'grad_norm' is not finite"),
    ],
)
def test_a_loss_that_is_not_finite_stops_a_run_and_names_the_learner(metrics: dict[str, Any], message: str) -> None:
    with pytest.raises(NonFiniteError, match=message):
        told(Says(metrics))


def test_another_metric_that_is_not_finite_is_told_once() -> None:
    events = told(Says({"solved": float("nan"), "loss/total": 1.0}), updates=3)
    (warning,) = [e for e in events if e["kind"] == "event"]
    assert warning["level"] == "warning"
    assert re.match(r"metric 'solved' of learner .*:Says is nan at version 0", warning["text"])
    assert len([e for e in events if e["kind"] == "update"]) == 3


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (Says({"loss": torch.ones(2)}), r":Says: metric 'loss' is tensor\(\[1., 1.\]\) \(Tensor\); expected a plain number"),
        (Says({"loss": "1"}), r"metric 'loss' is '1' \(str\)"),
        (Says({}, instead={"loss": 1.0}), r":Says: update\(batch\) gave dict, expected an Update"),
    ],
)
def test_an_update_that_breaks_the_contract_names_the_learner(learner: FakeLearner, message: str) -> None:
    with pytest.raises(DataError, match=message):
        told(learner)


def test_a_learner_is_looked_at_when_a_run_is_set_up() -> None:
    class Numbers(FakeLearner):
        def params(self) -> Any:
            return {"w": 1.0}

    class Few:
        def params(self) -> Any:
            return {}

    with pytest.raises(DataError, match=r"Numbers: params\(\) must give tensors by name; wrong: w"):
        told(Numbers())
    with pytest.raises(DataError, match=r"Few has no prepare, update, state_dict, load_state_dict"):
        told(Few())  # type: ignore[arg-type]


class Counting:
    """A curriculum that counts segments."""

    def __init__(self) -> None:
        self.num = torch.zeros((), dtype=torch.int64)

    def see(self, segments: Mapping[str, Any], batch: Batch) -> dict[str, float]:
        self.num += sum(len(some) for some in segments.values())
        return {"tasks/num": float(self.num)}

    def history(self) -> dict[str, Tensor]:
        return {"num": self.num}

    def snapshot(self) -> dict[str, Any]:
        return {"num": int(self.num)}

    def restore(self, state: dict[str, Any]) -> None:
        self.num = torch.tensor(state["num"])


def test_the_history_of_tasks_is_published_beside_each_version_and_before_it() -> None:
    table, channel, tasks = make_table("s", OPEN, capacity=4), channel_of(), LocalChannel("tasks", shared=False, depth=2)
    log: list[tuple[str, int]] = []
    for one in (channel, tasks):
        one.publish = lambda v, x, one=one, now=one.publish: (log.append((one.name, v)), now(v, x))  # type: ignore[method-assign]
    worker = trainer({"s": table}, channel=channel, curriculum=Counting(), tasks=tasks)
    worker.setup()
    reader = ChannelSubscriber(channel, tasks)
    assert reader.constants(0) == {"num": torch.tensor(0)}
    put(table)
    assert worker.poll() == 1
    assert [e["metrics"]["tasks/num"] for e in worker.drain()] == [1.0]
    assert log == [("tasks", 0), (channel.name, 0), ("tasks", 1), (channel.name, 1)]
    assert reader.constants(1) == reader.constants() == {"num": torch.tensor(1)}
    assert reader.constants(0) == {"num": torch.tensor(0)}, "a copy: what is learned later does not reach an older version"
    other = trainer({"s": table}, curriculum=Counting(), tasks=LocalChannel("tasks", shared=False, depth=2))
    other.restore(worker.snapshot())
    assert other.curriculum is not None
    assert other.curriculum.history() == {"num": torch.tensor(1)}
    with pytest.raises(CheckpointError, match="history of tasks of its own"):
        other.restore(trainer({"s": table}).snapshot())


def test_constants_that_have_not_arrived_or_are_damaged_are_not_given() -> None:
    tasks = LocalChannel("tasks", shared=False, depth=2)
    reader = ChannelSubscriber(channel_of(), tasks)
    assert reader.constants() is None
    assert reader.constants(3) is None
    tasks.publish(3, {"mean": torch.ones(2)})
    tasks._versions[3][0]["mean"][0] = 2.0
    assert reader.constants() is None
    assert reader.num_refused == 1
    tasks.publish(4, {"mean": torch.ones(2)})
    found = reader.constants()
    assert found is not None
    assert found["mean"].tolist() == [1.0, 1.0]
    assert ChannelSubscriber(channel_of()).constants() == {}, "a run without a curriculum"
