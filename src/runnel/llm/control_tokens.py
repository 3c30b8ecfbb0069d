"""Control tokens of a Hugging Face tokenizer, and texts that name them but must not become them.

A control token is an added token that is marked as special (`<|im_end|>`), or whose text the chat template writes
(`<tool_call>`, `<think>`). Other added tokens, such as runs of spaces, stand for ordinary text.

Where an environment prints `<|im_end|>`, its text must not end a turn. Such names are replaced by marks before the chat
template sees them. The rendered text is then encoded by a twin of the tokenizer in which control tokens have secret names: what
the template wrote gets the secret names, and the marks become the names that the environment printed, which mean nothing there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from runnel.core.errors import DataError

END = "z"
"""Ends a mark, so that a digit of the text behind it does not belong to its number."""


class ControlTokens:
    """The control tokens of one tokenizer. `template` is all that the chat template is known to write."""

    def __init__(self, inner: Any, template: str) -> None:
        self._inner = inner
        added = inner.added_tokens_decoder.values()
        self.special = {t.content for t in added if t.special and t.content} | {t for t in inner.all_special_tokens if t}
        tags = {t.content for t in added if t.content.strip() and t.content in template}
        # The longest name first: where one begins another, tokenizers take the longer one.
        self._names = sorted(self.special | tags, key=lambda name: (-len(name), name))
        self._pattern = _one_of(self._names)
        self._special = _one_of([name for name in self._names if name in self.special])
        self._number = {name: i for i, name in enumerate(self._names)}
        # Unknown characters become the unknown token: it says nothing about what a text names.
        self._counted = {name for name in self._names if name != inner.unk_token}
        self._ids = {int(inner.convert_tokens_to_ids(name)) for name in self._counted}
        self._special_ids = {int(inner.convert_tokens_to_ids(name)) for name in self._counted & self.special}
        self._twin: _Twin | None = None

    def has(self, token: int, *, special: bool = False) -> bool:
        """Whether `token` is a control token, or even a special one."""
        return token in (self._special_ids if special else self._ids)

    # ------------------------------------------------------------------------------------------------------------ hiding
    def stem(self, *values: object) -> str:
        """What marks begin with: letters that none of `values` has. Templates leave letters and digits as they are."""
        shown, n = "".join(map(str, values)), 0
        while (stem := f"qx{n}k") in shown:
            n += 1
        return stem

    def hide(self, value: Any, stem: str, *, speech: bool = False) -> Any:
        """Plain data with marks in place of names of control tokens. In `speech` of the assistant, only special ones are
        hidden: thoughts and calls are written with tags."""
        if isinstance(value, str):
            pattern = self._special if speech else self._pattern
            return pattern.sub(lambda found: f"{stem}{self._number[found[0]]}{END}", value)
        if isinstance(value, Mapping):
            return {self.hide(k, stem): self.hide(v, stem) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(v, stem) for v in value]
        return value

    # ---------------------------------------------------------------------------------------------------------- encoding
    def up_to_last_special(self, text: str) -> str:
        """A rendered text up to its last special token, if nothing but white space follows; else nothing."""
        ends = [found.end() for found in self._special.finditer(text)]
        return text[: ends[-1]] if ends and not text[ends[-1] :].strip() else ""

    def first_special(self, text: str) -> tuple[str, str]:
        """What stands before the first special token in a rendered text, and its name; without one, the text and nothing."""
        found = self._special.search(text)
        return (text, "") if found is None else (text[: found.start()], found[0])

    def encode(self, text: str, stem: str) -> list[int]:
        """Tokens of a rendered text. Only what the template wrote becomes control tokens, never what marks stand for."""
        if stem not in text:
            tokens = [int(t) for t in self._inner.encode(text, add_special_tokens=False)]
            written = sum(name in self._counted for name in self._pattern.findall(text))
            if sum(t in self._ids for t in tokens) == written:
                return tokens  # else a text became a control token by what the tokenizer does to text, such as Unicode forms
        return self._split(text, stem)

    def _split(self, text: str, stem: str) -> list[int]:
        backend = getattr(self._inner, "backend_tokenizer", None)
        if backend is None:
            raise DataError(
                f"the text {text[:60]!r} names control tokens, and this tokenizer cannot tell names from tokens; leave them "
                "out of the text, or put a tokenizer.json into the model's folder"
            )
        if self._twin is None or self._twin.opening in text:
            self._twin = _Twin(backend, self._names, self.stem(text))
        twin = self._twin
        marks = {f"{stem}{i}{END}": name for name, i in self._number.items()}
        parts = re.compile(f"{re.escape(stem)}\\d+{END}|{self._pattern.pattern}")
        return twin.encode(parts.sub(lambda found: marks.get(found[0]) or twin.names[found[0]], text))


class _Twin:
    """A tokenizer that differs from another in the names of its control tokens alone, so it splits texts in the same way."""

    def __init__(self, backend: Any, names: Iterable[str], stem: str) -> None:
        from tokenizers import Tokenizer

        self.opening = f"\ufdd0{stem}"
        self.names = {name: f"{self.opening}{i}\ufdd0" for i, name in enumerate(names)}
        data = json.loads(backend.to_str())
        data |= {"post_processor": None, "truncation": None, "padding": None}
        added = [(token["content"], int(token["id"])) for token in data["added_tokens"]]
        for token in data["added_tokens"]:
            if token["content"] in self.names:
                # Names are looked for before the text is normalised: a text cannot turn into one.
                token |= {"content": self.names[token["content"]], "normalized": False}
        self._rename(data["model"])
        self._inner = Tokenizer.from_str(json.dumps(data))
        self._ids = {self._inner.token_to_id(self.names.get(name, name)): number for name, number in added}

    def _rename(self, model: dict[str, Any]) -> None:
        """A vocabulary may have the names too (`<s>`): from there they could still be reached."""
        vocab, new = model.get("vocab"), self.names
        if isinstance(vocab, dict):
            model["vocab"] = {new.get(piece, piece): number for piece, number in vocab.items()}
        elif isinstance(vocab, list):
            model["vocab"] = [[new.get(piece, piece), score] for piece, score in vocab]
        if model.get("unk_token") in new:
            model["unk_token"] = new[model["unk_token"]]

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(t, t) for t in self._inner.encode(text, add_special_tokens=False).ids]


def _one_of(names: list[str]) -> re.Pattern[str]:
    """Matches one of `names`; nothing, where there are none."""
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")
