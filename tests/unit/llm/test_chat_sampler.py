"""Conversations as segments: what an actor plays is what the learner trains on, token for token."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from runnel.core.contracts.chat import Turn
from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import DataError
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.sampler import ChatSampler
from runnel.llm.chat.task import make_chat_task
from runnel.llm.engines.native import NativeEngine
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tokenize import CharTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeClient, FakeStream

TOKENIZER = CharTokenizer()
SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=512)
N, MAX_TOKENS, CONTEXT, TURNS = 3, 6, 400, 4


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Echo:
    """Says back what it heard, pays its length by turn, and ends after three messages."""

    lane = "inline"

    def __init__(self):
        self.heard = []

    def reset(self, task, *, seed):
        return Turn(f"start {seed % 10}", key="start")

    def step(self, message):
        self.heard.append(message["content"])
        over = len(self.heard) == 3
        return Turn(f"you said {message['content']}", float(len(message["content"])), terminated=over)

    def get_state(self):
        return {"heard": list(self.heard)}

    def set_state(self, state):
        self.heard = list(state["heard"])


class NoState(Echo):
    get_state = set_state = None  # type: ignore[assignment]


def model(seed=0):
    return build_model(SIZES, TOKENIZER.vocab_size, seed=seed)


def client_of(num_slots=8, versions=(0,)):
    client = FakeClient(NativeEngine(model(), num_slots=num_slots, max_length=CONTEXT, eos_id=2))
    for version in versions:
        client.published[version] = ParamSet(version, model_params(model(version)))
    return client


def sampler_of(env=Echo, *, max_turns=TURNS, blocking=True, tools=(), **turns):
    task = make_chat_task(env, talk=TalkConfig(**turns), tools=tools)
    return ChatSampler(
        task,
        TOKENIZER,
        max_turns=max_turns,
        max_context=CONTEXT,
        blocking_calls=blocking,
        group_size=N,
        max_tokens=MAX_TOKENS,
        seed=1,
    )


def stream_of(capacity=4, rows=1, rewards=("reward",), **kwargs):
    spec = rollout_stream(
        group_size=N,
        max_prompt=CONTEXT * rows,
        max_tokens=0,
        rewards=rewards,
        turn_rewards=rewards,
        max_turns=TURNS,
        max_rows=rows,
        capacity=capacity,
    )
    return FakeStream(spec, **kwargs)


def run(sampler, client, stream, steps=400):
    for _ in range(steps):
        sampler.step({"policy": client}, {"rollouts": stream})


def test_a_group_of_conversations_becomes_one_segment_of_the_engines_own_tokens():
    sampler, client, stream = sampler_of(), client_of(), stream_of(limit=2)
    assert isinstance(sampler, Sampler)
    run(sampler, client, stream, 80)
    first = stream.take(2)[0]
    a, h = first.arrays, first.header
    assert (h.used["R"], h.used["U"]) == (N, 3 * N)
    assert a["row_owner"].tolist() == [0, 1, 2]
    for turn in range(3 * N):
        row = int(a["turn_row"][turn])
        start = int(a["row_start"][row])
        begin, end = start + int(a["turn_start"][turn]), start + int(a["turn_end"][turn])
        assert bool(a["loss_mask"][begin:end].all())
        assert not bool(a["loss_mask"][end : start + int(a["row_length"][row])][:1].any())
        text = TOKENIZER.decode(a["tokens"][begin:end].tolist())
        assert float(a["rewards/reward"][turn]) == len(text)
        if turn % 3 < 2:  # what the environment said stands behind it, with an end that was not sampled where it had none
            after = TOKENIZER.decode(a["tokens"][end : start + int(a["row_length"][row])].tolist())
            assert after.startswith(f"you said {text}")
    assert int(a["loss_mask"].sum()) == int((a["turn_end"] - a["turn_start"]).sum()) == int((a["policy_version"] == 0).sum())
    assert bool(a["terminated"].all())
    assert len(set(a["turn_key"][::3].tolist())) == 1, "all conversations of a group begin in one state"
    events = sampler.events()
    assert sum(e["kind"] == "episode" for e in events) == 2 * N


def resumed(make, steps, more=120, capacity=6):
    """The segments of a run that goes on from a snapshot after `steps`, and of one that was never stopped."""
    sampler, client, stream = make(), client_of(num_slots=4), stream_of(capacity=capacity, limit=capacity)
    run(sampler, client, stream, steps)
    other, twin, copy = make(), client_of(num_slots=4), stream_of(capacity=capacity, limit=capacity)
    for _ in range(len(stream.reserved) + len(stream.committed)):
        copy.reserve()
    twin.sync(0)
    twin.engine.restore(client.engine.snapshot())
    twin.next_ticket = client.next_ticket
    other.restore(sampler.snapshot(), {"rollouts": copy})
    before = len(stream.committed)
    run(sampler, client, stream, more)
    run(other, twin, copy, more)
    return stream.committed[before:], copy.committed, other.events()


def assert_equal(expected, found, *, times=False):
    assert len(found) == len(expected) > 0
    for a, b in zip(expected, found, strict=True):
        assert a.header == b.header
        names = [k for k in a.arrays if times or k != "duration_s"]
        assert all(torch.equal(a.arrays[k], b.arrays[k]) for k in names)


@pytest.mark.parametrize("steps", [1, 2, 7, 13, 19])
@pytest.mark.parametrize("env", [Echo, NoState])
def test_a_snapshot_in_the_middle_of_conversations_goes_on_bit_for_bit(env, steps):
    began = time.perf_counter()
    expected, found, events = resumed(lambda: sampler_of(env), steps)
    assert_equal(expected, found)
    took = time.perf_counter() - began
    assert all(e["engine_s"] <= e["turns"] * took for e in events if e["kind"] == "episode"), "the time of this play alone"


def env_whose_state(get):
    """`Echo`, with another way to be saved."""

    class Odd(Echo):
        def get_state(self):
            return get(self)

    return Odd


class Awaited(Echo):
    """All that it does must be awaited."""

    lane = "async"

    async def step(self, message):
        return super().step(message)

    async def get_state(self):
        return super().get_state()

    async def set_state(self, state):
        super().set_state(state)


def test_a_state_that_must_be_awaited_is_put_back():
    expected, found, events = resumed(lambda: sampler_of(Awaited), 7)
    assert_equal(expected, found)
    assert not [e for e in events if e["kind"] == "call_retried"]


def no_state(env):
    raise OSError("no state")


@pytest.mark.parametrize(
    ("get", "words"),
    [
        (no_state, "OSError: no state"),
        (lambda env: None, "get_state gave None; give a dict of plain data"),
        (lambda env: {"heard": {*env.heard}}, "a checkpoint holds data only; set is not"),
        (lambda env: time.sleep(3600), "timeout after 0.2 s (talk.step_timeout_s)"),
    ],
)
def test_a_state_that_cannot_be_saved_is_told_once_and_the_conversation_played_again(get, words):
    env = env_whose_state(get)
    env.lane = "thread"
    made: list[ChatSampler] = []

    def make():
        made.append(sampler_of(env, step_timeout_s=0.2 if words.startswith("timeout") else 30.0))
        return made[-1]

    expected, found, events = resumed(make, 7, capacity=2)
    assert_equal(expected, found)
    assert not [e for e in events if e["kind"] == "call_retried"], "all are brought back"
    told = [e["text"] for e in made[0].events() if e.get("level") == "warning"]
    assert len(told) == 1
    assert words in told[0]


class Drifts(NoState):
    """Not what it was when it is played again."""

    plays = 0

    def reset(self, task, *, seed):
        Drifts.plays += 1
        return Turn(f"play {Drifts.plays}")


def test_what_cannot_be_brought_back_starts_over_and_is_told():
    sampler, client, stream = sampler_of(Drifts), client_of(num_slots=4), stream_of(limit=1, capacity=1)
    run(sampler, client, stream, 5)
    other, twin, copy = sampler_of(Drifts), client_of(num_slots=4), stream_of(limit=1, capacity=1)
    copy.reserve()
    twin.sync(0)
    twin.engine.restore(client.engine.snapshot())
    twin.next_ticket = client.next_ticket
    other.restore(sampler.snapshot(), {"rollouts": copy})
    run(other, twin, copy, 80)
    assert len(copy.committed) == 1
    reasons = [e["reason"] for e in other.events() if e["kind"] == "call_retried"]
    assert len(reasons) == N
    assert all("cannot be brought back: its environment did not give the same messages" in r for r in reasons)


class Fails(Echo):
    """Raises at the second message of the first `Fails.left` conversations."""

    left = 0

    def step(self, message):
        if len(self.heard) == 1 and Fails.left > 0:
            Fails.left -= 1
            raise RuntimeError("the socket is gone")
        return super().step(message)


def test_a_failed_conversation_is_begun_anew_and_no_reward():
    Fails.left = 2
    sampler, client, stream = sampler_of(Fails), client_of(), stream_of(limit=1)
    run(sampler, client, stream, 80)
    assert len(stream.committed) == 1
    assert stream.committed[0].header.used["U"] == 3 * N
    reasons = [e["reason"] for e in sampler.events() if e["kind"] == "call_retried"]
    assert reasons == ["environment_failed: step: RuntimeError: the socket is gone"] * 2


def test_an_environment_that_goes_on_failing_cancels_its_group_and_in_the_end_the_run():
    Fails.left = 10**6
    sampler, client, stream = sampler_of(Fails), client_of(), stream_of()
    with pytest.raises(DataError, match="32 groups in a row failed, the last one with 'environment_failed: step: RuntimeError"):
        run(sampler, client, stream, 4000)
    assert set(stream.cancelled) == {"environment_failed: step: RuntimeError: the socket is gone"}
    assert not stream.committed
    Fails.left = 0


class Hangs(Echo):
    """One of its conversations never answers; it runs in threads."""

    lane = "thread"
    hung = threading.Event()

    def step(self, message):
        if not Hangs.hung.is_set():
            Hangs.hung.set()
            time.sleep(30)
        return super().step(message)


def test_an_environment_that_hangs_holds_up_nobody_else_and_is_a_failure_with_its_reason():
    sampler, client = sampler_of(Hangs, blocking=False, step_timeout_s=0.5), client_of(num_slots=8)
    stream = stream_of(limit=3, capacity=3)
    began = time.perf_counter()
    done_before = 0
    while len(stream.committed) < 3 and time.perf_counter() - began < 20:
        sampler.step({"policy": client}, {"rollouts": stream})
        if not any(e["kind"] == "call_retried" for e in sampler._events):
            done_before = len(stream.committed)
    assert len(stream.committed) == 3
    assert done_before == 2, "other groups are through before the hanging one is given up"
    reasons = [e["reason"] for e in sampler.events() if e["kind"] == "call_retried"]
    assert reasons == ["environment_failed: step: timeout after 0.5 s (talk.step_timeout_s)"]
    sampler.close()


class Coroutine(Echo):
    """The same as coroutines."""

    lane = "async"

    async def reset(self, task, *, seed):
        return Echo.reset(self, task, seed=seed)

    async def step(self, message):
        await asyncio.sleep(0.001)
        return Echo.step(self, message)


@pytest.mark.parametrize("blocking", [True, False])
def test_coroutines_and_plain_calls_give_the_same_conversations(blocking):
    found = []
    for env in (Echo, Coroutine):
        sampler, client, stream = sampler_of(env, blocking=blocking), client_of(num_slots=1), stream_of(limit=2)
        deadline = time.perf_counter() + 20
        while len(stream.committed) < 2 and time.perf_counter() < deadline:
            sampler.step({"policy": client}, {"rollouts": stream})
        found.append([s.arrays["tokens"].tolist() for s in stream.take(2)])
        sampler.close()
    assert found[0] == found[1]


def test_limits_of_turns_and_of_context_cut_a_conversation_off_with_its_reason():
    sampler, client, stream = sampler_of(max_turns=2), client_of(), stream_of(limit=1)
    run(sampler, client, stream, 60)
    a = stream.committed[0].arrays
    assert (a["truncated"].tolist(), a["terminated"].tolist()) == ([True] * N, [False] * N)
    assert {e["reason"] for e in sampler.events() if e["kind"] == "episode"} == {"turns"}

    task = make_chat_task(Echo, talk=TalkConfig())
    settings = {"group_size": N, "max_tokens": MAX_TOKENS, "seed": 1, "blocking_calls": True, "max_turns": TURNS}
    sampler = ChatSampler(task, TOKENIZER, max_context=40, **settings)
    client, stream = client_of(), stream_of(limit=1)
    run(sampler, client, stream, 60)
    reasons = {e["reason"] for e in sampler.events() if e["kind"] == "episode"}
    assert "context" in reasons
    assert int(stream.committed[0].arrays["row_length"].max()) <= 40

    sampler = ChatSampler(task, TOKENIZER, max_context=5, **settings)
    client, stream = client_of(), stream_of()
    with pytest.raises(DataError, match="prompt_too_long: 10 tokens, room for 4"):
        run(sampler, client, stream, 200)


def test_the_horizon_grows_with_the_version_that_begins_a_conversation():
    sampler, stream = sampler_of(first=1, grow_every=2), stream_of(limit=3, capacity=3, required=lambda k: 2 * k)
    client = client_of(versions=(0, 2, 4))
    run(sampler, client, stream, 120)
    turns = [s.header.used["U"] // N for s in sorted(stream.committed, key=lambda s: s.header.sequence)]
    assert turns == [1, 2, 3]


def test_all_turns_of_a_segment_are_of_its_version_and_later_versions_wait():
    sampler, client, stream = (
        sampler_of(),
        client_of(versions=(0, 1)),
        stream_of(capacity=4, limit=4, required=lambda k: k // 2),
    )
    run(sampler, client, stream, 200)
    segments = stream.take(4)
    assert [(s.header.version_min, s.header.version_max) for s in segments] == [(k // 2,) * 2 for k in range(4)]
    assert client.syncs == [0, 1]


def test_a_reward_of_an_unknown_channel_is_refused_by_name():
    class Wrong(Echo):
        def step(self, message):
            return Turn("?", {"bonus": 1.0})

    sampler, client, stream = sampler_of(Wrong), client_of(), stream_of()
    with pytest.raises(DataError, match="reward channel 'bonus' is unknown: the environment has reward"):
        run(sampler, client, stream, 4000)


def test_channels_of_an_environment_are_weighed_and_stored_by_turn():
    class Two(Echo):
        rewards: ClassVar = {"length": 0.5, "bonus": 2.0}

        def step(self, message):
            turn = super().step(message)
            return Turn(turn.messages, {"length": turn.rewards["reward"], "bonus": 1.0}, terminated=turn.terminated)

    sampler, client, stream = sampler_of(Two), client_of(), stream_of(limit=1, rewards=("length", "bonus"))
    run(sampler, client, stream, 60)
    a = stream.committed[0].arrays
    assert a["rewards/bonus"].tolist() == [1.0] * 9
    totals = [e["return"] for e in sampler.events() if e["kind"] == "episode"]
    lengths = a["rewards/length"].reshape(N, 3).sum(1)
    assert totals == pytest.approx([0.5 * float(x) + 6.0 for x in lengths])
