from __future__ import annotations

import asyncio
import threading

import pytest

from runnel.core.clock import ManualClock
from runnel.llm.rewards import RewardJob, RewardPool, judge
from runnel.testing.rewards import check_reward


def job(key, *completions, **columns):
    return RewardJob(key, ["p"] * len(completions), list(completions), columns)


def lengths(prompts, completions, **columns):
    return [float(len(c)) for c in completions]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_verdicts_come_in_submission_order(num_threads):
    pool = RewardPool(lengths, num_threads=num_threads)
    for key in range(20):
        pool.submit(job(key, "x" * key, "y"))
    verdicts = pool.collect(block=True)
    assert [v.key for v in verdicts] == list(range(20))
    assert [v.rewards for v in verdicts] == [{"reward": [float(k), 1.0]} for k in range(20)]
    assert pool.pending() == 0
    pool.close()


def test_async_functions_and_columns_and_channels():
    async def graded(prompts, completions, target):
        await asyncio.sleep(0)
        return [{"exact": float(c == t), "short": 1.0} for c, t in zip(completions, target, strict=True)]

    verdict = judge(graded, job(1, "a", "b", target=["a", "a"]), ("exact", "short"))
    assert verdict.rewards == {"exact": [1.0, 0.0], "short": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([1.0], "1 rewards for 2 completions"),
        ([1.0, float("nan")], "reward is nan"),
        ([1.0, None], "no verdict"),
        ([1.0, {"other": 1.0}], "channels"),
        ([1.0, "good"], "reward is 'good'"),
        (None, "TypeError"),
    ],
)
def test_nonsense_is_a_failure_with_its_reason(answer, reason):
    verdict = judge(lambda p, c, **k: answer, job(7, "a", "b"), ("reward",))
    assert verdict.key == 7
    assert verdict.rewards is None
    assert reason in verdict.failure


def test_an_exception_is_a_failure_with_its_reason():
    def broken(prompts, completions):
        raise ValueError("no such unit test")

    assert judge(broken, job(0, "a"), ("reward",)).failure == "ValueError: no such unit test"


def test_a_job_that_hangs_is_given_up_and_the_next_one_runs():
    release, began = threading.Event(), threading.Event()
    clock = ManualClock()

    def sticky(prompts, completions):
        if completions[0] == "hang":
            began.set()
            release.wait(30)
        return [1.0]

    pool = RewardPool(sticky, timeout_s=5.0, num_threads=1, clock=clock)
    pool.submit(job(0, "hang"))
    pool.submit(job(1, "fine"))
    assert began.wait(10)
    assert pool.collect(block=False) == []
    clock.advance(6.0)
    verdicts = pool.collect(block=True)
    assert [v.key for v in verdicts] == [0, 1]
    assert verdicts[0].failure == "timeout after 5 s"
    assert verdicts[1].rewards == {"reward": [1.0]}
    release.set()
    pool.close()


def test_check_reward():
    check_reward(lengths)
    with pytest.raises(AssertionError, match="return one for each"):
        check_reward(lambda p, c: [1.0])
    calls = iter(range(100))
    with pytest.raises(AssertionError, match="the same when asked again"):
        check_reward(lambda p, c: [float(next(calls)) for _ in c])
    with pytest.raises(AssertionError, match="is nan"):
        check_reward(lambda p, c: [float("nan") for _ in c])


def test_code_under_judgement_that_exits_is_a_failure_and_not_a_timeout():
    def runs_code(prompts, completions, **columns):
        raise SystemExit(3)

    pool = RewardPool(runs_code, timeout_s=1000.0)
    pool.submit(job(1, "a"))
    (verdict,) = pool.collect(block=True)
    assert verdict.rewards is None
    assert verdict.failure == "SystemExit: 3"
    pool.close()
