"""Plays conversations for their check: guards every call with a deadline, checks every turn, and records what was said."""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from runnel.core.calls.pool import CallPool, CallSpec
from runnel.core.contracts.chat import HasScript, Lane, Message, Tool, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.games import as_game, channels_of, checked_turns, lane_of, own, plain_turns, tools_of_game
from runnel.llm.chat.tools import Toolbox
from runnel.testing.env_report import EnvReport

ROLES = ("system", "user", "assistant", "tool")
MAX_CHARS = 4000
_SHOWN = 100
_SLOW_INLINE_S = 0.05


class ChatReport(EnvReport):
    """The errors of a conversation environment, one text each, with the fix. An empty list is a pass."""

    words: ClassVar[tuple[str, str]] = ("message", "conversation")


class Caller:
    """Calls a user's code, and says in the report what raised and what took too long."""

    def __init__(self, report: ChatReport, *, timeout_s: float, slow_s: float) -> None:
        self.report, self._slow_s = report, slow_s
        self._slow_inline = Counter[str]()
        self._pool = CallPool(
            [
                CallSpec("check.thread", _plainly, run="thread", timeout_s=timeout_s, limit_field="timeout_s"),
                CallSpec("check.async", _awaited, run="async", timeout_s=timeout_s, limit_field="timeout_s"),
            ]
        )

    def ask(self, lane: Lane, fn: Callable[..., Any], *args: object, **named: object) -> tuple[Any, str, float]:
        """The value of a call, or why there is none, and its seconds. Inline code runs in a thread here: it may hang."""
        began = time.perf_counter()
        self._pool.submit("check.async" if lane == "async" else "check.thread", fn, *args, **named)
        (outcome,) = self._pool.wait_all()
        return outcome.value, f"{outcome.reason}{outcome.lines}", time.perf_counter() - began

    def call(self, what: str, lane: Lane, fn: Callable[..., Any], *args: object, topic: str = "", **named: object) -> Any:
        """The value of a call; where there is none, the check of this conversation ends."""
        value, reason, seconds = self.ask(lane, fn, *args, **named)
        if reason.startswith("timeout"):
            text = f"{what} did not answer ({reason}); a run gives up such a call after talk.step_timeout_s"
            raise self.report.stop(topic or what, text)
        if reason:
            raise self.report.stop(topic or what, f"{what} failed: {reason}")
        if seconds > self._slow_s:
            self.report.warn(f"slow {what}", f"{what} took {seconds:.2g} s; each conversation waits for it at every turn")
        elif lane == "inline" and seconds > _SLOW_INLINE_S:
            self._slow_inline[what] += 1
            if self._slow_inline[what] > 1:  # one alone may be the first import, or a machine that is busy
                text = f"{what} took {seconds:.2g} s, and lane = 'inline' holds up all other conversations; leave the lane out"
                self.report.warn(f"inline {what}", text)
        return value

    def close(self) -> None:
        self._pool.close()


def _plainly(fn: Callable[..., Any], /, *args: object, **named: object) -> Any:
    return fn(*args, **named)


async def _awaited(fn: Callable[..., Any], /, *args: object, **named: object) -> Any:
    made = fn(*args, **named)
    return await made if inspect.isawaitable(made) else made


