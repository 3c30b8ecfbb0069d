"""Prefixes that the native engine keeps between two requests of one conversation.

When the reply to a request with a `session` is complete, the keys and values of its row stay in a slot behind those of the
running rows. A later request is not computed from its start if its prompt begins with tokens that a slot holds. Slots without a
running row are free for this, so kept prefixes need no memory of their own. When rows need the slots, the oldest prefixes go.

What may be used again depends on the weights that made the keys. Keys of the loaded version may be used by any request with a
`session`. Keys of older versions may be used only by the next request of their own conversation, if its prompt begins with all
tokens that were kept, and if it accepts any version. So no key is older than the oldest token of its own conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from runnel.core.state import State

MIXED = -2
"""Stands for the version of keys that were made by several versions."""
LEAST_SHARED = 8
"""The fewest tokens that are copied from the slot of another conversation. Nearly all prompts share their first tokens, and a
copy of so few saves nothing."""


def num_common(a: Tensor, b: Tensor) -> int:
    """How many tokens two rows have in common from their start.

    >>> import torch
    >>> num_common(torch.tensor([5, 6, 7]), torch.tensor([5, 6, 8, 9]))
    2
    """
    least = min(len(a), len(b))
    differ = (a[:least] != b[:least]).numpy()
    return int(differ.argmax()) if differ.any() else least


@dataclass(eq=False)
class Held:
    """Tokens whose keys and values are in `slot`, and the version that made all of them (or `MIXED`)."""

    tokens: Tensor
    version: int
    slot: int
    session: int | None = None
    """The conversation, if it waits for its next turn; None for the prompt of a row that runs."""
    id: int = -1
    """The request that was answered."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a new prompt that a slot holds already."""

    slot: int
    length: int
    version: int
    own: bool
    """Whether it is of the same conversation, so that the slot itself can be used."""


@dataclass(frozen=True)
class Move:
    """Copy the first `length` positions of one slot to another."""

    source: int
    target: int
    length: int


class KeptPrefixes:
    """The prefixes that wait for a next turn, the oldest first, one for each conversation."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.all: list[Held] = []

    def keep(self, held: Held) -> None:
        """Add a prefix. It replaces an older one of the same conversation."""
        self.take(held.session)
        self.all.append(held)

    def take(self, session: int | None) -> None:
        """Remove the prefix of a conversation, if there is one."""
        self.all = [h for h in self.all if h.session != session]

    def release(self, ids: Iterable[int]) -> None:
        """Remove the prefixes that the replies to these requests left."""
        gone = set(ids)
        self.all = [h for h in self.all if h.id not in gone]

    def clear(self) -> None:
        self.all = []

    def find(self, prompt: Tensor, session: int, running: Sequence[Held], *, version: int, exact: bool) -> Prefix | None:
        """The longest beginning of `prompt` that may be used, of those that wait and of `running` rows.

        The last token of a prompt is always computed, because the first new token is drawn from its hidden state.
        """
        best: Prefix | None = None
        for held in (*self.all, *running):
            own = held.session == session
            common = num_common(held.tokens, prompt)
            whole = common == len(held.tokens)
            if held.version != version and (exact or not own or not whole):
                continue
            common = min(common, len(prompt) - 1)
            if common < (1 if own else LEAST_SHARED):
                continue
            if best is None or (common, own) > (best.length, best.own):
                best = Prefix(held.slot, common, held.version, own)
        return best

    def make_room(self, slots: range) -> list[Move]:
        """Free `slots`, which rows are to use. The oldest prefixes are removed if there is no slot for them behind these."""
        room = self._num_slots - slots.stop
        self.all = self.all[max(0, len(self.all) - room) :]
        taken = {h.slot for h in self.all}
        free = (slot for slot in range(slots.stop, self._num_slots) if slot not in taken)
        moves = []
        for held in self.all:
            if held.slot in slots:
                moves.append(Move(held.slot, next(free), len(held.tokens)))
                held.slot = moves[-1].target
        return moves

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> list[State]:
        return [
            {"session": h.session, "id": h.id, "tokens": h.tokens.clone(), "version": h.version, "slot": h.slot}
            for h in self.all
        ]

    def restore(self, state: Sequence[State]) -> None:
        self.all = [Held(d["tokens"], d["version"], d["slot"], d["session"], d["id"]) for d in state]
