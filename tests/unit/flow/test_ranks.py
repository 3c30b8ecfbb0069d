"""A leading and a following trainer on one stream: who gets what, accounts, agreement, and slow ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from fakes_flow import FakeLearner, channel_of, put, trainer_of
from made_ranks import together

from runnel.core.clock import WallClock
from runnel.core.contracts.learning import Collective, Update
from runnel.core.errors import RankError
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.state import State
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable, TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.workers.ranks import FollowingTrainer, LeadingTrainer
from runnel.flow.workers.stragglers import IN_A_ROW, TELL_EVERY, Stragglers
from runnel.flow.workers.trainer import Budget, Phase

OPEN = LagRule(lag=99, batch=1, exact=False)


class SummingLearner(FakeLearner):
    """A `FakeLearner` whose total is that of all ranks; each draws from a generator of its own."""

    own_state: tuple[str, ...] = ("draws",)

    def __init__(self, ranks: Collective, answers: tuple[str, ...] = ("s",)) -> None:
        super().__init__(answers=answers)
        self.ranks, self.draws, self.sleep_s = ranks, 0, 0.0

    def update(self, batch: Any) -> Update:
        time.sleep(self.sleep_s)
        update = super().update({"x": batch["x"] * 0.0})  # type: ignore[arg-type]
        self.total += self.ranks.all_reduce(batch["x"].sum())
        self.draws += 1 + self.ranks.rank
        return Update({"loss": float(self.ranks.rank), "lr": 0.1, "age/max": float(self.ranks.rank)}, update.feedback)

    def reseed(self, version: int) -> None:
        self.draws = 1000 + version

    def state_dict(self) -> State:
        return {**super().state_dict(), "draws": self.draws}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.draws = state["draws"]


def table_of(**settings: Any) -> SlotTable:
    """A stream that several threads may touch."""
    spec = StreamSpec("s", {"x": FieldSpec(("B",))}, {"B": 2}, feedback={"priority": FieldSpec(("B",))}, **settings)
    return SlotTable(spec, OPEN, SlotMemory.local(spec), lock=threading.RLock())


def train(
    table: SlotTable,
    num: int,
    *,
    segments: int,
    updates: int,
    learner: Any = SummingLearner,
    states: Mapping[int, State] | None = None,
    slow: Mapping[int, float] | None = None,
) -> list[Any]:
    """Ranks poll until they have made so many updates; the accounts must add up whenever the leader is between polls."""
    done = threading.Event()

    def work(ranks: Any) -> Any:
        settings: dict[str, Any] = {"phases": [Phase({"s": segments})], "budget": Budget(total_updates=100)}
        settings |= {"learner": learner(ranks), "readers": {"s": trainer_of(table)}, "collective": ranks}
        settings["publisher"] = channel_of()
        settings["learner"].sleep_s = (slow or {}).get(ranks.rank, 0.0)
        worker: Any
        if ranks.rank == 0:
            worker = LeadingTrainer("trainer", WallClock(), **settings)
        else:
            worker = FollowingTrainer(f"trainer-{ranks.rank}", WallClock(), **settings)
        if states is not None:
            worker.restore(states[ranks.rank])
        target = worker.version + updates
        try:
            worker.setup()
            while worker.version < target and not done.is_set():
                if worker.poll() and ranks.rank == 0:
                    table.accounting(0).check("s")
                time.sleep(0.001)
        except Exception:
            done.set()
            raise
        return worker

    return together(num, work)


@pytest.mark.parametrize(("num", "segments"), [(2, 4), (3, 3), (2, 1)])
def test_every_segment_is_trained_on_once_and_answered_by_who_had_it(num: int, segments: int) -> None:
    table = table_of(capacity=2 * segments)
    for value in range(1, 2 * segments + 1):
        put(table, float(value))
    workers = train(table, num, segments=segments, updates=2)
    total = 2.0 * sum(range(1, 2 * segments + 1))
    assert [float(w.learner.total) for w in workers] == [total] * num
    account = table.accounting(0)
    assert (account.consumed, account.in_flight) == (4 * segments, 0)
    said = [f.values["priority"].tolist() for f in TableWriter(table, 0).feedback()]
    assert said == [[value + 0.5] * 2 for value in range(1, 2 * segments + 1)]
    assert {(w.version, w.steps) for w in workers} == {(2, 20 * segments)}
    assert all(w.learner.progress == workers[0].learner.progress for w in workers)
    update, _ = (e for e in workers[0].drain() if e["kind"] == "update")
    assert update["time"]["ranks"].keys() == {"excess_s", "slowest", "wait_s"}
    shown = {k: update["metrics"][k] for k in ("loss", "lr", "age/max")}
    assert shown == {"loss": (num - 1) / 2, "lr": 0.1, "age/max": num - 1.0}, "means over ranks, and the largest of all"
    assert all(not w.drain() for w in workers[1:]), "only the leader tells"


def test_a_learner_that_does_not_sum_over_its_ranks_is_found_out() -> None:
    table = table_of(capacity=2)
    put(table, 1.0)
    put(table, 2.0)
    with pytest.raises(RankError, match=r"rank 1 .* at version 1 with other parameters.*sum its gradients"):
        train(table, 2, segments=2, updates=1, learner=lambda ranks: FakeLearner())


def test_ranks_that_do_not_start_alike_are_refused() -> None:
    class Seeded(SummingLearner):
        def __init__(self, ranks: Collective) -> None:
            super().__init__(ranks)
            self.total += ranks.rank

    table = table_of(capacity=2)
    put(table)
    put(table)
    with pytest.raises(RankError, match=r"rank 1 .* at version 0 with other parameters.*seed"):
        train(table, 2, segments=2, updates=1, learner=Seeded)


def test_a_checkpoint_is_the_leaders_state_and_what_is_each_ranks_own() -> None:
    table = table_of(capacity=2)
    put(table, 1.0)
    put(table, 2.0)
    leader, follower = train(table, 2, segments=2, updates=1)
    saved, own = leader.snapshot(), follower.snapshot()
    assert own == {"draws": 2}
    TableWriter(table, 0).feedback()
    for value in (3.0, 4.0, 5.0):
        put(table, value, version=1) if value < 5.0 else None
    states = {0: saved, 1: {"leader": saved, "own": own}}
    leader, follower = train(table, 2, segments=2, updates=1, states=states)
    assert (leader.version, follower.version, leader.learner.draws, follower.learner.draws) == (2, 2, 2, 4)
    fresh = FollowingTrainer(
        "trainer-1",
        WallClock(),
        learner=SummingLearner(follower.ranks.collective),
        readers={},
        collective=follower.ranks.collective,
        publisher=channel_of(),
        phases=[],
        budget=Budget(),
    )
    fresh.restore({"leader": leader.snapshot(), "own": None})
    assert (fresh.version, fresh.learner.draws) == (2, 1002), "a rank that the checkpoint does not know is seeded anew"


def test_the_slow_rank_is_named_with_stage_and_seconds() -> None:
    found, seen = Stragglers(), []
    for _ in range(2 * TELL_EVERY):
        seen.append(found.add([[0.1, 0.4, 0.3], [0.1, 0.4, 0.3], [0.1, 0.7, 0.0]]))
    assert seen[0][0] == pytest.approx({"excess_s": 0.3, "slowest": 2.0, "wait_s": 0.2})
    told = [i for i, (_, text) in enumerate(seen) if text]
    assert told == [IN_A_ROW - 1, IN_A_ROW - 1 + TELL_EVERY]
    assert "rank 2 (worker trainer-2)" in seen[told[0]][1]
    assert "in update it takes 0.300 s more" in seen[told[0]][1]


@pytest.mark.parametrize("rows", [[[0.0, 0.04], [0.0, 0.001]], [[1.0, 1.3], [1.0, 1.0]]])
def test_little_is_not_told(rows: list[list[float]]) -> None:
    """40 ms, or 15 percent; and a rank that is slow only now and then."""
    found = Stragglers()
    assert not any(found.add([[*row, 0.0] for row in rows])[1] for _ in range(50))
    slow, fair = [[0.0, 1.0, 0.0], [0.0, 2.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    assert not any(Stragglers().add(slow if i % 5 else fair)[1] for i in range(50))


def test_waiting_for_others_is_not_the_ranks_own_time() -> None:
    table = table_of(capacity=4)
    for value in range(4):
        put(table, float(value))
    leader, _ = train(table, 2, segments=2, updates=2, slow={1: 0.2})
    events = [e["time"]["ranks"] for e in leader.drain() if e["kind"] == "update"]
    for shown in events[1:]:  # the first includes the meeting
        assert shown["slowest"] == 1.0
        assert 0.15 < shown["excess_s"] < 0.4
    assert leader.timer.spent("update") < 0.15
