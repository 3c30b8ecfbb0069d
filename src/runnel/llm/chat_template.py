"""What the chat template of a Hugging Face tokenizer writes: conversations, tools, and the tail of a conversation that goes on.

Tails are found by a sentinel, a number. The template renders a stand-in conversation in which the assistant says the number,
and then the new messages; what stands behind the number is the tail. So it does not matter how a template writes, or rewrites,
earlier turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError, RunnelError
from runnel.llm.control_tokens import ControlTokens

Schema = Mapping[str, Any]
"""A tool for a chat template: `{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`."""
STAND_IN = "0123456789"
"""An answer that is sought in what a template makes of it."""
STAND_IN_TOOL = "probe_0123456789"
STAND_IN_SCHEMA: Schema = {
    "type": "function",
    "function": {
        "name": STAND_IN_TOOL,
        "description": "A stand-in.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "?"}}, "required": ["x"]},
    },
}
USER: Mapping[str, Any] = {"role": "user", "content": "?"}
SYSTEM: Mapping[str, Any] = {"role": "system", "content": "?"}
OURS = ("tool_errors", "text")
"""Fields of messages that templates do not know."""


@dataclass(frozen=True)
class Tail:
    """What follows a reply: the end of its turn, the new messages, and what opens the next turn."""

    lead: str
    """Text before the token that ends the reply's turn (mostly none)."""
    rest: str
    """Begins with the token that ends the turn, if the template has one (`ends`)."""
    ends: bool
    stem: str
    """Marks in `rest` begin with it (`ControlTokens`)."""


