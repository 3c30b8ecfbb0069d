"""Messages to tokens and back. Tokens are the truth: a completion is kept as the engine's own ids, never tokenised again.

A conversation is rendered once; later turns append ids. `CharTokenizer` is ours (bytes, so any text fits); `HFTokenizer`
wraps the tokenizer of a model folder; `PlainTokenizer` leaves roles and chat template away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runnel.core.errors import ConfigError, DataError

Message = Mapping[str, str]
SPECIALS = ("<pad>", "<bos>", "<eos>", "<system>", "<user>", "<assistant>")
FILE_NAME = "char_tokenizer.json"


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    vocab_size: int
    eos_id: int
    pad_id: int
    bos_id: int | None
    """What a text without a chat template starts with, if anything."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def render(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as the prompt of the assistant's next turn."""
        ...

    def extend(self, tokens: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """`tokens` (a prompt and a completion, as the engine made them), then `messages`, ready for the next turn."""
        ...

    def save(self, folder: str | Path) -> None: ...


def messages_of(prompt: str | Sequence[Message]) -> list[Message]:
    """A plain prompt as a conversation of one message; a conversation as it is."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


class CharTokenizer:
    """One token a byte (UTF-8), and six special tokens: pad, bos, eos and one marker a role.

    >>> t = CharTokenizer()
    >>> t.decode(t.encode("añ"))
    'añ'
    >>> t.render([{"role": "user", "content": "ab"}])
    [1, 4, 103, 104, 5]
    """

    pad_id, eos_id = 0, 2
    bos_id: int | None = 1
    vocab_size = len(SPECIALS) + 256
    _roles: Mapping[str, int] = {"system": 3, "user": 4, "assistant": 5}

    def encode(self, text: str) -> list[int]:
        return [len(SPECIALS) + b for b in text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the byte tokens; special tokens are left out, bytes that are not UTF-8 become a replacement character."""
        return bytes(t - len(SPECIALS) for t in tokens if t >= len(SPECIALS)).decode(errors="replace")

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.extend([1], messages)

    def extend(self, tokens: Sequence[int], messages: Sequence[Message]) -> list[int]:
        out = list(tokens)
        for message in messages:
            out += [self._role(message["role"]), *self.encode(message["content"])]
            if message["role"] == "assistant":
                out.append(self.eos_id)
        return [*out, self._roles["assistant"]]

    def mask(self, tokens: Sequence[int]) -> list[bool]:
        """Which tokens the assistant wrote, its eos included: what a loss may train on.

        >>> t = CharTokenizer()
        >>> t.mask([1, 4, 103, 5, 104, 2])
        [False, False, False, False, True, True]
        """
        speaking, out = False, []
        for token in tokens:
            if token in self._roles.values():
                out.append(False)
                speaking = token == self._roles["assistant"]
            else:
                out.append(speaking)
                speaking = speaking and token != self.eos_id
        return out

    def parse(self, tokens: Sequence[int]) -> list[Message]:
        """The messages of a conversation in tokens: the inverse of `render`, for reading."""
        names = {v: k for k, v in self._roles.items()}
        found: list[tuple[str, list[int]]] = []
        for token in tokens:
            if token in names:
                found.append((names[token], []))
            elif found:
                found[-1][1].append(token)
        if found and found[-1] == ("assistant", []):
            found.pop()
        return [{"role": role, "content": self.decode(ids)} for role, ids in found]

    def save(self, folder: str | Path) -> None:
        data = {"kind": "bytes", "specials": list(SPECIALS)}
        (Path(folder) / FILE_NAME).write_text(json.dumps(data, indent=1))

    def _role(self, role: str) -> int:
        if role not in self._roles:
            raise DataError(f"message role {role!r} is unknown; use one of {', '.join(self._roles)}")
        return self._roles[role]


class HFTokenizer:
    """The tokenizer of a Hugging Face model folder, with its chat template."""

    def __init__(self, path: str | Path) -> None:
        from transformers import AutoTokenizer

        self._path = str(path)
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(self._path)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0][:200]
            raise ConfigError("model", self._path, f"its tokenizer cannot be loaded ({reason}); copy it there") from error
        if self._inner.eos_token_id is None:
            raise ConfigError("model", str(path), "its tokenizer has no eos token; set eos_token in tokenizer_config.json")
        self.eos_id = int(self._inner.eos_token_id)
        self.pad_id = int(self._inner.eos_token_id if self._inner.pad_token_id is None else self._inner.pad_token_id)
        self.bos_id: int | None = None if self._inner.bos_token_id is None else int(self._inner.bos_token_id)
        self.vocab_size = len(self._inner)

    def encode(self, text: str) -> list[int]:
        return [int(t) for t in self._inner.encode(text, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=True))

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self._template(messages)

    def extend(self, tokens: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """The ids stay; the template's text for the new turns is taken from its rendering after a stand-in first turn."""
        before: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]
        stem, full = self._template(before, prompt=False), self._template([*before, *messages])
        if full[: len(stem)] != stem:
            raise DataError(
                "the chat template rewrites earlier turns, so turns cannot be appended; render the whole conversation"
            )
        tail = full[len(stem) :]
        ended = [i for i, t in enumerate(stem) if t == self.eos_id]
        closing = stem[ended[-1] + 1 :] if ended else []
        return [*tokens, *closing, *tail]

    def save(self, folder: str | Path) -> None:
        self._inner.save_pretrained(str(folder))

    def _template(self, messages: Sequence[Message], *, prompt: bool = True) -> list[int]:
        from jinja2 import TemplateError

        if self._inner.chat_template is None:
            fix = "its tokenizer has no chat template; use plain prompts (--data.plain), or put a chat_template.jinja there"
            raise ConfigError("model", self._path, fix)
        try:
            text = self._inner.apply_chat_template([dict(m) for m in messages], tokenize=False, add_generation_prompt=prompt)
        except TemplateError as error:
            roles = ", ".join(m["role"] for m in messages)
            raise DataError(f"the chat template of {self._path} refuses a conversation of {roles}: {error}") from error
        return self.encode(text)


class PlainTokenizer:
    """Another tokenizer without roles and templates: a prompt is its text, as base models know it.

    >>> t = PlainTokenizer(CharTokenizer())
    >>> t.render([{"role": "user", "content": "ab"}])
    [1, 103, 104]
    """

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.vocab_size, self.eos_id, self.pad_id, self.bos_id = inner.vocab_size, inner.eos_id, inner.pad_id, inner.bos_id

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._inner.decode(tokens)

    def render(self, messages: Sequence[Message]) -> list[int]:
        start = [] if self.bos_id is None else [self.bos_id]
        return [*start, *self.encode("\n".join(m["content"] for m in messages))]

    def extend(self, tokens: Sequence[int], messages: Sequence[Message]) -> list[int]:
        return [*tokens, *self.encode("\n" + "\n".join(m["content"] for m in messages) + "\n")]

    def save(self, folder: str | Path) -> None:
        self._inner.save(folder)


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
        if data != {"kind": "bytes", "specials": list(SPECIALS)}:
            raise DataError(f"{path / FILE_NAME} describes another tokenizer than this version's CharTokenizer")
        return CharTokenizer()
    if not path.is_dir():
        raise ConfigError("model", str(folder), "there is no such folder; give a folder with a model and its tokenizer")
    return HFTokenizer(path)
