"""Two turns, of which the first is luck: only credit by turn sees what the second is worth.

The first letter pays luck: a normal number with the standard deviation `luck`, drawn from the task, the seed and that letter.
No choice is better than another. The second letter pays 1 if it is the right one of its room, else 0: this is all that can be
learned.

What credit over the whole trajectory sees. Let p be the probability of the right letter, and r the second reward. The gradient
in the letter's logit is g = A (1[right] - p). With A = L + r - p (the return less its mean, L being the luck), and with
A = r - p (the second turn's own return less its mean: the reward to go with a baseline by state), the mean of g is the same,
p (1 - p). Its variance is p (1 - p) (1 - 2p)^2 in the second case, and larger by luck^2 p (1 - p) in the first. With luck = 30
and p = 1/8, the standard deviation is 91 times the mean for the trajectory, and 2.3 times the mean for the turn: the
trajectory needs 1600 times as many samples for the same certainty. Dividing the advantages of a group by their standard
deviation makes the luck of the first kind smaller, and what is to be learned with it.

All conversations of a group have one seed, so those that begin with the same letter have the same luck, and a policy that has
come to begin with one letter only has none left within a group. No letter is better, so it comes there by chance and slowly:
the difference is to be measured while the first letter is still open. Credit by key compares the second turns of a group with
each other: the key is the room, which is of the task, and so the same for all of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runnel.core.contracts.chat import Turn
from runnel.core.rng import make_rng
from runnel.core.state import Settings
from runnel.llm.worlds.world import World, entry_between, said_letter, share, splits, whole

LETTERS = "abcdefgh"
FIRST = "?"
"""What is said before the first letter: it is the same in all conversations."""


class Bandit(World):
    """Say one of the first `arms` letters, twice. `rooms` is the number of states of the second turn (it is shown as a digit);
    each has a right letter. Every message is one character. The module's text says why it is hard."""

    name = "bandit"
    max_tokens = 4

    def __init__(
        self, *, arms: int = 8, rooms: int = 1, luck: float = 30.0, num_train: int = 10_000, num_eval: int = 256
    ) -> None:
        super().__init__()
        self.rewards = {"luck": 1.0, "right": 1.0}
        self._arms = whole("bandit.arms", arms, 2, len(LETTERS))
        self._rooms = whole("bandit.rooms", rooms, 1, 9)
        self._luck = share("bandit.luck", luck, 0, 1e6)
        self._sizes = whole("bandit.num_train", num_train, 1, 10**9), whole("bandit.num_eval", num_eval, 1, 10**9)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return splits(self, *self._sizes)

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"room": int(rng.integers(1, self._rooms + 1)), "coin": int(rng.integers(2**31))}

    def right(self, room: int) -> str:
        """The letter that pays in a room. In the first room it is the second one."""
        return LETTERS[room % self._arms]

    def luck(self, task: Settings, seed: int, first: str) -> float:
        """What the first letter pays."""
        return self._luck * float(make_rng(seed, self.name, task["coin"], first).standard_normal())

    def begin(self, task: Settings) -> Turn:
        entry_between(task, "room", 1, self._rooms, self.name)
        entry_between(task, "coin", 0, 2**31 - 1, self.name)
        return Turn(FIRST, key=FIRST)

    def answer(self, text: str) -> Turn:
        task, letter = self.now["task"], said_letter(text, LETTERS[: self._arms])
        room = task["room"]
        if self.now["turns"] == 1:
            # another message has its luck too: else saying nothing would be a way to choose
            return Turn(str(room), {"luck": self.luck(task, self.now["seed"], letter)}, key=str(room))
        return Turn((), {"right": float(letter == self.right(room))}, terminated=True)

    def script(self) -> str:
        """The luckiest letter, which no player can know, then the right one. Who imitates it begins with any letter."""
        task, seed = self.now["task"], self.now["seed"]
        if self.now["turns"]:
            return self.right(task["room"])
        return max(LETTERS[: self._arms], key=lambda letter: self.luck(task, seed, letter))
