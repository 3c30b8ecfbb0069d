"""Begins a few conversations before a run starts, to refuse environments that cannot begin and first prompts without room."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.contracts.inference import Reply
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.llm.chat.conversation import TOO_LONG, Conversation
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.task import SEED
from runnel.llm.checks.sizes import some
from runnel.llm.tasks.text import Example

TRIED = 4
"""Conversations that are begun, at most. Usually the first one begins, and is enough."""


class Silent:
    """Takes requests and never answers (the part of an `InferenceClient` that a player uses)."""

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        return 0

    def ready(self, ticket: int) -> Reply | None:
        return None

    def abort(self, tickets: Sequence[int]) -> None:
        """There is nothing to stop."""

    def pending(self) -> int:
        return 0


def first_failure(player: ChatPlayer, examples: Sequence[Example]) -> Conversation | None:
    """Begin conversations until one has a first prompt. If none has, the last of them, which says why; None also where one took
    too long, since a run may wait for that. `player` is a blocking one; it is closed."""
    failed: Conversation | None = None
    try:
        for number, example in enumerate(some(examples, TRIED)):
            failed = _begun(player, example, number)
            if not failed.failure or ": timeout after" in failed.failure:
                return None
    finally:
        player.close()
    return failed


def lengths(failure: str) -> tuple[int, int] | None:
    """The tokens of a first prompt that has no room, and those that there are for it; None of another failure.

    >>> lengths("prompt_too_long: 654 tokens, room for 511")
    (654, 511)
    """
    if not failure.startswith(TOO_LONG):
        return None
    num, room = (int(word) for word in failure.replace(",", " ").split() if word.isdigit())
    return num, room


def _begun(player: ChatPlayer, example: Example, number: int) -> Conversation:
    """A conversation that has begun, or failed to, and was given up."""
    given = example.columns.get(SEED)
    seed = int(given) if isinstance(given, int) else make_seed(player.seed, "look", number)
    conversation, silent = player.open(example, number=number, seed=seed, names=("look", number), max_turns=1), Silent()
    player.begin(conversation)
    player.step(lambda agent: silent, [conversation])
    player.drop(lambda agent: silent, conversation)
    return conversation
