"""Battles of small armies, on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, floats, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.battle.enemy import NOBODY, Enemy
from runnel.envs.device.battle.field import SIDE, WAYS, Army, Field, Orders
from runnel.envs.device.battle.picture import picture
from runnel.envs.device.battle.units import sides_of
from runnel.envs.device.battle.view import NUM_MOVES, BattleView
from runnel.envs.device.team import TeamWorld
from runnel.envs.spaces import MASK

SPREAD = 2.0
"""How far from the middle of their half units begin, at most, along both axes."""


class Battle(TeamWorld, ArrayEnv):
    """SMAX (Rutherford et al. 2024, arXiv:2311.10090), a StarCraft without StarCraft: allies fight an army that plays by a
    script (`enemy.py`), for at most `steps` steps of half a second.

    Actions: up, right, down, left, stop, and for each enemy, strike at it. A unit strikes while its target lives and is in
    reach, each time that it has reloaded. All act at once, in ticks of 1/16 s. Units that overlap push each other away, and who
    comes to the rim of the field dies. Who is dead decides no more, but is paid with its team. After a step all allies are paid

        sum over enemies of (health lost / health at the beginning) / number of enemies,  and `bonus` if no enemy lives

    but no bonus if no ally lives either. The battle ends when one side is dead.

    `units` is the name of a map of SMAC, or two lists of kinds of units (`units.py`). What units see is in `view.py`. Unlike in
    SMAX, chance is in the first places alone (none in the time to reload, nor in whom the enemy follows), what others do is not
    seen, and the limit of steps is a truncation.
    """

    name = "tensor:Battle"

    def __init__(self, units: str | Sequence[Any] = "3m", steps: int = 100, bonus: float = 1.0) -> None:
        if steps < 1:
            raise ConfigError("env_kwargs.steps", steps, "use at least 1")
        if not 0.0 <= bonus < float("inf"):
            raise ConfigError("env_kwargs.bonus", bonus, "use 0 or more")
        self.sides, self.max_steps, self._bonus = sides_of(units), steps, bonus
        allies, enemies = len(self.sides.allies), len(self.sides.enemies)
        self._allies = allies
        self._field, self._enemy, self._view = Field(self.sides), Enemy(self.sides), BattleView(self.sides)
        action = ActionSpec("discrete", num_actions=NUM_MOVES + enemies)
        agent = EnvSpec({"obs": ArraySpec((self._view.width,))}, action, has_mask=True)
        self.spec = TeamSpec({f"ally_{i}": agent for i in range(allies)})
        self.state_spec = ArraySpec((self._view.state_width,))
        health = self.sides.each(lambda unit: unit.health)
        ways = np.zeros((2, NUM_MOVES + enemies), np.float32)
        ways[:, : len(WAYS)] = np.array(WAYS).T
        self._constants = Constants(
            ways=ways,
            full=health[:, 0],
            share=1.0 / (health[allies:] * enemies),
            middle=np.array([[SIDE / 4] * allies + [SIDE * 3 / 4] * enemies, [SIDE / 2] * (allies + enemies)], np.float32),
        )

    # ---------------------------------------------------------------------------------------------------------- the battle
    def initial(self, num: int, generator: torch.Generator) -> Batch:
        units, place = len(self.sides.units), generator.device
        drawn = torch.empty(num, 2, units, device=place).uniform_(-SPREAD, SPREAD, generator=generator)
        constants = self._constants.beside(drawn)
        x, y = (drawn + constants["middle"]).permute(1, 2, 0)
        alive = torch.ones(units, num, dtype=torch.bool, device=place)
        x, y = self._field.apart(x, y, alive)
        health = constants["full"].expand(num, units).clone()
        aims = torch.full((num, units - self._allies), NOBODY, device=place)
        goals = torch.cat((SIDE - x[self._allies :], SIDE - y[self._allies :])).T.contiguous()
        return Batch(
            x=x.T.contiguous(), y=y.T.contiguous(), health=health, wait=torch.zeros_like(health), aims=aims, goals=goals
        )

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["x"]), module_of(state["x"])
        before = army_of(state)
        orders, aims = self.orders(before, state, actions[0].T)
        army = self._field.step(before, orders)
        here, there = army.health[: self._allies] > 0.0, army.health[self._allies :] > 0.0
        lost, won = ~here.any(0), ~there.any(0)
        harm = ((before.health - army.health)[self._allies :] * constants["share"]).sum(0)
        paid = harm + floats(won & ~lost) * self._bonus
        after = {
            "x": army.x.T,
            "y": army.y.T,
            "health": army.health.T,
            "wait": army.wait.T,
            "aims": aims.T,
            "goals": state["goals"],
        }
        shape = (len(paid), self._allies)
        return after, xp.broadcast_to(paid[:, None], shape), xp.broadcast_to((lost | won)[:, None], shape)

    def orders(self, army: Army, state: Leaves, action: Array) -> tuple[Orders, Array]:
        """What all units do, and at whom enemies strike `[M, E]`."""
        constants, xp, num = self._constants.beside(army.x), module_of(army.x), self._allies
        goals = state["goals"].T.reshape(2, -1, action.shape[1])
        ways, whom, strikes = self._enemy.decide(army, state["aims"].T, goals)
        dx, dy = xp.concatenate((constants["ways"][:, action], ways * ~strikes), 1)
        target = xp.concatenate((xp.clip(action - NUM_MOVES, 0, None) + num, whom))
        orders = Orders(dx, dy, target, xp.concatenate((action >= NUM_MOVES, strikes)))
        return orders, xp.where(strikes, whom, NOBODY)

    # ------------------------------------------------------------------------------------------------------- what is seen
    def active(self, state: Leaves) -> Array:
        return state["health"][:, : self._allies] > 0.0

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        army = army_of(state)
        return [{"obs": self._view.of(army), MASK: self._view.open(army)}]

    def global_state(self, state: Leaves) -> Array:
        return self._view.everything(army_of(state))

    def episode_stats(self, state: Leaves) -> Leaves:
        """Whether the battle is won, and the shares of both sides that live. `[E]` each"""
        alive = floats(state["health"] > 0.0)
        allies, enemies = alive[:, : self._allies], alive[:, self._allies :]
        left = {"allies_left": allies.mean(1), "enemies_left": enemies.mean(1)}
        return {"won": floats((left["enemies_left"] == 0.0) & (left["allies_left"] > 0.0)), **left}

    def picture(self, state: Leaves, world: int = 0) -> str:
        """A world from above, in letters (`picture.py`)."""
        return picture(self.sides, state, world)


def army_of(state: Leaves) -> Army:
    """All units of a state."""
    return Army(state["x"].T, state["y"].T, state["health"].T, state["wait"].T)