class ChatTemplate:
    """The chat template of a tokenizer. `takes_tools`: it shows tools to the model by itself. `takes_system`: it shows messages
    of the system."""

    def __init__(self, inner: Any, path: str | Path) -> None:
        self._inner, self._path = inner, str(path)
        self._chosen: dict[tuple[object, ...], int] = {}
        self._head: list[Message] = []
        if not self._try([USER], prompt=True):
            self._head = [SYSTEM]  # some templates take a conversation only if it begins with a system message
        talk = [USER, {"role": "assistant", "content": STAND_IN}]
        source = inner.chat_template or ""
        source = source if isinstance(source, str) else "\n".join(source.values())
        # Names may be put together (`'<|' + role + '|>'`): a rendering shows them.
        self.answered = self._try(talk, prompt=False)
        self.control = ControlTokens(inner, source + self._try([*talk, USER], prompt=True))
        self.takes_system = STAND_IN in self._try([{"role": "system", "content": STAND_IN}, USER], prompt=True)
        self.takes_tools = STAND_IN_TOOL in self._try([USER], prompt=True, tools=[STAND_IN_SCHEMA])

    def turn_end(self) -> tuple[str, str]:
        """What the template writes behind an answer: text, if any, and then the first special token (empty: none)."""
        lead, name = self.control.first_special(self.answered.rpartition(STAND_IN)[2])
        return (lead, name) if name else ("", "")

    def text(self, messages: Sequence[Message], tools: Sequence[Schema] = (), *, prompt: bool) -> tuple[str, str]:
        """A conversation as text, and what marks in it begin with."""
        stem = self.control.stem(messages, tools)
        return self._render(self._hidden(messages, stem), self._schemas(tools, stem), prompt=prompt), stem

    def tail(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Tail:
        """What the template writes behind a reply that `messages` answer."""
        stem = self.control.stem(messages, tools)
        said, schemas = self._hidden(messages, stem), self._schemas(tools, stem)
        mark = _digits(said, schemas)
        history = _histories(self._head, said, mark)[self._history(said, schemas)]
        behind = self._render([*history, *said], schemas, prompt=True).rpartition(mark)[2]
        called = bool(history[-1].get("tool_calls"))
        lead, end = self.control.first_special(behind)
        if not end or (lead.strip() and not called):
            return Tail("", behind, False, stem)
        return Tail("" if called else lead, behind[len(lead) :], True, stem)

    def reply(self, message: Message) -> tuple[str, str]:
        """What the model is to say so that the template would show it as `message`, with the token that ends it if the
        template writes one; and what marks in it begin with."""
        stem = self.control.stem(message)
        opened = self._try([USER], prompt=True)
        whole = self._render([*self._head, USER, *self._hidden([message], stem)], (), prompt=False)
        if not whole.startswith(opened):
            fix = "write the reply as text, with its calls as the model writes them"
            raise DataError(f"the chat template of {self._path} does not show a reply behind what opens its turn; {fix}")
        return self.control.up_to_last_special(whole[len(opened) :]) or whole[len(opened) :], stem

    # ---------------------------------------------------------------------------------------------------------- stand-ins
    def _history(self, said: Sequence[Message], schemas: Sequence[Schema]) -> int:
        """Which stand-in conversation (`_histories`) the template takes before messages of these roles, and shows them all."""
        shape = (bool(schemas), *((m["role"], len(m.get("tool_calls", ()))) for m in said))
        if shape not in self._chosen:
            self._chosen[shape] = self._choose(said, schemas)
        return self._chosen[shape]

    def _choose(self, said: Sequence[Message], schemas: Sequence[Schema]) -> int:
        stem = self.control.stem(said, schemas)
        shown = [{**m, "content": f"{stem}{i}s"} for i, m in enumerate(said)]
        refusals: list[DataError] = []
        mark = _digits(shown, schemas)
        for number, history in enumerate(_histories(self._head, said, mark)):
            try:
                text = self._render([*history, *shown], schemas, prompt=True)
            except DataError as error:
                refusals.append(error)
                continue
            # An assistant that calls tools may say nothing beside it.
            lost = [m["role"] for m in shown if m["content"] not in text and not m.get("tool_calls")]
            if mark in text and not lost:
                return number
            what = f"messages of the role {lost[0]}" if lost else "what the assistant has said"
            refusals.append(DataError(f"the chat template of {self._path} leaves out {what}; {FIX}"))
        raise refusals[0]

    # ---------------------------------------------------------------------------------------------------------- rendering
    def _hidden(self, messages: Sequence[Message], stem: str) -> list[dict[str, Any]]:
        return [self._hide(message, stem) for message in messages]

    def _hide(self, message: Message, stem: str) -> dict[str, Any]:
        """One message without names of control tokens. An empty list of calls is left out: to some templates it is a call."""
        speech = message["role"] == "assistant"
        given = {k: v for k, v in message.items() if k not in OURS and (k != "tool_calls" or v)}
        return {
            k: v if k == "role" else self.control.hide(v, stem, speech=speech and isinstance(v, str)) for k, v in given.items()
        }

    def _schemas(self, tools: Sequence[Schema], stem: str) -> list[Schema]:
        if tools and not self.takes_tools:
            names = ", ".join(str(t["function"]["name"]) for t in tools)
            fix = f"the chat template of {self._path} does not show tools; describe them in a message, or use another model"
            raise ConfigError("tools", names, fix)
        return list(self.control.hide(list(tools), stem))

    def _try(self, messages: Sequence[Message], *, prompt: bool, tools: Sequence[Schema] = ()) -> str:
        """A stand-in conversation as text; nothing, if it is refused."""
        try:
            head = self._head if messages[0]["role"] != "system" else []
            return self._render([*head, *messages], tools, prompt=prompt)
        except RunnelError:
            return ""

    def _render(self, messages: Sequence[Message], tools: Sequence[Schema], *, prompt: bool) -> str:
        from jinja2 import TemplateError

        if self._inner.chat_template is None:
            fix = "its tokenizer has no chat template; use plain prompts (--data.plain), or put a chat_template.jinja there"
            raise ConfigError("model", self._path, fix)
        # Some templates write words about tools for an empty list of them too.
        options = {"tokenize": False, "add_generation_prompt": prompt} | ({"tools": list(tools)} if tools else {})
        try:
            return str(self._inner.apply_chat_template([dict(m) for m in messages], **options))
        except TemplateError as error:
            roles = ", ".join(m["role"] for m in messages)
            raise DataError(f"the chat template of {self._path} refuses a conversation of {roles}: {error}; {FIX}") from error


def _digits(*values: object) -> str:
    """A number that `values` do not have. As a number it is written in calls without quotes, which may be tokens."""
    shown, n = "".join(map(str, values)), 0
    while (mark := f"70{n}07") in shown:
        n += 1
    return mark


FIX = "give those messages another role, such as user, or use a model whose chat template takes them"


def _histories(head: Sequence[Message], said: Sequence[Message], mark: str) -> list[list[Message]]:
    """Stand-in conversations before the messages `said`, the simplest first: some templates take results of tools only after
    calls."""
    spoken: list[Message] = [{"role": "assistant", "content": mark}]
    if said and said[0]["role"] == "tool":
        calls = [_call(number, message, mark) for number, message in enumerate(_results(said))]
        spoken.append({"role": "assistant", "content": "", "tool_calls": calls})
    return [[*head, USER, turn] for turn in spoken]


def _results(said: Sequence[Message]) -> list[Message]:
    """The results of tools that `said` begins with."""
    count = next((i for i, m in enumerate(said) if m["role"] != "tool"), len(said))
    return list(said[:count])


def _call(number: int, result: Message, mark: str) -> dict[str, Any]:
    """A stand-in for the call that led to `result`."""
    told = {"name": result.get("name", STAND_IN_TOOL), "arguments": {"x": int(mark)}}
    return {"id": result.get("tool_call_id", f"call-{number}"), "type": "function", "function": told}
