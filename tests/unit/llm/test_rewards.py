from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch

from runnel.core.clock import ManualClock
from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.components import RewardComponent, as_components
from runnel.llm.rewards.judging import RewardJob, RewardPool, joined, judge, scalar
from runnel.testing.rewards import check_reward


def job(key, *completions, **columns):
    return RewardJob(key, ["p"] * len(completions), list(completions), columns)


def part(fn, **kwargs):
    return RewardComponent("reward", fn, **kwargs)


def lengths(prompts, completions, **columns):
    return [float(len(c)) for c in completions]


@pytest.mark.parametrize(("run", "workers"), [("inline", 1), ("thread", 1), ("thread", 3)])
def test_verdicts_come_in_submission_order(run, workers):
    pool = RewardPool([part(lengths, run=run, workers=workers)])
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

    component = RewardComponent("graded", graded, channels={"exact": 1.0, "short": 0.5})
    verdict = judge(graded, component, job(1, "a", "b", target=["a", "a"]))
    assert verdict.rewards == {"exact": [1.0, 0.0], "short": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([1.0], "1 rewards for 2 completions"),
        ([1.0, float("nan")], "reward is nan"),
        ([1.0, {"other": 1.0}], "channels"),
        ([1.0, "good"], "reward is 'good'"),
        (None, "TypeError"),
    ],
)
def test_nonsense_is_a_failure_with_its_reason(answer, reason):
    verdict = judge(lambda p, c, **k: answer, part(len), job(7, "a", "b"))
    assert verdict.rewards is None
    assert reason in verdict.failure


def test_an_exception_is_a_failure_with_its_reason():
    def broken(prompts, completions):
        raise ValueError("no such unit test")

    assert judge(broken, part(broken), job(0, "a")).failure == "ValueError: no such unit test"


def test_a_job_that_hangs_is_given_up_and_the_next_one_runs():
    release, began = threading.Event(), threading.Event()
    clock = ManualClock()

    def sticky(prompts, completions):
        if completions[0] == "hang":
            began.set()
            release.wait(30)
        return [1.0]

    pool = RewardPool([part(sticky)], timeout_s=5.0, clock=clock)
    pool.submit(job(0, "hang"))
    pool.submit(job(1, "fine"))
    assert began.wait(10)
    assert pool.collect(block=False) == []
    clock.advance(6.0)
    verdicts = pool.collect(block=True)
    assert [v.key for v in verdicts] == [0, 1]
    assert verdicts[0].failure == "timeout after 5 s (data.reward_timeout_s)"
    assert verdicts[1].rewards == {"reward": [1.0]}
    release.set()
    pool.close()


def test_check_reward():
    check_reward(lengths)
    with pytest.raises(DataError, match="1 rewards for 7 completions; return one verdict for each"):
        check_reward(lambda p, c: [1.0])
    calls = iter(range(100))
    with pytest.raises(DataError, match="the same when asked again"):
        check_reward(lambda p, c: [float(next(calls)) for _ in c])
    with pytest.raises(DataError, match="is nan"):
        check_reward(lambda p, c: [float("nan") for _ in c])
    with pytest.raises(DataError, match="must not change its arguments"):
        check_reward(lambda p, c: [0.0 for _ in range(len(c))] if c.append("x") else [0.0] * (len(c) - 1))
    check_reward("exact", columns={"answer": ["a", None]})
    check_reward(part(lambda p, c, completion_ids: [[0.0] * len(i) for i in completion_ids], level="token"))


def test_code_under_judgement_that_exits_is_a_failure_and_not_a_timeout():
    def runs_code(prompts, completions, **columns):
        raise SystemExit(3)

    pool = RewardPool([part(runs_code)], timeout_s=1000.0)
    pool.submit(job(1, "a"))
    (verdict,) = pool.collect(block=True)
    assert verdict.rewards is None
    assert verdict.failure == "SystemExit: 3"
    pool.close()


def test_none_leaves_a_component_out_and_a_completion_without_any_is_a_failure():
    def sometimes(prompts, completions):
        return [None if c == "skip" else 1.0 for c in completions]

    one, two = RewardComponent("a", sometimes), RewardComponent("b", lengths)
    pool = RewardPool([one, two])
    pool.submit(job(0, "skip", "go"))
    (verdict,) = pool.collect(block=True)
    assert verdict.rewards == {"a": [None, 1.0], "b": [4.0, 2.0]}
    pool.close()
    alone = RewardPool([one])
    alone.submit(job(0, "skip", "go"))
    assert alone.collect(block=True)[0].failure == "no verdict: no component applies (None)"
    alone.close()


def test_the_component_that_failed_is_named():
    def broken(prompts, completions):
        raise ValueError("out")

    parts = [RewardComponent("good", lengths), RewardComponent("bad", broken)]
    verdict = joined(job(3, "a"), {c.name: judge(c.fn, c, job(3, "a")) for c in parts})
    assert (verdict.key, verdict.rewards, verdict.failure) == (3, None, "bad: ValueError: out")


