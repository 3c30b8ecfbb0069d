"""Tools: schemas against transformers' own function, arguments told in words, and the box of tools of one conversation."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from runnel.core.calls.pool import CallPool, CallSpec
from runnel.core.contracts.chat import Message, Tool, ToolFailure, Turn
from runnel.core.errors import ConfigError
from runnel.llm.chat.arguments import wrong_arguments
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.tools import Toolbox, as_tools, cut, load_tools, schema, too_many, tool, tools_of


# ------------------------------------------------------------------------------------------------------------- schemas
def plain(a: int, b: float, c: str, d: bool = True) -> str:
    """Do something plain. It is
    described in two lines.

    Args:
        a: The first one.
        b: The second one,
            in two lines.
        c: A text: with a colon (choices: ["x", "y"])
        d: Whether
    """
    return f"{a}{b}{c}{d}"


def nested(a: list[int], b: dict[str, list[float]], c: list[list[str]], d: dict, e: list, f: Any) -> None:
    """Take what is nested.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F

    Returns:
        Nothing.
    """


def unions(
    a: int | None, b: int | str, c: list[int] | str | None, d: Literal["x", "y"], e: Literal[1, "a", None], f: tuple[int, str]
) -> None:
    """Take one of several.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F
    """


async def awaited(query: str, k: int = 3) -> list[str]:
    """Search.

    Args:
        query: What to look for.
        k: How many.

    Raises:
        ValueError: Never.
    """
    return [query] * k


@pytest.mark.parametrize("function", [plain, nested, unions, awaited])
def test_schemas_are_those_of_transformers(function: Any) -> None:
    expected = get_json_schema(function)
    expected["function"].pop("return", None)  # of no use to a model: no template that we know shows it
    assert schema(tool(function)) == expected


class Point(TypedDict):
    x: int
    label: NotRequired[str]


@dataclass
class Line:
    start: tuple[int, int]
    width: float = 1.0


def test_dataclasses_and_typed_dicts_have_their_fields_and_arrive_as_what_they_are() -> None:
    def draw(line: Line, points: list[Point], more: list[Line] | None = None) -> str:
        """Draw."""
        return f"{line} {points} {more}"

    made = tool(draw)
    point = {"type": "object", "properties": {"x": {"type": "integer"}, "label": {"type": "string"}}, "required": ["x"]}
    assert made.parameters["properties"]["points"] == {"type": "array", "items": point}
    assert made.parameters["properties"]["line"]["required"] == ["start"]
    arguments = {"line": {"start": [1, 2]}, "points": [{"x": 1}], "more": [{"start": [3, 4], "width": 2.0}]}
    assert answer(made, arguments)[0] == f"{Line((1, 2))} {[{'x': 1}]} {[Line((3, 4), 2.0)]}"
    assert (
        "the argument 'line.start' must be a list of 2, but it has 1" in answer(made, {"line": {"start": [1]}, "points": []})[0]
    )
    assert "the argument 'points.0.x' is missing" in answer(made, {"line": {"start": [1, 2]}, "points": [{}]})[0]
    assert "no argument 'line.colour'" in answer(made, {"line": {"start": [1, 2], "colour": 1}, "points": []})[0]


def test_numpys_way_of_writing_docstrings() -> None:
    def area(width: float, height: float = 1.0) -> float:
        """Compute an area.

        Parameters
        ----------
        width : float
            How wide.
        height : float, optional
            How high, in
            metres.

        Returns
        -------
        float
            The area.
        """
        return width * height

    made = tool(area)
    assert made.description == "Compute an area."
    told = {name: p["description"] for name, p in made.parameters["properties"].items()}
    assert told == {"width": "How wide.", "height": "How high, in metres."}


class Unknown:
    pass


def no_type(a, b: int):  # type: ignore[no-untyped-def]
    """A."""


def no_schema(a: Unknown) -> None:
    """A."""


def no_words(a: int) -> None: ...


def many(*rest: int) -> None:
    """A."""


def by_place(a: int, /) -> None:
    """A."""


def either(a: Line | str) -> None:
    """A."""


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (no_type, "tools = 'no_type': the parameter 'a' has no type; write a: str"),
        (no_schema, r"tools = 'no_schema\(a\)': its type Unknown has no JSON schema; use str, int"),
        (no_words, "tools = 'no_words': nothing tells the model what it does; write a docstring"),
        (many, "takes any number of arguments"),
        (by_place, "'a' has no name for callers; take the / out"),
        (either, "cannot tell a dataclass from something else"),
        (lambda a: a, "give a name of letters"),
        (Unknown, "a class is a tool if it has a typed method `call`"),
        (3, "a int is no tool; give a typed function"),
    ],
)
def test_what_is_no_tool_is_refused_with_the_fix(made: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(made)


def test_lanes() -> None:
    assert (tool(plain).lane, tool(awaited).lane, tool(plain, lane="inline").lane) == ("thread", "async", "inline")
    with pytest.raises(ConfigError, match=r"tools\.plain\.lane = 'async': only an `async def` runs so"):
        tool(plain, lane="async")
    with pytest.raises(ConfigError, match=r"tools\.awaited\.lane = 'inline': it is an `async def`"):
        tool(awaited, lane="inline")


# ----------------------------------------------------------------------------------------------------------- arguments
ARGUMENTS = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "kind": {"enum": ["a", 1]},
        "either": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
        "maybe": {"type": "string", "nullable": True},
        "table": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": 1, "x": 2, "kind": 1, "either": [1], "maybe": None, "table": {"a": 0.5}}, None),
        ({"n": 10**400, "x": 10**400}, None),
        ({}, "the argument 'n' is missing"),
        ({"n": 1.0}, "the argument 'n' must be an integer, but it is 1.0"),
        ({"n": True}, "the argument 'n' must be an integer, but it is true"),
        ({"n": "1"}, "the argument 'n' must be an integer, but it is \"1\""),
        ({"n": 1, "x": float("inf")}, "the argument 'x' must be a number, but it is Infinity"),
        ({"n": 1, "kind": True}, "the argument 'kind' must be \"a\" or 1, but it is true"),
        (
            {"n": 1, "either": [1, "a"]},
            "the argument 'either.1' must be an integer, but it is \"a\" (or another of the 2 forms",
        ),
        ({"n": 1, "maybe": 1}, "the argument 'maybe' must be a text, but it is 1"),
        ({"n": 1, "table": {"a": "b"}}, "the argument 'table.a' must be a number"),
        ({"n": 1, "other": 1}, "there is no argument 'other'; the arguments are 'n', 'x'"),
        ([1], "the arguments must be an object of names and values, but they are [1]"),
    ],
)
def test_wrong_arguments_are_named(arguments: object, says: str | None) -> None:
    found = wrong_arguments(ARGUMENTS, arguments)
    assert found is None if says is None else found is not None and found.startswith(says)


KEYWORDS = [
    "type",
    "properties",
    "required",
    "enum",
    "const",
    "items",
    "prefixItems",
    "additionalProperties",
    "anyOf",
    "nullable",
]
ODD: list[Any] = [None, 0, True, 1.5, "a", "string", [], {}, [None], ["string"], [{"x": 1}], {"a": None}, {"type": "string"}]


def any_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    chosen = rng.sample(KEYWORDS, rng.randint(0, 4))
    return {k: rng.choice(ODD) if depth > 1 or rng.random() < 0.6 else any_schema(rng, depth + 1) for k in chosen}


def test_a_schema_of_a_server_may_be_anything() -> None:
    """What says nothing that is known is left to the server, and never stops a run."""
    rng = random.Random(0)
    told = [wrong_arguments(any_schema(rng), {"a": rng.choice(ODD)}) for _ in range(3000)]
    assert all(found is None or found for found in told)
    assert 100 < sum(found is None for found in told) < 2900


# ------------------------------------------------------------------------------------------------------- the toolbox
def answer(made: Tool, arguments: object, **options: int) -> tuple[str, dict[str, int], Turn | None]:
    """Call a tool as a player does, without a pool."""
    box = Toolbox([made], max_chars=options.get("max_chars", 1000))
    call = make_call(0, made.name, {}) | {"function": {"name": made.name, "arguments": arguments}}
    try:
        outcome = box.target(call)()
        outcome = asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome
    except Exception as error:
        outcome = error
    message, counts, turn = box.answer(call, outcome)
    assert {k: v for k, v in message.items() if k != "content"} == {"role": "tool", "tool_call_id": "call-0", "name": made.name}
    return message["content"], dict(counts), turn


def returns(value: object) -> Tool:
    return tool(lambda: value, name="give", description="Give it.")


def test_results_are_texts_or_json() -> None:
    assert answer(returns("as it is"), {}) == ("as it is", {"tool_calls": 1}, None)
    assert answer(returns({"ä": [1, None]}), {})[0] == '{"ä": [1, null]}'
    assert answer(returns("half \ud800"), {})[0] == "half ?"
    text, counts, _ = answer(returns(object()), {})
    assert text.startswith("Error: the tool returned a object that is no plain data")
    assert counts == {"tool_calls": 1, "tool_errors/raised": 1}


def test_failures_are_told_and_counted_by_kind() -> None:
    @tool
    def bad(kind: str) -> str:
        """Fail."""
        if kind == "died":
            raise ToolFailure("the interpreter is gone", kind="died")
        raise KeyError(kind)

    assert answer(bad, {"kind": "died"}) == ("Error: the interpreter is gone", {"tool_calls": 1, "tool_errors/died": 1}, None)
    assert answer(bad, {"kind": "x"}) == ("Error: KeyError: 'x'", {"tool_calls": 1, "tool_errors/raised": 1}, None)
    text, counts, _ = answer(bad, {"kind": 1})
    assert text == "Error: bad: the argument 'kind' must be a text, but it is 1"
    assert counts == {"tool_calls": 1, "tool_errors/arguments": 1}
    box = Toolbox([bad], max_chars=100)
    message, counts, _ = box.answer(make_call(0, "worse", {}), box.target(make_call(0, "worse", {}))())
    assert message["content"] == "Error: there is no tool 'worse'; the tools are: bad"
    assert counts == {"tool_calls": 1, "tool_errors/unknown": 1}
    message, counts, _ = box.answer(make_call(0, "bad", {}), too_many(1))
    assert counts == {"tool_calls": 1, "tool_errors/too_many": 1}
    endless = make_call(0, "x" * 10**6, {})
    assert len(box.answer(endless, box.target(endless)())[0]["name"]) == 128
    messages, counts = box.unreadable([{"kind": "not_json", "text": "no JSON"}, {"kind": "not_json", "text": "x" * 200}])
    assert counts == {"tool_calls": 2, "tool_errors/not_json": 2, "tool_cut": 1}
    assert [m["content"][:14] for m in messages] == ["Error: no JSON", "Error: xxxxxxx"]


def test_long_results_are_cut_in_their_middle() -> None:
    text, counts, _ = answer(returns("a" * 10**6 + "b"), {}, max_chars=100)
    assert len(text) == 100
    assert text.endswith("aab")
    assert counts == {"tool_calls": 1, "tool_cut": 1}


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=0, max_size=1200), st.integers(64, 300))
def test_the_mark_of_a_cut_says_what_is_missing(text: str, limit: int) -> None:
    shown = cut(text, limit)
    assert len(shown) <= limit
    if len(text) <= limit:
        assert shown == text
    else:
        before, _, rest = shown.partition("\n... ")
        missing, _, after = rest.partition(" characters left out ...\n")
        assert "..." in text or before + text[len(before) : len(before) + int(missing)] + after == text


def test_a_tool_may_end_the_conversation() -> None:
    text, counts, turn = answer(returns(Turn("bought", 1.0, terminated=True)), {})
    assert (text, counts) == ("bought", {"tool_calls": 1})
    assert turn is not None
    assert (turn.over, turn.rewards) == (True, {"reward": 1.0})


class Counter:
    """Counts its calls."""

    def __init__(self, start: int = 0) -> None:
        self.n = start
        self.closed = 0

    def call(self, by: int) -> int:
        """Count on.

        Args:
            by: How far.
        """
        self.n += by
        return self.n

    def get_state(self) -> dict[str, int]:
        return {"n": self.n}

    def set_state(self, state: dict[str, int]) -> None:
        self.n = state["n"]


class Forgetful:
    def call(self) -> str:
        """Say hello."""
        return "hello"


def said(box: Toolbox, name: str, arguments: dict[str, Any]) -> str:
    call = make_call(0, name, arguments)
    return str(box.answer(call, box.target(call)())[0]["content"])


def from_ten() -> Counter:
    return Counter(10)


def test_tools_with_a_state_have_one_for_each_conversation() -> None:
    made = [tool(Counter), tool(functools.partial(Counter, 5), name="five"), tool(from_ten, name="ten"), tool(plain)]
    assert made[0].parameters["properties"] == {"by": {"type": "integer", "description": "How far."}}
    assert (made[0].name, made[0].description) == ("counter", "Count on.")
    one, two = Toolbox(made, max_chars=100), Toolbox(made, max_chars=100)
    assert [said(one, "counter", {"by": 1}), said(one, "counter", {"by": 1}), said(two, "counter", {"by": 1})] == [
        "1",
        "2",
        "1",
    ]
    assert [said(one, "five", {"by": 1}), said(one, "ten", {"by": 1})] == ["6", "11"]
    said(one, "plain", {"a": 1, "b": 2, "c": "x"})
    assert one.restorable
    assert one.get_state() == {"counter": {"n": 2}, "five": {"n": 6}, "ten": {"n": 11}}
    two.set_state(one.get_state())
    assert said(two, "counter", {"by": 1}) == "3"
    two.set_state({})
    assert said(two, "counter", {"by": 1}) == "1"
    forgets = Toolbox([tool(Forgetful)], max_chars=100)
    assert forgets.restorable
    assert said(forgets, "forgetful", {}) == "hello"
    assert not forgets.restorable


def test_opened_tools_are_closed_once() -> None:
    closed: list[str] = []

    class Held:
        def call(self) -> str:
            """Say hello."""
            return "hello"

        def close(self) -> None:
            closed.append("held")

    class Fails(Held):
        def close(self) -> None:
            raise OSError("cannot close")

    box = Toolbox([tool(Held), tool(Fails)], max_chars=100)
    box.close()
    assert closed == []  # it was never opened
    said(box, "held", {})
    said(box, "fails", {})
    with pytest.raises(OSError, match="cannot close"):
        box.close()
    box.close()
    assert closed == ["held"]


class Shop:
    """An environment whose methods are tools."""

    lane = "inline"

    def __init__(self) -> None:
        self.basket: list[str] = []

    def reset(self, task: object, *, seed: int) -> Turn:
        return Turn("buy")

    def step(self, message: Message) -> Turn:
        return Turn(terminated=True)

    def add(self, item: str) -> int:
        """Put an item into the basket."""
        self.basket.append(item)
        return len(self.basket)

    def pay(self) -> Turn:
        """Buy it all."""
        return Turn("thanks", float(len(self.basket)), terminated=True)

    def _hidden(self) -> None: ...

    @staticmethod
    def rules() -> None: ...


def test_methods_of_an_object_are_tools_on_that_object() -> None:
    shop = Shop()
    made = tools_of(shop)
    assert [(t.name, t.lane) for t in made] == [("add", "inline"), ("pay", "inline")]
    box = Toolbox(made, max_chars=100)
    assert said(box, "add", {"item": "tea"}) == "1"
    assert shop.basket == ["tea"]
    assert box.restorable
    assert box.get_state() == {}  # the state is the environment's
    with pytest.raises(ConfigError, match="it has no public method"):
        tools_of(Forgetful.__new__)


def test_as_tools_and_names() -> None:
    assert [t.name for t in as_tools([plain, tool(awaited), Counter])] == ["plain", "awaited", "counter"]
    with pytest.raises(ConfigError, match="two have one name"):
        Toolbox([tool(plain), tool(awaited, name="plain")], max_chars=100)
    with pytest.raises(ConfigError, match="max_chars = 3: a result needs 64"):
        Toolbox([], max_chars=3)


# ------------------------------------------------------------------------------------------------------- through a pool
def run(target: Any) -> Any:
    return target()


async def run_async(target: Any) -> Any:
    return await target()


def test_calls_through_pools_keep_the_kinds_of_their_failures() -> None:
    class Hangs:
        def __init__(self) -> None:
            self.n = 0

        def call(self, wait: bool) -> int:
            """Hang."""
            self.n += 1
            if wait:
                hangs.wait()
            return self.n

    hangs = threading.Event()
    box = Toolbox([tool(Hangs), tool(awaited)], max_chars=100)
    specs = [CallSpec("tools.thread", run, workers=2, timeout_s=0.2), CallSpec("tools.async", run_async, timeout_s=30.0)]
    pool = CallPool(specs)
    calls = [
        make_call(0, "hangs", {"wait": False}),
        make_call(1, "hangs", {"wait": True}),
        make_call(2, "awaited", {"query": "a"}),
        make_call(3, "awaited", {"query": 1}),
    ]
    found = []
    for call in calls:
        pool.submit(f"tools.{box.lane(call)}", box.target(call))
        (outcome,) = pool.wait_all()
        message, counts, _ = box.answer(call, outcome)
        found.append((message["content"], {k for k in counts if k != "tool_calls"}))
    assert found == [
        ("1", set()),
        ("Error: timeout after 0.2 s", {"tool_errors/timeout"}),
        ('["a", "a", "a"]', set()),
        ("Error: awaited: the argument 'query' must be a text, but it is 1", {"tool_errors/arguments"}),
    ]
    again = make_call(4, "hangs", {"wait": False})
    assert box.answer(again, box.target(again)())[0]["content"] == "1"  # another one was opened: the late one may be at work
    hangs.set()
    pool.close()


def test_a_tool_that_opens_late_is_closed_when_its_conversation_has_ended() -> None:
    opening, may_open, closed = threading.Event(), threading.Event(), list[int]()

    class Slow:
        def __init__(self) -> None:
            opening.set()
            may_open.wait()

        def call(self) -> str:
            """Answer."""
            return "late"

        def close(self) -> None:
            closed.append(1)

    box = Toolbox([tool(Slow)], max_chars=100)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(box.target(make_call(0, "slow", {}))()))
    thread.start()
    opening.wait()
    box.close()  # it does not wait for the tool that opens: that would never end here
    may_open.set()
    thread.join()
    assert closed == [1]
    assert isinstance(answers[0], ToolFailure)


# ------------------------------------------------------------------------------------------------------------- by name
OWN = """
from runnel.core.contracts.chat import Tool
from runnel.llm.chat.tools import tool

