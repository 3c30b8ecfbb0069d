from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, DataError
from runnel.core.worker import num_progressed
from runnel.flow.staleness import LagRule
from runnel.llm.engines.native import NativeEngine
from runnel.llm.evaluation import TextEvaluation
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.policy import ChatPolicy
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.sampling.demos import DemoSampler
from runnel.llm.sampling.groups import demo_stream, rollout_stream, token_at
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import Example, TextTask, make_reverse
from runnel.llm.tokenize import CharTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeClient, FakeStream
from made_tokenizers import messages_in, written_by_assistant

TOKENIZER = CharTokenizer()
SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
N, MAX_TOKENS = 3, 5


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def model(seed=0):
    return build_model(SIZES, TOKENIZER.vocab_size, seed=seed)


def client_of(num_slots=8, versions=(0,)):
    client = FakeClient(NativeEngine(model(), num_slots=num_slots, max_length=32, eos_id=2))
    for version in versions:
        client.published[version] = ParamSet(version, model_params(model(version)))
    return client


def task_of(reward=lambda prompts, completions, **columns: [float(len(c)) for c in completions]):
    base = make_reverse(num_words=30, num_eval=5)
    train = [Example(e.prompt, e.answer, {"word": e.text}) for e in base.train]
    return TextTask("sized", train, base.eval, reward)


def sampler_of(task=None, **kwargs):
    return PromptSampler(task or task_of(), TOKENIZER, group_size=N, max_tokens=MAX_TOKENS, seed=1, **kwargs)


def stream_of(capacity=4, **kwargs):
    return FakeStream(rollout_stream(group_size=N, max_prompt=12, max_tokens=MAX_TOKENS, capacity=capacity), **kwargs)


def run(sampler, client, stream, steps):
    return [sampler.step({"policy": client}, {"rollouts": stream}) for _ in range(steps)]


def test_a_group_becomes_one_segment_with_the_engines_own_ids():
    sampler, client, stream = sampler_of(), client_of(), stream_of(limit=2)
    assert isinstance(sampler, Sampler)
    run(sampler, client, stream, MAX_TOKENS + 2)
    first = stream.take(2)[0]
    a, h = first.arrays, first.header
    prompt = TOKENIZER.render(
        [{"role": "user", "content": messages_in(a["tokens"][: a["prompt_length"][0]].tolist())[0]["content"]}]
    )
    assert (h.group_id, h.version_min, h.version_max, h.used["N"]) == (h.sample_id, 0, 0, int(a["row_length"].sum()))
    for row in range(N):
        start, length = int(a["row_start"][row]), int(a["row_length"][row])
        p = int(a["prompt_length"][row])
        assert a["tokens"][start : start + p].tolist() == prompt
        assert a["loss_mask"][start : start + length].tolist() == [False] * p + [True] * (length - p)
        assert a["policy_version"][start : start + length].tolist() == [-1] * p + [0] * (length - p)
        assert bool((a["logprob"][start + p : start + length] < 0).all())
        ended = int(a["tokens"][start + length - 1]) == TOKENIZER.eos_id
        assert (bool(a["terminated"][row]), bool(a["truncated"][row])) == (ended, not ended)
        text = TOKENIZER.decode(a["tokens"][start + p : start + length].tolist())
        assert float(a["rewards/reward"][row]) == len(text)
    assert (
        len({tuple(a["tokens"][int(s) : int(s + n)].tolist()) for s, n in zip(a["row_start"], a["row_length"], strict=True)})
        > 1
    )
    events = sampler.events()
    assert sum(e["kind"] == "episode" for e in events) == 2 * N
    assert sampler.events() == []


def test_back_pressure_is_said_in_words():
    sampler, client, stream = sampler_of(), client_of(), stream_of(capacity=1)
    run(sampler, client, stream, 20)
    assert len(stream.committed) == 1
    assert run(sampler, client, stream, 1) == [0]
    assert sampler.waits_for() == "a free segment of stream 'rollouts'"


