"""Environments and tools that misbehave: each is a counted reason, nothing is lost, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from itertools import count
from typing import Any

import numpy as np
import pytest
from fakes_llm import FakeClient
from scripted_engine import Played, ScriptedEngine, play

from runnel.core.contracts.chat import ToolFailure, Turn
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.evaluation import ChatEvaluation
from runnel.llm.chat.task import make_chat_task
from runnel.llm.chat.tools import tool
from runnel.llm.sandbox.session import SessionConfig, SessionPool
from runnel.llm.sandbox.tool import python_tool
from runnel.llm.tokenize import CharTokenizer

TOKENIZER = CharTokenizer()
CALL = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'
STAYS = threading.Event()
"""Never set while a play goes on: what waits for it hangs."""


@pytest.fixture(autouse=True)
def _end_what_hangs():
    STAYS.clear()
    yield
    STAYS.set()


class Asks:
    """Ends at the first message without a call, and pays 1."""

    lane = "inline"

    def reset(self, task, *, seed):
        return Turn("go")

    def step(self, message):
        return Turn("bye", 1.0, terminated=True)


# ---------------------------------------------------------------------------------------------------------------- tools
class Mute(Exception):
    """An error that cannot even be told."""

    def __str__(self):
        raise RuntimeError("no words")


class Panic(BaseException):
    """What libraries written in Rust raise."""


class Vague(ToolFailure):
    """A failure that does not say of which kind it is."""

    def __init__(self):
        pass


class MuteFailure(Mute, ToolFailure):
    """A failure that cannot even be told."""


class Liar(str):
    """A text that is none when it is looked at."""

    def encode(self, *args):
        raise RuntimeError("no bytes")

    __len__ = __str__ = __iter__ = encode


class Slippery(dict):
    """Plain data, until somebody looks."""

    def items(self):
        STAYS.wait()
        return super().items()

    __iter__ = items


def nested():
    value: list[Any] = []
    for _ in range(10**5):
        value = [value]
    return value


def raises(error):
    def act():
        raise error

    return act


async def wait_for_ever():
    await asyncio.sleep(3600)


async def refuse_to_end():
    while not STAYS.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def block_the_loop():
    STAYS.wait()


async def die_in_the_loop():
    raise KeyboardInterrupt


async def panic_in_the_loop():
    raise Panic("lost")


async def exit_in_the_loop():
    raise SystemExit(3)


BAD_TOOLS = {
    "hangs": (lambda: STAYS.wait(), "timeout", "Error: timeout after 0.3 s"),
    "hangs as a coroutine": (wait_for_ever, "timeout", "Error: timeout after 0.3 s"),
    "refuses to be cancelled": (refuse_to_end, "timeout", "Error: timeout after 0.3 s"),
    "blocks the loop": (block_the_loop, "timeout", "Error: timeout after 0.3 s"),
    "raises": (raises(OSError("no disk")), "raised", "Error: OSError: no disk"),
    "exits": (raises(SystemExit(3)), "raised", "Error: SystemExit: 3"),
    "exits as a coroutine": (exit_in_the_loop, "raised", "Error: SystemExit: 3"),
    "is interrupted": (raises(KeyboardInterrupt()), "raised", "Error: KeyboardInterrupt"),
    "is interrupted as a coroutine": (die_in_the_loop, "raised", "Error: KeyboardInterrupt"),
    "leaves its generator": (raises(GeneratorExit()), "raised", "Error: GeneratorExit"),
    "raises what has no words": (raises(Mute()), "raised", "Error: Mute"),
    "fails in its own words": (raises(ToolFailure("x" * 10**6, kind="too_long")), "too_long", "Error: xxxx"),
    "panics": (raises(Panic("lost")), "raised", "Error: Panic: lost"),
    "panics as a coroutine": (panic_in_the_loop, "raised", "Error: Panic: lost"),
    "fails without a kind": (raises(Vague()), "raised", "Error: "),
    "fails without words": (raises(MuteFailure("x")), "raised", "Error: "),
    "fails with a number as its kind": (raises(ToolFailure("x", kind=5)), "raised", "Error: x"),
    "fails with an essay as its kind": (raises(ToolFailure("x", kind="a\nb" * 999)), "raised", "Error: x"),
    "returns a failure": (lambda: Vague(), "raised", "Error: "),
    "pays more than a number holds": (lambda: Turn("x", 1e300), "raised", "Error: DataError: the reward 'reward' of a turn"),
    "returns a set": (lambda: {1}, "raised", "Error: the tool returned a set that is no plain data"),
    "returns itself": (lambda: BAD_TOOLS, "raised", "Error: the tool returned a dict that is no plain data"),
    "returns no number": (lambda: float("nan"), "raised", "Error: the tool returned a float that is no plain data"),
    "returns nested lists": (nested, "raised", "Error: the tool returned a list that is no plain data"),
    "returns what hangs": (lambda: Slippery(a=1), "timeout", "Error: timeout after 0.3 s"),
    "pays no number": (lambda: Turn("x", float("nan")), "raised", "Error: DataError: the reward 'reward' of a turn"),
}


def plays(tools, **settings) -> Played:
    """Two groups of two conversations; the first conversation calls `bad`, then `good`, the others `good` twice."""

    def say(conversation, turn):
        name = "bad" if conversation == 0 and turn == 0 else "good"
        return CALL.format(name) if turn < 2 else "done"

    good = tool(lambda: "fine", name="good", description="Help.")
    return play(Asks, say, TOKENIZER, tools=[*tools, good], **{"tool_timeout_s": 0.3, "tool_chars": 200} | settings)


def heard(found: Played) -> list[str]:
    """All that the model was told, as it was told."""
    return [TOKENIZER.decode(prompt) for prompt in found.engine.prompts]


@pytest.mark.parametrize("name", BAD_TOOLS)
def test_a_bad_tool_is_told_to_the_model_and_counted_by_its_kind(name):
    act, kind, words = BAD_TOOLS[name]
    limit_s = 0.3 if kind == "timeout" else 30.0  # what does not hang may take its time on a busy machine
    found = plays([tool(act, name="bad", description="Harm.")], tool_timeout_s=limit_s)
    assert [e for e in found.tool_errors() if e] == [{kind: 1}]
    assert sum(f"</tool_call><tool_response>\n{words}" in text for text in heard(found)) == 2, "in its next two prompts"
    by_group = {s.header.sequence: s.arrays for s in found.stream.committed}
    assert by_group[0]["tool_calls"].tolist() == by_group[1]["tool_calls"].tolist() == [2, 2]
    assert by_group[0]["tool_errors"].tolist() == [1, 0]
    assert by_group[1]["tool_errors"].tolist() == [0, 0]
    assert by_group[0]["rewards/reward"].tolist() == [0.0, 0.0, 1.0] * 2
    if kind == "timeout":
        assert found.order == [1, 0], "the other group is through while the tool hangs"


@pytest.mark.parametrize("lane", ["thread", "inline"])
def test_what_a_tool_returns_or_raises_is_asked_nothing_later(lane):
    """It may be of a class of the tool's own; in the thread of the player nothing of it is called."""
    for act, told in [(lambda: Liar("fine"), "\nfine"), (raises(Panic("lost")), "\nError: Panic: lost")]:
        found = plays([tool(act, name="bad", description="Harm.", lane=lane)])
        assert any(f"</tool_call><tool_response>{told}" in text for text in heard(found))
        assert len(found.stream.committed) == 2