def test_unordered_verdicts_pass_one_that_hangs():
    release = threading.Event()

    def sticky(prompts, completions):
        if completions[0] == "hang":
            release.wait(30)
        return [1.0]

    for ordered in (True, False):
        pool = RewardPool([part(sticky, workers=2)], ordered=ordered, clock=ManualClock())
        release.clear()
        pool.submit(job(0, "hang"))
        pool.submit(job(1, "fine"))
        found = []
        for _ in range(100):
            found += [v.key for v in pool.collect(block=False)]
            if found:
                break
            threading.Event().wait(0.005 if not ordered else 0.001)
        assert found == ([] if ordered else [1])
        release.set()
        found += [v.key for v in pool.collect(block=True)]
        assert found == ([0, 1] if ordered else [1, 0])
        pool.close()


def test_finer_levels_are_checked_against_the_completion():
    tokens = RewardJob(0, ["p"], ["abc"], {}, [[1, 2]])
    seen = {}

    def by_token(prompts, completions, completion_ids):
        seen["ids"] = completion_ids
        return [[0.5] * len(ids) for ids in completion_ids]

    assert judge(by_token, part(by_token, level="token"), tokens).rewards == {"reward": [[0.5, 0.5]]}
    assert seen["ids"] == [[1, 2]]
    cases = [
        ("token", [0.5], "1 numbers for 2 tokens"),
        ("token", 0.5, "instead of a list"),
        ("token", [0.5, float("inf")], "of a token is inf"),
        ("turn", [1.0, 2.0], "2 numbers for 1 turns"),
        ("segment", [[0, 9, 1.0]], "span 0..9 in a completion of 3 characters"),
        ("segment", [[0, 1]], "instead of [start, end, number]"),
        ("segment", [[0, 1, float("nan")]], "of a segment is nan"),
    ]
    for level, answer, reason in cases:
        outcome = judge(lambda p, c, completion_ids, a=answer: [a], part(len, level=level), tokens)
        assert outcome.rewards is None
        assert reason in outcome.failure
    good = judge(lambda p, c, completion_ids: [[[0, 2, 1.0], [2, 3, -0.5]]], part(len, level="segment"), tokens)
    assert scalar(good.rewards["reward"][0]) == 0.5


def test_components_from_what_a_task_was_given():
    one = as_components(lengths, ("a", "b"), (1.0, 0.5))
    assert [c.weights for c in one] == [{"a": 1.0, "b": 0.5}]
    several = as_components({"exact": "exact", "brief": RewardComponent("x", lengths, 0.1)})
    assert [(c.name, c.weight, c.resolved().run) for c in several] == [("exact", 1.0, "inline"), ("brief", 0.1, "thread")]
    with pytest.raises(ConfigError, match="each a name of its own"):
        as_components([part(lengths), part(lengths)])
    with pytest.raises(ConfigError, match=r"reward\.a.*unknown; use one of math"):
        RewardComponent("a", "nonsense")
    with pytest.raises(ConfigError, match="cannot cross to a worker process"):
        RewardComponent("a", lambda p, c: [], run="process").resolved()


def test_options_are_constants_that_a_column_replaces():
    def graded(prompts, completions, bonus, target=None):
        return [bonus if isinstance(bonus, float) else bonus[0]]

    component = part(graded, options={"bonus": 2.0})
    assert judge(component.function(), component, job(0, "a")).rewards == {"reward": [2.0]}
    assert judge(component.function(), component, job(0, "a", bonus=[3.0])).rewards == {"reward": [3.0]}


def _text(prompts, completions, **columns):
    return ["1"] * len(completions)


def _arrays(prompts, completions, **columns):
    return [np.ones(1)] * len(completions)


def _too_few(prompts, completions, **columns):
    return [1.0]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (_text, r"^reward 'reward': .*test_rewards.*:_text: reward is '1' \(str\); expected one finite number"),
        (_arrays, r":_arrays: reward is array\(\[1\.\]\) \(ndarray of shape \(1,\)\)"),
        (_too_few, r":_too_few: 1 rewards for 2 completions"),
    ],
)
@pytest.mark.parametrize("run", ["inline", "thread"])
def test_what_is_no_reward_ends_the_run_at_its_first_use_and_names_the_function(fn, message, run):
    pool = RewardPool([RewardComponent("reward", fn, run=run)])
    pool.submit(RewardJob(0, ["a", "b"], ["c", "d"], {}))
    with pytest.raises(DataError, match=message):
        pool.collect(block=True)
    pool.close()


def test_a_function_that_has_given_rewards_before_is_counted_when_it_fails():
    answers = iter([[1.0], ["1"], [float("nan")], [torch.tensor(0.5)]])
    pool = RewardPool([RewardComponent("reward", lambda p, c, **_: next(answers), run="inline")])
    for key in range(4):
        pool.submit(RewardJob(key, ["a"], ["b"], {}))
    fine, text, nan, tensor = pool.collect(block=True)
    assert fine.rewards == {"reward": [1.0]}
    assert "reward is '1' (str)" in text.failure
    assert nan.failure == "reward is nan"
    assert tensor.rewards == {"reward": [0.5]}
