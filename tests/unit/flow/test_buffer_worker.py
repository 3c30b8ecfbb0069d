from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes_flow import ROWS, FakeStore, make_table, put, trainer_of

from runnel.core.clock import ManualClock
from runnel.core.contracts.samples import Feedback
from runnel.core.errors import DataError
from runnel.core.records import Segment, Slot
from runnel.core.rng import make_rng
from runnel.flow.slots import TableReader, TableWriter
from runnel.flow.staleness import LagRule, ReplayRatioRule
from runnel.flow.workers.buffer import ReplayBuffer
from runnel.flow.workers.transform import TransformWorker


class Rig:
    """A buffer between a stream of experience and a stream of batches, with the test as actor and as trainer."""

    def __init__(self, policy: ReplayRatioRule, *, store: FakeStore | None = None) -> None:
        self.policy, self.store = policy, store or FakeStore()
        self.experience = make_table("trajectories", policy, capacity=4, readers=("buffer",), feedback={})
        self.batches = make_table("replay", LagRule(lag=policy.lag, batch=1, exact=True), capacity=policy.lag + 2)
        self.trainer = trainer_of(self.batches)
        self.version = self.inserted = 0
        self.worker = TransformWorker(
            "buffer",
            ManualClock(),
            transform=ReplayBuffer(store=self.store, policy=policy, rng=make_rng(1, "buffer")),
            readers={"trajectories": TableReader(self.experience, "buffer")},
            clients={},
            writers={"replay": TableWriter(self.batches, 0)},
        )

    def act(self) -> bool:
        slot = put(self.experience, float(self.inserted), steps=self.policy.segment_steps)
        self.inserted += slot is not None
        return slot is not None

    def train(self, *, answer: bool = True) -> list[float]:
        segments = self.trainer.take(1)
        if not segments:
            return []
        self.version += 1
        said = [{"priority": torch.full((ROWS,), float(self.version))}] if answer else None
        self.trainer.release(segments, feedback=said)
        self.trainer.advance(self.version)
        return segments[0].arrays["x"].tolist()

    @property
    def given(self) -> int:
        return self.trainer.accounting().dispatched // ROWS


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 0.03])
def test_the_ratio_holds_at_every_moment_on_both_sides(ratio: float, lag: int) -> None:
    """Whatever the order in which actor, buffer and trainer get to run."""
    policy = ReplayRatioRule(ratio=ratio, min_fill=30, segment_steps=5, lag=lag)
    rig, rng = Rig(policy), np.random.default_rng(3)
    moves = [rig.act, rig.worker.poll, rig.train]
    for _ in range(1500):
        moves[int(rng.integers(3))]()
        steps = sum(5 for _ in rig.store.values)
        assert rig.given <= policy.updates(steps)
        assert rig.given >= policy.updates(steps - 5)  # all that earlier segments paid for was given first
        assert rig.version >= policy.updates((rig.inserted - 1) * 5) - lag if rig.inserted else rig.version == 0
        rig.experience.accounting(0).check("trajectories")
        rig.batches.accounting(0).check("replay")
        rig.worker.check()
    assert rig.version > 20 * ratio


def test_nothing_is_given_before_the_minimum_fill() -> None:
    rig = Rig(ReplayRatioRule(ratio=0.1, min_fill=30, segment_steps=10))
    for num in range(3):
        assert rig.given == 0
        rig.act()
        assert rig.worker.poll() == 1 + (num == 2)  # the segment that fills the minimum pays for a batch at once
        assert rig.store.num_steps == num + 1
    assert rig.given == 1
    rig.worker.poll()
    assert rig.worker.waits_for() == "actors to write experience"


def test_the_next_batch_waits_for_the_priorities_of_the_last() -> None:
    rig = Rig(ReplayRatioRule(ratio=0.3, min_fill=10, segment_steps=10))
    rig.act()
    rig.worker.poll()
    assert not rig.act()  # an update is owed before the next segment
    rig.train()
    assert rig.worker.poll() == 1  # hears the priority
    assert rig.act()
    assert rig.worker.poll() == 2  # takes the segment in, gives the batch that it paid for
    assert rig.store.said == [[1.0, 1.0]], "the store is told before the next batch is drawn"
    assert (rig.given, rig.worker.poll()) == (2, 0)
    assert rig.worker.waits_for() == "the trainer to take a batch"
    rig.train()
    assert rig.worker.poll() == 2  # hears the priority, gives the next batch
    assert rig.given == 3


