"""Finds the answer in a completion, by a rule with a name."""

from __future__ import annotations

import re
from decimal import Decimal

from runnel.core.errors import ConfigError

RULES = "all, last_line, last_number, boxed, tag:NAME, after:TEXT or code; several with | take the first that finds one"
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
NUMBER = re.compile(rf"(?:(?<![\w)\]}}])[-\N{{MINUS SIGN}}])?(?:{_WHOLE})(?:[eE][-+]?\d{{1,4}}(?!\w))?")
"""A minus behind a digit, a letter or a bracket is an operator or a hyphen; commas are part of a number in groups of three."""
FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.M | re.S)
BOX, BRACE = re.compile(r"\\boxed\s*\{"), re.compile(r"\\.|[{}]", re.S)
PYTHON = ("python", "py", "python3", "py3")
STATEMENT = re.compile(
    r"^[ \t]*(?:(?:async[ ]+)?def|class|import|from|for|while|if|with|try|return|print|@)\b|^[ \t]*[\w.\[\], ]+=(?!=)", re.M
)


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
        return next((str(found) for found in reversed(NUMBER.findall(text))), None)  # "3/4" is two numbers
    if kind == "boxed":
        return next((content for _, _, content in reversed(boxes(text))), None)
    if kind == "tag" and name:
        return _between(text, f"<{name}>", f"</{name}>")
    if kind == "after" and name:
        return text.rpartition(name)[2].strip() if name in text else None
    if kind == "code":
        return _code(text)
    raise ConfigError("extract", rule, f"unknown rule; use {RULES}")


def _between(text: str, start: str, end: str) -> str | None:
    """The text in the last pair of marks: from the last opening mark that is closed to the first closing mark after it."""
    opened = text.rfind(start, 0, max(text.rfind(end), 0))
    if opened < 0:
        return None
    inner = text[opened + len(start) :]
    return inner[: inner.find(end)].strip()


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Start, end and content of every `\boxed{...}`, with balanced braces (`\{` and `\}` do not count); empty if any box is
    not closed, because the text was then cut off in its answer."""
    found = []
    for box in BOX.finditer(text):
        depth, end = 1, box.end()
        for brace in BRACE.finditer(text, box.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            end = brace.start()
            if depth == 0:
                break
        if depth:
            return []
        found.append((box.end(), end, text[box.end() : end].strip()))
    return found


def _code(text: str) -> str | None:
    """The last block between fences that is marked as Python. If there is none, the last block without a mark that has a
    statement (a later block may show output), or else the last block without a mark."""
    blocks: list[tuple[str, str]] = [(language.lower(), body) for language, body in FENCE.findall(text)]
    marked = [body for language, body in blocks if language in PYTHON]
    if marked:
        return marked[-1]
    bare = [body for language, body in blocks if not language]
    return next((body for body in reversed(bare) if STATEMENT.search(body)), bare[-1] if bare else None)


def number_of(text: str) -> Decimal | None:
    """The value of a text that is exactly one number as `last_number` finds it; None for any other text.

    >>> number_of("1,200"), number_of(".50"), number_of("5-3")
    (Decimal('1200'), Decimal('0.50'), None)
    """
    found = NUMBER.fullmatch(text.strip())
    return Decimal(found[0].replace(",", "").replace("\N{MINUS SIGN}", "-")) if found else None


def shown(answer: str, rule: str) -> str:
    r"""An answer in the form in which `rule` (of several, the first) finds it, for demonstrations. An answer that has this form
    already, such as a worked solution, is returned unchanged.

    >>> shown("4", "tag:answer|all"), shown("1/2", "boxed"), shown("7", "after:####"), shown("7", "last_number")
    ('<answer>4</answer>', '\\boxed{1/2}', '#### 7', '7')
    >>> shown("6 is half: #### 12", "after:####"), shown("so it is $4$", "boxed")
    ('6 is half: #### 12', 'so it is $4$')
    """
    first = rule.partition("|")[0]
    kind, _, name = first.partition(":")
    if kind not in ("boxed", "tag", "after", "code") or extract(answer, first) is not None:
        return answer
    if kind == "boxed":
        return answer if any(mark in answer for mark in ("$", r"\(", r"\[", "####", "\n")) else rf"\boxed{{{answer}}}"
    if kind == "tag":
        return f"<{name}>{answer}</{name}>"
    return f"{name} {answer}" if kind == "after" else f"```python\n{answer}\n```"