class Play:
    """One conversation in one environment. `said` has the messages of its agents, `heard` what came of them, as texts."""

    def __init__(self, make: Callable[[], Any], caller: Caller) -> None:
        self._caller, self.report = caller, caller.report
        made = caller.call("making it", "thread", make)
        try:
            self.game = as_game(made, field="chat", target=self.report.name)
            self.channels = channels_of(self.game)
        except ConfigError as error:
            raise self.report.stop("make", error.fix) from error
        self.lane = lane_of(self.game)
        self.boxes = {agent: Toolbox(self._tools(), max_chars=MAX_CHARS) for agent in self.game.agents}
        self.said: list[dict[str, Message]] = []
        self.heard: list[str] = []
        self.total = 0.0
        self.over: set[str] = set()
        self.speakers: list[str] = []
        self.newest: dict[str, str] = {}
        """The text of the last message, by agent."""

    @property
    def owner(self) -> Any:
        """The object that the user wrote."""
        return own(self.game)

    @property
    def ended(self) -> bool:
        return len(self.over) == len(self.game.agents)

    def reset(self, task: Settings, seed: int) -> None:
        """Begin the conversation."""
        given = json.dumps(dict(task), sort_keys=True, default=repr)
        turns = self._caller.call("reset(task, seed=...)", self.lane, self.game.reset, task, seed=seed, topic="reset")
        if json.dumps(dict(task), sort_keys=True, default=repr) != given:
            self.report.error("task", "reset changes its task; copy it first: all conversations of a group share it")
        self._take(turns, "reset")
        self.report.num_episodes += 1

    def say(self, messages: Mapping[str, Message], *, topic: str = "step") -> None:
        """Let agents speak. Calls of tools are answered; other messages go to the environment together."""
        self.said.append(dict(messages))
        self.report.num_steps += 1
        calls = {agent: m["tool_calls"] for agent, m in messages.items() if m.get("tool_calls")}
        for agent, made in calls.items():
            for call in made:
                self._use(agent, call)
        to_tell = {agent: {"role": "assistant", "content": m["content"]} for agent, m in messages.items() if agent not in calls}
        if not to_tell or self.ended:
            return
        self.speakers = [agent for agent in self.speakers if agent in calls]
        given = json.dumps(to_tell)
        shown = _short(next(iter(to_tell.values()))["content"])
        turns = self._caller.call(f"step({{'content': {shown!r}}})", self.lane, self.game.step, to_tell, topic=topic)
        if json.dumps(to_tell) != given:
            self.report.error("message", "step changes the message that it gets; copy it first: it is recorded as it was said")
        self._take(turns, "step")

    def play(self, speak: Callable[[Play, str], Message], max_turns: int) -> None:
        """Let the agents speak, until it is over or for `max_turns` messages."""
        for _ in range(max_turns):
            if self.ended:
                return
            if not self.speakers:
                text = "nobody is to speak next, and it is not over; give a Turn to an agent, or end it"
                raise self.report.stop("stuck", text)
            self.say({agent: speak(self, agent) for agent in self.speakers})

    def script(self, agent: str) -> Message:
        """A good message, by the environment's own word."""
        assert isinstance(self.owner, HasScript)
        found = self._caller.call("script()", "thread", self.owner.script)
        message = {"content": found} if isinstance(found, str) else found
        if not isinstance(message, Mapping) or not isinstance(message.get("content", ""), str):
            text = f"script() returned {_short(repr(found))}; return a text, or a message with `content` or `tool_calls`"
            raise self.report.stop("script", text)
        return {"role": "assistant", "content": "", **message}

    def close(self) -> None:
        """Close environment and tools, twice: a run may do so after a failure."""
        for box in self.boxes.values():
            box.close()
        if hasattr(self.owner, "close"):
            self._caller.call("close()", "thread", self.owner.close)
            self._caller.call("close(), called again,", "thread", self.owner.close, topic="close")

    def _tools(self) -> Sequence[Tool]:
        if not hasattr(own(self.game), "tools"):
            return ()
        found = self._caller.call("tools()", "thread", tools_of_game, self.game)
        check_tools(found, self.report)
        return list(found)

    def _use(self, agent: str, call: Message) -> None:
        """Make a call of a tool, as a run does."""
        box = self.boxes[agent]
        name = call["function"]["name"]
        value, reason, _ = self._caller.ask(box.lane(call), box.target(call))
        if reason.startswith("timeout"):
            self.report.warn(f"tool {name}", f"the tool {name!r} did not answer ({reason}); the model is told so")
        message, _, turn = box.answer(call, value if not reason else RuntimeError(reason))
        self.heard.append(f"{name}: {message['content']}")
        self.newest[agent] = message["content"]
        if turn is not None:
            self._take({agent: turn}, f"the tool {name!r}")

    def _take(self, turns: object, what: str) -> None:
        """Check what came, and note it."""
        try:
            found = checked_turns(self.game, turns, self.channels)
        except DataError as error:
            raise self.report.stop("turn", f"{what}: {error}") from error
        for agent, turn in found.items():
            _check_turn(turn, what, self.report)
            self.newest[agent] = str(turn.messages[-1]["content"]) if turn.messages else ""  # type: ignore[index]
            assert isinstance(turn.rewards, Mapping)
            self.total += sum(self.channels[name] * value for name, value in turn.rewards.items())
            if turn.over:
                self.over.add(agent)
        self.heard.append(plain_turns(found))
        going = [agent for agent in self.game.agents if agent not in self.over]
        self.speakers = [agent for agent in going if agent in found or agent in self.speakers]


