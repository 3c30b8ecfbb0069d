"""Recorded conversations: who said which tokens, which row forks from which, and which turns were in the same state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from runnel.core.state import State
from runnel.llm.tokenize import ROLES, Tokenizer

SPOKEN_AS = {**{role: role for role in ROLES}, "model": "assistant", "ipython": "tool"}
"""Roles by the words that chat templates use for them."""
LONGEST_HEAD = 16
"""Tokens in which the name of a role ends, behind the control token that opens a message."""


@dataclass(frozen=True)
class RowFork:
    """A row begins as an earlier row does: `shared` tokens are the same as in row `parent` of the trajectory."""

    parent: int
    shared: int


def find_forks(rows: Sequence[Tensor]) -> list[RowFork | None]:
    """For the tokens of each row, the earlier row that it shares most with (of equal ones the latest); None for the first."""
    out: list[RowFork | None] = []
    for number, row in enumerate(rows):
        shares = [(_shared(row, other), parent) for parent, other in enumerate(rows[:number])]
        out.append(RowFork(*reversed(max(shares))) if shares else None)
    return out


def _shared(a: Tensor, b: Tensor) -> int:
    num = min(len(a), len(b))
    return int((a[:num] == b[:num]).long().cumprod(0).sum())


def forked_after(row: int, forks: Sequence[RowFork | None], ends: Sequence[Sequence[tuple[int, int]]]) -> int:
    """The last turn that a row shares with those that it forks from; -1 if it forks before the first. `ends` has for each row
    its turns and where each ends in the row."""
    fork, shared = forks[row], None
    while fork is not None:
        shared = fork.shared if shared is None else min(shared, fork.shared)
        if whole := [turn for turn, end in ends[fork.parent] if end <= shared]:
            return whole[-1]
        fork = forks[fork.parent]
    return -1


def numbered(keys: Iterable[int]) -> dict[int, int]:
    """Small numbers for keys, in order of appearance.

    >>> numbered([70, 3, 70])
    {70: 0, 3: 1}
    """
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def control_places(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The places of control tokens: those that are spelled, and are no text. Text that only looks like one is none.

    >>> from runnel.llm.tokenize import CharTokenizer
    >>> t = CharTokenizer()
    >>> control_places([*t.render([{"role": "user", "content": "<eos>"}])], t)
    [0, 1, 7]
    """
    control = {token for token in set(ids) if tokenizer.spell([token]) and not tokenizer.decode([token])}
    return [place for place, token in enumerate(ids) if token in control]


def find_messages(texts: Sequence[str], control: Iterable[int]) -> list[State]:
    """The messages in the texts of tokens. A control token opens one if it names a role, or if the name of one follows it on
    its line.

    Each has its `role`, where it starts and ends, and where its content starts (`said`). What is before the first has no role,
    and neither has a text whose template names none.

    >>> find_messages(["\\n", "<|im_start|>", "user", "\\n", "hi", "<|im_end|>"], [1, 5])  # doctest: +NORMALIZE_WHITESPACE
    [{'role': '', 'start': 0, 'said': 0, 'end': 1}, {'role': 'user', 'start': 1, 'said': 4, 'end': 6}]
    """
    places = set(control)
    opened: list[tuple[int, str, int]] = []
    for place in sorted(places):
        inside = bool(opened) and place < opened[-1][2]  # a header may have several control tokens, and names one role
        if not inside and (found := _role_at(texts, place, places)):
            opened.append((place, *found))
    starts = [*([(0, "", 0)] if not opened or opened[0][0] > 0 else []), *opened]
    ends = [*(start for start, _, _ in starts[1:]), len(texts)]
    parts = zip(starts, ends, strict=True)
    return [{"role": role, "start": start, "said": said, "end": end} for (start, role, said), end in parts if end > start]


def _role_at(texts: Sequence[str], place: int, control: set[int]) -> tuple[str, int] | None:
    """The role that a control token opens a message of, and where the content of that starts."""
    own = texts[place].strip("<|>[] ").lower()
    if own in SPOKEN_AS:
        return SPOKEN_AS[own], place + 1
    name, at = "", place + 1
    while at < min(len(texts), place + LONGEST_HEAD) and at not in control and "\n" not in name:
        name += texts[at]
        at += 1
    role = SPOKEN_AS.get(name.strip().lower())
    if role is None or not (at == len(texts) or at in control or "\n" in name):
        return None
    while at < len(texts) and (at in control or not texts[at].strip()) and at <= place + LONGEST_HEAD:
        at += 1
    return role, at
