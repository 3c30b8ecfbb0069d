"""Preferences: prompts with a chosen and a rejected answer, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.core.errors import ConfigError, DataError

FIELDS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt (text, or a conversation), of which `chosen` was preferred."""

    prompt: str | Sequence[Mapping[str, str]]
    chosen: str
    rejected: str


def read_pairs(path: str | Path) -> list[Pair]:
    """The pairs in a file of JSON lines with the fields `prompt`, `chosen` and `rejected`.

    An answer may also be the assistant's message, or a conversation that ends with it (its earlier turns are then the
    prompt's).
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError("pairs", str(path), "there is no such file; give JSON lines with prompt, chosen and rejected")
    out = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if line.strip():
            out.append(_pair(line, f"{file}, line {number}"))
    if not out:
        raise DataError(f"{file} has no pairs; each line is an object with prompt, chosen and rejected")
    return out


def append_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Add pairs to a file, one JSON object a line."""
    with Path(path).open("a") as file:
        for pair in pairs:
            prompt = pair.prompt if isinstance(pair.prompt, str) else [dict(m) for m in pair.prompt]
            file.write(json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected}) + "\n")


def _pair(line: str, where: str) -> Pair:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict) or not {"chosen", "rejected"} <= data.keys():
        raise DataError(f"{where} needs the fields prompt, chosen and rejected")
    prompt: Any = data.get("prompt")
    if prompt is None and isinstance(data["chosen"], list):
        prompt = data["chosen"][:-1]
    if not prompt or not isinstance(prompt, str | list):
        raise DataError(f"{where}: prompt is {prompt!r}; write a text, or a list of messages")
    chosen, rejected = _answer(data["chosen"], where, "chosen"), _answer(data["rejected"], where, "rejected")
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same answer; leave such lines out")
    return Pair(prompt, chosen, rejected)


def _answer(value: Any, where: str, field: str) -> str:
    """The text of an answer that may be a message, or a conversation that ends with one."""
    last = value[-1] if isinstance(value, list) and value else value
    text = last.get("content") if isinstance(last, dict) else last
    if not isinstance(text, str) or not text:
        raise DataError(f"{where}: {field} has no text; write a text, or messages that end with the assistant's")
    return text
