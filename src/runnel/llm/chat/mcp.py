"""Tools of MCP servers (modelcontextprotocol.io): from what `tools/list` answers, and a function that makes `tools/call`.

Nothing here talks to a server, and the package `mcp` is not needed: whoever holds the session gives the function. Answers may
be plain data, as they stand on the wire, or objects of the package `mcp`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runnel.core.contracts.chat import Lane, Tool, ToolFailure
from runnel.core.errors import DataError
from runnel.core.state import JsonObject, Settings

McpCall = Callable[[str, dict[str, Any]], Any]
"""`call(name, arguments)` makes `tools/call` and returns its result. It may be an `async def`."""


def mcp_tools(listing: object, call: McpCall) -> list[Tool]:
    """The tools that a server lists, each of which calls `call(name, arguments)`.

    `listing` is the answer to `tools/list`, or its list of tools. An `async def` runs as a coroutine, any other function in a
    thread. A result with `isError` is told to the model as a failure.

    >>> listing = {"tools": [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}]}
    >>> (add,) = mcp_tools(listing, lambda name, arguments: {"content": [{"type": "text", "text": "3"}]})
    >>> add.open().call({})
    '3'
    """
    answer = _plain(listing)
    listed = answer.get("result", answer).get("tools") if isinstance(answer, Mapping) else answer
    if not isinstance(listed, list):
        raise DataError(f"a listing of MCP tools is {_short(answer)}; give the answer to tools/list: {{'tools': [...]}}")
    return [_tool(_plain(one), call) for one in listed]


def text_of(result: object) -> str:
    """The text of a result of `tools/call`; a `ToolFailure` if it says that the call failed.

    What is no text (images, sound, data) is named by its kind and size. Structured content is shown where there is no other.
    """
    answer = _plain(result)
    if isinstance(answer, Mapping) and isinstance(answer.get("error"), Mapping):
        raise ToolFailure(str(answer["error"].get("message", "the server refused the call")))
    answer = answer.get("result", answer) if isinstance(answer, Mapping) else answer
    if not isinstance(answer, Mapping) or not isinstance(answer.get("content", []), list):
        raise DataError(f"an MCP call returned {_short(answer)}; expected the result of tools/call: {{'content': [...]}}")
    text = "\n".join(_block(block) for block in answer.get("content", ()))
    if not text and answer.get("structuredContent") is not None:
        text = json.dumps(answer["structuredContent"], ensure_ascii=False)
    if answer.get("isError"):
        raise ToolFailure(text or "the tool failed and does not say why")
    return text


@dataclass(frozen=True)
class _OpenMcp:
    """A tool of a server. What the server remembers is its own."""

    name: str
    made: McpCall

    def call(self, arguments: Settings) -> str | Awaitable[str]:
        given = dict(arguments)
        if inspect.iscoroutinefunction(self.made):
            return self._awaited(given)
        return text_of(self.made(self.name, given))

    def close(self) -> None:
        pass

    async def _awaited(self, given: dict[str, Any]) -> str:
        return text_of(await self.made(self.name, given))


def _tool(listed: Any, call: McpCall) -> Tool:
    if not isinstance(listed, Mapping) or not isinstance(listed.get("name"), str):
        raise DataError(f"an MCP tool is {_short(listed)}; it must have a name")
    name, schema = listed["name"], listed.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise DataError(f"the MCP tool {name!r} has the inputSchema {_short(schema)}; it must be a schema of the type object")
    said = listed.get("description") or listed.get("title") or name
    lane: Lane = "async" if inspect.iscoroutinefunction(call) else "thread"
    return Tool(name, str(said), dict(schema), lambda: _OpenMcp(name, call), lane)


def _block(block: Any) -> str:
    """A block of content as text."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return str(block["text"])
    if kind in ("image", "audio"):
        return f"[{kind} ({block.get('mimeType', '?')}) left out: {len(block.get('data', ''))} characters of base64]"
    if kind == "resource_link":
        return f"[{block.get('name', 'resource')}: {block['uri']}]"
    if kind == "resource":
        inside = block["resource"]
        if "text" in inside:
            return str(inside["text"])
        return f"[data of {inside.get('uri', '?')} left out: {len(inside.get('blob', ''))} characters of base64]"
    raise DataError(f"an MCP result has a block {_short(block)}; known are text, image, audio, resource and resource_link")


def _plain(value: Any) -> Any:
    """Plain data as on the wire; objects of the package `mcp` are pydantic models."""
    if isinstance(value, (Mapping, str, bytes)):
        return value
    if hasattr(value, "model_dump"):
        made: JsonObject = value.model_dump(by_alias=True, mode="json", exclude_none=True)
        return made
    return list(value) if isinstance(value, Iterable) else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + " ..."
