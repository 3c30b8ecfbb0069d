"""Finding the answer in a completion, by a rule with a name."""

from __future__ import annotations

import re

from runnel.core.errors import ConfigError

RULES = "all, last_line, last_number, boxed, tag:NAME, after:TEXT or code; several with | take the first that finds one"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.M | re.S)


def extract(text: str, rule: str = "all") -> str | None:
    r"""The answer in `text`, or None where the rule finds none.

    >>> extract("so it is <answer> 4 </answer>", "tag:answer"), extract(r"thus $\boxed{\frac{1}{2}}$", "boxed")
    ('4', '\\frac{1}{2}')
    >>> extract("2 and 1,200 apples", "last_number"), extract("x #### 7", "after:####"), extract("no", "boxed")
    ('1,200', '7', None)
    >>> extract("just 4", "tag:answer|all")
    'just 4'
    """
    if "|" in rule:
        return next((found for part in rule.split("|") if (found := extract(text, part)) is not None), None)
    kind, _, name = rule.partition(":")
    if kind == "all":
        return text.strip()
    if kind == "last_line":
        return next(reversed(text.strip().splitlines()), None)
    if kind == "last_number":
        return next((str(found) for found in reversed(NUMBER.findall(text))), None)
    if kind == "boxed":
        return _boxed(text)
    if kind == "tag" and name:
        return _between(text, f"<{name}>", f"</{name}>")
    if kind == "after" and name:
        return text.rpartition(name)[2].strip() if name in text else None
    if kind == "code":
        return _code(text)
    raise ConfigError("extract", rule, f"unknown rule; use {RULES}")


def _between(text: str, start: str, end: str) -> str | None:
    """What stands in the last pair of marks."""
    before, found, _ = text.rpartition(end)
    _, opened, inner = before.rpartition(start)
    return inner.strip() if found and opened else None


def _boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, with its braces balanced."""
    _, found, rest = text.rpartition(r"\boxed{")
    depth = 1
    for i, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if found and depth == 0:
            return rest[:i].strip()
    return None


def _code(text: str) -> str | None:
    """The last block between fences, of Python where its language is said."""
    blocks = [body for language, body in FENCE.findall(text) if language.lower() in ("", "python", "py", "python3")]
    return blocks[-1] if blocks else None
