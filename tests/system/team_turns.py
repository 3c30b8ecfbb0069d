"""A game of turns: two agents of one kind, one policy; and one whose environments break now and then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "envs"))
from team_envs import Leaver as Leaver
from team_envs import Turns as Turns


class Fragile(Turns):
    """It breaks at the second move of every third episode."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.draw = (seed or 0) % 3
        return super().reset(seed=seed)

    def step(self, actions: dict[str, Any]) -> Any:
        if self._t == 1 and self.draw == 1:
            raise RuntimeError("the game is over")
        return super().step(actions)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "draw": self.draw}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.draw = int(state["draw"])
