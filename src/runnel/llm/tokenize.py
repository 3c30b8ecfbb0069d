"""Messages to tokens and back. Tokens are the truth: a completion is kept as the engine's own ids, never tokenised again.

A conversation is rendered once; later turns append ids. `CharTokenizer` is ours (bytes, so any text fits); `HFTokenizer`
wraps the tokenizer of a model folder; `PlainTokenizer` leaves roles and chat template away.

Texts of messages never become control tokens: where a user or a tool writes `<|im_end|>`, that ends no turn
(`control_tokens.py`). What the author of a data set writes for the model to say (`answer`), and prompts of a `PlainTokenizer`,
may name them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runnel.core.checks import check_text
from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError
from runnel.llm.chat_template import ChatTemplate, Schema
from runnel.llm.model.pretrained import embedding_rows, generation_ends

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Who may speak in a conversation; which of them a model knows is up to its template."""
SPECIALS = ("<pad>", "<bos>", "<eos>", "<system>", "<user>", "<assistant>")
FILE_NAME = "char_tokenizer.json"
SAVED = {"kind": "bytes", "specials": list(SPECIALS)}
"""What `CharTokenizer` writes to that file."""
CALL = "<tool_call>\n{}\n</tool_call>"
"""How a call is written where no chat template says it."""


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    vocab_size: int
    eos_id: int
    """The tokenizer's own end of a text."""
    end_ids: tuple[int, ...]
    """All tokens that end a completion: eos, what the model's generation_config.json calls eos, and what ends `answer`."""
    pad_id: int
    bos_id: int | None
    """What a text without a chat template starts with, if anything."""

    takes_tools: bool
    """Whether `render` can show tools to the model."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """A text as ordinary tokens. With `control`, names of control tokens in it become those tokens."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text without special tokens: what rewards and people read."""
        ...

    def spell(self, tokens: Sequence[int]) -> str:
        """Their text with special tokens as they are written: where stop texts are looked for."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """A conversation as the prompt of the assistant's next turn, with the schemas of the tools that it may call."""
        ...

    def answer(self, said: str | Message) -> list[int]:
        """An answer of the assistant with what ends its turn: a completion, as a demonstration or a pair has it. A message may
        call tools."""
        ...

    def extend(self, tokens: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """`tokens` (a prompt and a completion, as the engine made them), then `messages`, ready for the next turn.

        A completion that was cut off gets the end of its turn first, which nobody sampled."""
        ...

    def save(self, folder: str | Path) -> None: ...


def messages_of(prompt: str | Sequence[Message]) -> list[Message]:
    """A plain prompt as a conversation of one message; a conversation as it is, once it is seen to be one."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Mapping) or not isinstance(prompt, Iterable):
        raise DataError(f"a conversation is a list of messages, not {str(prompt)[:80]!r}; put a single message into a list")
    messages = list(prompt)
    if not messages:
        raise DataError("a conversation without messages says nothing; give at least one of the user")
    for number, message in enumerate(messages):
        _check_message(number, message)
    return messages


def _check_message(number: int, message: Any) -> None:
    """A template leaves out what it does not know, without a word: so it must not get there."""
    place = f"message {number} of the conversation"
    if not isinstance(message, Mapping):
        raise DataError(f"{place} is {str(message)[:80]!r}; a message is a dict with role and content")
    for name in ("role", "content"):
        if not isinstance(message.get(name), str):
            raise DataError(f"{place} has {name} = {str(message.get(name))[:80]!r}; it needs a role and a content, both text")
    if message["role"] not in ROLES:
        raise DataError(f"{place}: message role {message['role']!r} is unknown; use one of {', '.join(ROLES)}")
    for name in ("tool_call_id", "name"):
        if not isinstance(message.get(name, ""), str):
            raise DataError(f"{place} has {name} = {str(message[name])[:80]!r}; write it as text, or leave it out")
    _check_calls(place, message)


def _check_calls(place: str, message: Message) -> None:
    calls = message.get("tool_calls") or []
    if calls and message["role"] != "assistant":
        raise DataError(f"{place} has tool_calls, and its role is {message['role']!r}; only an assistant calls tools")
    if not isinstance(calls, list | tuple):
        raise DataError(f"{place} has tool_calls = {str(calls)[:80]!r}; give a list of calls")
    for call in calls:
        told = call.get("function") if isinstance(call, Mapping) else None
        named = isinstance(told, Mapping) and isinstance(told.get("name"), str) and isinstance(told.get("arguments"), Mapping)
        if not named:
            fix = 'write it as {"id": ..., "type": "function", "function": {"name": ..., "arguments": {...}}}'
            raise DataError(f"{place} has the tool call {str(call)[:80]!r}; {fix}")


def strip_end(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """A reply without the token that ended it, if one did."""
    return list(tokens[:-1] if tokens and tokens[-1] in tokenizer.end_ids else tokens)


def _spoken(message: Message) -> str:
    """A message for a tokenizer without a chat template: calls of tools are written behind its content."""
    calls = [json.dumps({k: c["function"][k] for k in ("name", "arguments")}) for c in message.get("tool_calls") or ()]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *map(CALL.format, calls)])


def _no_tools(tools: Sequence[Schema]) -> None:
    if tools:
        names = ", ".join(str(t["function"]["name"]) for t in tools)
        fix = "a tokenizer without a chat template cannot show tools; describe them in a message, or use a chat model (--model)"
        raise ConfigError("tools", names, fix)


class CharTokenizer:
    """One token a byte (UTF-8), and six special tokens: pad, bos, eos and one marker a role.

    A developer speaks behind the marker of the system. The result of a tool stands behind the marker of the user, and begins
    with `tool: `, as a user could write it too.

    >>> t = CharTokenizer()
    >>> t.decode(t.encode("añ"))
    'añ'
    >>> t.render([{"role": "user", "content": "ab"}])
    [1, 4, 103, 104, 5]
    """

    pad_id, eos_id = 0, 2
    end_ids: tuple[int, ...] = (2,)
    bos_id: int | None = 1
    vocab_size = len(SPECIALS) + 256
    takes_tools = False
    _roles: Mapping[str, int] = {"system": 3, "user": 4, "assistant": 5, "developer": 3, "tool": 4}

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Its special tokens have no names in texts, with `control` or without."""
        check_text(text, "a text")
        return [len(SPECIALS) + b for b in text.encode()]

    def answer(self, said: str | Message) -> list[int]:
        return [*self.encode(said if isinstance(said, str) else _spoken(said)), self.eos_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the byte tokens; special tokens are left out, bytes that are not UTF-8 become a replacement character."""
        return bytes(t - len(SPECIALS) for t in tokens if t >= len(SPECIALS)).decode(errors="replace")

    def spell(self, tokens: Sequence[int]) -> str:
        special = len(SPECIALS)
        return b"".join(SPECIALS[t].encode() if t < special else bytes([t - special]) for t in tokens).decode(errors="replace")

    def render(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        return self._append([1], messages, tools)

    def extend(self, tokens: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        ended = not tokens or tokens[-1] == self.eos_id
        return self._append([*tokens] if ended else [*tokens, self.eos_id], messages, tools)

    def _append(self, tokens: list[int], messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        _no_tools(tools)
        out = list(tokens)
        for message in messages:
            if (role := message["role"]) not in self._roles:
                raise DataError(f"message role {role!r} is unknown; use one of {', '.join(self._roles)}")
            out += [self._roles[role], *self.encode(("tool: " if role == "tool" else "") + _spoken(message))]
            if role == "assistant":
                out.append(self.eos_id)
        return [*out, self._roles["assistant"]]

    def save(self, folder: str | Path) -> None:
        (Path(folder) / FILE_NAME).write_text(json.dumps(SAVED, indent=1))


class HFTokenizer:
    """The tokenizer of a Hugging Face model folder, with its chat template."""

    def __init__(self, path: str | Path) -> None:
        from transformers import AutoTokenizer

        self._path = str(path)
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(self._path, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0][:200]
            raise ConfigError("model", self._path, f"its tokenizer cannot be loaded ({reason}); copy it there") from error
        if self._inner.eos_token_id is None:
            raise ConfigError("model", str(path), "its tokenizer has no eos token; set eos_token in tokenizer_config.json")
        self.eos_id = int(self._inner.eos_token_id)
        self._template = ChatTemplate(self._inner, path)
        self.takes_tools = self._template.takes_tools
        self.takes_system = self._template.takes_system
        lead, end = self._template.turn_end()
        # That may be another token than eos (`<|im_end|>`, `<|eot_id|>`); eos, where there is no template or it ends no turn.
        self._turn_end = (lead, int(self._inner.convert_tokens_to_ids(end)) if end else self.eos_id)
        self.end_ids = tuple(dict.fromkeys((self.eos_id, *generation_ends(path), self._turn_end[1])))
        self.pad_id = int(self._inner.eos_token_id if self._inner.pad_token_id is None else self._inner.pad_token_id)
        self.bos_id: int | None = None if self._inner.bos_token_id is None else int(self._inner.bos_token_id)
        self.vocab_size = len(self._inner)
        self._limit = self._checked_limit()

    @property
    def inner(self) -> Any:
        """The tokenizer of transformers."""
        return self._inner

    def _checked_limit(self) -> int | None:
        """Rows of the model's embedding, where the tokenizer has more; some models come with special tokens that only larger
        ones of their family know (Gemma 3), and no text has."""
        rows = embedding_rows(self._path)
        if rows is None or self.vocab_size <= rows:
            return None
        spare = {i for i, token in self._inner.added_tokens_decoder.items() if token.special}
        spare -= {*self.end_ids, self.pad_id, *([] if self.bos_id is None else [self.bos_id])}
        if any(i not in spare for i in range(rows, self.vocab_size)):
            raise _too_large(self._path, self.vocab_size, rows)
        return rows

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        stem = self._template.control.stem(text)
        return self._tokens(text if control else self._template.control.hide(text, stem), stem)

    def _tokens(self, text: str, stem: str) -> list[int]:
        check_text(text, "a text")
        tokens = self._template.control.encode(text, stem)
        if self._limit is not None and tokens and max(tokens) >= self._limit:
            odd = self._inner.decode([max(tokens)])
            raise DataError(f"the text {text[:60]!r} has {odd!r}, for which {self._path} has no embedding; leave it out")
        return tokens

    def answer(self, said: str | Message) -> list[int]:
        """The answer and the end of the assistant's turn as the chat template writes it, up to the token that ends it. A text
        may name control tokens: the author of a demonstration writes what the model is to say (`<tool_call>`)."""
        lead, end = self._turn_end
        if not isinstance(said, str) and said.get("tool_calls"):
            _check_message(0, said)
            tokens = self._tokens(*self._template.reply(said))
            return tokens if self._template.control.has(tokens[-1], special=True) else [*tokens, end]
        return [*self.encode((said if isinstance(said, str) else said["content"]) + lead, control=True), end]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=True))

    def spell(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))

    def render(self, messages: Sequence[Message], tools: Sequence[Schema] = (), *, prompt: bool = True) -> list[int]:
        for number, message in enumerate(messages):
            _check_message(number, message)
        return self._tokens(*self._template.text(messages, tools, prompt=prompt))

    def extend(self, tokens: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """The ids stay. Behind them comes what the template writes behind a stand-in reply, less the token that ends a turn if
        the reply has it. So the text between that token and the next turn is there (a line break, mostly), which no engine
        says, and a reply that was cut off, or ended by another token such as eos, is closed."""
        for number, message in enumerate(messages):
            _check_message(number, message)
        tail = self._template.tail(messages, tools)
        more = self._tokens(tail.rest, tail.stem)
        if tail.ends and tokens and (number := self._ended(tokens[-1], more)):
            return [*tokens, *more[number:]]
        return [*tokens, *(self._tokens(tail.lead, tail.stem) if tail.lead else []), *more]

    def _ended(self, last: int, more: Sequence[int]) -> int:
        """How many tokens of a tail the reply had already, whose last token is `last`: those that end a turn, where it was
        one of them, or what opens the next turn, for models that end their reply with that."""
        for number, token in enumerate(more):
            if token == last and (number == 0 or last in self.end_ids):
                return number + 1
            if not self._template.control.has(token):
                break
        return 0

    def save(self, folder: str | Path) -> None:
        self._inner.save_pretrained(str(folder))


def _too_large(folder: str | Path, tokens: int, rows: int) -> ConfigError:
    return ConfigError(
        "model",
        str(folder),
        f"its tokenizer has {tokens} tokens, but its embedding {rows} rows; use the tokenizer that belongs to the model, or "
        f"make the model larger: model.resize_token_embeddings({tokens})",
    )


class PlainTokenizer:
    """Another tokenizer without roles and templates: a prompt is its text, as base models know it.

    >>> t = PlainTokenizer(CharTokenizer())
    >>> t.render([{"role": "user", "content": "ab"}])
    [1, 103, 104]
    """

    def __init__(self, inner: Tokenizer) -> None:
        self.vocab_size, self.eos_id, self.pad_id, self.bos_id = inner.vocab_size, inner.eos_id, inner.pad_id, inner.bos_id
        self.end_ids = inner.end_ids
        self.encode, self.decode, self.spell, self.save = inner.encode, inner.decode, inner.spell, inner.save
        self.takes_tools = False

    def answer(self, said: str | Message) -> list[int]:
        return [*self.encode(said if isinstance(said, str) else _spoken(said), control=True), self.eos_id]

    def render(self, messages: Sequence[Message], tools: Sequence[Schema] = (), *, control: bool = True) -> list[int]:
        """A prompt of a data set may have been rendered before, so with `control` names of control tokens in it become those
        tokens."""
        _no_tools(tools)
        start = [] if self.bos_id is None else [self.bos_id]
        return [*start, *self.encode("\n".join(map(_spoken, messages)), control=control)]

    def extend(self, tokens: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        _no_tools(tools)
        return [*tokens, *self.encode("\n" + "\n".join(map(_spoken, messages)) + "\n")]


def check_round_trip(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Texts that come back changed in more than their white space, because rewards would see another text than was written.

    Raises a `ConfigError` where that is more than one in twenty.
    """
    lost = [text for text in texts if "".join(tokenizer.decode(tokenizer.encode(text)).split()) != "".join(text.split())]
    if len(lost) * 20 > len(texts):
        back = tokenizer.decode(tokenizer.encode(lost[0]))
        raise ConfigError(
            "model",
            lost[0][:60],
            f"its tokenizer does not give this text back, but {back[:60]!r} ({len(lost)} of {len(texts)} texts of the task are "
            "changed); rewards would judge the wrong text; use a model whose tokenizer knows these characters",
        )
    return lost


def make_tokenizer(folder: str | Path, *, plain: bool = False) -> Tokenizer:
    """The tokenizer of a model folder, ours for a new model (empty); with `plain`, without chat template."""
    tokenizer = load_tokenizer(folder) if folder else CharTokenizer()
    return PlainTokenizer(tokenizer) if plain else tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer that `save` left in `folder`, or that of a Hugging Face model folder."""
    path = Path(folder)
    if (path / FILE_NAME).is_file():
        data = json.loads((path / FILE_NAME).read_text())
        if data != SAVED:
            raise DataError(f"{path / FILE_NAME} describes another tokenizer than this version's CharTokenizer")
        rows = embedding_rows(path)
        if rows is not None and rows < CharTokenizer.vocab_size:
            raise _too_large(path, CharTokenizer.vocab_size, rows)
        return CharTokenizer()
    if not path.is_dir():
        raise ConfigError("model", str(folder), "there is no such folder; give a folder with a model and its tokenizer")
    return HFTokenizer(path)
