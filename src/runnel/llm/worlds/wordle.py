"""Wordle: find a word of five letters; each guess is marked letter by letter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from runnel.core.contracts.chat import Turn
from runnel.core.errors import DataError
from runnel.core.state import Settings
from runnel.llm.worlds.words import WORDS
from runnel.llm.worlds.world import World, divided, entry, whole

HERE, ELSEWHERE, NOWHERE = "GY-"
LENGTH = 5
MAX_TRIED = 40
"""Words that the script compares as its next guess: more find it a little sooner, and take longer."""


class Wordle(World):
    """Find the secret word within `max_guesses`. Reward 1 if it is found.

    The guess is the last word of five letters (a to z) in the message; any such word may be guessed. A message without one
    counts as a guess. Marks: G where the letter is right; Y where it is elsewhere in the word; - where it is not. A letter
    that is guessed more often than the word has it is marked G or Y as often as the word has it: first where it is right,
    then from left to right.
    """

    name = "wordle"

    def __init__(self, *, max_guesses: int = 6) -> None:
        super().__init__()
        self._max_guesses = whole("wordle.max_guesses", max_guesses, 1, 100)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        train, held = divided(WORDS, self.name)
        return [{"secret": w} for w in train], [{"secret": w} for w in held]

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"secret": WORDS[int(rng.integers(len(WORDS)))]}

    def begin(self, task: Settings) -> Turn:
        if not re.fullmatch("[a-z]{5}", secret := entry(task, "secret", str, self.name)):
            raise DataError(f"world {self.name!r}: the secret {secret!r} must be five letters from a to z")
        self.now["guesses"] = []
        marks = "G: right place. Y: elsewhere in the word. -: not in the word."
        return Turn(f"Find my English word of five letters in {self._max_guesses} guesses. {marks} Reply with a word.")

    def answer(self, text: str) -> Turn:
        found = re.findall(rf"(?<![a-z])[a-z]{{{LENGTH}}}(?![a-z])", text.lower())
        secret, left = self.now["task"]["secret"], self._max_guesses - self.now["turns"]
        if found:
            self.now["guesses"].append(found[-1])
        if found and found[-1] == secret:
            return Turn(f"Right: it is {secret}.", 1.0, terminated=True)
        words = f"{found[-1]}: {marked(found[-1], secret)}" if found else "I see no word of five letters in your message."
        if left == 0:
            return Turn(f"{words}\nThat was your last guess: it is {secret}.", 0.0, terminated=True)
        return Turn(f"{words}\nGuesses left: {left}.")

    def script(self) -> str:
        """Of the words that all marks allow, the one that leaves the fewest on average."""
        secret = self.now["task"]["secret"]
        known = tuple(sorted({(g, marked(g, secret)) for g in self.now["guesses"]}))
        return best_guess(known) or secret  # a secret of a user's own is on no list


def marked(guess: str, secret: str) -> str:
    """The marks of a guess.

    >>> marked("crane", "react"), marked("allow", "label"), marked("geese", "eerie")
    ('YYG-Y', 'YYY--', '-GY-G')
    """
    left = [s for g, s in zip(guess, secret, strict=True) if g != s]
    marks = ""
    for letter, own in zip(guess, secret, strict=True):
        if letter == own:
            marks += HERE
        elif letter in left:
            left.remove(letter)
            marks += ELSEWHERE
        else:
            marks += NOWHERE
    return marks


@lru_cache(maxsize=1024)
def best_guess(known: tuple[tuple[str, str], ...]) -> str:
    """The guess of the script, by what is known of all guesses so far; empty if no word of the list fits."""
    possible = [w for w in WORDS if all(marked(guess, w) == marks for guess, marks in known)]
    step = max(1, len(possible) // MAX_TRIED)  # spread over the list, which is sorted

    def left_over(guess: str) -> int:
        return sum(n * n for n in Counter(marked(guess, w) for w in possible).values())

    return min(possible[::step][:MAX_TRIED], key=left_over, default="")
