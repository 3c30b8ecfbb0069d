"""Dialects: how a model writes calls of tools in its text, and how it is told of tools where its chat template does not do it.

`hermes` writes `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen, SmolLM2), `llama` a JSON object that
is alone in the message (Llama 3), `python` a fenced block of code, which is a call of the tool `python`. What stands in a
thought (`<think>...</think>`) is no call: the model only considers it. A text is read in one pass, without `eval`, and what
looks like a call and cannot be read is a failure in words for the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import State

MAX_CALLS = 64
"""Calls that are read in one message. What comes after them is one failure, so that no text takes long to read."""
MAX_DEPTH = 64
"""Levels of lists and objects in a call."""
NOT_JSON = "not_json"
_SHOWN = 120


@dataclass(frozen=True)
class Parsed:
    """A message's text, read: what it says besides calls, its calls (`Message`), and what cannot be read (`tool_errors`)."""

    content: str
    calls: tuple[State, ...] = ()
    failures: tuple[State, ...] = ()


class Dialect(Protocol):
    """How calls are written. `parse` of what `write` wrote gives the same again."""

    @property
    def name(self) -> str: ...

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows the tools to the model; else `describe` says it in a system text."""
        ...

    @property
    def tool_role(self) -> bool:
        """Whether the chat template knows messages of tools; else `result` makes messages of the user of them."""
        ...

    @property
    def told(self) -> str:
        """Why this dialect was chosen, in a sentence."""
        ...

    def parse(self, text: str) -> Parsed:
        """The calls in a message."""
        ...

    def write(self, content: str, calls: Sequence[Message]) -> str:
        """The text of a message with these calls; a `DataError` if it would not be read as such."""
        ...

    def describe(self, schemas: Sequence[Message]) -> str:
        """A system text that lists the tools, and says how to call them."""
        ...

    def result(self, message: Message) -> Message:
        """A tool's message as the chat template wants it."""
        ...


