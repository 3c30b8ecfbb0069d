"""Tools of conversations: from typed functions, classes and objects; and the box of open tools that one conversation holds.

A tool is called with arguments that a model wrote. They are checked against its schema before any code sees them, and nothing
is converted. A failure is a message in words for the model, and is counted by its kind. `Toolbox` waits for nobody: it says
what to call, and makes a message of what came of it; when and where it is called is for the player of the conversation to say.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, get_args, overload

from runnel.core.calls.pool import CallOutcome
from runnel.core.checks import name_of
from runnel.core.contracts.chat import (
    TOOL_CALLS,
    TOOL_ERRORS,
    UNUSABLE,
    HasLane,
    HasState,
    Lane,
    Message,
    OpenTool,
    Tool,
    ToolFailure,
    Turn,
)
from runnel.core.errors import ConfigError, DataError
from runnel.core.hints import closest
from runnel.core.resolve import called, is_reference, load_object
from runnel.core.state import Settings, State
from runnel.core.user_code import summary, words
from runnel.llm.chat.arguments import wrong_arguments
from runnel.llm.chat.signatures import from_json, hints_of, parameters_of

TOOL_CUT = "tool_cut"
"""What is counted of results that were too long to show in full. They are no errors."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_OF_ENVIRONMENTS = {"reset", "step", "tools", "tasks", "script", "get_state", "set_state", "close", "render"}
"""Methods that an environment has for others than the model."""
_LONGEST_NAME = 128
FAILURES = (ToolFailure, ConfigError)
_SHORTEST = 64
"""Characters that a result must be allowed, so that the mark in its middle fits."""


