"""Twenty questions: find a thing by questions that are answered with yes or no, from a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from runnel.core.contracts.chat import Turn
from runnel.core.errors import DataError
from runnel.core.state import Settings
from runnel.llm.worlds.things import ATTRIBUTES, THINGS
from runnel.llm.worlds.world import World, divided, entry, last_word, whole


class TwentyQuestions(World):
    """Find the thing within `max_questions`, guesses among them. Reward 1 if it is named.

    A message that has the name of a thing is a guess, of the last one that it names. Any other message is a question about the
    attribute of which it has the most words (the first of the table, if several have as many: "Is it a living animal?" asks for
    `alive`); "not" is not understood. A message about no attribute is answered with what may be asked, and
    counts.
    """

    name = "twenty_questions"

    def __init__(self, *, max_questions: int = 20) -> None:
        super().__init__()
        self._max_questions = whole("twenty_questions.max_questions", max_questions, 1, 1000)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        train, held = divided(THINGS, self.name)
        return [{"thing": t} for t in train], [{"thing": t} for t in held]

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"thing": THINGS[int(rng.integers(len(THINGS)))]}

    def begin(self, task: Settings) -> Turn:
        if (thing := entry(task, "thing", str, self.name)) not in THINGS:
            raise DataError(f"world {self.name!r}: the thing {thing!r} is not in the table; use one of {', '.join(THINGS)}")
        self.now["possible"] = list(THINGS)
        rules = f"I think of one of these: {', '.join(THINGS)}. Ask what I can answer with yes or no, or name the thing."
        return Turn(f"{rules} I know about: {', '.join(ATTRIBUTES)}. You have {self._max_questions} questions.")

    def answer(self, text: str) -> Turn:
        thing, left = self.now["task"]["thing"], self._max_questions - self.now["turns"]
        guess = last_word(text, THINGS)
        if guess == thing:
            return Turn(f"Yes, it is {thing}.", 1.0, terminated=True)
        words = f"No, it is not {guess}." if guess else self._answered(asked(text), thing)
        if guess:
            self._keep([t for t in self.now["possible"] if t != guess])
        if left == 0:
            return Turn(f"{words} That was your last question: it is {thing}.", 0.0, terminated=True)
        return Turn(f"{words} Questions left: {left}.")

    def script(self) -> str:
        """The question that splits what is still possible most evenly, and a guess where one thing is left."""
        possible = self.now["possible"]
        if len(possible) == 1:
            return f"Is it {possible[0]}?"
        uneven = {name: abs(2 * sum(t in true for t in possible) - len(possible)) for name, (_, true) in ATTRIBUTES.items()}
        return f"About {min(uneven, key=lambda name: uneven[name])}?"

    def _answered(self, attribute: str | None, thing: str) -> str:
        if attribute is None:
            return f"I can answer about: {', '.join(ATTRIBUTES)}."
        true = ATTRIBUTES[attribute][1]
        self._keep([t for t in self.now["possible"] if (t in true) == (thing in true)])
        return "Yes." if thing in true else "No."

    def _keep(self, possible: list[str]) -> None:
        self.now["possible"] = possible


def asked(text: str) -> str | None:
    """The attribute that a question is about; None if it is about none.

    >>> asked("Can you EAT it?"), asked("Is it larger than a man?"), asked("Is it nice?")
    ('eat', 'big', None)
    """
    said = set(re.findall(r"[a-z]+", text.lower()))
    hits = {name: len(said & words) for name, (words, _) in ATTRIBUTES.items()}
    best = max(hits, key=lambda name: hits[name])
    return best if hits[best] else None