def make_call(number: int, name: str, arguments: Mapping[str, Any]) -> State:
    """The call `number` of a message, in the form of chat templates.

    >>> make_call(0, "add", {"a": 1})["function"]
    {'name': 'add', 'arguments': {'a': 1}}
    """
    return {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


# -------------------------------------------------------------------------------------------------------- reading a text
@dataclass(frozen=True)
class _Piece:
    """A part of a text that is meant to be a call: where it ends, and the calls in it, or what is wrong."""

    end: int
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    wrong: str = ""


_Read = Callable[[str, "re.Match[str]"], _Piece]


def _scan(text: str, opening: str, read: _Read) -> Parsed:
    """Read `text` in one pass: `read` makes a piece of each match of `opening` that is neither in a thought nor in a piece.

    A closing `</think>` without an opening one ends a thought that the prompt began; calls before it were part of that thought.
    """
    pieces: list[tuple[int, _Piece]] = []
    mark = re.compile(rf"(?P<think><think>)|(?P<end></think>)|{opening}", re.MULTILINE)
    position, thinks = 0, False
    for match in mark.finditer(text):
        if match.start() < position:
            continue  # inside the last piece
        if match["think"] or match["end"]:
            if match["end"] and not thinks:
                pieces = []
            thinks = bool(match["think"])
        elif not thinks and len(pieces) == MAX_CALLS:
            pieces.append((match.start(), _Piece(len(text), wrong=f"only {MAX_CALLS} calls of a message are read; make fewer")))
            break
        elif not thinks:
            pieces.append((match.start(), piece := read(text, match)))
            position = piece.end
    return _parsed(text, pieces)


def _parsed(text: str, pieces: Sequence[tuple[int, _Piece]]) -> Parsed:
    """The content is what stands outside of the pieces, without the line break before the first one and blanks between them."""
    if not pieces:
        return Parsed(text)
    before = text[: pieces[0][0]].removesuffix("\n")
    ends = [piece.end for _, piece in pieces]
    starts = [start for start, _ in pieces[1:]] + [len(text)]
    rest = "".join(t for end, start in zip(ends, starts, strict=True) if (t := text[end:start]).strip())
    found = [call for _, piece in pieces for call in piece.calls]
    calls = tuple(make_call(i, name, arguments) for i, (name, arguments) in enumerate(found))
    return Parsed(before + rest, calls, tuple({"kind": NOT_JSON, "text": p.wrong} for _, p in pieces if p.wrong))


class _NoCall(Exception):
    """A JSON value that is no call; the text says why."""


def _calls_in(value: object, form: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The calls that a JSON value means: an object, or a list of them (SmolLM2). `_NoCall` with the reason if it means none."""
    if isinstance(value, list) and value:
        return tuple(call for item in value for call in _calls_in(item, form))
    if isinstance(value, dict) and isinstance(value.get("function"), dict):  # as OpenAI's API has it
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _NoCall(f"a call must be an object with a name; write {form}")
    given = value.get("arguments", value.get("parameters", {}))
    if isinstance(given, str):  # OpenAI's API has them as a JSON text
        given = _decode(given, 0, form)[0]
    if not isinstance(given, dict):
        raise _NoCall(f"the arguments of {_cut(value['name'])!r} must be an object; write {form}")
    return ((value["name"], given),)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999 is valid in JSON, but what is made of it is not
        raise ValueError(f"{text} is too large a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_SPACE = re.compile(r"\s*")
_HALF = re.compile(r"[\ud800-\udfff]")


def _decode(text: str, start: int, form: str) -> tuple[object, int]:
    """The JSON value that begins at `start` (after blanks), and where it ends."""
    start = _end_of(_SPACE.match(text, start))
    try:
        value, end = _DECODER.raw_decode(text, start)
        # \ud800 is valid in JSON, but half a character: no text could hold it
        if "\\u" in text[start:end] and _HALF.search(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it holds half of a character")
        if _is_deep(value):
            raise RecursionError
    except json.JSONDecodeError as error:
        where = f"at character {error.pos - start + 1}"
        raise _NoCall(f"a call is no valid JSON: {error.msg} {where} of it; write {form}") from error
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else _cut(str(error))
        raise _NoCall(f"a call is no valid JSON: {why}; write {form}") from error
    return value, end


def _is_deep(value: object) -> bool:
    """Whether lists and objects in a value are nested so deep that whoever writes it as JSON again may run out of stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        if not inner:
            return False
        level = [item for items in inner for item in items]
    return True


def _end_of(match: re.Match[str] | None) -> int:
    assert match is not None  # of a pattern that matches the empty text
    return match.end()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."


def _meaning(calls: Sequence[Message]) -> list[tuple[str, object]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _checked(text: str, content: str, calls: Sequence[Message], dialect: Dialect) -> str:
    """`text`, if it is read as `content` and `calls`: a script must not show a model what would not work."""
    back = dialect.parse(text)
    if back.content != content or _meaning(back.calls) != _meaning(calls) or back.failures:
        raise DataError(
            f"the dialect {dialect.name!r} cannot write this message: {_cut(text)!r} would be read as other calls or "
            "another text. Take marks of calls and thoughts out of the text, and give arguments that are plain data"
        )
    return text


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"JSON cannot hold the arguments of a call: {error}; give texts, finite numbers, lists and dicts"
        ) from error


def _listed(schemas: Sequence[Message]) -> str:
    return "\n".join(_json(schema) for schema in schemas)


# -------------------------------------------------------------------------------------------------------------- dialects
@dataclass(frozen=True)
class Hermes:
    """`<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`, as often as wanted, anywhere in the message.

    >>> Hermes().parse('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>').calls[0]["function"]
    {'name': 'add', 'arguments': {'a': 1}}
    """

    takes_tools: bool = False
    tool_role: bool = False
    told: str = "hermes was asked for"
    name: ClassVar[str] = "hermes"
    form: ClassVar[str] = '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'

    def parse(self, text: str) -> Parsed:
        return _scan(text, "(?P<call><tool_call>)", self._read)

    def _read(self, text: str, match: re.Match[str]) -> _Piece:
        try:
            value, end = _decode(text, match.end(), self.form)
            calls = _calls_in(value, self.form)
        except _NoCall as why:
            return _Piece(_next_tag(text, match.end()), wrong=str(why))
        after = _end_of(_SPACE.match(text, end))
        if text.startswith("</tool_call>", after):
            return _Piece(after + len("</tool_call>"), calls)
        if after == len(text):  # a stop string takes the tag away
            return _Piece(after, calls)
        return _Piece(_next_tag(text, end), wrong=f"a call does not end after its JSON; write {self.form}")

    def write(self, content: str, calls: Sequence[Message]) -> str:
        blocks = [f"<tool_call>\n{_json({'name': name, 'arguments': given})}\n</tool_call>" for name, given in _meaning(calls)]
        return _checked("\n".join([*([content] if content else []), *blocks]), content, calls, self)

    def describe(self, schemas: Sequence[Message]) -> str:
        return (
            f"You can call tools. These are their names and arguments, as JSON schemas:\n<tools>\n{_listed(schemas)}\n"
            "</tools>\n"
            f'To call one, write its name and its arguments as JSON between tags:\n<tool_call>\n{{"name": NAME, "arguments": '
            "{...}}\n</tool_call>\nThe results come in the next message, between <tool_response> and </tool_response>."
        )

    def result(self, message: Message) -> Message:
        if self.tool_role:
            return message
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _next_tag(text: str, start: int) -> int:
    """Where a call that cannot be read ends: after its closing tag, or before the next call."""
    closing, opening = text.find("</tool_call>", start), text.find("<tool_call>", start)
    if closing >= 0 and not 0 <= opening < closing:
        return closing + len("</tool_call>")
    return opening if opening >= 0 else len(text)


@dataclass(frozen=True)
class Llama:
    """`{"name": "add", "parameters": {"a": 1}}` alone in the message, or after `<|python_tag|>`; several with `; ` between.

    >>> Llama().parse('{"name": "add", "parameters": {"a": 1}}').calls[0]["function"]
    {'name': 'add', 'arguments': {'a': 1}}
    """

    takes_tools: bool = False
    tool_role: bool = False
    told: str = "llama was asked for"
    name: ClassVar[str] = "llama"
    form: ClassVar[str] = '{"name": NAME, "parameters": {...}}'

    def parse(self, text: str) -> Parsed:
        # the brace of a call alone is looked for in one place only: where the message, or what follows its thought, begins
        return _scan(text, r"(?P<tag><\|python_tag\|>)|(?P<alone>(?:\A|(?<=</think>))\s*(?=\{\s*\"name\"\s*:))", self._read)

    def _read(self, text: str, match: re.Match[str]) -> _Piece:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        end = match.end()
        try:
            while len(calls) < MAX_CALLS:
                value, end = _decode(text, end, self.form)
                calls += _calls_in(value, self.form)
                after = _SEPARATOR.match(text, end)
                if after is None:
                    break
                end = after.end()
        except _NoCall as why:
            return _Piece(end, tuple(calls), wrong=str(why))
        if text[end:].strip():  # the text goes on after it: the end of a thought that the prompt began may follow
            return _Piece(end, wrong=f"nothing may follow a call but another one; write {self.form}")
        return _Piece(len(text), tuple(calls))

    def write(self, content: str, calls: Sequence[Message]) -> str:
        blocks = "; ".join(_json({"name": name, "parameters": given}) for name, given in _meaning(calls))
        between = "\n<|python_tag|>" if content and calls else ""
        return _checked(content + between + blocks, content, calls, self)

    def describe(self, schemas: Sequence[Message]) -> str:
        return (
            f"You can call functions. These are their names and arguments, as JSON schemas:\n{_listed(schemas)}\n"
            f"To call one, answer with nothing but JSON in this form: {self.form}. The result comes in the next message."
        )

    def result(self, message: Message) -> Message:
        if self.tool_role:
            return message
        return {"role": "user", "content": f"Result of {message['name'] or 'your call'}:\n{message['content']}"}


_SEPARATOR = re.compile(r"\s*(?:;\s*|\s(?=\{))")


@dataclass(frozen=True)
class Python:
    """A fenced block of Python is a call of the tool `python`, each block in its order. A block that does not end is a failure.

    >>> Python().parse("Let me see.\\n```python\\nprint(1)\\n```").calls[0]["function"]
    {'name': 'python', 'arguments': {'code': 'print(1)'}}
    """

    takes_tools: bool = False
    tool_role: bool = False
    told: str = "python was asked for"
    name: ClassVar[str] = "python"

    def parse(self, text: str) -> Parsed:
        return _scan(text, r"(?P<fence>^`{3,})(?:python|py)[ \t]*(?:\n|\Z)", self._read)

    def _read(self, text: str, match: re.Match[str]) -> _Piece:
        fence = match["fence"]
        closing = re.compile(rf"^{fence}`*[ \t]*$", re.MULTILINE).search(text, match.end())
        if closing is None:
            wrong = f"a block of Python does not end, so it was not run; close it with a line {fence}"
            return _Piece(len(text), wrong=wrong)
        code = text[match.end() : closing.start()].removesuffix("\n")
        return _Piece(closing.end(), (("python", {"code": code}),))

    def write(self, content: str, calls: Sequence[Message]) -> str:
        blocks = [_fenced(given) for _, given in _meaning(calls)]
        return _checked("\n".join([*([content] if content else []), *blocks]), content, calls, self)

    def describe(self, schemas: Sequence[Message]) -> str:
        said = [s["function"]["description"] for s in schemas if s["function"]["name"] == "python"]
        return (
            f"{' '.join(said)}\nTo run Python, write it in a block that begins with a line ```python and ends with a line ```. "
            "What it prints comes in the next message, in a block ```output."
        ).strip()

    def result(self, message: Message) -> Message:
        if self.tool_role:
            return message
        fence = _fence_for(message["content"])
        return {"role": "user", "content": f"{fence}output\n{message['content']}\n{fence}"}


def _fenced(given: object) -> str:
    if not (isinstance(given, Mapping) and set(given) == {"code"} and isinstance(given["code"], str)):
        raise DataError(
            "the dialect 'python' writes calls of the tool python with the argument code alone; use another dialect"
        )
    fence = _fence_for(given["code"])
    return f"{fence}python\n{given['code']}\n{fence}"


def _fence_for(text: str) -> str:
    """A fence that is longer than any in the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall(r"^`{3,}", text, re.MULTILINE)), default=0))


DIALECTS: dict[str, Hermes | Llama | Python] = {d.name: d for d in (Hermes(), Llama(), Python())}
"""By name, for templates that know nothing of tools."""


# ---------------------------------------------------------------------------------------------------- joining the results
def results(dialect: Dialect, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages as the chat template wants them. Results that become messages of the user are joined with what the user says
    next to them: many templates refuse two messages of the user in a row."""
    found: list[Message] = []
    joins = False
    for message in messages:
        shown = dialect.result(message) if message["role"] == "tool" else message
        made = shown is not message
        if found and (made or joins) and found[-1]["role"] == shown["role"] == "user":
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{shown['content']}"}
        else:
            found.append(shown)
        joins = made or (joins and shown["role"] == "user")
    return tuple(found)


# --------------------------------------------------------------------------------------------------- what a template knows
_PROBE: State = make_call(0, "probe_of_tools", {"value": "probed"})
_ASKED: State = {"role": "user", "content": "probe"}
_SCHEMA: State = {
    "type": "function",
    "function": {
        "name": "probe_of_tools",
        "description": "description_of_probe",
        "parameters": {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]},
    },
}
Render = Callable[..., str]
"""`render(messages, tools, add_generation_prompt)` gives the text of a conversation, or raises what its template raises."""


def dialect_for(template: Any, name: str = "auto") -> Dialect:
    """The dialect `name`, told what the chat template of a tokenizer (or the template's own text) knows.

    `auto` takes the dialect in which the template itself writes a call: a call is rendered, and the dialect that reads it back
    is taken. A template that writes no call, or writes it in another way, gets `hermes`, described in a system text.
    """
    if name != "auto" and name not in DIALECTS:
        raise ConfigError("dialect", name, f"use auto or one of {', '.join(DIALECTS)}")
    render = _render_of(template)
    written = next((d for d in (DIALECTS["hermes"], DIALECTS["llama"]) if _writes(render, d)), None)
    if written is None or name not in ("auto", written.name):
        chosen = DIALECTS["hermes" if name == "auto" else name]
        why = "the chat template writes no calls that we can read" if name == "auto" else "it was asked for"
        return replace(chosen, told=f"{chosen.name}: {why}; a system text describes the tools")
    takes, role = _takes_tools(render), _knows_results(render)
    described = "shows the tools" if takes else "does not show the tools, so a system text describes them"
    return replace(
        written, takes_tools=takes, tool_role=role, told=f"{written.name}: the chat template writes calls so, and {described}"
    )


def _render_of(template: Any) -> Render:
    """How a template is rendered: a tokenizer's own, or the text of one."""
    if isinstance(template, str):
        from transformers.utils.chat_template_utils import render_jinja_template

        def of_text(messages: Sequence[Message], tools: Sequence[State] | None, prompt: bool) -> str:
            (text,), _ = render_jinja_template(
                [list(messages)], tools=tools, chat_template=template, add_generation_prompt=prompt, bos_token="", eos_token=""
            )
            return str(text)

        return of_text

    def of_tokenizer(messages: Sequence[Message], tools: Sequence[State] | None, prompt: bool) -> str:
        return str(template.apply_chat_template(list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt))

    return of_tokenizer


def _try(render: Render, messages: Sequence[Message], *, prompt: bool = False) -> str:
    """A rendered conversation; empty if the template refuses it."""
    from jinja2 import TemplateError

    try:
        return render(messages, [_SCHEMA], prompt)
    except (TemplateError, TypeError, ValueError, KeyError):  # a template refuses in its own ways what it does not know
        return ""


def _said(call: State) -> State:
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _writes(render: Render, dialect: Dialect) -> bool:
    """Whether the template writes a call as `dialect` reads it."""
    before, whole = _try(render, [_ASKED], prompt=True), _try(render, [_ASKED, _said(_PROBE)])
    if not whole.startswith(before):  # a template that begins a thought in its prompt, for one
        before = _try(render, [_ASKED])
    tail = whole[len(before) :] if whole.startswith(before) else ""
    if dialect.name == "llama":
        tail = tail[: tail.rfind("}") + 1]  # without the marks of the end
    return _meaning(dialect.parse(tail).calls) == _meaning([_PROBE])


def _takes_tools(render: Render) -> bool:
    return "description_of_probe" in _try(render, [_ASKED])


def _knows_results(render: Render) -> bool:
    told = {"role": "tool", "content": "result_of_probe", "tool_call_id": "call-0", "name": "probe_of_tools"}
    return "result_of_probe" in _try(render, [_ASKED, _said(_PROBE), told])