def test_required_versions_are_kept_whole_and_in_order():
    sampler, client = sampler_of(), client_of(num_slots=2, versions=(0,))
    stream = stream_of(capacity=6, limit=6, required=lambda k: k // 2)
    run(sampler, client, stream, 40)
    assert len(stream.committed) == 2
    assert sampler.waits_for() == "parameters of version 1"
    client.published[2] = ParamSet(2, model_params(model(2)))
    assert run(sampler, client, stream, 5) == [0] * 5
    client.published[1] = ParamSet(1, model_params(model(1)))
    run(sampler, client, stream, 80)
    segments = stream.take(6)
    assert [(s.header.version_min, s.header.version_max) for s in segments] == [(k // 2,) * 2 for k in range(6)]
    assert client.syncs == [0, 1, 2]


def test_open_ended_groups_take_new_parameters_in_flight():
    sampler, client, stream = sampler_of(), client_of(), stream_of(capacity=1)
    run(sampler, client, stream, 2)
    client.published[1] = ParamSet(1, model_params(model(1)))
    run(sampler, client, stream, 10)
    header = stream.take(1)[0].header
    assert (header.version_min, header.version_max) == (0, 1)


def test_what_can_only_be_dropped_as_stale_is_aborted_and_its_slots_are_reused():
    """One engine slot: the rows of a group are made one after another, so some are done while others run."""
    rule = LagRule(lag=2, batch=1, exact=False)
    sampler, client, stream = sampler_of(too_old=rule.should_abort), client_of(num_slots=1), stream_of(capacity=1, limit=2)
    places = {"policy": client}, {"rollouts": stream}
    while not any(g.replies and g.tickets for g in sampler._groups):
        sampler.step(*places)
    stream.learner_version = 2
    sampler.step(*places)
    assert stream.cancelled == [], "two versions behind may still be trained"
    assert any(g.tickets for g in sampler._groups), "the group still runs"
    stream.learner_version = 3
    sampler.step(*places)
    assert stream.cancelled == ["aborted"]
    assert client.pending() == len(sampler._groups[0].tickets) == N, "the engine works for the next group alone"
    stream.learner_version = 0
    run(sampler, client, stream, 3 * (MAX_TOKENS + 2))
    assert [s.header.sequence for s in stream.committed] == [1]


def test_same_seed_same_segments_whatever_the_engine_size():
    found = []
    for slots in (2, 16):
        sampler, client, stream = sampler_of(), client_of(num_slots=slots), stream_of(limit=4, required=lambda k: 0)
        run(sampler, client, stream, 60)
        found.append([s.arrays["tokens"].tolist() for s in stream.take(4)])
    assert found[0] == found[1]


def test_reward_failures_are_cancelled_counted_and_not_zero():
    def picky(prompts, completions, word):
        if word[0][0] in "aeioubcdfg":
            raise RuntimeError("judge is out")
        return [0.0 for _ in completions]

    sampler, client, stream = sampler_of(task_of(picky)), client_of(), stream_of(capacity=20, limit=20)
    run(sampler, client, stream, 60)
    assert stream.cancelled
    assert set(stream.cancelled) == {"reward_failed: RuntimeError: judge is out"}
    assert len(stream.cancelled) + len(stream.committed) == 20
    failures = [e for e in sampler.events() if e["kind"] == "failure"]
    assert len(failures) == len(stream.cancelled)


def test_a_reward_that_is_tried_again_is_told_and_cancels_nothing(monkeypatch):
    monkeypatch.setattr("runnel.core.calls.pool.PAUSE_S", 0.0)
    failed = set()

    def shaky(prompts, completions, word):
        if word[0] not in failed:
            failed.add(word[0])
            raise ConnectionError("no route")
        return [float(len(c)) for c in completions]

    task = task_of({"reward": RewardComponent("reward", shaky, run="inline", retries=1)})
    sampler, client, stream = sampler_of(task), client_of(), stream_of(capacity=6, limit=6)
    run(sampler, client, stream, 40)
    assert (len(stream.committed), list(stream.cancelled), len(failed)) == (6, [], 6)
    told = [e for e in sampler.events() if e["kind"] == "call_retried"]
    assert [e["reason"] for e in told] == ["ConnectionError: no route"] * 6
    assert all(e["prompt"].startswith("(prompt ") for e in told)


def test_a_reward_that_always_fails_stops_the_run(monkeypatch):
    monkeypatch.setattr("runnel.llm.sampling.sampler.MAX_FAILURES", 3)
    sampler, client, stream = sampler_of(task_of(lambda p, c, word: [None] * len(c))), client_of(), stream_of()
    with pytest.raises(DataError, match=r"3 groups in a row failed.*no verdict"):
        run(sampler, client, stream, 60)


def test_snapshot_in_the_middle_goes_on_bit_for_bit():
    sampler, client, stream = sampler_of(), client_of(num_slots=4), stream_of(capacity=8, limit=8)
    run(sampler, client, stream, 4)
    other, twin, copy = sampler_of(), client_of(num_slots=4), stream_of(capacity=8, limit=8)
    for _ in range(len(stream.reserved) + len(stream.committed)):
        copy.reserve()
    twin.sync(0)
    twin.engine.restore(client.engine.snapshot())
    twin.next_ticket = client.next_ticket
    other.restore(sampler.snapshot(), {"rollouts": copy})
    before = len(stream.committed)
    run(sampler, client, stream, 40)
    run(other, twin, copy, 40)
    expected, found = stream.committed[before:], copy.committed
    assert len(found) == len(expected) > 0
    for a, b in zip(expected, found, strict=True):
        assert a.header == b.header
        assert all(torch.equal(a.arrays[k], b.arrays[k]) for k in a.arrays)
    assert sampler.events() == other.events()


def test_lost_requests_are_asked_again_with_the_same_answer():
    results = []
    for lose in (False, True):
        sampler, client, stream = sampler_of(), client_of(), stream_of(limit=3)
        run(sampler, client, stream, 2)
        if lose:
            client = client_of()
            client.sync()
        run(sampler, client, stream, 20)
        results.append([s.arrays["tokens"].tolist() for s in stream.take(3)])
        assert any("asked again" in e.get("text", "") for e in sampler.events()) == lose
    assert results[0] == results[1]


def test_demonstrations_need_no_inference():
    stream = FakeStream(demo_stream(rows=4, max_length=20, capacity=2))
    sampler = DemoSampler(task_of(), TOKENIZER, seed=0)
    assert [sampler.step({}, {"demos": stream}) for _ in range(3)] == [4, 4, 0]
    assert "free segment" in sampler.waits_for()
    a = stream.take(1)[0].arrays
    for start, length in zip(a["row_start"].tolist(), a["row_length"].tolist(), strict=True):
        tokens = a["tokens"][start : start + length].tolist()
        user, assistant = messages_in(tokens)
        assert assistant["content"] == user["content"][::-1]
        assert tokens[-1] == TOKENIZER.eos_id
        assert a["loss_mask"][start : start + length].tolist() == written_by_assistant(tokens)
    again = DemoSampler(task_of(), TOKENIZER, seed=5)
    again.restore(sampler.snapshot(), {})
    other = FakeStream(demo_stream(rows=4, max_length=20, capacity=3))
    again.step({}, {"demos": other})
    sampler.step({}, {"demos": stream})
    assert torch.equal(other.take(1)[0].arrays["tokens"], stream.committed[-1].arrays["tokens"])
    with pytest.raises(ConfigError, match="without an answer"):
        DemoSampler(TextTask("t", [Example("a")], [Example("b")], len), TOKENIZER, seed=0)


def test_evaluation_is_greedy_on_unseen_prompts():
    task, client = task_of(), client_of()
    client.sync()
    seen = []
    evaluation = TextEvaluation(task, TOKENIZER, num_prompts=4, max_tokens=MAX_TOKENS, seed=0, num_shown=2)
    result = evaluation.run({"policy": client}, round_index=0, progress=lambda done, total: seen.append((done, total)))
    assert result.returns == evaluation.run({"policy": client}, round_index=1).returns
    assert [s["prompt"] for s in result.samples] == [e.text for e in task.eval[:2]]
    assert result.returns[0] == len(result.samples[0]["completion"]) == result.samples[0]["reward"]
    assert seen[-1] == (4, 4)
    assert result.extra["failed"] == [0.0] * 4
    evaluation.close()


def test_chat_policy_speaks_and_is_deterministic():
    policy = ChatPolicy(model(), TOKENIZER, max_tokens=6)
    answer = policy.chat([{"role": "user", "content": "hello"}])
    assert answer == policy.complete("hello") == policy.act("hello")
    sampled = {policy.act("hello", deterministic=False) for _ in range(5)}
    assert len(sampled) > 1
    policy.reset()


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hello", r"chat takes a list of messages, not the text 'hello'; use complete\(text\)"),
        ([], "a conversation without messages"),
        ({"role": "user", "content": "x"}, "a conversation is a list of messages, not .* put a single message into a list"),
        (7, "a conversation is a list of messages, not '7'"),
        (["hello"], "message 0 of the conversation is 'hello'; a message is a dict with role and content"),
        ([{"role": "user"}], "message 0 of the conversation has content = 'None'; it needs a role and a content, both text"),
        ([{"content": "x"}], "message 0 of the conversation has role = 'None'"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": ["x"]}], r"message 1 .* has content = \"\['x'\]\""),
        ([{"role": "robot", "content": "x"}], "message role 'robot' is unknown; use one of system, developer, user"),
    ],
)
def test_what_is_no_conversation_is_refused_by_name(messages, reason):
    policy = ChatPolicy(model(), TOKENIZER, max_tokens=6)
    with pytest.raises(DataError, match=reason):
        policy.chat(messages)
    with pytest.raises(DataError, match="max_tokens = 0"):
        policy.complete("x", max_tokens=0)


def test_groups_without_signal_are_replaced_within_a_bound():
    def flat(prompts, completions, word):
        return [0.0 for _ in completions]

    sampler, client, stream = sampler_of(task_of(flat), max_refills=3), client_of(), stream_of(capacity=1)
    run(sampler, client, stream, 60)
    assert stream.cancelled == ["no_signal"] * 3
    assert len(stream.committed) == 1
    events = sampler.events()
    assert not [e for e in events if e["kind"] == "failure"]
    assert sum(e["kind"] == "episode" for e in events) == 4 * N


def test_finer_rewards_lie_at_their_tokens_and_what_does_not_apply_is_nan():
    def by_token(prompts, completions, completion_ids, **columns):
        return [[float(i) for i, _ in enumerate(ids)] for ids in completion_ids]

    def by_segment(prompts, completions, **columns):
        return [[[0, len(c), 2.0]] for c in completions]

    def first_only(prompts, completions, **columns):
        return [1.0 if i == 0 else None for i, _ in enumerate(completions)]

    parts = [
        RewardComponent("dense", by_token, level="token"),
        RewardComponent("span", by_segment, level="segment"),
        RewardComponent("turn", lambda p, c, **k: [[3.0] for _ in c], level="turn"),
        RewardComponent("first", first_only),
    ]
    task = task_of(parts)
    spec = rollout_stream(
        group_size=N, max_prompt=12, max_tokens=MAX_TOKENS, rewards=task.channels, token_rewards=task.token_channels,
        sampling_logprob=True,
    )  # fmt: skip
    sampler, client, stream = sampler_of(task), client_of(), FakeStream(spec, limit=1)
    run(sampler, client, stream, 20)
    a = stream.take(1)[0].arrays
    for row in range(N):
        start, p, end = int(a["row_start"][row]), int(a["prompt_length"][row]), int(a["row_start"][row] + a["row_length"][row])
        size = end - start - p
        assert a["rewards/dense"][start:end].tolist() == [0.0] * p + [float(i) for i in range(size)]
        span = a["rewards/span"][start:end]
        assert float(span.sum()) == 2.0
        assert float(span[:p].sum()) == 0.0
        assert a["rewards/turn"][start:end].tolist() == [0.0] * (p + size - 1) + [3.0]
        assert torch.equal(a["sampling_logprob"][start:end], a["logprob"][start:end])
    assert torch.isnan(a["rewards/first"]).tolist() == [False, True, True]


def test_a_span_ends_at_the_token_that_completes_it():
    text = "añb"
    tokens = TOKENIZER.encode(text)
    assert [token_at(n, tokens, TOKENIZER) for n in (0, 1, 2, 3)] == [0, 0, 1, 3]


def test_a_reward_that_hangs_does_not_hold_up_generation():
    release = threading.Event()

    def sticky(prompts, completions, word):
        if calls.pop():
            release.wait(30)
        return [float(len(c)) for c in completions]

    calls = [False] * 50 + [True]
    task = task_of([RewardComponent("reward", sticky, workers=2)])
    sampler, client, stream = sampler_of(task, blocking_rewards=False), client_of(), stream_of(capacity=6, limit=6)
    deadline = time.monotonic() + 60.0  # threads take their time on a loaded machine
    while len(stream.committed) < 5 and time.monotonic() < deadline:
        run(sampler, client, stream, 1)
    assert len(stream.committed) == 5
    before = num_progressed()
    assert sampler.step({"policy": client}, {"rollouts": stream}) == 0
    assert num_progressed() > before, "the reward has a deadline of its own: who waits for it does not stand still"
    release.set()
    while len(stream.committed) < 6 and time.monotonic() < deadline:
        run(sampler, client, stream, 1)
    assert len(stream.committed) == 6
    sampler.close()
