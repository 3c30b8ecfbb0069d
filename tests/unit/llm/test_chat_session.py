"""Conversations with a person, and those that somebody watches: prompts, tools, streaming, limits and what Ctrl-C leaves."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from runnel.core.clock import ManualClock
from runnel.core.contracts.chat import Turn
from runnel.core.contracts.inference import Reply
from runnel.core.errors import DataError
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.session import Chat, EngineClient, Voice, advance, watch
from runnel.llm.chat.task import make_chat_task
from runnel.llm.chat.tools import load_tools
from runnel.llm.engines.requests import SamplingConfig, reply_rows
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.policy import ChatPolicy
from runnel.llm.tokenize import CharTokenizer

TOKENIZER = CharTokenizer()
CALL = '<tool_call>\n{"name": "counter", "arguments": {"by": 2}}\n</tool_call>'


class Scripted:
    """An engine that says what it is told to say, three tokens a step, and keeps all prompts."""

    immediate, max_length, version = False, 4096, 0

    def __init__(self, *texts):
        self._texts, self.prompts, self._running = list(texts), [], {}

    def submit(self, requests):
        for request in requests:
            tokens = request.rows["tokens"].tolist()
            self.prompts.append(tokens)
            self._running[request.id] = [TOKENIZER.answer(self._texts.pop(0))[: int(request.rows["max_tokens"])], 0]

    def step(self):
        done = []
        for id, state in list(self._running.items()):
            state[1] += 3
            if state[1] >= len(state[0]):
                n = len(state[0])
                rows = reply_rows(state[0], torch.zeros(n), torch.zeros(n), terminated=True)
                done.append(Reply(id, rows, 0))
                del self._running[id]
        return done

    def so_far(self, id):
        tokens, made = self._running.get(id, ([], 0))
        return tokens[:made]

    def abort(self, ids):
        for id in ids:
            self._running.pop(id, None)

    def pending(self):
        return len(self._running)


class Counter:
    """A tool with a state."""

    def __init__(self) -> None:
        self.total = 0

    def call(self, by: int) -> int:
        """Add to the total.

        Args:
            by: How much.
        """
        self.total += by
        return self.total


def voice_of(engine, *, max_context=2000, max_turns=4, **talk):
    return Voice(engine, TOKENIZER, TalkConfig(**talk), SamplingConfig(0.0), 300, max_context, max_turns)


def chat_of(*texts, tools=(), system="", **limits):
    engine = Scripted(*texts)
    return closing(Chat(voice_of(engine, **limits), tools=load_tools(tools), system=system)), engine


def test_the_model_sees_its_own_tokens_and_what_the_person_says():
    made, engine = chat_of("first", "second", system="be brief")
    with made as chat:
        assert [m["content"] for m in chat.say("a")] == ["first"]
        assert [m["content"] for m in chat.say("b")] == ["second"]
        said = [(m["role"], m["content"]) for m in chat.messages]
    begin = TOKENIZER.render([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}])
    then = TOKENIZER.extend([*begin, *TOKENIZER.answer("first")], [{"role": "user", "content": "b"}])
    assert engine.prompts == [begin, then]
    assert said == [("system", "be brief"), ("user", "a"), ("assistant", "first"), ("user", "b"), ("assistant", "second")]


def test_a_new_beginning_forgets_messages_and_keeps_the_system_text_unless_another_is_given():
    made, engine = chat_of("x", "y", "z", system="one")
    with made as chat:
        chat.say("a")
        chat.reset()
        chat.say("b")
        chat.reset(system="two")
        chat.say("c")
    beginnings = [("one", "a"), ("one", "b"), ("two", "c")]
    system, user = "system", "user"
    assert engine.prompts == [
        TOKENIZER.render([{"role": system, "content": s}, {"role": user, "content": u}]) for s, u in beginnings
    ]


def test_tools_answer_between_replies_and_keep_their_state_until_a_new_beginning():
    made, _ = chat_of(CALL, "two", CALL, "four", CALL, "two again", tools=[Counter])
    with made as chat:
        heard = []
        first = chat.say("count", on_message=heard.append)
        assert [(m["role"], m["content"]) for m in first] == [("assistant", ""), ("tool", "2"), ("assistant", "two")]
        assert heard == first
        assert chat.say("more")[1]["content"] == "4"
        chat.reset()
        assert chat.say("anew")[1]["content"] == "2"


@pytest.mark.parametrize(
    ("text", "tools"), [("héllo wörld, 1 < 2", ()), ("see: " + CALL, (Counter,)), ("a <b> `c`", (Counter,))]
)
def test_pieces_of_a_reply_are_its_text_and_never_a_call(text, tools):
    made, _ = chat_of(text, "end", tools=tools)
    pieces = []
    with made as chat:
        messages = chat.say("go", on_text=pieces.append)
    assert len(pieces) > 2
    assert "".join(pieces) == "".join(m["content"] for m in messages if m["role"] == "assistant")
    assert "tool_call" not in "".join(pieces)


def test_an_interrupt_leaves_what_was_written_and_stops_the_engine():
    made, engine = chat_of("a long reply", "next")
    pieces = []

    def stop(piece):
        pieces.append(piece)
        if len(pieces) == 2:
            raise KeyboardInterrupt

    with made as chat:
        with pytest.raises(KeyboardInterrupt):
            chat.say("go", on_text=stop)
        assert engine.pending() == 0
        written = chat.messages[-1]["content"]
        assert written == "".join(pieces) == "a long reply"[: len(written)]
        assert [m["content"] for m in chat.say("on")] == ["next"]
    told = [("user", "go"), ("assistant", written), ("user", "on")]
    assert engine.prompts[-1] == TOKENIZER.render([{"role": r, "content": c} for r, c in told])


def test_a_model_that_only_calls_tools_is_stopped_and_the_person_goes_on():
    made, engine = chat_of(CALL, CALL, "well", tools=[Counter], max_turns=2)
    with made as chat:
        assert [m["role"] for m in chat.say("go")] == ["assistant", "tool"] * 2
        assert chat.say("stop it")[-1]["content"] == "well"
    assert len(engine.prompts) == 3


def test_where_there_is_no_room_it_says_so_and_another_beginning_has_room():
    made, engine = chat_of("fine", "good", max_context=60)
    with made as chat:
        chat.say("a")
        for _ in range(2):
            with pytest.raises(DataError, match="cannot go on"):
                chat.say("b" * 80)
        assert [m["content"] for m in chat.messages] == ["a", "fine"]
        chat.reset()
        assert chat.say("c")[0]["content"] == "good"
    assert len(engine.prompts) == 2


class Paying:
    """Pays one for each of two messages, and pays in two channels at the end."""

    lane = "inline"
    rewards = {"reward": 1.0, "style": 0.5}  # noqa: RUF012

    def reset(self, task, *, seed):
        self.num = 0
        return Turn("begin")

    def step(self, message):
        self.num += 1
        if self.num == 1:
            return Turn("on", 1.0)
        return Turn("done", {"reward": 1.0, "style": -2.0}, terminated=True)


def test_a_watched_conversation_tells_messages_and_what_they_earn_in_order():
    engine = Scripted("one", "two")
    task = make_chat_task(Paying, talk=TalkConfig())
    happened = list(watch(task, voice_of(engine), task.eval[0]))
    told = [h.message["content"] if h.message else h.reason or dict(h.rewards) for h in happened]
    assert told == ["begin", "one", {"reward": 1.0}, "on", "two", {"reward": 1.0, "style": -2.0}, "done", "terminated"]


def test_what_an_environment_lets_an_assistant_say_stays_in_its_place():
    class Shows(Paying):
        def reset(self, task, *, seed):
            super().reset(task, seed=seed)
            return Turn([{"role": role, "content": text} for role, text in [("user", "1"), ("assistant", "2"), ("user", "3")]])

    task = make_chat_task(Shows, talk=TalkConfig())
    happened = list(watch(task, voice_of(Scripted("one", "two")), task.eval[0]))
    told = [h.message["content"] if h.message else h.reason or dict(h.rewards) for h in happened]
    assert told[:6] == ["1", "2", "3", "one", {"reward": 1.0}, "on"]


def test_an_environment_that_fails_is_told():
    class Failing(Paying):
        def step(self, message):
            raise OSError("the net is down")

    task = make_chat_task(Failing, talk=TalkConfig())
    with pytest.raises(DataError, match="the net is down"):
        list(watch(task, voice_of(Scripted("one")), task.eval[0]))


def test_a_policy_with_tools_calls_them_before_it_answers():
    model = build_model(ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32), TOKENIZER.vocab_size, seed=0)
    task = make_chat_task(Paying, talk=TalkConfig(), tools=load_tools([Counter]))
    policy = ChatPolicy(model, TOKENIZER, max_tokens=300, task=task, max_context=2000)
    policy.engine = Scripted(CALL, "it is 2")
    assert policy.chat([{"role": "user", "content": "count"}]) == "it is 2"
    assert "<tool_response>\n2\n</tool_response>" in TOKENIZER.decode(policy.engine.prompts[1])


def test_calls_beyond_the_most_of_a_message_are_told_and_not_made():
    made, _ = chat_of(f"{CALL}\n{CALL}", "end", tools=[Counter], max_calls=1)
    with made as chat:
        results = [m["content"] for m in chat.say("go") if m["role"] == "tool"]
    assert results[0] == "2"
    assert "a message may have 1 calls" in results[1]


def test_a_result_is_cut_to_the_most_characters():
    def long(by: int) -> str:
        """Long.

        Args:
            by: Nothing.
        """
        return "x" * 500

    made, _ = chat_of(CALL.replace("counter", "long"), "end", tools=[long], tool_chars=100)
    with made as chat:
        result = chat.say("go")[1]["content"]
    assert len(result) == 100
    assert "characters left out" in result


def test_a_conversation_is_cut_off_before_its_next_turn_when_its_time_is_over():
    clock = ManualClock()

    class Slow(Paying):
        def step(self, message):
            clock.advance(2.0)
            return super().step(message)

    task = make_chat_task(Slow, talk=TalkConfig(time_limit_s=1.5))
    player = ChatPlayer(task, TOKENIZER, max_context=2000, max_tokens=9, seed=0, clock=clock)
    conversation = player.open(task.eval[0], number=0, seed=0, names=(0,), max_turns=4)
    client = EngineClient(Scripted("one", "two"))
    player.begin(conversation)
    while not conversation.over:
        advance(player, client, conversation)
    player.close()
    side = conversation.sides["agent"]
    assert (side.reason, len(side.said.turns)) == ("time", 1)


def test_an_environment_that_is_slow_to_make_is_told_once():
    clock = ManualClock()

    class Heavy(Paying):
        def __init__(self):
            clock.advance(1.5)

    player = ChatPlayer(make_chat_task(Heavy, talk=TalkConfig()), TOKENIZER, max_context=200, max_tokens=9, seed=0, clock=clock)
    for number in range(2):
        player.open(player.task.eval[0], number=number, seed=0, names=(number,), max_turns=4)
    (told,) = player.events()
    assert told["text"].startswith("an environment took 1.50 s to be made (with its tools)")
    player.close()
