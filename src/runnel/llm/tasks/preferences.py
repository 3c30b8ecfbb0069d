"""Preferences as JSON lines: prompts with a chosen and a rejected answer, or with one answer that has a label or a score."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from runnel.core.errors import ConfigError, DataError
from runnel.data.rows import Row, read_rows
from runnel.llm.tasks.messages import chat_message, chat_prompt, conversation

HELD_OUT = 10
"""One of so many prompts is held out for evaluation, with all its pairs."""


Prompt = str | Sequence[Mapping[str, str]]
Rating = Literal["label", "score"]
"""What is known of a single answer: whether it is good, or a number."""


class _HasPrompt(Protocol):
    @property
    def text(self) -> str: ...


Given = TypeVar("Given", bound=_HasPrompt)


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)


Strength = Literal["margin", "weight"]
"""What may be known of a pair: by how much the chosen answer is better, and how much the pair counts."""


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt (text, or a conversation), of which `chosen` was preferred; `place` is its file and line.
    `margin` and `weight` count where an algorithm asks for them."""

    prompt: Prompt
    chosen: str
    rejected: str
    place: str = field(default="", compare=False)
    margin: float = 0.0
    weight: float = 1.0

    @property
    def text(self) -> str:
        """The prompt as one string."""
        return _text(self.prompt)


@dataclass(frozen=True)
class Rated:
    """One answer to a prompt, and its `rating`: a score, or 1 for a good answer and 0 for a bad one."""

    prompt: Prompt
    answer: str
    rating: float
    place: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The prompt as one string."""
        return _text(self.prompt)


def read_pairs(path: str | Path, asked: Mapping[Strength, str] | None = None) -> list[Pair]:
    """The pairs in a file of JSON lines (or Parquet) with the fields `prompt`, `chosen` and `rejected`, and those that are
    `asked` for, each by the setting that asks.

    An answer may also be the assistant's message, or a conversation that ends with it. The earlier turns are then the prompt,
    and must be equal for both answers. Messages have role and content, or ShareGPT's from and value; a prompt may also be the
    field `conversations`, as in ShareGPT.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError("pairs", str(path), "there is no such file; give JSON lines with prompt, chosen and rejected")
    if not file.stat().st_size:
        raise DataError(f"{file} has no pairs; each line is an object with prompt, chosen and rejected")
    return [_pair(row, asked or {}) for row in read_rows(file, setting="pairs")]


def read_rated(path: str | Path, rating: Rating) -> list[Rated]:
    """The answers in a file of JSON lines (or Parquet) with the fields `prompt`, `completion`, and `label` (true or false) or
    `score` (a number). Prompts and completions may be messages, as in `read_pairs`."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError("rated", str(path), f"there is no such file; give JSON lines with prompt, completion and {rating}")
    return [_rated(row, rating) for row in read_rows(file, setting="rated")]


def unrolled(pairs: Iterable[Pair]) -> list[Rated]:
    """Both answers of each pair: the chosen one is good, the rejected one bad.

    >>> [(one.answer, one.rating) for one in unrolled([Pair("q", "a", "b")])]
    [('a', 1.0), ('b', 0.0)]
    """
    sides = ((p, answer, good) for p in pairs for answer, good in ((p.chosen, 1.0), (p.rejected, 0.0)))
    return [Rated(p.prompt, answer, good, p.place) for p, answer, good in sides]


def append_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Add pairs to a file, one JSON object a line."""
    with Path(path).open("a") as file:
        for pair in pairs:
            prompt = pair.prompt if isinstance(pair.prompt, str) else [dict(m) for m in pair.prompt]
            file.write(json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected}) + "\n")


def split_pairs(pairs: Sequence[Given]) -> tuple[list[Given], list[Given]]:
    """Pairs (or rated answers) to train on, and held-out ones: those of one prompt in ten, by a hash. At least one prompt
    is held out, unless there is only one."""
    prompts = sorted({p.text for p in pairs}, key=lambda text: (zlib.crc32(text.encode()), text))
    held = set(prompts[: max(1, len(prompts) // HELD_OUT) if len(prompts) > 1 else 0])
    return [p for p in pairs if p.text not in held], [p for p in pairs if p.text in held]


def _pair(row: Row, asked: Mapping[Strength, str]) -> Pair:
    where = row.place
    if not {"chosen", "rejected"} <= row.keys():
        text = f"{where} needs the fields prompt, chosen and rejected; it has {', '.join(row)}"
        if "completion" in row:
            text += ". Single answers are for recipes with --rated FILE: labels for kto, scores for reward_model"
        raise DataError(text)
    sides = {name: _answer(row[name], where, name) for name in ("chosen", "rejected")}
    if sides["chosen"][0] != sides["rejected"][0]:
        fix = "the two answer different conversations, so neither can be preferred; leave such lines out"
        raise DataError(f"{where}: chosen and rejected have different turns before their answers; {fix}")
    prompt = _prompt(row, sides["chosen"][0], "answers")
    chosen, rejected = sides["chosen"][1], sides["rejected"][1]
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same answer; leave such lines out")
    return Pair(prompt, chosen, rejected, where, **{name: _strength(row, name, by) for name, by in asked.items()})


def _strength(row: Row, name: Strength, setting: str) -> float:
    if name not in row:
        raise DataError(f"{row.place} needs the field {name} for {setting}; it has {', '.join(row)}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DataError(f"{row.place}: {name} is {value!r}; write a number of at least 0")
    return float(value)


def _rated(row: Row, rating: Rating) -> Rated:
    where = row.place
    if not {"completion", rating} <= row.keys():
        text = f"{where} needs the fields prompt, completion and {rating}; it has {', '.join(row)}"
        if {"chosen", "rejected"} <= row.keys():
            text += ". Pairs of answers are given as --pairs FILE"
        raise DataError(text)
    before, answer = _answer(row["completion"], where, "completion")
    value = row[rating]
    if rating == "label" and not (isinstance(value, bool | int) and value in (0, 1)):
        raise DataError(f"{where}: label is {value!r}; write true for a good answer and false for a bad one")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: {rating} is {value!r}; write a number")
    return Rated(_prompt(row, before, "completion"), answer, float(value), where)


def _prompt(row: Row, history: list[dict[str, str]], name: str) -> str | list[dict[str, str]]:
    """The prompt of the answers (`name`): the turns before them in their conversations, if they have any, else the row's."""
    where, given = row.place, row.get("prompt", row.get("conversations"))
    if history:
        said = [m["content"] for m in history if m["role"] == "user"]
        if not (given is None or given in said or (not isinstance(given, str) and conversation(given, where) == history)):
            fix = f"give the prompt once: as prompt, or as the turns before the {name}"
            raise DataError(f"{where}: prompt is another than the turns before the {name} ({str(given)[:60]!r}); {fix}")
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
