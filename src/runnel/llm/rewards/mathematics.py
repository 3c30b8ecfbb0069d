"""Mathematical answers, compared as mathematics (math-verify): 1/2, 0.5 and \\frac{1}{2} are the same.

The parser can take for ever on what a model writes; it runs in a worker process, which is killed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runnel.core.errors import ConfigError


def math_answer(
    prompts: Sequence[str], completions: Sequence[str], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 where the last answer of the completion equals the expected one; None where none is expected.

    An expected answer that cannot be read as mathematics is an error, and so a counted failure of its group.
    """
    return [None if a is None else _score(c, str(a)) for c, a in zip(completions, answer, strict=True)]


def _score(completion: str, answer: str) -> float:
    try:
        from math_verify import parse, verify
    except ModuleNotFoundError as error:
        raise ConfigError("reward", "math", 'it needs math-verify; pip install "runnel[verify]"') from error
    expected = parse(answer, parsing_timeout=None) or parse(f"${answer}$", parsing_timeout=None)
    if not expected:
        raise ValueError(f"the expected answer {answer!r} cannot be read as mathematics")
    found = parse(completion, parsing_timeout=None)
    return float(bool(found) and verify(expected, found, timeout_seconds=None))
