"""Tools of MCP servers: the shapes of its specification (2025-06-18), results of every kind, and what is no listing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runnel.core.contracts.chat import ToolFailure
from runnel.core.errors import DataError
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.mcp import mcp_tools, text_of
from runnel.llm.chat.tools import Toolbox, schema

WEATHER = {
    "name": "get_weather",
    "title": "Weather Information Provider",
    "description": "Get current weather information for a location",
    "inputSchema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City name or zip code"}},
        "required": ["location"],
    },
}
LISTING = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [WEATHER], "nextCursor": "next"}}
RESULT = {"content": [{"type": "text", "text": "Temperature: 72F"}], "isError": False}


class Model:
    """As the objects of the package `mcp`: pydantic models, with other names in Python than on the wire."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self, *, by_alias: bool, mode: str, exclude_none: bool) -> dict[str, Any]:
        assert (by_alias, mode) == (True, "json")
        return {k: v for k, v in self._fields.items() if v is not None or not exclude_none}


@pytest.mark.parametrize("listing", [LISTING, LISTING["result"], [WEATHER], [Model(**WEATHER)], Model(tools=[WEATHER])])
def test_a_listing_becomes_tools(listing: object) -> None:
    asked: list[object] = []

    def call(name: str, arguments: dict[str, Any]) -> object:
        asked.append((name, arguments))
        return RESULT

    (found,) = mcp_tools(listing, call)
    told = {"name": "get_weather", "description": WEATHER["description"], "parameters": WEATHER["inputSchema"]}
    assert schema(found) == {"type": "function", "function": told}
    assert found.lane == "thread"
    box = Toolbox([found], max_chars=100)
    good, bad = make_call(0, "get_weather", {"location": "Ulm"}), make_call(1, "get_weather", {"place": "Ulm"})
    assert box.answer(good, box.target(good)())[0]["content"] == "Temperature: 72F"
    assert box.answer(bad, box.target(bad)())[1] == {"tool_calls": 1, "tool_errors/arguments": 1}
    assert asked == [("get_weather", {"location": "Ulm"})]  # what does not fit never reaches the server


def test_sessions_are_asynchronous() -> None:
    async def call(name: str, arguments: dict[str, Any]) -> object:
        await asyncio.sleep(0)
        return Model(content=[{"type": "text", "text": arguments["location"]}], isError=arguments["location"] == "x")

    (found,) = mcp_tools(LISTING, call)
    box = Toolbox([found], max_chars=100)
    for place, content, counted in (("Ulm", "Ulm", {}), ("x", "Error: x", {"tool_errors/raised": 1})):
        made = make_call(0, "get_weather", {"location": place})
        assert box.lane(made) == "async"
        message, counts, _ = box.answer(made, asyncio.run(box.target(made)()))  # type: ignore[arg-type]
        assert (message["content"], counts) == (content, {"tool_calls": 1} | counted)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RESULT, "Temperature: 72F"),
        ({"jsonrpc": "2.0", "id": 2, "result": RESULT}, "Temperature: 72F"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        (
            {"content": [{"type": "image", "data": "QUJD", "mimeType": "image/png"}]},
            "[image (image/png) left out: 4 characters of base64]",
        ),
        (
            {"content": [{"type": "audio", "data": "QUJD", "mimeType": "audio/wav"}]},
            "[audio (audio/wav) left out: 4 characters of base64]",
        ),
        ({"content": [{"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"}]}, "[a.rs: file:///a.rs]"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "fn"}}]}, "fn"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "QUJD"}}]},
            "[data of file:///a left out: 4 characters of base64]",
        ),
        ({"content": [], "structuredContent": {"temperature": 22.5}}, '{"temperature": 22.5}'),
        ({"content": []}, ""),
    ],
)
def test_results_as_text(result: object, text: str) -> None:
    assert text_of(result) == text


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"content": [{"type": "text", "text": "rate limit"}], "isError": True}, "rate limit"),
        ({"content": [], "isError": True}, "does not say why"),
        ({"jsonrpc": "2.0", "id": 3, "error": {"code": -32602, "message": "Unknown tool: x"}}, "Unknown tool: x"),
    ],
)
def test_failures_are_told(result: object, says: str) -> None:
    with pytest.raises(ToolFailure, match=says):
        text_of(result)


def test_what_is_no_listing_and_no_result_is_refused() -> None:
    def call(name: str, arguments: dict[str, Any]) -> object:
        return RESULT

    for listing, says in (
        ({"prompts": []}, "give the answer to tools/list"),
        ([{"title": "x"}], "it must have a name"),
        ([{"name": "x"}], "'x' has the inputSchema None"),
    ):
        with pytest.raises(DataError, match=says):
            mcp_tools(listing, call)
    for result, says in (
        ("text", "expected the result of tools/call"),
        ({"content": [{"type": "video"}]}, "known are text, image"),
    ):
        with pytest.raises(DataError, match=says):
            text_of(result)
