r"""Compares mathematical answers as mathematics (math-verify): 1/2, 0.5 and \frac{1}{2} are the same.

`answers.py` finds the answer; math-verify parses it and the expected answer, each as a whole, and compares them. Two limits
stop what takes too long: math-verify's own alarm, and for code that no alarm interrupts (a huge power) the time limit of the
worker process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from runnel.core.errors import ConfigError
from runnel.llm.rewards.answers import answer_in, as_latex, words_of

LIMIT_S = 4
"""The most seconds for parsing one answer, and for comparing it."""


def math_answer(
    prompts: Sequence[str], completions: Sequence[str], *, answer: Sequence[object], **columns: object
) -> list[float | None]:
    """1 if the answer in the completion equals the expected one, or one of a list of them; None if none is expected.

    An expected answer that cannot be parsed is an error, and so a counted failure of its group. An answer that cannot be parsed
    or compared within `LIMIT_S` is not equal.
    """
    return [None if a is None else _best(c, a) for c, a in zip(completions, answer, strict=True)]


def _best(completion: str, answer: object) -> float:
    """The score against the expected answer, or the best of several that are right."""
    options = answer if isinstance(answer, list | tuple) else [answer]
    return max((_score(completion, str(option)) for option in options), default=0.0)


def _score(completion: str, answer: str) -> float:
    gold, found = _expected(answer), answer_in(completion)
    words = words_of(gold)
    if words is not None:
        return float(words == _last_words(completion, found))
    # a set is no tuple, but math-verify accepts a list in braces as equal to one in parentheses
    if found is None or {_brackets(gold), _brackets(found)} == {"{}", "()"}:
        return 0.0
    expected, given = _read(gold), _read(found)
    if not expected:
        raise ValueError(f"the expected answer {answer!r} cannot be read as mathematics")
    _, verify, _ = _library()
    same = given and verify(list(expected), list(given), allow_set_relation_comp=True, timeout_seconds=_limit())
    return float(bool(same))


def _expected(answer: str) -> str:
    r"""The expected answer without marks: data sets have it plain, in dollar signs, in a box, or behind reasons and `####`."""
    bare = answer.strip()
    marked = r"\boxed" in bare or "####" in bare or re.search(r"\banswer\b", bare, re.I)
    if marked or re.fullmatch(r"\$\$.+\$\$|\$[^$]+\$|\\\(.+\\\)|\\\[.+\\\]", bare, re.S):
        return answer_in(bare) or bare
    return bare


def _last_words(completion: str, found: str | None) -> str | None:
    """The words that are a completion's answer: those in its box, behind "answer is", or all words."""
    if r"\boxed" in completion:
        return None if found is None else words_of(found)
    text = re.split(r"(?i)\banswer(?:\s+is|\s*:)+|####", completion)[-1].strip().strip("*$ ")
    return words_of(text)


def _brackets(text: str) -> str:
    """The brackets around a list, as in (1, 2); empty for anything else."""
    bare = re.sub(r"\\left|\\right|\\|\s", "", text)
    return bare[0] + bare[-1] if re.fullmatch(r"[({][^(){}]*,[^(){}]*[)}]", bare) else ""


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[Any, ...]:
    """An answer as math-verify parses it inside a box, where it accepts both LaTeX and plain expressions."""
    parse, _, latex = _library()
    return tuple(parse(rf"\boxed{{{as_latex(text)}}}", [latex()], parsing_timeout=_limit()))


def _limit() -> int | None:
    """math-verify's alarms work only in the main thread; in others, the executor's time limit must suffice."""
    return LIMIT_S if threading.current_thread() is threading.main_thread() else None


def _library() -> tuple[Any, Any, Any]:
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ModuleNotFoundError as error:
        raise ConfigError("reward", "math", 'it needs math-verify; pip install "runnel[verify]"') from error
    return parse, verify, LatexExtractionConfig
