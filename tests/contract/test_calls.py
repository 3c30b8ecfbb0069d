"""What every executor of user code promises: values, reasons with lines, deadlines, retries, order, a clean end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.calls.coroutines import AsyncExecutor
from runnel.core.calls.pool import PAUSE_S, CallOutcome, CallPool, CallSpec, Run
from runnel.core.calls.processes import ProcessExecutor
from runnel.core.clock import ManualClock
from runnel.core.errors import ConfigError

FILE = Path(__file__).with_name("calls_for_tests.py")
RUNS: tuple[Run, ...] = ("inline", "thread", "process", "async")
LIMITED: tuple[Run, ...] = ("thread", "process", "async")
"""Ways to run that have a time limit."""


def spec_of(name: str, run: Run, **kwargs: Any) -> CallSpec:
    return CallSpec(f"tools.{name}", f"{FILE}:{name}{'_async' * (run == 'async')}", run=run, **kwargs)


@contextmanager
def pool_of(*specs: CallSpec, **kwargs: Any) -> Iterator[tuple[CallPool, ManualClock]]:
    clock = ManualClock()
    pool = CallPool(specs, clock=clock, **kwargs)
    try:
        yield pool, clock
    finally:
        pool.close()


def until(pool: CallPool, true: Callable[[], object], advance: Callable[[], object] = lambda: None) -> list[CallOutcome]:
    """Poll the pool until something is true or an outcome comes. A test that hangs fails after a minute."""
    found, end = list[CallOutcome](), time.monotonic() + 60
    while not found and not true():
        advance()
        found = pool.collect(0.01)
        assert time.monotonic() < end
    return found


def never() -> bool:
    return False


def tried_again(pool: CallPool, clock: ManualClock, num_tries: int) -> CallOutcome:
    """The outcome of the one call, which has `num_tries` tries: the clock is set forward over the pauses."""
    (found,) = until(pool, never, lambda: clock.advance(PAUSE_S / 10))
    assert len(found.retried) == num_tries - 1
    return replace(found, duration_s=0.0)  # of the last try, and of what the clock was set forward meanwhile


# ------------------------------------------------------------------------------------------------- values and failures
@pytest.mark.parametrize("run", RUNS)
def test_a_value_with_options_and_arguments(run: Run) -> None:
    with pool_of(spec_of("add", run, options={"bonus": 10, "two": 1})) as (pool, _):
        tickets = [pool.submit("tools.add", 1), pool.submit("tools.add", 1, two=2), pool.submit("tools.add", 1, bonus=0)]
        assert pool.pending() == 3
        assert pool.wait_all() == [CallOutcome({"sum": s}, ticket=t) for t, s in zip(tickets, (12, 13, 2), strict=True)]
        assert pool.pending() == 0


@pytest.mark.parametrize("run", RUNS)
def test_an_exception_is_a_reason_with_the_lines_that_raised(run: Run) -> None:
    with pool_of(spec_of("broken", run)) as (pool, _):
        pool.submit("tools.broken", "luck")
        (found,) = pool.wait_all()
    assert (found.value, found.reason, found.retried) == (None, "ValueError: no luck", ())
    assert "calls_for_tests.py" in found.lines
    assert found.lines.endswith(', in broken\n    raise ValueError(f"no {word}")')


@pytest.mark.parametrize("run", RUNS)
def test_a_call_with_wrong_arguments_is_told_with_the_place_of_the_function(run: Run) -> None:
    with pool_of(spec_of("broken", run)) as (pool, _):
        pool.submit("tools.broken", "luck", words=2)
        (found,) = pool.wait_all()
    assert "unexpected keyword argument 'words'" in found.reason


@pytest.mark.parametrize("run", ["inline", "thread", "process"])
def test_an_async_function_runs_everywhere(run: Run) -> None:
    with pool_of(CallSpec("add", f"{FILE}:add_async", run=run)) as (pool, _):
        pool.submit("add", 1, 2)
        assert [o.value for o in pool.wait_all()] == [{"sum": 3}]


def test_what_auto_chooses() -> None:
    async def own(x: int) -> int:
        return x

    name = f"{FILE}:add_async"
    chosen = [CallSpec("f", fn).resolved() for fn in (own, lambda x: x, name)]
    assert [(s.run, s.workers) for s in chosen] == [("async", 64), ("thread", 1), ("process", 1)]


# ------------------------------------------------------------------------------------------------- deadlines and retries
@pytest.mark.parametrize("run", LIMITED)
def test_a_call_that_takes_too_long_is_given_up_and_the_next_one_runs(run: Run, tmp_path: Path) -> None:
    one = spec_of("held", run, timeout_s=5.0, workers=1, limit_field="data.tool_timeout_s")
    with pool_of(one) as (pool, clock):
        pool.submit("tools.held", str(tmp_path), "first")
        pool.submit("tools.held", str(tmp_path), "second", times=0)
        assert until(pool, (tmp_path / "first.began").exists) == []
        clock.advance(4.9)
        assert pool.collect() == []
        clock.advance(0.2)
        late, fine = pool.wait_all()
        assert (late.reason, late.ticket) == ("timeout after 5 s (data.tool_timeout_s)", 0)
        assert (fine.value, fine.reason) == ("second", "")
        (tmp_path / "over").touch()
    named = CallSpec("tools.f", lambda: threading.Event().wait(30), timeout_s=0.01)
    pool = CallPool([named])
    pool.submit("tools.f")
    assert pool.wait_all()[0].reason == "timeout after 0.01 s (tools.f.timeout_s)"
    pool.close()


@pytest.mark.parametrize("run", RUNS)
def test_a_try_that_raised_is_made_again_after_a_pause(run: Run, tmp_path: Path) -> None:
    with pool_of(spec_of("late", run, retries=2)) as (pool, clock):
        pool.submit("tools.late", str(tmp_path), 1)
        until(pool, (tmp_path / "tries").exists)
        for _ in range(5):
            assert pool.collect(0.01) == []
        assert (tmp_path / "tries").read_text() == ".", "there is a pause, by the pool's clock"
        assert tried_again(pool, clock, 2) == CallOutcome(2, ticket=0, retried=("ValueError: not yet: 1",))


@pytest.mark.parametrize("run", RUNS)
def test_retries_end_with_the_last_reason(run: Run, tmp_path: Path) -> None:
    with pool_of(spec_of("late", run, retries=2)) as (pool, clock):
        pool.submit("tools.late", str(tmp_path), 99)
        found = tried_again(pool, clock, 3)
    assert found.reason == "ValueError: not yet: 3 (after 3 tries)"
    assert found.retried == ("ValueError: not yet: 1", "ValueError: not yet: 2")
    assert "raise ValueError" in found.lines
    assert (tmp_path / "tries").read_text() == "..."


@pytest.mark.parametrize("run", LIMITED)
def test_a_try_that_took_too_long_is_made_again(run: Run, tmp_path: Path) -> None:
    with pool_of(spec_of("held", run, timeout_s=1000.0, retries=1)) as (pool, clock):
        pool.submit("tools.held", str(tmp_path), "it")
        until(pool, (tmp_path / "it.began").exists)
        clock.advance(1000.0)
        found = tried_again(pool, clock, 2)
        assert (found.value, found.reason, found.retried) == ("it", "", ("timeout after 1000 s (tools.held.timeout_s)",))
        (tmp_path / "over").touch()


@pytest.mark.parametrize("run", RUNS)
def test_an_error_that_says_that_the_input_is_wrong_is_not_tried_again(run: Run, tmp_path: Path) -> None:
    with pool_of(spec_of("refused", run, retries=5)) as (pool, _):
        pool.submit("tools.refused", str(tmp_path))
        (found,) = pool.wait_all()
    assert (found.reason, found.retried) == ("DataError: that is no number", ())
    assert (tmp_path / "tries").read_text() == "."


@settings(max_examples=60, deadline=None)
@given(
    failures=st.lists(st.integers(0, 4), max_size=12),
    retries=st.integers(0, 3),
    ordered=st.booleans(),
    steps=st.lists(st.floats(0.0, 3.0), max_size=8),
)
def test_every_call_has_one_outcome_in_order_and_as_many_tries_as_it_may(
    failures: list[int], retries: int, ordered: bool, steps: list[float]
) -> None:
    tries = [0] * len(failures)

    def flaky(i: int) -> int:
        tries[i] += 1
        if tries[i] <= failures[i]:
            raise ValueError(str(i))
        return i

    with pool_of(CallSpec("f", flaky, run="inline", retries=retries), ordered=ordered) as (pool, clock):
        tickets = [pool.submit("f", i) for i in range(len(failures))]
        found: list[CallOutcome] = []
        for step in [*steps, *[10.0] * 5]:
            clock.advance(step)
            found += pool.collect()
        assert pool.pending() == 0
    assert tries == [min(n, retries) + 1 for n in failures]
    assert (found if ordered else sorted(found, key=lambda o: o.ticket)) == sorted(found, key=lambda o: o.ticket)
    by_ticket = {o.ticket: o for o in found}
    assert list(by_ticket) == [o.ticket for o in found], "one outcome each"
    assert sorted(by_ticket) == tickets
    for i, ticket in enumerate(tickets):
        assert len(by_ticket[ticket].retried) == min(failures[i], retries)
        assert (by_ticket[ticket].value == i) == (failures[i] <= retries) == (by_ticket[ticket].reason == "")


# ---------------------------------------------------------------------------------------------------- order and the end
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("run", LIMITED)
def test_outcomes_in_order_or_as_they_come(run: Run, ordered: bool, tmp_path: Path) -> None:
    with pool_of(spec_of("held", run, workers=2), ordered=ordered) as (pool, _):
        pool.submit("tools.held", str(tmp_path), "first")
        until(pool, (tmp_path / "first.began").exists)
        pool.submit("tools.held", str(tmp_path), "second", times=0)
        if ordered:
            assert until(pool, (tmp_path / "second.began").exists) == []
            assert pool.collect(0.01) == []
        else:
            assert [o.value for o in until(pool, never)] == ["second"]
        (tmp_path / "over").touch()
        assert [o.value for o in pool.wait_all()] == (["first", "second"] if ordered else ["first"])


def test_a_slow_function_does_not_delay_another(tmp_path: Path) -> None:
    with pool_of(spec_of("held", "thread"), spec_of("add", "inline"), ordered=False) as (pool, _):
        pool.submit("tools.held", str(tmp_path), "first")
        pool.submit("tools.add", 1)
        assert [o.value for o in pool.collect()] == [{"sum": 1}]
        (tmp_path / "over").touch()
        assert [o.value for o in pool.wait_all()] == ["first"]


@pytest.mark.parametrize("run", LIMITED)
def test_a_pool_that_is_closed_holds_nothing(run: Run, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pool_of(spec_of("held", run, workers=2)) as (pool, _):
        pool.submit("tools.held", str(tmp_path), "idle", times=0)
        assert pool.wait_all()[0].value == "idle"
        pool.submit("tools.held", str(tmp_path), "busy")
        until(pool, (tmp_path / "busy.began").exists)
        executor = pool._executors["tools.held"]
        pids = executor.pids if isinstance(executor, ProcessExecutor) else []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    left = set(threading.enumerate()) - before
    assert all(t.daemon for t in left), "a thread that hangs does not hold up the end of the process"
    assert not left or run == "thread"
    (tmp_path / "over").touch()
    for thread in left:
        thread.join(30)
        assert not thread.is_alive(), "an abandoned thread ends with its call"


def test_threads_are_used_again() -> None:
    with pool_of(CallSpec("f", threading.get_ident, run="thread")) as (pool, _):
        for _ in range(3):
            pool.submit("f")
        assert len({o.value for o in pool.wait_all()}) == 1


# -------------------------------------------------------------------------------------------------------- processes
def test_a_process_that_dies_is_a_reason_and_the_next_call_gets_another() -> None:
    with pool_of(spec_of("die", "process", retries=1), spec_of("pid", "process")) as (pool, clock):
        pool.submit("tools.die")
        found = tried_again(pool, clock, 2)
        assert found.reason == "its worker process exited with code 4 (after 2 tries)"
        assert found.retried == ("its worker process exited with code 4",)
        pool.start()
        pool.start()
        (pid,) = pool._executors["tools.pid"].pids  # type: ignore[attr-defined]
        pool.submit("tools.pid")
        pool.submit("tools.pid")
        assert [o.value for o in pool.wait_all()] == [pid, pid]


def test_what_cannot_cross_to_a_process_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pool_of(spec_of("add", "process"), spec_of("odd", "process"), CallSpec("s", f"{FILE}:strange")) as (pool, _):
        pool.submit("tools.add", {"an", "object"})
        assert pool.wait_all()[0].reason.endswith(
            "arguments must be plain data (numbers, strings, lists, dicts) to reach a worker process; or use run='thread'"
        )
        pool.submit("tools.add", 1)
        assert pool.wait_all()[0].value == {"sum": 1}
        for kind in ("array", "generator", "set", "number"):
            pool.submit("tools.odd", kind)
        assert [o.value for o in pool.wait_all()] == [[0, 1, 2], [0, 1, 2], [1], 0.5]
        pool.submit("s")
        assert pool.wait_all()[0].reason == "TypeError: object cannot be written as JSON"
    with pytest.raises(
        ConfigError, match=r"f\.options.*give plain data \(numbers, strings, lists, dicts\), or use run='thread'"
    ):
        CallSpec("f", f"{FILE}:add", options={"bonus": object()}).resolved()
    with pytest.raises(ConfigError, match="cannot cross to a worker process; put it in a file, or use run='thread'"):
        CallSpec("f", lambda: 0, run="process").resolved()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": "fork"}, r"f\.run = 'fork': use one of auto, inline, thread, process, async"),
        ({"retries": -1}, r"f\.retries = -1: use 0 or more"),
        ({"workers": -1}, r"f\.workers = -1: use 0 or more"),
        ({"timeout_s": 0.0}, r"f\.timeout_s = 0.0: use more than 0 seconds"),
        ({"timeout_s": float("nan")}, r"f\.timeout_s = nan"),
        ({"run": "async"}, r"f\.run = 'async': the function is no `async def`; make it one, or use run='thread'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CallSpec("f", print, **settings).resolved()
    with pytest.raises(ConfigError, match="a name of its own"):
        CallPool([CallSpec("f", print), CallSpec("f", len)])


# -------------------------------------------------------------------------------------------------------- coroutines
def test_fifty_coroutines_run_at_once() -> None:
    """None of them ends before all of them run."""
    running, together = 0, asyncio.Event()

    async def meet() -> int:
        nonlocal running
        running += 1
        if running == 50:
            together.set()
        await together.wait()
        return threading.get_ident()

    with pool_of(CallSpec("meet", meet)) as (pool, _):
        for _ in range(50):
            pool.submit("meet")
        assert len({o.value for o in pool.wait_all()}) == 1, "in one thread"


def test_a_coroutine_whose_time_is_over_is_cancelled() -> None:
    began, stopped = threading.Event(), threading.Event()

    async def endless() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pool_of(CallSpec("f", endless, timeout_s=1.0)) as (pool, clock):
        pool.submit("f")
        assert began.wait(30)
        clock.advance(1.0)
        assert pool.wait_all()[0].reason == "timeout after 1 s (f.timeout_s)"
        assert stopped.wait(30)
        began.clear()
        stopped.clear()
        pool.submit("f")
        assert began.wait(30)
    assert stopped.is_set(), "closing a pool ends its coroutines"


@pytest.mark.parametrize("run", ["inline", "thread", "async"])
def test_a_coroutine_that_cancels_itself_has_failed(run: Run) -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pool_of(CallSpec("f", gives_up, run=run)) as (pool, _):
        pool.submit("f")
        assert pool.wait_all()[0].reason == "CancelledError"


def test_a_coroutine_that_blocks_its_loop_does_not_block_later_calls() -> None:
    began, over = threading.Event(), threading.Event()

    async def blocks(blocking: bool) -> bool:
        if blocking:
            began.set()
            over.wait(60)
        return blocking

    with pool_of(CallSpec("f", blocks, timeout_s=1.0)) as (pool, clock):
        pool.submit("f", True)
        assert began.wait(30)
        clock.advance(1.0)
        assert pool.wait_all()[0].reason.startswith("timeout")
        for _ in range(3):
            pool.submit("f", False)
        assert [o.value for o in pool.wait_all()] == [False] * 3
        executor = pool._executors["f"]
        assert isinstance(executor, AsyncExecutor)
        assert len(executor._loops) == 2
        over.set()
