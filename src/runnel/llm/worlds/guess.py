"""Guess a number: after each guess the world says whether the secret is higher or lower."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runnel.core.contracts.chat import REWARD, Turn
from runnel.core.state import Settings
from runnel.llm.worlds.world import World, divided, entry_between, last_integer, share, whole

NARROWED = "narrowed"


class Guess(World):
    """Find a secret number from 1 to `high` in `max_guesses` guesses (0: as many as halving needs). Reward 1 if it is found.

    The guess is the last whole number in the message; a message without one counts as a guess. The tasks are the numbers:
    some of them are held out. With `shaped`, the channel `narrowed` pays, with this weight, for each guess the part of
    log2(high) that it took off: at most 1 in a conversation.
    """

    name = "guess"

    def __init__(self, *, high: int = 100, max_guesses: int = 0, shaped: float = 0.0) -> None:
        super().__init__()
        self._high = whole("guess.high", high, 2, 10_000)
        given = whole("guess.max_guesses", max_guesses, 0, 10_000)
        # halving leaves at most (n - 1) // 2, rounded up, of n numbers: bit_length guesses find each
        self._max_guesses = given or self._high.bit_length()
        self._shaped = share("guess.shaped", shaped, 0, 100)
        self.rewards = {REWARD: 1.0, **({NARROWED: self._shaped} if self._shaped else {})}

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        train, held = divided(range(1, self._high + 1), f"guess {self._high}")
        return [{"secret": s} for s in train], [{"secret": s} for s in held]

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"secret": int(rng.integers(1, self._high + 1))}

    def begin(self, task: Settings) -> Turn:
        entry_between(task, "secret", 1, self._high, self.name)
        self.now |= {"low": 1, "high": self._high}
        rule = "After each guess I say whether my number is higher or lower. Reply with a number."
        return Turn(f"I think of a whole number from 1 to {self._high}. You have {self._max_guesses} guesses. {rule}")

    def answer(self, text: str) -> Turn:
        guess, secret = last_integer(text), self.now["task"]["secret"]
        left = self._max_guesses - self.now["turns"]
        if guess == secret:
            return Turn(f"Right: it is {secret}.", self._earned(1.0, secret, secret), terminated=True)
        low, high = self.now["low"], self.now["high"]
        if guess is None:
            words = "I see no number in your message."
        elif guess < secret:
            low, words = max(low, guess + 1), f"My number is higher than {guess}."
        else:
            high, words = min(high, guess - 1), f"My number is lower than {guess}."
        earned = self._earned(0.0, low, high)
        if left == 0:
            return Turn(f"{words} That was your last guess: it is {secret}.", earned, terminated=True)
        return Turn(f"{words} Guesses left: {left}.", earned)

    def script(self) -> str:
        """The middle of what is still possible."""
        return str((self.now["low"] + self.now["high"]) // 2)

    def _earned(self, found: float, low: int, high: int) -> dict[str, float]:
        """The rewards of a guess after which the secret is known to be from `low` to `high`."""
        before = self.now["high"] - self.now["low"] + 1
        self.now |= {"low": low, "high": high}
        narrowed = math.log2(before / (high - low + 1)) / math.log2(self._high)
        return {REWARD: found, **({NARROWED: narrowed} if self._shaped else {})}