# ------------------------------------------------------------------------------------------------------- making a tool
@overload
def tool(made: Callable[..., Any], /, *, name: str = "", description: str = "", lane: Lane | None = None) -> Tool: ...
@overload
def tool(*, name: str = "", description: str = "", lane: Lane | None = None) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    made: Callable[..., Any] | None = None, /, *, name: str = "", description: str = "", lane: Lane | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, as a decorator or a call. A class with a typed method `call` is a tool with a state:
    each conversation gets an object of its own. So is a function without parameters that says it returns such a class.

    The schema comes from the signature; the docstring says what the tool does, and what its arguments mean. A coroutine runs
    as such, any other function in a thread; `lane="inline"` is for what is pure and fast.

    >>> @tool
    ... def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add.name, add.parameters["required"], add.open().call({"a": 1, "b": 2})
    ('add', ['a', 'b'], 3)
    """
    if made is None:
        return functools.partial(tool, name=name, description=description, lane=lane)
    if (kept := _class_of(made)) is not None:
        return _stateful(made, kept, name, description, lane)
    if not callable(made):
        raise ConfigError("tools", made, f"a {type(made).__name__} is no tool; give a typed function, or tools_of(object)")
    return _function_tool(made, name, description, lane)


def tools_of(obj: object, *, lane: Lane | None = None) -> tuple[Tool, ...]:
    """The public, typed methods of an object as tools that act on that object, in the order in which they are written.

    Methods that an environment has for others (`reset`, `step`, `tools`, `close`, ...) are left out. Where the object says a
    `lane`, its tools run there.
    """
    names = dict.fromkeys(name for kind in reversed(type(obj).__mro__) for name in vars(kind))
    methods = [(n, getattr(obj, n)) for n in names if not n.startswith("_") and n not in _OF_ENVIRONMENTS]
    lane = lane or (obj.lane if isinstance(obj, HasLane) else None)
    found = tuple(_function_tool(m, n, "", lane) for n, m in methods if inspect.ismethod(m) and m.__self__ is obj)
    if not found:
        raise ConfigError("tools", type(obj).__qualname__, "it has no public method; a tool is a typed method with a docstring")
    return found


def as_tools(given: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """Tools, of which some may be plain functions or classes."""
    return tuple(t if isinstance(t, Tool) else tool(t) for t in given)


def schema(of: Tool) -> State:
    """A tool as chat templates and APIs list it.

    >>> schema(tool(lambda: 1, name="one", description="Say one."))["function"]
    {'name': 'one', 'description': 'Say one.', 'parameters': {'type': 'object', 'properties': {}}}
    """
    told = {"name": of.name, "description": of.description, "parameters": dict(of.parameters)}
    return {"type": "function", "function": told}


def _function_tool(function: Any, name: str, description: str, lane: Lane | None) -> Tool:
    name = _checked_name(name or getattr(function, "__name__", ""), function)
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        function = function.__call__
    said, parameters = parameters_of(function, who=name)
    opened = _Function(function, hints_of(function, name))
    where = _lane(function, name, lane)
    return Tool(name, _said(description or said, name), parameters, lambda: opened, where)


def _stateful(make: Callable[..., Any], kind: Any, name: str, description: str, lane: Lane | None) -> Tool:
    name = _checked_name(name or _snake(kind.__name__), make)
    said, parameters = parameters_of(kind.call, who=name, skip_self=True)
    hints = hints_of(kind.call, name)
    open_as = _KeptObject if hasattr(kind, "get_state") and hasattr(kind, "set_state") else _Object
    described = description or said or (inspect.cleandoc(kind.__doc__) if kind.__doc__ else "")
    return Tool(name, _said(described, name), parameters, lambda: open_as(make(), hints), _lane(kind.call, name, lane))


def _class_of(made: object) -> Any:
    """The class with a method `call` whose objects `made()` makes: itself, that of a `partial`, or what a factory says."""
    inner = made.func if isinstance(made, functools.partial) else made
    if inspect.isfunction(inner) and not inspect.signature(made).parameters:  # type: ignore[arg-type]
        inner = hints_of(inner, inner.__name__).get("return")
    if not isinstance(inner, type):
        return None
    if not inspect.isfunction(getattr(inner, "call", None)):
        if inner is not made:
            return None  # a function that returns plain data
        raise ConfigError(
            "tools", inner.__qualname__, "a class is a tool if it has a typed method `call`; or use tools_of(object)"
        )
    return inner


def _checked_name(name: str, made: object) -> str:
    if not _NAME.fullmatch(name):
        fix = "give a name of letters, digits, _ . and -: tool(..., name='add')"
        raise ConfigError("tools", name or repr(made), fix)
    return name


def _said(description: str, name: str) -> str:
    if not description:
        raise ConfigError("tools", name, "nothing tells the model what it does; write a docstring, or give description=...")
    return description


def _lane(function: Callable[..., Any], name: str, lane: Lane | None) -> Lane:
    is_async = inspect.iscoroutinefunction(function)
    if lane is None:
        return "async" if is_async else "thread"
    if lane not in ("inline", "thread", "async"):
        raise ConfigError(f"tools.{name}.lane", lane, "use inline, thread or async")
    if is_async != (lane == "async"):
        fix = "it is an `async def`, which runs as async" if is_async else "only an `async def` runs so; use thread or inline"
        raise ConfigError(f"tools.{name}.lane", lane, fix)
    return lane


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True)
class _Function:
    """A function, opened: it keeps nothing of a conversation."""

    function: Callable[..., Any]
    hints: Mapping[str, Any]

    def call(self, arguments: Settings) -> object:
        return self.function(**{name: from_json(self.hints[name], value) for name, value in arguments.items()})

    def close(self) -> None:
        pass


class _Object:
    """An object with a method `call`, made for one conversation."""

    def __init__(self, obj: Any, hints: Mapping[str, Any]) -> None:
        self._obj, self._hints = obj, hints

    def call(self, arguments: Settings) -> object:
        return self._obj.call(**{name: from_json(self._hints[name], value) for name, value in arguments.items()})

    def close(self) -> None:
        if hasattr(self._obj, "close"):
            self._obj.close()


class _KeptObject(_Object):
    """One that can be saved."""

    def get_state(self) -> State:
        found: State = self._obj.get_state()
        return found

    def set_state(self, state: State) -> None:
        self._obj.set_state(state)


# ---------------------------------------------------------------------------------------------------- of one conversation
class Toolbox:
    """The tools that one conversation holds. A tool is opened at its first call, and closed with the conversation.

    For each call: `lane` says where it runs, `target` is what to run there, and `answer` makes the message of what came of it.
    A call has the form of chat templates (`Message`).
    """

    def __init__(self, tools: Sequence[Tool], *, max_chars: int) -> None:
        if max_chars < _SHORTEST:
            raise ConfigError("max_chars", max_chars, f"a result needs {_SHORTEST} characters or more")
        if len({t.name for t in tools}) < len(tools):
            raise ConfigError("tools", [t.name for t in tools], "two have one name; give each a name of its own")
        self._tools = {t.name: t for t in tools}
        self._max_chars = max_chars
        self._opened: dict[str, OpenTool] = {}
        self._late: list[OpenTool] = []
        """Tools that were given up, and are not closed yet."""
        self._num_closed = 0
        self._lock = threading.Lock()
        """Calls of one message may run in several threads."""

    @property
    def schemas(self) -> tuple[State, ...]:
        """The tools as a chat template lists them."""
        return tuple(schema(t) for t in self._tools.values())

    def lane(self, call: Message) -> Lane:
        """Where a call runs; one of an unknown tool fails at once."""
        found = self._tools.get(_name_of(call))
        return found.lane if found else "inline"

    def target(self, call: Message) -> Callable[[], object]:
        """What to run for a call, in its lane: it returns the tool's value (in the lane `async` an awaitable of it), or a
        `ToolFailure` as a value. What else it raises is a mistake of the tool."""
        found = self._tools.get(_name_of(call))
        if found is None:
            return functools.partial(_same, self._unknown(call))
        arguments = call["function"].get("arguments", {})
        if wrong := wrong_arguments(found.parameters, arguments):
            failure = ToolFailure(f"{found.name}: {wrong}", kind="arguments")
            return functools.partial(_come if found.lane == "async" else _same, failure)
        run = self._come if found.lane == "async" else self._call
        return functools.partial(run, found, dict(arguments))

    def answer(self, call: Message, outcome: object) -> tuple[Message, Mapping[str, int], Turn | None]:
        """The message that answers a call, what to count, and the tool's `Turn` if it returned one. A `DataError` if the tool
        cannot be used (`UNUSABLE`).

        `outcome` is what a `CallPool` says of the target, or what the target returned or raised.
        """
        value = outcome_of(outcome)
        if isinstance(value, ToolFailure) and value.kind == UNUSABLE:
            raise DataError(str(value))
        if isinstance(value, ToolFailure) and value.kind == "timeout":
            self._give_up(_name_of(call))
        turn = value if isinstance(value, Turn) else None
        text, counts = self._text(_content(turn) if turn else value)
        told = {"role": "tool", "content": text, "tool_call_id": call["id"], "name": _name_of(call)}
        return told, counts, turn

    def unreadable(self, failures: Sequence[Mapping[str, str]]) -> tuple[tuple[Message, ...], Mapping[str, int]]:
        """The messages that answer calls which could not be read (`tool_errors` of a message), and what to count."""
        messages, counts = list[Message](), dict[str, int]()
        for failure in failures:
            text, found = self._text(ToolFailure(failure["text"], kind=failure["kind"]))
            messages.append({"role": "tool", "content": text, "tool_call_id": "", "name": ""})
            counts = {name: counts.get(name, 0) + found.get(name, 0) for name in {**counts, **found}}
        return tuple(messages), counts

    @property
    def holds(self) -> bool:
        """Whether a tool is open that may have something to let go of."""
        return bool(self._late) or any(not isinstance(t, _Function) for t in self._opened.values())

    @property
    def late(self) -> bool:
        """Whether a tool did not answer, and is to be closed (`close_late`)."""
        return bool(self._late)

    @property
    def restorable(self) -> bool:
        """Whether `get_state` says all that the opened tools know."""
        return all(isinstance(t, (_Function, HasState)) for t in self._opened.values())

    @property
    def has_state(self) -> bool:
        """Whether `get_state` says anything."""
        return any(isinstance(t, HasState) for t in self._opened.values())

    def get_state(self) -> State:
        """What the opened tools know, by name."""
        return {name: t.get_state() for name, t in self._opened.items() if isinstance(t, HasState)}

    def set_state(self, state: State) -> None:
        """Put every tool back into its state; one that is not named begins anew."""
        self.close()
        for name, of in state.items():
            opened = self._open(self._tools[name])
            assert isinstance(opened, HasState)
            opened.set_state(of)

    def close(self) -> None:
        """Close the opened tools. May be called again; a later call of a tool opens it anew."""
        with self._lock:
            opened, self._opened = [*self._opened.values(), *self._late], {}
            self._late = []
            self._num_closed += 1
        with ExitStack() as closing:  # one that fails keeps none of the others open
            for t in opened:
                closing.callback(t.close)

    def _open(self, found: Tool) -> OpenTool:
        with self._lock:
            before = self._num_closed
            if found.name in self._opened:
                return self._opened[found.name]
        made = found.open()  # outside of the lock: it may take its time, or hang, and the player must not wait for it
        with self._lock:
            late = self._num_closed != before
            kept = made if late else self._opened.setdefault(found.name, made)
        if late or kept is not made:
            made.close()
        if late:
            raise ToolFailure("the conversation has ended")
        return kept

    def _call(self, found: Tool, arguments: Settings) -> object:
        try:
            return _plain(self._open(found).call(arguments))
        except FAILURES as failure:  # as a value: a pool would make a text of it, without its kind
            return _failure(failure)

    async def _come(self, found: Tool, arguments: Settings) -> object:
        try:
            value = self._open(found).call(arguments)
            return _plain(await value if isinstance(value, Awaitable) else value)
        except FAILURES as failure:
            return _failure(failure)

    def _give_up(self, name: str) -> None:
        """Leave a tool that did not answer: it may still be at work, so the next call opens another one. It is not closed here:
        that could hang as its call did."""
        with self._lock:
            late = self._opened.get(name)
            if late is not None and not isinstance(late, _Function):
                self._late.append(self._opened.pop(name))

    def close_late(self) -> None:
        """Close the tools that did not answer."""
        with self._lock:
            late, self._late = self._late, []
        with ExitStack() as closing:
            for t in late:
                closing.callback(t.close)

    def _unknown(self, call: Message) -> ToolFailure:
        names = ", ".join(self._tools) or "none"
        return ToolFailure(f"there is no tool {_name_of(call)!r}; the tools are: {names}", kind="unknown")

    def _text(self, value: object) -> tuple[str, dict[str, int]]:
        counts = {TOOL_CALLS: 1}
        text = _shown(value)
        if isinstance(text, ToolFailure):
            counts[TOOL_ERRORS + text.kind] = 1
            text = f"Error: {text}"
        shown = cut(text.encode("utf-8", "replace").decode("utf-8"), self._max_chars)
        return shown, counts | ({TOOL_CUT: 1} if len(text) > self._max_chars else {})


def outcome_of(outcome: object) -> object:
    """The value of a call, or a `ToolFailure` that says why there is none."""
    if isinstance(outcome, CallOutcome):
        if not outcome.reason:
            return outcome.value
        late = outcome.reason.startswith("timeout")  # the setting's name, which follows, says nothing to a model
        return ToolFailure(outcome.reason.partition(" (")[0] if late else outcome.reason, kind="timeout" if late else "raised")
    if isinstance(outcome, ToolFailure):
        return outcome
    if isinstance(outcome, TimeoutError):
        return ToolFailure(summary(outcome), kind="timeout")
    return ToolFailure(summary(outcome), kind="raised") if isinstance(outcome, BaseException) else outcome


def too_many(max_calls: int) -> ToolFailure:
    """The failure of each call beyond the first `max_calls` of a message.

    >>> too_many(2).kind
    'too_many'
    """
    return ToolFailure(f"this call was not made: a message may have {max_calls} calls; make it again later", kind="too_many")


def cut(text: str, max_chars: int) -> str:
    """A text of at most `max_chars` characters. A mark in the middle says how many were left out.

    >>> cut("a" * 50 + "b" * 50, 70)
    'aaaaaaaaaaaaaaaaaaa\\n... 62 characters left out ...\\nbbbbbbbbbbbbbbbbbbb'
    """
    if len(text) <= max_chars:
        return text
    kept = max_chars - len(_mark(len(text)))
    kept = max_chars - len(_mark(len(text) - kept))
    first = kept // 2
    return text[:first] + _mark(len(text) - kept) + text[len(text) - (kept - first) :]


def _mark(left_out: int) -> str:
    return f"\n... {left_out} characters left out ...\n"


def _shown(value: object) -> str | ToolFailure:
    """A result as text: a text as it is, plain data as JSON. Texts and failures may be of classes of the tool's own: they are
    asked nothing later."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, ToolFailure):
        return _failure(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return ToolFailure(f"the tool returned a {type(value).__name__} that is no plain data ({error})")


def _failure(error: ToolFailure | ConfigError) -> ToolFailure:
    if isinstance(error, ConfigError):
        return ToolFailure(str(error), kind=UNUSABLE)
    kind = getattr(error, "kind", None)
    return ToolFailure(words(error), kind=kind if isinstance(kind, str) and _NAME.fullmatch(kind) else "raised")


def _plain(value: object) -> object:
    """What a tool returned, as text where it is no `Turn`. It is made where the tool ran: a value may take its time."""
    return value if isinstance(value, Turn) or inspect.isawaitable(value) else _shown(value)


def _content(turn: Turn) -> str:
    assert not isinstance(turn.messages, str)  # `Turn` made messages of a text
    return "\n".join(str(m["content"]) for m in turn.messages)


def _name_of(call: Message) -> str:
    return str(call["function"]["name"])[:_LONGEST_NAME]  # a model may write a megabyte there


def _same(failure: ToolFailure) -> ToolFailure:
    return failure


async def _come(failure: ToolFailure) -> ToolFailure:
    return failure


# ---------------------------------------------------------------------------------------------------------- tools by name
BUILT_IN: dict[str, str] = {
    "calculator": "runnel.llm.worlds.arithmetic:calculator_tool",
    "python": "runnel.llm.sandbox.tool:python_tool",
}
"""Tools that a name stands for, and where each is made."""
SEARCH = "search:"
"""Before the path of a corpus: the tool `search` over it."""


def load_tools(names: Iterable[Any]) -> list[Tool]:
    """Tools by name: built-in ones, `search:PATH` over a corpus, and users' own as `file.py:name` or `module:name` (or the
    object itself).

    A user's name may mean a tool, a typed function, a class with a method `call`, a list of these, or a function without
    parameters that says (`-> Tool`, `-> list[Tool]`) that it makes them.
    """
    found: list[Tool] = []
    for name in names:
        if not isinstance(name, str):
            found += _tools_in(name, name_of(name))
            continue
        if name.startswith(SEARCH):
            found.append(_search(name.removeprefix(SEARCH)))
            continue
        if name not in BUILT_IN and not is_reference(name):
            choose = f"choose from {', '.join(BUILT_IN)}, {SEARCH}PATH, or write file.py:name"
            fix = f"is no built-in tool; {closest(name, BUILT_IN)}{choose}"
            fix = f"write {name}:NAME, of the function or class that is the tool" if name.endswith(".py") else fix
            raise ConfigError("tools", name, fix)
        found += _tools_in(load_object(BUILT_IN.get(name, name), "tools"), name)
    if twice := [t.name for t in found if [o.name for o in found].count(t.name) > 1]:
        raise ConfigError("tools", twice[0], "two tools have this name; leave one out, or give it another: tool(..., name=...)")
    return found


def _search(path: str) -> Tool:
    corpus = load_object("runnel.llm.worlds.corpus:Corpus", "tools").read(path, field="tools")
    made: Tool = load_object("runnel.llm.worlds.corpus:search_tool", "tools")(corpus)
    return made


def _tools_in(made: Any, target: str) -> list[Tool]:
    if isinstance(made, Tool):
        return [made]
    if isinstance(made, (list, tuple)):
        return [t for one in made for t in _tools_in(one, target)]
    if inspect.isfunction(made) and _makes_tools(hints_of(made, target).get("return")):
        return _tools_in(called(made, field="tools", target=target, how=f"{made.__name__}()"), target)
    return [tool(made)]


def _makes_tools(hint: Any) -> bool:
    """Whether a function with this type of result makes tools, and is none itself."""
    return hint is Tool or any(arg is Tool for arg in get_args(hint))