def test_a_tool_that_prints_a_megabyte_is_cut_and_counted():
    found = plays([tool(lambda: "a" * 10**6, name="bad", description="Harm.")], tool_chars=300)
    assert any("999" in text and "characters left out" in text for text in heard(found))
    assert all(len(p) < 1500 for p in found.engine.prompts)
    assert found.tool_errors() == [{}] * 4


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (Turn("x", {"bonus": 1.0}), "reward channel 'bonus' is unknown"),
        (Turn([{"role": "tool"}]), "message 0 of the conversation has content = 'None'"),
        (Turn([{"role": "user", "content": "x", "cells": {1}}]), "a message is no plain data"),
        (Turn("x", counts={"odd": "1"}), "the count 'odd' of a turn is '1'"),  # type: ignore[dict-item]
        (Turn("x", key=5), "the key of a turn is a int"),  # type: ignore[arg-type]
        (Turn("x", counts=None), "the counts of a turn are None"),  # type: ignore[arg-type]
    ],
)
def test_a_turn_of_a_tool_that_cannot_be_told_fails_its_conversation(turn, words):
    found = plays([tool(lambda: turn, name="bad", description="Harm.")], retries=0)
    (why,) = found.stream.cancelled
    assert why.startswith(f"tool_failed: bad: {words}")
    assert [s.header.sequence for s in found.stream.committed] == [1]