def _check_turn(turn: Turn, what: str, report: ChatReport) -> None:
    for message in turn.messages:
        assert isinstance(message, Mapping)
        if message.get("role") not in ROLES:
            text = f"{what} gave a message of the role {message.get('role')!r}; chat templates know {', '.join(ROLES)}"
            report.error("role", text)
        if not isinstance(message.get("content"), str):
            text = f"{what} gave a message whose content is a {type(message.get('content')).__name__}; it must be a text"
            raise report.stop("content", text)
        if (why := not_plain(message)) is not None:
            report.error("plain", f"{what} gave a message that is no plain data: {why}")
    if not turn.messages and not turn.over:
        report.warn("silent", f"{what} gave a turn without messages that does not end: the agent speaks twice in a row")
    if turn.terminated and turn.truncated:
        report.warn("both", f"{what} gave a turn that is terminated and truncated; say terminated alone if it ended by itself")


def check_tools(tools: object, report: ChatReport) -> None:
    """Check the tools that an environment offers."""
    if not isinstance(tools, (list, tuple)) or not all(isinstance(t, Tool) for t in tools):
        text = f"tools() returned {_short(repr(tools))}; return a list of tools: tools_of(self), or [tool(function)]"
        raise report.stop("tools", text)
    for t in tools:
        if (why := not_plain(dict(t.parameters))) is not None:
            raise report.stop("tools", f"the schema of the tool {t.name!r} is no plain data: {why}")
        if t.parameters.get("type") != "object" or not isinstance(t.parameters.get("properties", {}), Mapping):
            text = f"the schema of the tool {t.name!r} must be that of an object: {{'type': 'object', 'properties': {{...}}}}"
            raise report.stop("tools", text)
        if missing := set(t.parameters.get("required", ())) - set(t.parameters.get("properties", {})):
            report.error("tools", f"the tool {t.name!r} requires {sorted(missing)[0]!r}, which is none of its properties")
        if not t.description:
            report.warn("described", f"the tool {t.name!r} has no description: the model is not told what it does")
    if len({t.name for t in tools}) < len(tools):
        raise report.stop("tools", f"two tools have one name: {', '.join(t.name for t in tools)}")


def not_plain(value: object) -> str | None:
    """Why a value is not what JSON gives back equal; None if it is."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair has no bytes
    except (TypeError, ValueError) as error:
        return str(error)
    back = json.loads(text)
    if back == value:
        return None
    return f"JSON makes {_short(repr(back))} of {_short(repr(value))}; use texts as keys, and lists in place of tuples"


# ------------------------------------------------------------------------------------------------- what agents may say
def anything(rng: np.random.Generator) -> Callable[[Play, str], Message]:
    """Says words of what was heard, numbers and other texts, and calls tools with arguments of the right types."""

    def speak(play: Play, agent: str) -> Message:
        schemas = play.boxes[agent].schemas
        if schemas and rng.random() < 0.5:
            function = schemas[int(rng.integers(len(schemas)))]["function"]
            arguments = {n: _value(s, rng) for n, s in function["parameters"].get("properties", {}).items()}
            return {"role": "assistant", "content": "", "tool_calls": [make_call(0, function["name"], arguments)]}
        words = [*play.newest.get(agent, "").split()[:200], "yes", "no", str(int(rng.integers(-2, 100)))]
        return {"role": "assistant", "content": " ".join(rng.choice(words, size=int(rng.integers(1, 4))).tolist())}

    return speak


def _value(schema: Mapping[str, Any], rng: np.random.Generator) -> object:
    if schema.get("enum"):
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    kind = schema.get("type", "string")
    number = int(rng.integers(0, 20))
    made = {"integer": number, "number": number / 4, "boolean": number > 9, "array": [], "object": {}, "null": None}
    return made.get(kind if isinstance(kind, str) else kind[0], str(number))


def again(said: Sequence[Mapping[str, Message]]) -> Callable[[Play, str], Message]:
    """Says what was said in another conversation."""
    return lambda play, agent: said[len(play.said)].get(agent, {"role": "assistant", "content": "?"})


def scripted(play: Play, agent: str) -> Message:
    """Says what the environment's script says."""
    return play.script(agent)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text)} characters)"


def difference(first: Sequence[str], second: Sequence[str]) -> str | None:
    """Where two conversations differ, in words; None if they are equal."""
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            start = max(at - 20, 0)
            where = "the first turn" if i == 0 else f"what came of message {i}"
            return f"{where} was {_short(a[start:])!r}, and then {_short(b[start:])!r}"
    if len(first) != len(second):
        return f"one had {len(first)} turns, the other {len(second)}"
    return None
