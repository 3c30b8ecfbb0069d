"""Verifiers that need only the text: exact match, regular expression, format, length."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runnel.core.errors import ConfigError
from runnel.llm.rewards.extract import extract as find
from runnel.llm.rewards.extract import number_of


def exact_match(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    answer: Sequence[object],
    extract: str = "all",
    ignore_case: bool = False,
    **columns: object,
) -> list[float | None]:
    """1 if the answer is the expected one, or one of a list of them; None if none is expected.

    With the rule `last_number`, or if the expected answer is a number and not a text, numbers are compared by value: 1,200 is
    1200, .5 is 0.5, and 7.0 is 7.

    >>> exact_match(["", "", ""], ["4", " 5", "x"], answer=["4", "4", None])
    [1.0, 0.0, None]
    """

    def plain(text: str) -> str:
        return text.strip().casefold() if ignore_case else text.strip()

    def same(found: str, option: object) -> bool:
        if plain(found) == plain(str(option)):
            return True
        numeric = "last_number" in extract.split("|") or (isinstance(option, int | float) and not isinstance(option, bool))
        number = number_of(found) if numeric else None
        return number is not None and number == number_of(str(option))

    def score(completion: str, expected: object) -> float | None:
        if expected is None:
            return None
        found = find(completion, extract)
        options = expected if isinstance(expected, list | tuple) else [expected]
        return float(found is not None and any(same(found, option) for option in options))

    return [score(c, a) for c, a in zip(completions, answer, strict=True)]


def regex_match(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    pattern: str | Sequence[str],
    full: bool = False,
    **columns: object,
) -> list[float]:
    """1 if `pattern` (one for all, or a column) matches a part of the completion; with `full`, if it matches all of it.

    >>> regex_match(["", ""], ["it is 12", "none"], pattern="[0-9]+")
    [1.0, 0.0]
    """
    patterns = [pattern] * len(completions) if isinstance(pattern, str) else list(pattern)
    match = re.fullmatch if full else re.search
    return [float(match(p, c, re.S) is not None) for p, c in zip(patterns, completions, strict=True)]


def tag_format(
    prompts: Sequence[str], completions: Sequence[str], *, tags: Sequence[str] = ("think", "answer"), **columns: object
) -> list[float]:
    """1 for `<think>...</think> <answer>...</answer>`: each tag once, in this order, with nothing but space outside.

    >>> tag_format([""] * 2, ["<think>a</think>\\n<answer>4</answer>", "so <think></think><answer></answer>"])
    [1.0, 0.0]
    """
    return [float(_in_order(completion, tags)) for completion in completions]


def _in_order(text: str, tags: Sequence[str]) -> bool:
    if any(text.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return False
    for tag in tags:
        before, _, rest = text.partition(f"<{tag}>")
        _, closed, text = rest.partition(f"</{tag}>")
        if before.strip() or not closed:
            return False
    return not text.strip()


def length(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    unit: str = "characters",
    target: int = 0,
    limit: int = 0,
    slack: int = 0,
    completion_ids: Sequence[Sequence[int]] = (),
    **columns: object,
) -> list[float]:
    """A reward for lengths near `target` (1 at the target, 0 at 0 and at twice the target), or below `limit` (0 up to
    `limit - slack`, then down to -1 at `limit`: the soft penalty of DAPO, equation 13).

    `unit` is characters, words, or tokens (a component with `tokens=True`).

    >>> length([""] * 3, ["abcd", "ab", "abcdefgh"], target=4), length([""] * 3, ["a", "abc", "abcde"], limit=4, slack=2)
    ([1.0, 0.5, 0.0], [0.0, -0.5, -1.0])
    """
    if (target > 0) == (limit > 0):
        raise ConfigError("reward.length", (target, limit), "give either target or limit, above 0")
    sizes = _sizes(completions, completion_ids, unit)
    if target:
        return [max(0.0, 1.0 - abs(size - target) / target) for size in sizes]
    return [-min(1.0, max(0.0, (size - (limit - slack)) / slack if slack else float(size > limit))) + 0.0 for size in sizes]


def _sizes(completions: Sequence[str], ids: Sequence[Sequence[int]], unit: str) -> list[int]:
    if unit == "characters":
        return [len(c) for c in completions]
    if unit == "words":
        return [len(c.split()) for c in completions]
    if unit == "tokens" and ids:
        return [len(i) for i in ids]
    raise ConfigError("reward.length.unit", unit, "use characters or words; for tokens, set tokens=True on the component")
