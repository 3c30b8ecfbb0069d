"""Environments and tools that misbehave: each is a counted reason, nothing is lost, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from scripted_engine import Played, play

from runnel.core.contracts.chat import ToolFailure, Turn
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


async def block_the_loop():
    STAYS.wait()


async def die_in_the_loop():
    raise KeyboardInterrupt


async def exit_in_the_loop():
    raise SystemExit(3)


BAD_TOOLS = {
    "hangs": (lambda: STAYS.wait(), "timeout", "Error: timeout after 0.3 s"),
    "hangs as a coroutine": (wait_for_ever, "timeout", "Error: timeout after 0.3 s"),
    "blocks the loop": (block_the_loop, "timeout", "Error: timeout after 0.3 s"),
    "raises": (raises(OSError("no disk")), "raised", "Error: OSError: no disk"),
    "exits": (raises(SystemExit(3)), "raised", "Error: SystemExit: 3"),
    "exits as a coroutine": (exit_in_the_loop, "raised", "Error: SystemExit: 3"),
    "is interrupted": (raises(KeyboardInterrupt()), "raised", "Error: KeyboardInterrupt"),
    "is interrupted as a coroutine": (die_in_the_loop, "raised", "Error: KeyboardInterrupt"),
    "leaves its generator": (raises(GeneratorExit()), "raised", "Error: GeneratorExit"),
    "raises what has no words": (raises(Mute()), "raised", "Error: Mute"),
    "fails in its own words": (raises(ToolFailure("x" * 10**6, kind="too_long")), "too_long", "Error: xxxx"),
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