def test_a_tool_that_hangs_when_it_is_closed_holds_up_nobody():
    class Stuck:
        """Hangs in all that it does."""

        def call(self) -> str:
            """Hang."""
            STAYS.wait()
            return ""

        def close(self) -> None:
            STAYS.wait()

    for lane in ("thread", "inline"):
        act = tool(Stuck, name="bad") if lane == "thread" else tool(OnlyAtTheEnd, name="bad", lane="inline")
        found = plays([act])
        assert len(found.stream.committed) == 2
        assert [e for e in found.tool_errors() if e] == ([{"timeout": 1}] if lane == "thread" else [])


class OnlyAtTheEnd:
    """Hangs when it is closed."""

    def call(self) -> str:
        """Answer."""
        return "fine"

    def close(self) -> None:
        STAYS.wait()


def test_what_blocks_the_loop_of_coroutines_does_not_hold_up_those_that_come_later(monkeypatch):
    monkeypatch.setattr("runnel.core.calls.coroutines.HELD_S", 0.05)

    async def fine() -> str:
        return "fine"

    def say(conversation, turn):
        name = "bad" if conversation == 0 and turn == 0 else "good"
        return CALL.format(name) if turn < 2 else "done"

    tools = [tool(block_the_loop, name="bad", description="Harm."), tool(fine, name="good", description="Help.")]
    found = play(Asks, say, TOKENIZER, tools=tools, tool_timeout_s=1.0, groups=3)
    assert [e for e in found.tool_errors() if e] == [{"timeout": 1}]
    assert found.order[-1] == 0, "nobody else waits for it"


def no_server() -> str:
    """Ask a server."""
    raise ToolFailure("the server is down", kind="unusable")


def no_key() -> str:
    """Ask a server."""
    raise ConfigError("key", "", "set the key of the server")


@pytest.mark.parametrize(("act", "words"), [(no_server, "the server is down"), (no_key, "key = '': set the key of the server")])
@pytest.mark.parametrize("lane", ["thread", "inline"])
def test_what_the_model_cannot_mend_fails_the_conversation_and_is_not_told_to_it(act, words, lane):
    found = plays([tool(act, name="bad", lane=lane)], retries=0)
    (why,) = found.stream.cancelled
    assert why.startswith(f"tool_failed: bad: {words}")
    assert not any("server" in text.partition("</tools>")[2] for text in heard(found))


@pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's")
def test_where_all_sessions_are_taken_the_conversation_has_failed():
    say = lambda conversation, turn: "```python\n6 * 7\n```" if turn == 0 else "done"  # noqa: E731
    with SessionPool(SessionConfig(wall_s=1.0), most=2, warm=0) as pool, pool.take(), pool.take():
        found = play(Asks, say, TOKENIZER, tools=[python_tool(pool=pool)], dialect="python", groups=1, group_size=1, retries=0)
    (why,) = found.stream.cancelled
    assert why.startswith("tool_failed: python: tools = 'python': 2 sessions were open for 1 s; play fewer conversations")


