"""Tasks from data on disk: rows become examples by a mapping of columns."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.core.errors import DataError
from runnel.data.prompts import Row, read_rows, read_splits
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.text import Example, TextTask

RESERVED = ("prompts", "completions", "completion_ids")
NEEDS_ANSWER = ("exact", "math")


def make_file_task(path: str, config: DataConfig) -> TextTask:
    """The data in `path` (see `data/prompts.py`) as a task: its columns go to the reward under their own names."""
    rows, held = read_splits(path)
    if config.eval_path:
        held = read_rows(config.eval_path)
    _check_columns(rows, path, config)
    train = [row_example(row, f"{path}, row {i}", config) for i, row in enumerate(rows)]
    kept = [row_example(row, f"{config.eval_path or path}, held-out row {i}", config) for i, row in enumerate(held)]
    train, kept = split_off(train, kept, config.eval_share)
    if not train or not kept:
        short = "train" if not train else "held-out"
        raise DataError(f"{path}: no {short} prompts are left of {len(rows)} rows; give more rows, or a file in data.eval_path")
    return TextTask(Path(path).stem, train, kept, config.components(), max_tokens=256)


def split_off(train: list[Example], kept: list[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Train and held-out examples with no prompt in both: held out by a hash of the prompt, unless they came apart."""
    if not kept:
        kept = [e for e in train if _held(e, share)]
    seen: set[str] = set()
    kept = [e for e in kept if not (e.text in seen or seen.add(e.text))]  # type: ignore[func-returns-value]
    return [e for e in train if e.text not in seen], kept


def _held(example: Example, share: float) -> bool:
    return zlib.crc32(example.text.encode()) % 1000 < 1000 * share


def _check_columns(rows: Sequence[Row], path: str, config: DataConfig) -> None:
    have = list(rows[0])
    if not any(config.prompt in row for row in rows):
        raise DataError(f"{path} has no column {config.prompt!r}; it has {', '.join(have)}; set data.prompt")
    needs = [c.fn for c in config.components() if c.fn in NEEDS_ANSWER]
    if needs and not any(config.answer in row for row in rows):
        raise DataError(f"{path} has no column {config.answer!r} for the reward {needs[0]!r}; it has {', '.join(have)}; set "
                        "data.answer")  # fmt: skip
    if clash := [name for name in have if name in RESERVED]:
        raise DataError(f"{path}: a column cannot be called {clash[0]!r}; rename it")


def row_example(row: Row, place: str, config: DataConfig) -> Example:
    """One row as an example."""
    if row.get(config.prompt) is None:
        raise DataError(f"{place}: the column {config.prompt!r} is missing or empty")
    prompt = dressed(_prompt(row[config.prompt], place), config.system, config.suffix or "")
    columns = {k: v for k, v in row.items() if k not in (config.prompt, config.answer)}
    answer = row.get(config.answer)
    if config.answer in row:
        columns["answer"] = answer
    return Example(prompt, None if answer is None else str(answer), columns)


def _prompt(value: Any, place: str) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"{place}: a prompt is text or a list of messages, not {type(value).__name__}")
    for message in value:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise DataError(f"{place}: a message needs a role and a content, both text: {str(message)[:80]}")
    return [{"role": m["role"], "content": m["content"]} for m in value]


def dressed(prompt: str | list[dict[str, str]], system: str, suffix: str) -> str | list[dict[str, str]]:
    """A prompt with the system prompt before it and the suffix behind its last message."""
    if isinstance(prompt, str) and not system:
        return prompt + suffix
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    messages[-1]["content"] += suffix
    has_one = messages[0]["role"] == "system"
    return [{"role": "system", "content": system}, *messages] if system and not has_one else messages
