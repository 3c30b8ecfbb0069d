"""Conversations as segments: what an actor plays is what the learner trains on, token for token."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from runnel.core.contracts.chat import Turn
from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Sampler
from runnel.llm.chat.config import TurnsConfig
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
    task = make_chat_task(env, turns=TurnsConfig(**turns), tools=tools)
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
    expected, found, _ = resumed(lambda: sampler_of(env), steps)
    assert_equal(expected, found)
