"""How much each token of a demonstration counts, from weights of parts of its text."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from runnel.core.errors import DataError
from runnel.llm.tasks import Example
from runnel.llm.tokenize import Tokenizer


def weights_of(example: Example, column: str, tokens: Sequence[int], tokenizer: Tokenizer) -> list[float]:
    """The weight of each of the answer's `tokens`: that of the part that a token says anything of, else 1.

    `column` of the example has the parts in the order in which they stand in the answer, each as `[text, weight]`. An example
    without that column counts everywhere alike.
    """
    parts, answer, out = example.columns.get(column), example.answer or "", [1.0] * len(tokens)
    if parts is None:
        return out
    if not tokenizer.spell(tokens).startswith(answer):
        raise DataError(
            f"the tokenizer changes the answer {answer[:60]!r}, so that its parts (column {column!r}) have no place"
        )

    def token_of(character: int) -> int:
        """The token that begins to show a character of the answer."""
        return bisect_right(range(len(tokens) - 1), character, key=lambda i: len(tokenizer.spell(tokens[: i + 1])))

    at = 0
    for text, weight in _checked(parts, column):
        start = answer.find(text, at)
        if start < 0:
            raise DataError(
                f"column {column!r}: {text!r} does not stand in the answer {answer[:60]!r} behind the part before it"
            )
        at = start + len(text)
        # a character of several bytes may end in the token behind the one that begins it
        first, last = token_of(start), max(token_of(at - 1), token_of(at) - 1)
        out[first : last + 1] = [weight] * (last + 1 - first)
    return out


def _checked(parts: object, column: str) -> list[tuple[str, float]]:
    fix = f"column {column!r} is a list of [text, weight], with weights of at least 0"
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise DataError(f"{fix}; it is {str(parts)[:60]!r}")
    found = []
    for part in parts:
        match part:
            case [str(text), int() | float() as weight] if text and not isinstance(weight, bool) and 0 <= weight < math.inf:
                found.append((text, float(weight)))
            case _:
                raise DataError(f"{fix}; one part is {str(part)[:60]!r}")
    return found
