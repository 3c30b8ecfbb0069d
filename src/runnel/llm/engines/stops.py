"""Where a completion ends: the tokens that end one, and stop texts, by one rule for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.llm.engines.requests import Decode

SLACK = 8
"""Characters at the start of a window that may read otherwise there than in the whole text: some decoders take away a space."""
LOST = "\N{REPLACEMENT CHARACTER}"


def end_ids_of(eos_id: int | Sequence[int]) -> tuple[int, ...]:
    """The tokens that end a completion, each once, from one or several.

    >>> end_ids_of(2), end_ids_of([2, 7, 2])
    ((2,), (2, 7))
    """
    return (eos_id,) if isinstance(eos_id, int) else tuple(dict.fromkeys(eos_id))


def completes(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the newest of `tokens` completes one of the texts `stop`, given that no earlier one did.

    The answer is that of a search in the text of all tokens, but only the end of it is decoded. A token may be many characters,
    a part of one, or none at all, so the window grows until what lies before the newest token is long enough to hold a stop
    text. Bytes that are no character (yet) do not count: where the window cuts one, its neighbours may be unreadable too;
    and where it cuts some away, readable that are not. So what it finds is looked for in the whole text, once.
    """
    if not stop:
        return False
    need, width = max(len(text) for text in stop) + SLACK, 1 + SLACK
    while width < len(tokens) and len(decode(tokens[-width:-1]).replace(LOST, "")) < need:
        width *= 2
    return _has(decode(tokens[-width:]), stop) and _has(decode(tokens), stop)


def _has(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)
