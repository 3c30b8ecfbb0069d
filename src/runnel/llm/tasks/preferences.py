"""Preferences: prompts with a chosen and a rejected answer, as JSON lines."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runnel.core.errors import ConfigError, DataError
from runnel.data.rows import Row, read_rows
from runnel.llm.tasks.messages import chat_message, chat_prompt, conversation

HELD_OUT = 10
"""One of so many prompts is held out for evaluation, with all its pairs."""


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt (text, or a conversation), of which `chosen` was preferred; `place` is its file and line."""

    prompt: str | Sequence[Mapping[str, str]]
    chosen: str
    rejected: str
    place: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The prompt as one string."""
        return self.prompt if isinstance(self.prompt, str) else "\n".join(m["content"] for m in self.prompt)


def read_pairs(path: str | Path) -> list[Pair]:
    """The pairs in a file of JSON lines (or Parquet) with the fields `prompt`, `chosen` and `rejected`.

    An answer may also be the assistant's message, or a conversation that ends with it. The earlier turns are then the prompt,
    and must be equal for both answers. Messages have role and content, or ShareGPT's from and value; a prompt may also be the
    field `conversations`, as in ShareGPT.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError("pairs", str(path), "there is no such file; give JSON lines with prompt, chosen and rejected")
    if not file.stat().st_size:
        raise DataError(f"{file} has no pairs; each line is an object with prompt, chosen and rejected")
    return [_pair(row) for row in read_rows(file, setting="pairs")]


def append_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Add pairs to a file, one JSON object a line."""
    with Path(path).open("a") as file:
        for pair in pairs:
            prompt = pair.prompt if isinstance(pair.prompt, str) else [dict(m) for m in pair.prompt]
            file.write(json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected}) + "\n")


def split_pairs(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and held-out pairs: one prompt in ten, chosen by a hash, with all its pairs. At least one prompt is
    held out, unless there is only one."""
    prompts = sorted({p.text for p in pairs}, key=lambda text: (zlib.crc32(text.encode()), text))
    held = set(prompts[: max(1, len(prompts) // HELD_OUT) if len(prompts) > 1 else 0])
    return [p for p in pairs if p.text not in held], [p for p in pairs if p.text in held]


def _pair(row: Row) -> Pair:
    where = row.place
    if not {"chosen", "rejected"} <= row.keys():
        raise DataError(f"{where} needs the fields prompt, chosen and rejected; it has {', '.join(row)}")
    sides = {name: _answer(row[name], where, name) for name in ("chosen", "rejected")}
    prompt = _prompt(row, {name: before for name, (before, _) in sides.items()})
    chosen, rejected = sides["chosen"][1], sides["rejected"][1]
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same answer; leave such lines out")
    return Pair(prompt, chosen, rejected, where)


def _prompt(row: Row, before: Mapping[str, list[dict[str, str]]]) -> str | list[dict[str, str]]:
    """The prompt of both answers: the turns before them in their conversations, if they have any, else the row's prompt."""
    where, given = row.place, row.get("prompt", row.get("conversations"))
    if before["chosen"] != before["rejected"]:
        fix = "the two answer different conversations, so neither can be preferred; leave such lines out"
        raise DataError(f"{where}: chosen and rejected have different turns before their answers; {fix}")
    if history := before["chosen"]:
        said = [m["content"] for m in history if m["role"] == "user"]
        if not (given is None or given in said or (not isinstance(given, str) and conversation(given, where) == history)):
            fix = "give the prompt once: as prompt, or as the turns before the answers"
            raise DataError(f"{where}: prompt is another than the turns before the answers ({str(given)[:60]!r}); {fix}")
        return chat_prompt(history, where)
    if not given:
        raise DataError(f"{where}: prompt is {given!r}; write a text, or a list of messages")
    return chat_prompt(given, where)


def _answer(value: object, where: str, name: str) -> tuple[list[dict[str, str]], str]:
    """The turns before an answer, and its text. The answer is a text, a message, or a conversation that ends with one."""
    messages: list[dict[str, str]] = []
    if isinstance(value, Mapping):
        messages = [chat_message(value, f"{where}: {name}")]
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        messages = conversation(value, f"{where}: {name}")
    text = messages[-1]["content"] if messages else value
    if not isinstance(text, str) or not text:
        raise DataError(f"{where}: {name} has no text; write a text, or messages that end with the assistant's")
    if messages and messages[-1]["role"] != "assistant":
        fix = "an answer is the assistant's; cut the turns behind it, or leave the line out"
        raise DataError(f"{where}: {name} ends with the turn of {messages[-1]['role']!r}; {fix}")
    return messages[:-1], text
