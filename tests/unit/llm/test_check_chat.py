"""check_chat, finding by finding: one small conversation environment for each, and what the report says of it."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runnel.cli.main import main
from runnel.core.contracts.chat import Tool, Turn
from runnel.core.errors import ConfigError
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.tools import tool, tools_of
from runnel.llm.worlds import WORLDS
from runnel.testing.chat import check_chat
from runnel.testing.chat_play import ChatReport, not_plain


class Count:
    """Count down from a number of the seed; "down" is right."""

    lane = "inline"
    rewards: ClassVar[dict[str, float]] = {"right": 1.0, "brief": 0.1}

    def __init__(self) -> None:
        self.now: dict[str, int] = {}

    def reset(self, task: Any, *, seed: int) -> Any:
        self.now = {"left": random.Random(seed).randrange(3, 6)}
        return Turn(f"{self.now['left']} left")

    def step(self, message: Any) -> Any:
        self.now["left"] -= 1
        return Turn(f"{self.now['left']} left", {"right": float(message["content"] == "down")}, terminated=not self.now["left"])

    def get_state(self) -> Any:
        return dict(self.now)

    def set_state(self, state: Any) -> None:
        self.now = dict(state)

    def script(self) -> Any:
        return "down"

    def close(self) -> None:
        pass


def variant(**parts: Any) -> type[Count]:
    return type("Variant", (Count,), parts)


def found(env: Any, **options: Any) -> ChatReport:
    return check_chat(env, **{"episodes": 2, "max_turns": 8} | options)


def only(report: ChatReport) -> str:
    """The one error of a report that has nothing else to say."""
    (error,) = report
    assert not report.warnings, report
    assert not report.hints, report
    return error


def test_a_clean_environment_has_an_empty_report() -> None:
    report = found(Count)
    assert report == []
    assert (report.warnings, report.hints) == ([], [])
    counted = f"{report.num_steps} messages, {report.num_episodes} conversations played"
    assert str(report) == f"Count: nothing to complain about ({counted})"
    assert report.num_episodes > 10


class Coroutines(Count):
    """The same, asynchronous."""

    lane = "async"

    async def reset(self, task: Any, *, seed: int) -> Any:
        return Count.reset(self, task, seed=seed)

    async def step(self, message: Any) -> Any:
        return Count.step(self, message)


class Talk:
    """Two agents who speak in turn; the second one hears the first."""

    agents = ("ann", "bob")

    def reset(self, task: Any, *, seed: int) -> dict[str, Turn]:
        self.left = 2 + seed % 2
        return {"ann": Turn("begin")}

    def step(self, messages: Any) -> dict[str, Turn]:
        ((agent, message),) = messages.items()
        self.left -= agent == "bob"
        other = "bob" if agent == "ann" else "ann"
        if not self.left:
            return {a: Turn("over", float(a == "ann"), terminated=True) for a in self.agents}
        return {other: Turn(message["content"][:20] or "nothing")}


class Shop(Count):
    """With tools on its state."""

    def tools(self) -> Any:
        return [*tools_of(self), tool(len_of, name="length")]

    def take(self, number: int = 1) -> Any:
        """Take some."""
        self.now["left"] = max(self.now["left"] - number, 0)
        return f"{self.now['left']} left" if self.now["left"] else Turn("all gone", {"right": 1.0}, terminated=True)

    def script(self) -> Any:
        return {"tool_calls": [make_call(0, "take", {"number": 3})]} if self.now["left"] > 3 else "down"

    def step(self, message: Any) -> Any:
        self.now["left"] = max(self.now["left"], 1)
        return Count.step(self, message)


def len_of(text: str) -> int:
    """Count letters."""
    return len(text)


@pytest.mark.parametrize("env", [Coroutines, Talk, Shop])
def test_other_kinds_of_environments_pass(env: Any) -> None:
    report = found(env)
    assert report == [], report
    assert report.warnings == []


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_built_in_worlds_pass(world: str) -> None:
    report = check_chat(world, episodes=2, slow_s=30.0)  # how long it takes is the machine's affair
    assert report == [], report
    assert report.warnings == [], report


DRAWN = random.Random(0)


def drawn_reset(self: Any, task: Any, *, seed: int) -> Turn:
    self.now = {"left": 4}
    return Turn(f"{DRAWN.random()}")


class Shared(Count):
    """Its number belongs to the class."""

    left = 0

    def reset(self, task: Any, *, seed: int) -> Any:
        Shared.left = random.Random(seed).randrange(3, 6)
        return Turn(f"{Shared.left} left")

    def step(self, message: Any) -> Any:
        Shared.left -= 1
        return Turn(f"{Shared.left} left", {"right": 0.0}, terminated=Shared.left <= 0)

    def get_state(self) -> Any:
        return {"left": Shared.left}

    def set_state(self, state: Any) -> None:
        Shared.left = state["left"]


def picky_step(self: Any, message: Any) -> Any:
    int(message["content"] if message["content"].startswith(("{", "-")) else "0")
    return Count.step(self, message)


def paid(reward: Any) -> Any:
    return lambda self, message: Turn("go on", reward, terminated=True)


def says(*messages: Any) -> Any:
    return lambda self, task, seed: Turn(messages)


def two_splits(train: Any, held_out: Any) -> type[Count]:
    return variant(tasks=lambda self: (train, held_out))


def changes_message(self: Any, message: Any) -> Any:
    message["content"] = "down"
    return Count.step(self, message)


def changes_task(self: Any, task: Any, *, seed: int) -> Any:
    task["seen"] = True
    return Count.reset(self, task, seed=seed)


def turned(self: Any) -> str:
    self.now["left"] += 1
    return "down"


def closes_once(self: Any) -> None:
    if not hasattr(self, "now"):
        raise RuntimeError("it is closed")
    del self.now


def bad_tool(**parts: Any) -> type[Count]:
    given: dict[str, Any] = {"name": "go", "description": "Go.", "parameters": {"type": "object"}, "open": object}
    return variant(tools=lambda self: [Tool(**given | parts)], script=lambda self: "down")


ERRORS: dict[str, tuple[Any, str]] = {
    "no step": (type("NoStep", (), {"reset": Count.reset}), "which has no step(); an environment has reset(task"),
    "making": (variant(__init__=lambda self: 1 / 0), "making it failed: ZeroDivisionError: division by zero"),
    "channels": (variant(rewards={"a/b": 1.0}), "its rewards are {'a/b': 1.0}; name each channel (no slash)"),
    "reset raises": (variant(reset=lambda self, task, seed: 1 / 0), "reset(task, seed=...) failed: ZeroDivisionError"),
    "reset's arguments": (variant(reset=lambda self: Turn("")), "got an unexpected keyword argument 'seed'"),
    "no turn": (variant(step=lambda self, message: "text"), "step: the environment gave str instead of a Turn"),
    "channel": (variant(step=paid(1.0)), "reward channel 'reward' is unknown: the environment has right, brief"),
    "nan": (variant(step=paid({"right": float("nan")})), "the reward 'right' of a turn is nan; give a finite number"),
    "role": (variant(reset=says({"role": "human", "content": "?"}), step=paid({})), "of the role 'human'; chat templates know"),
    "content": (variant(reset=says({"role": "user", "content": None})), "whose content is a NoneType; it must be a text"),
    "plain": (
        variant(reset=says({"role": "user", "content": "?", "cell": (1, 2)}), step=paid({})),
        "no plain data: JSON makes {'role': 'user', 'content': '?', 'cell': [1, 2]}",
    ),
    "over": (variant(reset=lambda self, task, seed: Turn(terminated=True)), "over before anybody has spoken"),
    "not seeded": (variant(reset=drawn_reset), "with the same task, seed and messages, the first turn was"),
    "shared": (Shared, "two conversations at once disturb each other"),
    "odd": (variant(step=picky_step), "failed: ValueError: invalid literal for int()"),
    "changes message": (variant(step=changes_message), "step changes the message that it gets; copy it first"),
    "changes task": (variant(reset=changes_task), "reset changes its task; copy it first"),
    "half a state": (
        type("Half", (), {"reset": Count.reset, "step": Count.step, "get_state": Count.get_state, "rewards": Count.rewards}),
        "it has get_state and no set_state",
    ),
    "state not plain": (
        variant(get_state=lambda self: {1: 2}),
        "get_state() does not return a dict of plain data: JSON makes {'1': 2}",
    ),
    "state not whole": (variant(set_state=lambda self, state: setattr(self, "now", {"left": 9})), "does not bring it back"),
    "state not copied": (variant(get_state=lambda self: self.now), "changes when the conversation goes on; return a copy"),
    "one split": (variant(tasks=lambda self: [{}]), "tasks() returned a list; return two sequences"),
    "no tasks": (two_splits([{}], []), "there are no held-out tasks; both splits need some"),
    "task not plain": (two_splits([{"a": {1}}], [{}]), "train task 0 is no dict of plain data"),
    "no task": (two_splits(["a"], [{}]), "train task 0 is no dict of plain data: it is a str"),
    "bad script": (variant(script=lambda self: 3), "script() returned 3; return a text, or a message"),
    "poor script": (
        variant(step=lambda self, m: Turn("x", {"right": -float(m["content"] == "down")}, terminated=True)),
        "script() earns less than random messages with each task and seed: -1 on average, and random messages 0",
    ),
    "endless script": (
        variant(step=lambda self, message: Turn("go on")),
        "the script has not ended a conversation after 8 messages",
    ),
    "script that acts": (variant(script=turned), "script() changes the state of the environment"),
    "closing": (variant(close=closes_once), "close(), called again, failed: RuntimeError: it is closed"),
    "tools": (variant(tools=lambda self: [len]), "tools() returned [<built-in function len>]; return a list of tools"),
    "schema": (bad_tool(parameters={"type": "string"}), "the schema of the tool 'go' must be that of an object"),
    "schema not plain": (bad_tool(parameters={"type": "object", "properties": {"a": str}}), "'go' is no plain data"),
    "required": (bad_tool(parameters={"type": "object", "required": ["a"], "properties": {}}), "requires 'a', which is none"),
    "twins": (variant(tools=lambda self: [tool(len_of), tool(len_of)]), "two tools have one name: len_of, len_of"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_one_mistake_is_named(name: str) -> None:
    env, said = ERRORS[name]
    report = found(env)
    assert any(said in error for error in report), report


def test_a_call_that_hangs_is_named() -> None:
    never = threading.Event()
    report = found(variant(step=lambda self, message: never.wait()), timeout_s=0.2)
    assert "step({'content': '" in report[0]
    assert "did not answer (timeout after 0.2 s" in report[0]
    never.set()


def test_slow_calls_are_named() -> None:
    report = found(Talk, slow_s=0.0)  # every call is slower than that
    assert report == []
    assert any(w.startswith("reset(task, seed=...) took") for w in report.warnings)


WARNINGS = {
    "endless": (
        type("Endless", (), {"reset": Count.reset, "step": lambda self, m: Turn("go on")}),
        "no conversation ended by itself",
    ),
    "silent": (variant(reset=says()), "without messages that does not end"),
    "both": (variant(step=lambda self, m: Turn("x", {}, terminated=True, truncated=True)), "terminated and truncated"),
    "equal tasks": (two_splits([{"a": 1}], [{"a": 1}]), 'the task {"a": 1} is in both splits'),
    "described": (bad_tool(description="", open=lambda: tool(len_of).open()), "'go' has no description"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_often_a_mistake_is_a_warning(name: str) -> None:
    env, said = WARNINGS[name]
    report = found(env)
    assert any(said in warning for warning in report.warnings), report


class NoSeed:
    """All conversations are one."""

    def reset(self, task: Any, *, seed: int) -> Turn:
        return Turn("say something")

    def step(self, message: Any) -> Turn:
        return Turn("thanks", terminated=True)

    def tools(self) -> list[Tool]:
        return [tool(Keeps)]

    def get_state(self) -> dict[str, int]:
        return {}

    def set_state(self, state: Any) -> None:
        pass


class Keeps:
    def call(self) -> str:
        """Keep something."""
        return "kept"


def test_hints() -> None:
    report = found(NoSeed)
    assert report == []
    assert any("all seeds begin alike" in hint for hint in report.hints)
    assert any("a tool has no get_state and set_state" in hint for hint in report.hints)


def test_settings_and_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own_env.py"
    file.write_text(
        "from runnel.core.contracts.chat import Turn\n"
        "class Echo:\n"
        "    def __init__(self, end=True):\n        self.end = end\n"
        "    def reset(self, task, *, seed):\n        return Turn(f'say {seed}')\n"
        "    def step(self, message):\n        return Turn('thanks', terminated=self.end, truncated=1 // self.end < 0)\n"
    )
    assert main(["check-chat", f"{file}:Echo", "--max-turns", "4"]) == 0
    assert "own_env.py:Echo: nothing to complain about" in capsys.readouterr().out
    assert main(["check-chat", f"{file}:Echo", "--settings", '{"end": false}']) == 1
    assert "failed: ZeroDivisionError" in capsys.readouterr().out
    assert main(["check-chat", "guess", "--episodes", "1"]) == 0
    assert main(["check-chat", "gues"]) == 2
    with pytest.raises(ConfigError, match="episodes = 0: use 1 or more"):
        check_chat("guess", episodes=0)


def test_plain_data() -> None:
    assert not_plain({"a": [1, None, "b", 0.5]}) is None
    assert not_plain({"a": float("nan")}) is not None
    assert not_plain("\ud800") is not None
    assert "lists in place of tuples" in str(not_plain((1, 2)))
