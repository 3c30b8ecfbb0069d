"""Whether a completion has reached a stop text: one rule for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.llm.engines.requests import Decode

SLACK = 8
"""Characters at the start of a window that may differ from those in the whole text: some decoders remove a space there."""
LOST = "\N{REPLACEMENT CHARACTER}"


def completes(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the newest of `tokens` completes one of the texts `stop`, given that no earlier one did.

    The result equals that of a search in the text of all tokens, but most calls decode only a window of the last tokens. A
    token may be many characters, a part of one, or none, so the window grows until the text before its newest token is long
    enough to hold a stop text. Bytes that are not a character (yet) do not count towards that length. A window that begins
    inside of a character can be decoded wrongly, so a match is confirmed in the whole text.
    """
    if not stop:
        return False
    need, width = max(len(text) for text in stop) + SLACK, 1 + SLACK
    while width < len(tokens) and len(decode(tokens[-width:-1]).replace(LOST, "")) < need:
        width *= 2
    return _has(decode(tokens[-width:]), stop) and _has(decode(tokens), stop)


def _has(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)