def double(x: int) -> int:
    '''Double it.'''
    return 2 * x

halve = tool(lambda: 1, name="halve", description="Halve.")

class Memory:
    def call(self, key: str) -> str:
        '''Remember.'''
        return key

def several() -> list[Tool]:
    return [halve, tool(double, name="twice")]

def untyped(x):
    '''No.'''
"""


def test_tools_are_loaded_by_name(tmp_path: Path) -> None:
    file = tmp_path / "own_tools.py"
    file.write_text(OWN)
    found = load_tools(["calculator", f"{file}:double", f"{file}:Memory", f"{file}:several", plain])
    assert [t.name for t in found] == ["calculator", "double", "memory", "halve", "twice", "plain"]
    assert [answer(found[0], {"expression": "12 * 12"})[0], answer(found[4], {"x": 4})[0]] == ["144", "8"]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "ulm.txt").write_text("Ulm has a very high tower.")
    (search,) = load_tools([f"search:{tmp_path / 'texts'}"])
    assert "very high tower" in answer(search, {"query": "tower"})[0]
    with pytest.raises(ConfigError, match="nowhere"):
        load_tools(["search:nowhere"])
    with pytest.raises(ConfigError, match=r"tools = 'calc': is no built-in tool; choose from calculator, python, search:PATH"):
        load_tools(["calc"])
    with pytest.raises(ConfigError, match="the parameter 'x' has no type"):
        load_tools([f"{file}:untyped"])
    with pytest.raises(ConfigError, match="has no 'doubles'; did you mean 'double'"):
        load_tools([f"{file}:doubles"])
    with pytest.raises(ConfigError, match="tools = 'halve': two tools have this name"):
        load_tools([f"{file}:halve", f"{file}:several"])
