"""Conversations in which replies of random letters get different rewards: every update moves weights."""

from __future__ import annotations

from runnel.core.contracts.chat import Message, Turn


class World:
    """Says back what it heard, and pays for its letters by turn. Its state cannot be saved: it is played again."""

    max_tokens = 6

    def __init__(self) -> None:
        self.heard = 0

    def reset(self, task: dict[str, object], *, seed: int) -> Turn:
        return Turn(f"start {seed % 7}")

    def step(self, message: Message) -> Turn:
        self.heard += 1
        said = str(message["content"])
        paid = sum((i + 1) * b for i, b in enumerate(said.encode())) % 101 / 101
        return Turn(f"you said {said[:3]}", paid, terminated=self.heard == 3)


class Inline(World):
    """The same, and its state can be saved."""

    lane = "inline"

    def get_state(self) -> dict[str, int]:
        return {"heard": self.heard}

    def set_state(self, state: dict[str, int]) -> None:
        self.heard = state["heard"]
