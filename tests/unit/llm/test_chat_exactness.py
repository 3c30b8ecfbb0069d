"""What is trained on is what was said: masks, log-probabilities, rows of rewritten histories, and resumes at any moment."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from chat_families import chat_tokenizer, template
from fakes_llm import FakeClient, FakeStream
from scripted_engine import play
from torch import Tensor

from runnel.core.codec import decode, encode
from runnel.core.contracts.chat import Turn
from runnel.core.contracts.params import ParamSet
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.demos import ChatDemoSampler, Script
from runnel.llm.chat.dialects import Hermes, Parsed, make_call
from runnel.llm.chat.sampler import ChatSampler
from runnel.llm.chat.task import Tasks, make_chat_task
from runnel.llm.chat.tools import schema, tool
from runnel.llm.engines.native import NativeEngine
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.model.token_model import TokenModel
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tokenize import CharTokenizer

TOKENIZER = CharTokenizer()
STEP = 0.03
"""Of finite differences: the learner sums losses in float32."""
SIZES = ModelConfig(layers=2, width=16, heads=2, kv_heads=1, inner=32, max_positions=2048)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("families")


class Echo:
    """Says back what it heard, and pays its length by turn."""

    lane = "inline"
    turns = 3

    def __init__(self):
        self.heard = []

    def reset(self, task, *, seed):
        return Turn(f"start {seed % 10}")

    def step(self, message):
        self.heard.append(message["content"])
        return Turn(f"you said {message['content']}", float(len(message["content"])), terminated=len(self.heard) == self.turns)

    def get_state(self):
        return {"heard": list(self.heard)}

    def set_state(self, state):
        self.heard = list(state["heard"])


class NoState(Echo):
    get_state = set_state = None  # type: ignore[assignment]


# --------------------------------------------------------------------------------------------------------------- masks
def spoken(conversation, turn):
    """A call, a call that cannot be read, and words of another length in each conversation."""
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    return (call, "hm <tool_call>{look}</tool_call>", "a" * (1 + 3 * conversation), "b", "c" * (turn + conversation))[turn % 5]


@pytest.fixture(scope="module")
def with_tools():
    """A segment of conversations in which tools and an environment speak."""
    look = tool(lambda: "it is raining", name="look", description="Look.", lane="inline")
    found = play(Echo, spoken, TOKENIZER, tools=[look], groups=1, group_size=3, max_turns=12, blocking=True)
    (segment,) = found.stream.committed
    assert int(segment.arrays["tool_calls"].min()) >= 2
    return segment, found.engine.asked


def learner_of():
    config = TokenLearnerConfig(
        max_mismatch=1e9, precision="float64", max_grad_norm=1e9, warmup_updates=0, micro_batch_tokens=1 << 14
    )
    algorithm = GRPO(GRPOConfig(), channels={"reward": 1.0})
    return TokenLearner(config, build_model(SIZES, TOKENIZER.vocab_size, seed=0), algorithms={"rollouts": algorithm})


def replies_of(segment, asked):
    """Where the tokens lie that the engine has made: its own replies, behind its own prompts."""
    a, trained = segment.arrays, set()
    for row, prompt, reply in asked:
        start = int(a["row_start"][row])
        first, end = start + len(prompt), start + len(prompt) + len(reply)
        assert a["tokens"][start:end].tolist() == prompt + reply
        trained |= set(range(first, end))
    return trained


def test_only_what_the_policy_said_carries_a_gradient(with_tools, monkeypatch):
    """A number is added to each hidden state from which the logits of the next token are made. The loss depends on those that
    stand before a token of a reply, by finite differences as by autograd, and on no other: not by the last bit."""
    segment, asked = with_tools
    trained = replies_of(segment, asked)
    assert trained == set(segment.arrays["loss_mask"].nonzero().squeeze(1).tolist())
    moved = torch.zeros(len(segment.arrays["tokens"]), SIZES.width, dtype=torch.float64, requires_grad=True)
    plain, a = TokenModel.packed_hidden, segment.arrays
    places = dict(zip(map(tuple, map(Tensor.tolist, a["tokens"].split(a["row_length"].tolist()))), a["row_start"], strict=True))

    def shifted(model, tokens, rows):
        """The learner leaves out a trajectory that is as good as the mean: nothing of it would train."""
        at = [places[tuple(row.tolist())] + torch.arange(len(row)) for row in tokens.split(rows.lengths)]
        return plain(model, tokens, rows) + moved[torch.cat(at)]

    monkeypatch.setattr(TokenModel, "folds", property(lambda model: False))
    monkeypatch.setattr(TokenModel, "packed_hidden", shifted)

    def loss():
        learner = learner_of()
        return float(learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0)).metrics["loss/policy"])

    at_rest = loss()
    predicts = {i - 1 for i in trained}
    reached = set(moved.grad.abs().sum(dim=1).nonzero().squeeze(1).tolist())
    assert reached <= predicts
    assert len(reached) > len(predicts) / 2
    others = [i for i in range(len(moved)) if i not in predicts]
    slope, shift = moved.grad.clone(), moved.data
    shift[others] = 3.0
    assert loss() == at_rest
    shift[others] = 0.0
    for i in slope[:, 0].abs().topk(4).indices.tolist():
        shift[i, 0] = STEP
        up = loss()
        shift[i, 0] = -STEP
        assert (up - loss()) / (2 * STEP) == pytest.approx(float(slope[i, 0]), rel=1e-2)
        shift[i, 0] = 0.0


# --------------------------------------------------------------------------------------------------- log-probabilities
def client_of(*, keep=True, num_slots=4, length=1500):
    engine = NativeEngine(
        build_model(SIZES, TOKENIZER.vocab_size, seed=0),
        num_slots=num_slots,
        max_length=length,
        eos_id=TOKENIZER.eos_id,
        keep_prefixes=keep,
    )
    client = FakeClient(engine)
    client.published[0] = ParamSet(0, model_params(build_model(SIZES, TOKENIZER.vocab_size, seed=0)))
    return client


def sampler_of(env=Echo, *, max_turns=4, tools=(), group_size=2, max_tokens=6, seed=1, **talk):
    task = make_chat_task(env, talk=TalkConfig(**talk), tools=tools)
    return ChatSampler(
        task,
        TOKENIZER,
        max_turns=max_turns,
        max_context=1500,
        blocking_calls=True,
        group_size=group_size,
        max_tokens=max_tokens,
        seed=seed,
    )


def stream_of(groups, *, max_turns=4, rows=1, group_size=2):
    spec = rollout_stream(
        group_size=group_size,
        max_prompt=1500 * rows,
        max_tokens=0,
        rewards=("reward",),
        turn_rewards=("reward",),
        max_turns=max_turns,
        max_rows=rows,
        capacity=groups,
    )
    return FakeStream(spec, limit=groups)


class Long(Echo):
    turns = 10


@pytest.mark.parametrize("history", ["keep", "template"])
@pytest.mark.parametrize("keep", [True, False])
def test_ten_turns_have_the_log_probabilities_of_a_plain_forward_pass(keep, history):
    sampler, client = sampler_of(Long, max_turns=12, history=history), client_of(keep=keep)
    stream = stream_of(1, max_turns=12, rows=1 if history == "keep" else 12)
    while not stream.committed:
        sampler.step({"policy": client}, {"rollouts": stream})
    (segment,) = stream.committed
    a = segment.arrays
    assert segment.header.used["U"] == 20
    assert (client.engine.num_reused > 100) == keep, "the first prompt is one for both, in any case"
    model, learner = build_model(SIZES, TOKENIZER.vocab_size, seed=0), learner_of().policy
    for start, length in zip(a["row_start"].tolist(), a["row_length"].tolist(), strict=True):
        row, made = a["tokens"][start : start + length], a["loss_mask"][start : start + length]
        with torch.no_grad():
            logp = torch.log_softmax(model(row[None]).logits[0, :-1], dim=-1).gather(1, row[1:, None])[:, 0]
        recorded = a["logprob"][start : start + length]
        torch.testing.assert_close(recorded[1:][made[1:]], logp[made[1:]], atol=1e-4, rtol=0)
        torch.testing.assert_close(learner.row_logprobs(row, 1)[made[1:]].float(), logp[made[1:]], atol=1e-4, rtol=0)
    assert int(a["loss_mask"].sum()) == int((a["turn_end"] - a["turn_start"]).sum()) > 50


# ------------------------------------------------------------------------------------------------------------- resumes
class Letters(Hermes):
    """A random model calls tools in it: what a reply asks for follows from its letters."""

    def parse(self, text):
        kind = sum(map(ord, text)) % 4
        call = make_call(0, "tally", {"by": len(text)})
        calls = {0: (call,), 1: (call, make_call(1, "note", {"text": text[:1]}))}.get(kind, ())
        return Parsed(text if not calls else "", calls, ({"kind": "not_json", "text": "?"},) if kind == 2 else ())


class Tally:
    """Adds up what it is given."""

    def __init__(self):
        self.total = 0

    def call(self, by: int) -> int:
        """Add a number."""
        self.total += by
        return self.total


class KeptTally(Tally):
    """Adds up, and can be saved."""

    def get_state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]


class Notes(KeptTally):
    """Keeps texts."""

    def call(self, text: str) -> str:  # type: ignore[override]
        """Note a text."""
        self.total += 1
        return f"{self.total}: {text}"


def made(env, tally, history, *, seed=1):
    tools = [tool(tally, name="tally", lane="inline"), tool(Notes, name="note", lane="inline")]
    sampler = sampler_of(env, tools=tools, history=history, max_calls=1 if tally is Tally else 8, seed=seed)
    sampler.player._prompts.dialect = Letters()
    return sampler


def revived(make, sampler, client, stream):
    """Another process, as it goes on from what a checkpoint holds of these."""
    tensors: dict[str, torch.Tensor] = {}
    saved = encode([sampler.snapshot(), client.engine.snapshot()], tensors)
    state, of_engine = decode(saved, tensors)
    copy, twin, other = stream_of(GROUPS, rows=4), client_of(num_slots=client.engine.num_slots), make(seed=2)
    while copy._sequence < stream._sequence:
        copy.reserve()
    for index in [i for i in copy.reserved if i not in stream.reserved]:
        del copy.reserved[index]
    copy.committed = list(stream.committed)
    twin.sync(0)
    twin.engine.restore(of_engine)
    twin.next_ticket = client.next_ticket
    assert not client.replies
    other.restore(state, {"rollouts": copy})
    return other, twin, copy


GROUPS = 3


def segments(make, kills):
    sampler, client, stream, steps = make(), client_of(), stream_of(GROUPS, rows=4), 0
    while len(stream.committed) < GROUPS:
        if steps in kills:
            sampler, client, stream = revived(make, sampler, client, stream)
        sampler.step({"policy": client}, {"rollouts": stream})
        steps += 1
    return sorted(stream.committed, key=lambda s: s.header.sequence), steps


@pytest.mark.parametrize("history", ["keep", "template"])
@pytest.mark.parametrize(("env", "tally"), [(Echo, KeptTally), (NoState, Tally)])
def test_killed_at_any_moment_it_goes_on_bit_for_bit(env, tally, history):
    """With two tools, kept prefixes, and histories that are rendered again. States are saved, or played again."""
    make = partial(made, env, tally, history)
    expected, steps = segments(make, ())
    chance = random.Random(f"{env.__name__} {history}")
    rows = sum(s.header.used["R"] for s in expected)
    assert (rows > 2 * GROUPS) == (history == "template"), "bytes that are no text are rewritten"
    assert sum(int(s.arrays["tool_calls"].sum()) for s in expected) > 6
    assert sum(int(s.arrays["tool_errors"].sum()) for s in expected) > 0
    for _ in range(3):
        found, _ = segments(make, chance.sample(range(1, steps), 3))
        for a, b in zip(expected, found, strict=True):
            assert a.header == b.header
            assert all(torch.equal(a.arrays[name], b.arrays[name]) for name in a.arrays if name != "duration_s")


class Scripted(Echo):
    """What its script says follows from its seed."""

    def reset(self, task, *, seed):
        self.seed = seed
        return super().reset(task, seed=seed)

    def script(self):
        return f"I say {self.seed}"


def test_scripted_conversations_go_on_as_they_were_begun():
    def demos(seed):
        task = make_chat_task(Scripted, talk=TalkConfig())
        task = dataclasses.replace(task, train=Tasks([{}, {}]))
        return ChatDemoSampler(task, TOKENIZER, seed=seed, max_turns=4, max_length=1000)

    first, other = demos(1), demos(2)
    assert first._next(1000).tokens != other._next(1000).tokens
    other.restore(first.snapshot(), {})
    assert [first._next(1000).tokens for _ in range(3)] == [other._next(1000).tokens for _ in range(3)]


class Poor(Scripted):
    """Its script is paid nothing."""

    pays = 0.0

    def step(self, message):
        return Turn("no", {"reward": self.pays}, terminated=True)


class Paid(Poor):
    pays = 0.5


@pytest.mark.parametrize(("env", "told"), [(Poor, True), (Paid, False)])
def test_a_script_that_earns_nothing_is_told_once(env, told):
    task = make_chat_task(env, talk=TalkConfig())
    sampler = ChatDemoSampler(task, TOKENIZER, seed=1, max_turns=4, max_length=1000)
    arrays = {name: torch.zeros(2000, dtype=torch.long) for name in ("tokens", "loss_mask", "row_start", "row_length")}
    for _ in range(2):
        assert sampler._fill(SimpleNamespace(spec=SimpleNamespace(num_rows=3, sizes={"N": 2000}), arrays=arrays)) > 0
    texts = [event["text"] for event in sampler.events()]
    assert [t.startswith("the script earned nothing in its first 3 conversations (at most 0)") for t in texts] == [True] * told


class Opens:
    """The tool `open` pays and ends the conversation, as its script knows."""

    lane = "inline"
    rewards: ClassVar = {"gold": 2.0}

    def reset(self, task, *, seed):
        return Turn("a door")

    def step(self, message):
        return Turn("still a door")

    def script(self):
        return {"content": "so", "tool_calls": [make_call(0, "open", {}), make_call(1, "open", {})]}

    def tools(self):
        return [tool(lambda: Turn("gold!", {"gold": 1.5}, terminated=True), name="open", description="Open it.")]


def test_a_script_ends_where_a_tool_ends_the_conversation():
    task = make_chat_task(Opens, talk=TalkConfig())
    row, earned = Script(task, TOKENIZER, max_turns=6).play(task.train[0])
    said = TOKENIZER.decode([one for one, trained in zip(row.tokens, row.fields["loss_mask"], strict=True) if trained])
    assert said.count("<tool_call>") == 2, "one message of two calls, of which the first one ends it"
    assert earned == 3.0


class Ponders(Scripted):
    """Its script thinks aloud, which the template forgets."""

    def script(self):
        return f"<think>\nhm {len(self.heard)}\n</think>\n\nI say {len(self.heard)}"


def test_a_script_is_one_row_whatever_the_template_forgets(root):
    if template("qwen3") is None:
        pytest.skip("the template comes with the package trl")
    t = chat_tokenizer("qwen3", root)
    task = make_chat_task(Ponders, talk=TalkConfig(history="template"))
    row, _ = Script(task, t, max_turns=4).play(task.train[0])
    said = [tokens for tokens, trained in zip(row.tokens, row.fields["loss_mask"], strict=True) if trained]
    assert t.decode(said).count("I say") == 3


# ------------------------------------------------------------------------------------------------- rewritten histories
def thinks(conversation, turn):
    call = '\n<tool_call>\n{"name": "look", "arguments": {"word": "x"}}\n</tool_call>'
    broken = "\n<tool_call>\n{look}\n</tool_call>"
    return f"<think>\nhm {turn}\n</think>\n\nnumber {conversation}" + {1: call, 3: broken}.get(turn, "")


class Talks(Echo):
    turns = 4

    def step(self, message):
        self.heard.append(message["content"])
        return Turn(f"and {len(self.heard)}?", 1.0, terminated=len(self.heard) == self.turns)


def test_a_template_that_forgets_thoughts_begins_new_rows_and_each_reply_trains_once(root):
    if template("qwen3") is None:
        pytest.skip("the template comes with the package trl")
    t = chat_tokenizer("qwen3", root)

    def look(word: str) -> str:
        """Look up a word."""
        return f"{word} is a letter"

    looks = tool(look, lane="inline")
    found = play(Talks, thinks, t, tools=[looks], groups=1, max_turns=8, history="template", blocking=True)
    (segment,) = found.stream.committed
    a, rows = segment.arrays, segment.arrays["tokens"].split(segment.arrays["row_length"].tolist())
    by_owner = a["row_owner"][a["turn_row"]].tolist()
    assert by_owner == [0] * 6 + [1] * 6
    assert a["row_owner"].tolist() == sorted(a["row_owner"].tolist())
    assert segment.header.used["R"] > 2
    trained = torch.zeros_like(a["loss_mask"])
    for owner in (0, 1):
        mine = [u for u in range(12) if by_owner[u] == owner]
        for u, (_, prompt, reply) in zip(mine, [one for one in found.engine.asked if one[0] == owner], strict=True):
            start, end, row = int(a["turn_start"][u]), int(a["turn_end"][u]), int(a["turn_row"][u])
            assert rows[row][:end].tolist() == prompt + reply
            assert end - start == len(reply)
            here = slice(int(a["row_start"][row]) + start, int(a["row_start"][row]) + end)
            assert not bool(trained[here].any()), "no token is trained twice"
            trained[here] = True
    assert torch.equal(trained, a["loss_mask"])
    # the prompts are the template's own rendering of the messages, as transformers makes it
    heard = [{"role": m["role"], "content": m["content"]} for m in found.talks()[0]["messages"] if m["role"] != "assistant"]
    assert [m["content"][:8] for m in heard[1:]] == ["and 1?", "x is a l", "and 2?", "Error: a", "and 3?", "and 4?"]
    talk = heard[:1]
    for turn, (_, prompt, _) in enumerate(one for one in found.engine.asked if one[0] == 0):
        expected = t.inner.apply_chat_template(talk, tools=[schema(looks)], add_generation_prompt=True, tokenize=False)
        assert t.spell(prompt) == expected
        talk += [{"role": "assistant", "content": thinks(0, turn)}, heard[turn + 1]]
