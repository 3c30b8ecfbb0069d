from __future__ import annotations

import pytest

from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, Header, StreamSpec
from runnel.flow.staleness import Counters, LagRule, ReplayRatioRule, StalenessConfig, check_capacity


def spec(capacity: int) -> StreamSpec:
    return StreamSpec("s", {"x": FieldSpec(("B",))}, {"B": 1}, capacity=capacity)


# ----------------------------------------------------------------------------------------------------------- LagRule
def test_modes_are_lags() -> None:
    assert [StalenessConfig(m, max_lag=7).lag for m in ("sync", "one_step", "window")] == [0, 1, 7]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use mode sync for 0"):
        StalenessConfig("window", max_lag=0).check()
    StalenessConfig("sync", max_lag=0).check()


def test_sync_starts_a_batch_only_when_the_one_before_is_trained() -> None:
    p = LagRule(lag=0, batch=3, exact=True)
    assert [s for s in range(9) if p.admits_sequence(s, 0)] == [0, 1, 2]
    assert [s for s in range(9) if p.admits_sequence(s, 1)] == [0, 1, 2, 3, 4, 5]
    assert [p.version_for(s) for s in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_step_makes_the_next_batch_while_this_one_trains() -> None:
    p = LagRule(lag=1, batch=2, exact=True)
    assert [s for s in range(9) if p.admits_sequence(s, 0)] == [0, 1, 2, 3]
    assert [p.version_for(s) for s in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_what_must_make_a_segment_exists_when_it_is_admitted_and_is_never_stale_when_it_is_trained(lag: int) -> None:
    p = LagRule(lag=lag, batch=4, exact=True)
    for sequence in range(80):
        made_by, trained_at = p.version_for(sequence), sequence // 4
        first_admitted = next(v for v in range(100) if p.admits_sequence(sequence, v))
        assert first_admitted == made_by
        assert 0 <= trained_at - made_by <= lag
        assert not p.evict(Header(version_min=made_by), trained_at)


def test_a_window_admits_what_fits_into_its_batches() -> None:
    p = LagRule(lag=2, batch=4, exact=False)
    assert p.version_for(5) == -1
    assert p.admit(Counters(version=0, running=0, accepted=0)) == 12
    assert p.admit(Counters(version=0, running=3, accepted=8)) == 1
    assert p.admit(Counters(version=0, running=4, accepted=8)) == 0
    assert p.admit(Counters(version=0, running=9, accepted=8)) == 0
    assert p.admit(Counters(version=5, running=2, accepted=25)) == 8 * 4 - 27


def test_max_concurrent_bounds_what_is_running() -> None:
    p = LagRule(lag=2, batch=4, exact=False, max_concurrent=3)
    assert [p.admit(Counters(0, running, 0)) for running in range(5)] == [3, 2, 1, 0, 0]
    assert p.admit(Counters(0, 1, 11)) == 0
    exact = LagRule(lag=2, batch=4, exact=True, max_concurrent=3)
    assert [exact.admits_sequence(0, 0, running) for running in range(5)] == [True, True, True, False, False]


def test_eviction_and_abortion_are_beyond_the_lag() -> None:
    p = LagRule(lag=2, batch=1, exact=False)
    assert [p.evict(Header(version_min=3, version_max=9), v) for v in (3, 5, 6)] == [False, False, True]
    assert [p.should_abort(3, v) for v in (3, 5, 6)] == [False, False, True]


def test_spans_follow_each_other() -> None:
    """Versions 0-2 are a warm-up on one stream, versions 3-4 another's: neither starts more than it will be asked for."""
    warm = LagRule(lag=1, batch=2, exact=True, stop=3)
    then = LagRule(lag=1, batch=2, exact=True, start=3, stop=5)
    assert [sum(warm.admits_sequence(s, v) for s in range(20)) for v in range(6)] == [4, 6, 6, 6, 6, 6]
    assert [sum(then.admits_sequence(s, v) for s in range(20)) for v in range(6)] == [0, 0, 2, 4, 4, 4]
    assert [then.version_for(s) for s in range(4)] == [2, 2, 3, 3]
    window = LagRule(lag=1, batch=2, exact=False, start=3, stop=5)
    assert [window.admit(Counters(v, 0, 0)) for v in range(6)] == [0, 0, 2, 4, 4, 4]


def test_capacity_is_refused_with_the_number_that_would_do() -> None:
    p = LagRule(lag=2, batch=4, exact=False)
    with pytest.raises(ConfigError, match=r"s\.capacity = 11: .* needs 12 segments to fill a batch; use 12"):
        check_capacity(p, spec(11))
    check_capacity(p, spec(12))
    check_capacity(ReplayRatioRule(ratio=1, min_fill=1, segment_steps=1), spec(1))


# --------------------------------------------------------------------------------------------------------- ReplayRatioRule
def test_updates_are_paid_for_by_steps() -> None:
    p = ReplayRatioRule(ratio=0.25, min_fill=100, segment_steps=10)
    assert [p.updates(n) for n in (0, 99, 100, 103, 104, 107, 108)] == [0, 0, 1, 1, 2, 2, 3]
    many = ReplayRatioRule(ratio=4.0, min_fill=8, segment_steps=2)
    assert [many.updates(n) for n in (7, 8, 9, 10)] == [0, 1, 5, 9]
    tenth = ReplayRatioRule(ratio=0.1, min_fill=0, segment_steps=1)
    assert [tenth.updates(n) for n in range(0, 1000, 10)] == [1 + n // 10 for n in range(0, 1000, 10)]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize(("ratio", "segment_steps"), [(0.1, 10), (0.25, 10), (2.0, 4), (0.03, 7)])
def test_a_segment_starts_when_what_was_paid_before_it_is_trained(ratio: float, segment_steps: int, lag: int) -> None:
    p = ReplayRatioRule(ratio=ratio, min_fill=40, segment_steps=segment_steps, lag=lag)
    for sequence in range(60):
        paid = p.updates(sequence * segment_steps)
        assert p.version_for(sequence) == max(0, paid - lag)
        assert [v for v in range(paid + 2) if p.admits_sequence(sequence, v)] == list(range(max(0, paid - lag), paid + 2))


def test_no_segment_beyond_the_budget_starts() -> None:
    p = ReplayRatioRule(ratio=1.0, min_fill=1, segment_steps=1, num_segments=5)
    assert [p.admits_sequence(s, 10**6) for s in (4, 5)] == [True, False]


def test_an_open_ratio_counts_what_was_started() -> None:
    p = ReplayRatioRule(ratio=0.1, min_fill=20, segment_steps=10, exact=False)
    assert p.version_for(3) == -1
    assert [p.admit(Counters(0, running, 0)) for running in range(4)] == [1, 1, 0, 0]
    assert [p.admit(Counters(1, running, 2)) for running in range(3)] == [1, 0, 0]
    assert not p.evict(Header(version_min=0), 10**9)
