"""Makes tasks from data on disk: each row becomes an example, by a mapping of columns."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runnel.core.config import refuse_unused
from runnel.core.errors import ConfigError, DataError
from runnel.data.rows import Row, read_rows
from runnel.llm.rewards.extract import shown
from runnel.llm.tasks.config import DataConfig
from runnel.llm.tasks.messages import chat_prompt
from runnel.llm.tasks.prompts import read_splits
from runnel.llm.tasks.text import Example, TextTask

RESERVED = ("prompts", "completions", "completion_ids", "prompt_messages")
NEEDS_ANSWER = ("exact", "math")
FORMS = {"math": "boxed", "python_tests": "code"}
"""The rule by which a reward finds an answer if no rule is configured."""


def make_file_task(path: str, config: DataConfig) -> TextTask:
    """The data in `path` (see `llm/tasks/prompts.py`) as a task. The reward gets its columns under their own names."""
    rows, held = read_splits(path)
    if held or config.eval_path:
        refuse_unused(config, {"eval_share": "held-out prompts come apart"}, "data.")
    if config.eval_path:
        held = read_rows(config.eval_path, setting="data.eval_path")
    _check_columns(rows, path, config)
    form = answer_form(config)
    train = [row_example(row, config, form) for row in rows]
    kept = [row_example(row, config, form) for row in held]
    train, kept = split_off(train, kept, config.eval_share)
    if not train or not kept:
        short = "train" if not train else "held-out"
        raise DataError(f"{path}: no {short} prompts are left of {len(rows)} rows; give more rows, or a file in data.eval_path")
    return TextTask(Path(path).stem, train, kept, config.components(), max_tokens=256)


def split_off(train: list[Example], kept: list[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Train and held-out examples with no prompt in both. Without held-out examples, a hash of the prompt chooses them."""
    held: dict[str, Example] = {}
    for e in kept or [e for e in train if zlib.crc32(e.text.encode()) % 1000 < 1000 * share]:
        held.setdefault(e.text, e)
    return [e for e in train if e.text not in held], list(held.values())


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


def row_example(row: Row, config: DataConfig, form: str = "") -> Example:
    """One row as an example. A demonstration has the answer in the `form` in which the rewards look for it."""
    if row.get(config.prompt) is None:
        raise DataError(f"{row.place}: the column {config.prompt!r} is missing or empty")
    prompt = chat_prompt(row[config.prompt], row.place)
    if config.system and not isinstance(prompt, str) and prompt[0]["role"] == "system":
        fix = f"{row.place} has a system message of its own; leave data.system empty"
        raise ConfigError("data.system", config.system, fix)
    prompt = dressed(prompt, config.system, config.suffix or "")
    columns = {k: v for k, v in row.items() if k not in (config.prompt, config.answer)}
    answer = row.get(config.answer)
    if config.answer in row:
        columns["answer"] = answer
    text = _imitated(answer)
    return Example(prompt, None if text is None else shown(text, form), columns)


def _imitated(answer: object) -> str | None:
    """The answer that a demonstration imitates: the first of a list of right answers. None for other structures (tests,
    tables), which only the reward uses.

    >>> _imitated(["4", "four"]), _imitated(4), _imitated({"text": "4"})
    ('4', '4', None)
    """
    first = (answer[0] if answer else None) if isinstance(answer, list | tuple) else answer
    return None if first is None or isinstance(first, Mapping | list | tuple) else str(first)


def answer_form(config: DataConfig) -> str:
    """The rule (`rewards/extract.py`) by which the rewards find an answer: demonstrations write it in that form."""
    parts = config.components()
    given = [str(part.options["extract"]) for part in parts if part.options.get("extract")]
    usual = [FORMS[part.fn] for part in parts if isinstance(part.fn, str) and part.fn in FORMS]
    return next(iter([*given, *usual]), "")


def dressed(prompt: str | list[dict[str, str]], system: str, suffix: str) -> str | list[dict[str, str]]:
    """A prompt with the system prompt before it and the suffix behind its last message."""
    if isinstance(prompt, str) and not system:
        return prompt + suffix
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    messages[-1]["content"] += suffix
    return [{"role": "system", "content": system}, *messages] if system else messages