def test_a_lag_lets_batches_run_ahead_of_their_priorities() -> None:
    rig = Rig(ReplayRatioRule(ratio=1.0, min_fill=10, segment_steps=10, lag=1))
    rig.act()
    rig.worker.poll()
    rig.act()
    rig.worker.poll()
    rig.worker.poll()
    rig.worker.poll()
    assert rig.given == 2
    assert rig.worker.poll() == 0


def test_held_rows_are_settled_when_they_are_selected_or_evicted() -> None:
    rig = Rig(ReplayRatioRule(ratio=0.05, min_fill=30, segment_steps=10), store=FakeStore(capacity=2))
    for _ in range(3):
        account = rig.experience.accounting(0)
        assert (account.consumed, account.dropped) == (0, {})
        rig.act()
        rig.worker.poll()
    account = rig.experience.accounting(0)
    assert (account.consumed, account.dropped, account.in_flight) == (ROWS, {"evicted_unused": ROWS}, ROWS)
    rig.worker.check()
    rig.store.unused.clear()
    with pytest.raises(DataError, match=f"holds 0 rows of stream .trajectories., but its account says {ROWS}"):
        rig.worker.check()


def test_batches_report_the_steps_that_are_new() -> None:
    rig = Rig(ReplayRatioRule(ratio=0.2, min_fill=20, segment_steps=10))
    steps = []
    for _ in range(60):
        rig.act()
        rig.worker.poll()
        for s in rig.trainer.take(1):
            steps.append(s.header.num_steps)
            assert s.header.version_min == rig.version
            rig.version += 1
            rig.trainer.release([s], feedback=[{"priority": torch.ones(ROWS)}])
            rig.trainer.advance(rig.version)
    assert steps[:5] == [20, 10, 0, 10, 0]


def test_a_restored_buffer_goes_on_bit_for_bit() -> None:
    policy = ReplayRatioRule(ratio=0.2, min_fill=20, segment_steps=10, lag=1)

    def rounds(rig: Rig, num: int) -> list[list[float]]:
        out = []
        for _ in range(num):
            rig.act()
            rig.worker.poll()
            out.append(rig.train())
        return out

    whole, half = Rig(policy), Rig(policy)
    rounds(whole, 17)
    rounds(half, 17)
    twin = Rig(policy)
    twin.experience.restore(half.experience.snapshot())
    twin.batches.restore(half.batches.snapshot())
    twin.worker.restore(half.worker.snapshot())
    twin.version, twin.inserted = half.version, half.inserted
    assert rounds(twin, 20) == rounds(whole, 20)
    assert twin.experience.accounting(0) == whole.experience.accounting(0)


def test_a_learner_without_feedback_does_not_stop_the_buffer() -> None:
    rig = Rig(ReplayRatioRule(ratio=0.1, min_fill=10, segment_steps=10))
    for _ in range(30):
        rig.act()
        rig.worker.poll()
        rig.train(answer=False)
    assert rig.version > 5


class LoggingStore(FakeStore):
    """Writes down the order in which it is told things."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def insert(self, segment: Segment) -> int:
        self.log.append("insert")
        return super().insert(segment)

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        self.log.append("sample")
        return super().sample(slot, rng)

    def feedback(self, values: Feedback) -> None:
        self.log.append("feedback")
        super().feedback(values)


@pytest.mark.parametrize("lag", [0, 1])
def test_what_the_store_is_told_does_not_depend_on_timing(lag: int) -> None:
    """Deterministic mode: priorities decide what is drawn, so they must arrive at the same count in every run."""
    logs = []
    for seed in range(5):
        rng, store = np.random.default_rng(seed), LoggingStore()
        rig = Rig(ReplayRatioRule(ratio=0.2, min_fill=20, segment_steps=5, lag=lag), store=store)
        moves = [rig.act, rig.worker.poll, rig.train]
        for _ in range(800):
            moves[int(rng.integers(3))]()
        logs.append(store.log)
    length = min(map(len, logs))
    assert length > 30
    assert all(log[:length] == logs[0][:length] for log in logs)