# --------------------------------------------------------------------------------------------------------- environments
def env_that(act, *, at="step", lane="thread"):
    """An environment like `Asks`, of which the first conversation does `act` in place of `at`."""
    left = [1]

    class Does(Asks):
        def __init__(self):
            self.bad = False

        def reset(self, task, *, seed):
            self.bad, left[0] = left[0] > 0, left[0] - 1
            return act() if at == "reset" and self.bad else super().reset(task, seed=seed)

        def step(self, message):
            return act() if at == "step" and self.bad else super().step(message)

    class Comes(Does):
        async def reset(self, task, *, seed):
            found = Does.reset(self, task, seed=seed)
            return await found if asyncio.iscoroutine(found) else found

        async def step(self, message):
            found = Does.step(self, message)
            return await found if asyncio.iscoroutine(found) else found

    made = Comes if lane == "async" else Does
    made.lane = lane
    return made


BAD_TURNS = {
    "None": (lambda: None, "the environment gave NoneType instead of a Turn"),
    "a text": (lambda: "hello", "the environment gave str instead of a Turn"),
    "a number": (lambda: 1.0, "the environment gave float instead of a Turn"),
    "four values": (lambda: ("x", 1.0, True, {}), "the environment gave tuple instead of a Turn"),
    "no number": (lambda: Turn("x", float("nan")), "DataError: the reward 'reward' of a turn"),
    "endless reward": (lambda: Turn("x", float("inf")), "DataError: the reward 'reward' of a turn"),
    "a text as reward": (lambda: Turn("x", "1.0"), "DataError: the reward 'reward' of a turn"),
    "another channel": (lambda: Turn("x", {"bonus": 1.0}), "reward channel 'bonus' is unknown"),
    "another role": (lambda: Turn([{"role": "god", "content": "x"}]), "message 0 of the conversation: message role 'god'"),
    "no content": (lambda: Turn([{"role": "user"}]), "message 0 of the conversation has content = 'None'"),
    "no content, and the end": (lambda: Turn([{"role": "user"}], 1.0, terminated=True), "message 0 of the conversation"),
    "half a character": (lambda: Turn("\ud800"), "a message is no plain data"),
    "a set": (lambda: Turn([{"role": "user", "content": "x", "more": {1}}]), "a message is no plain data"),
    "texts as messages": (lambda: Turn(["x"]), "ValueError"),
    "a count in words": (lambda: Turn("x", counts={"odd": "many"}), "the count 'odd' of a turn is 'many'"),
    "a key of its own": (lambda: Turn("x", key=b"x"), "the key of a turn is a bytes"),
    "half a character as its key": (lambda: Turn("x", key="\ud800"), "the key of a turn has half a character"),
    "too large a reward": (lambda: Turn("x", 1e300), "DataError: the reward 'reward' of a turn is 1e+300"),
    "no counts": (lambda: Turn("x", counts=None), "the counts of a turn are None"),
    "too large a count": (lambda: Turn("x", counts={"tool_calls": 10**30}), "the count 'tool_calls' of a turn is 1000"),
    "less than nothing": (lambda: Turn("x", counts={"tool_errors/x": -1}), "the count 'tool_errors/x' of a turn is -1"),
    "perhaps the end": (lambda: Turn("x", terminated="no"), "terminated of a turn is 'no'"),
    "the end of some": (lambda: Turn("x", truncated=np.array([True, False])), "truncated of a turn is array"),
    "a panic": (raises(Panic("lost")), "Panic: lost"),
    "an error": (raises(OSError("the socket is gone")), "OSError: the socket is gone"),
    "an error without words": (raises(Mute()), "Mute"),
    "a megabyte of an error": (raises(OSError("x" * 10**6)), "OSError: xxx"),
    "an exit": (raises(SystemExit(3)), "SystemExit: 3"),
    "an interrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
}


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize("name", BAD_TURNS)
def test_a_bad_environment_is_a_reason_and_no_reward(name, at):
    act, words = BAD_TURNS[name]
    found = play(env_that(act, at=at), lambda conversation, turn: "done", TOKENIZER, retries=0)
    (why,) = found.stream.cancelled
    assert why.startswith(f"environment_failed: {at}: {words}")
    assert len(why) < 1000
    assert len(found.stream.committed) == 1
    assert found.stream.committed[0].arrays["rewards/reward"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("lane", ["thread", "async"])
@pytest.mark.parametrize("at", ["reset", "step"])
def test_an_environment_that_hangs_is_a_reason_and_the_others_go_on(at, lane):
    act = wait_for_ever if lane == "async" else STAYS.wait
    found = play(env_that(act, at=at, lane=lane), lambda c, t: "done", TOKENIZER, step_timeout_s=0.3)
    assert found.reasons() == [f"environment_failed: {at}: timeout after 0.3 s (talk.step_timeout_s)"]
    assert len(found.stream.committed) == 2, "the second try of the conversation goes well"
    assert len(set(found.order)) == 2
    assert not found.stream.cancelled


@pytest.mark.parametrize("where", ["__init__", "tools"])
def test_an_environment_that_cannot_be_made_is_a_reason(where):
    left = [-2]  # two are made to see what they offer

    class Wrong(Asks):
        def __init__(self):
            left[0] += 1
            if where == "__init__" and left[0] == 1:
                raise OSError("no server")

        def tools(self):
            if where == "tools" and left[0] == 1:
                raise OSError("no server")
            return []

    found = play(Wrong, lambda conversation, turn: "done", TOKENIZER, retries=0)
    assert found.stream.cancelled == ["environment_failed: make: OSError: no server"]
    left[0] = -2
    found = play(Wrong, lambda conversation, turn: "done", TOKENIZER)
    assert len(found.stream.committed) == 2
    assert found.reasons() == ["environment_failed: make: OSError: no server"]


def test_a_panic_of_an_environment_that_runs_inline_is_a_reason():
    found = play(env_that(raises(Panic("lost")), lane="inline"), lambda conversation, turn: "done", TOKENIZER, retries=0)
    assert found.stream.cancelled == ["environment_failed: step: Panic: lost"]
    assert len(found.stream.committed) == 1


def test_an_environment_says_a_lane_that_there_is():
    class Elsewhere(Asks):
        lane = "process"

    with pytest.raises(ConfigError, match=r"its lane is 'process'; use one of inline, thread, async, or leave it out"):
        play(Elsewhere, lambda conversation, turn: "done", TOKENIZER)


def test_what_an_environment_changes_later_is_its_own():
    """Messages that were told stay as they were, and each conversation has a task of its own."""

    class Changes(Asks):
        def tasks(self):
            return [{"words": ["one", "two"]}], [{"words": ["three"]}]

        def reset(self, task, *, seed):
            self.task, self.calls = task, [make_call(0, "look", {"at": ["here"]})]
            said = {"role": "assistant", "content": "", "tool_calls": self.calls}
            return Turn([{"role": np.str_("user"), "content": task["words"].pop(), 1: (2,)}, said])

        def step(self, message):
            self.calls[0]["function"]["arguments"]["at"].append("there")
            return Turn("bye", 1.0, terminated=True)

    found = play(Changes, lambda conversation, turn: "done", TOKENIZER)
    assert not found.reasons()
    calls = [make_call(0, "look", {"at": ["here"]})]
    first = [{"role": "user", "content": "two", "1": [2]}, {"role": "assistant", "content": "", "tool_calls": calls}]
    *told, own, _ = found.talks()[0]["messages"]
    assert told == first
    assert own == {"role": "assistant", "content": "done", "turn": 0}, "the first that the model has said"
    assert all("two" in text and "one" not in text for text in heard(found))


def test_a_call_takes_its_own_time_alone():
    """Not that of the engine, nor that of the calls of other agents."""

    class Slow(Asks):
        lane = "inline"

        def step(self, message):
            time.sleep(0.2)
            return super().step(message)

    def wait() -> str:
        """Wait."""
        time.sleep(0.1)
        return "fine"

    class Engine(ScriptedEngine):
        def step(self):
            if self.pending():
                time.sleep(0.05)
            return super().step()

    say = lambda conversation, turn: CALL.format("wait") if turn == 0 else "done"  # noqa: E731
    for lane in ("inline", "thread"):
        found = play(Slow, say, TOKENIZER, tools=[tool(wait, lane=lane)], groups=1, group_size=1, engine=Engine)
        tooled, stepped = found.stream.committed[0].arrays["duration_s"].tolist()
        assert 0.1 <= tooled < 0.2 <= stepped


class Endless(Asks):
    """Pays for each turn, and never ends."""

    def step(self, message):
        return Turn("go on", 1.0)


class Loud(Asks):
    """Says a megabyte."""

    def step(self, message):
        return Turn("a" * 10**6, 1.0)


@pytest.mark.parametrize(("env", "reason", "turns"), [(Endless, "turns", 4), (Loud, "context", 1)])
def test_what_never_ends_and_what_is_too_long_is_cut_off_with_its_reason(env, reason, turns):
    found = play(env, lambda conversation, turn: "more", TOKENIZER)
    ended = [e for e in found.events if e["kind"] == "episode"]
    assert [(e["reason"], e["turns"], e["return"]) for e in ended] == [(reason, turns, float(turns))] * 4
    for segment in found.stream.committed:
        assert segment.arrays["truncated"].tolist() == [True, True]
        assert int(segment.arrays["row_length"].max()) <= 2000


def test_a_first_message_of_a_megabyte_is_a_reason():
    left = [2]

    class Loud(Asks):
        def reset(self, task, *, seed):
            left[0] -= 1
            return Turn("a" * 10**6) if left[0] >= 0 else super().reset(task, seed=seed)

    found = play(Loud, lambda conversation, turn: "done", TOKENIZER)
    (why,) = found.stream.cancelled
    assert why.startswith("prompt_too_long: 10000")
    assert len(found.stream.committed) == 1


def test_every_environment_is_closed_once_also_those_that_failed():
    opened, closed = list[int](), list[int]()

    class Held(Asks):
        lane = "async"

        def __init__(self):
            self.number = len(opened)
            opened.append(self.number)

        async def step(self, message):
            await asyncio.sleep(0)
            if self.number == 3:
                raise OSError("gone")
            return super().step(message)

        async def close(self):
            await asyncio.sleep(0.001)
            closed.append(self.number)

    found = play(Held, lambda conversation, turn: "done", TOKENIZER)
    assert len(found.reasons()) == 1
    assert sorted(closed) == list(range(1, 7)), "number 0 holds the tasks"


def test_a_conversation_that_is_over_lets_go_while_others_of_its_group_play_on():
    closed, late, opened = list[bool](), list[int](), count()

    class Held(Asks):
        lane = "inline"

        def __init__(self):
            self.slow, self.left = next(opened) % 2 == 0, 3

        def step(self, message):
            if not self.slow:
                return super().step(message)
            late.append(len(closed))
            self.left -= 1
            return Turn("go on", 1.0, terminated=self.left == 0)

        def close(self):
            closed.append(self.slow)

    found = play(Held, lambda conversation, turn: "done", TOKENIZER, groups=1)
    assert len(found.stream.committed) == 1
    assert late == [1, 2, 2], "one was made to see its agents"
    assert closed == [False, False, True]


@pytest.mark.parametrize("most", [3, 256])
def test_an_evaluation_lets_go_of_conversations_as_they_end(monkeypatch, most):
    monkeypatch.setattr("runnel.llm.chat.evaluation.MOST", most)
    numbers, held, seen = count(), set[int](), list[int]()

    class Held(Asks):
        def __init__(self):
            self.number = next(numbers)

        def reset(self, task, *, seed):
            held.add(self.number)
            seen.append(len(held))
            return super().reset(task, seed=seed)

        def step(self, message):
            if self.number % 4 == 0:
                raise OSError("gone")
            return super().step(message)

        def close(self):
            held.discard(self.number)

    task = make_chat_task(Held, talk=TalkConfig())
    assert task.agents
    first = next(numbers)  # others were made to see what they offer
    settings = {
        "num_tasks": 8,
        "max_turns": 2,
        "max_context": 100,
        "max_tokens": 9,
        "seed": 0,
        "samples": 1,
        "temperature": 1.0,
    }
    evaluation = ChatEvaluation(task, TOKENIZER, **settings)
    client: Any = FakeClient(ScriptedEngine(lambda conversation, turn: "done", TOKENIZER))  # type: ignore[arg-type]
    client.published[0] = ParamSet(0, {})
    client.sync(0)
    result = evaluation.run({"policy": client}, round_index=0)
    evaluation.close()
    assert next(numbers) == first + 17, "eight tasks, each played twice"
    assert max(seen) == min(most, 16)
    assert not held
    assert sum(result.extra["failed"]) == 4
    assert set(result.returns) == {1.0}


@pytest.mark.parametrize(("room", "told"), [(6, 1), (5, 0)])
def test_a_prompt_that_leaves_room_for_one_token_is_played(room, told):
    found = play(Asks, lambda conversation, turn: "done", TOKENIZER, max_context=room, groups=1)
    assert [e["length"] for e in found.events if e["kind"] == "episode"] == [1, 1][: 2 * told]
    assert [why.partition(":")[0] for why in found.stream.cancelled] == ["prompt_too_long"][told:]
    assert all(len(prompt) == 5 for prompt in found.engine.prompts)


def test_what_a_tool_says_is_not_judged_as_the_answer():
    """A conversation that a limit ends behind a call of a tool."""
    from runnel.llm.chat.conversation import Speaker
    from runnel.llm.chat.tools import Toolbox

    side = Speaker("agent", Toolbox([], max_chars=100))
    side.messages = [{"role": "assistant", "content": "let me see"}, {"role": "tool", "content": "42"}]
    assert side.answer == "let me see"


@pytest.mark.skipif(sys.platform != "linux", reason="confinement is the Linux kernel's")
def test_python_that_kills_itself_or_prints_without_end_is_counted_and_the_next_call_runs():
    codes = {
        "import os; os._exit(3)": "died",
        "import ctypes; ctypes.string_at(0)": "died",  # a signal of the kernel
        "import os; os.kill(os.getpid(), 9)": "raised",  # signals of its own are not allowed
        "while True: print('a' * 1000)": "too_long",
        "while True: pass": "timeout",
    }

    def say(conversation, turn):
        code = [*codes][conversation] if turn == 0 else "print(6 * 7)"
        return f"```python\n{code}\n```" if turn < 2 else "done"

    with SessionPool(SessionConfig(wall_s=1.0, cpu_s=10)) as pool:
        tools = [python_tool(pool=pool)]
        found = play(Asks, say, TOKENIZER, tools=tools, dialect="python", tool_chars=200, group_size=5, groups=1)
        assert not pool._sessions, "all are closed with their conversations"
    assert sorted(str(e) for e in found.tool_errors()) == sorted(str({kind: 1}) for kind in codes.values())
    ends = [text for text in heard(found) if text.endswith("```output\n42\n```")]
    assert len(ends) == 5
