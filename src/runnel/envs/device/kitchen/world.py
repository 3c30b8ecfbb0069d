"""Two cooks in a kitchen of Overcooked, on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, floats, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.kitchen.layouts import FLOOR, NUM_COOKS, layout_of
from runnel.envs.device.kitchen.picture import picture
from runnel.envs.device.kitchen.planes import KitchenPlanes
from runnel.envs.device.kitchen.rules import (
    COOKING,
    DELIVERED,
    DISH,
    DISH_TAKEN,
    FULL,
    IDLE,
    NUM_EVENTS,
    PLACED,
    READY,
    SOUP_TAKEN,
    number,
    table,
)
from runnel.envs.device.kitchen.view import KitchenView
from runnel.envs.device.team import TeamWorld

NORTH, SOUTH, EAST, WEST, STAY, INTERACT = range(6)
NUM_ACTIONS = 6
PRICE = 20.0
"""What a soup of three onions pays to both."""
SHAPED = {PLACED: 3.0, DISH_TAKEN: 3.0, SOUP_TAKEN: 5.0}
"""What steps on the way to a soup are worth to who does them, before `shaping`."""
VIEWS = ("vector", "planes")


class Kitchen(TeamWorld, ArrayEnv):
    """Overcooked-AI 1.1.0 (Carroll et al. 2019, arXiv:1910.05789): two cooks put three onions into a pot, wait until the soup
    is ready, put it on a dish and hand it out of the window, as often as they can in `steps`.

    Actions: north, south, east, west, nothing, use one's hand. A cook who cannot go where it wants to only turns. First both
    hands are used, that of `cook_0` before that of `cook_1`; then both move at once. Who would come to stand on one cell, or
    change places, stay both where they are. A hand takes an onion or a dish from its pile, puts what it holds down on an empty
    counter and takes up what lies there, puts an onion into a pot that has fewer than three and does not cook, with a dish
    takes out a soup that is ready, and hands a soup out. A soup is ready `cook_time` steps after it began to cook.

    With `starts_alone` a pot begins when its third onion is in it, as in the paper's game and in JaxMARL's. Else a cook begins
    it with an empty hand, also with fewer onions, as in 1.1.0; such a soup pays nothing.

    A soup of three onions pays 20 to both. What is done on the way pays `shaping` times its worth to who does it: 3 for an
    onion put into a pot, 3 for a dish from the pile (if hands have fewer dishes than pots are in use, and no counter has one),
    5 for a soup taken out of a pot. `shaping` stays as it is for a whole run; another run with less of it may begin from what
    the first one learned (`--init-from`).

    `layout` is a name or a list of rows (`layouts.py`). Without tomatoes, orders and bonuses. What cooks see: `view` vector
    (`view.py`) or planes (`planes.py`). The global state is what `cook_0` sees as a vector: all is in sight.
    """

    name = "tensor:Kitchen"

    def __init__(
        self,
        layout: str | Sequence[str] = "cramped_room",
        steps: int = 400,
        cook_time: int = 20,
        shaping: float = 0.0,
        starts_alone: bool = True,
        view: str = "vector",
    ) -> None:
        for field, value in (("steps", steps), ("cook_time", cook_time)):
            if value < 1:
                raise ConfigError(f"env_kwargs.{field}", value, "use at least 1")
        if not 0.0 <= shaping < float("inf"):
            raise ConfigError("env_kwargs.shaping", shaping, "use 0 for soups alone, 1 for Overcooked-AI's own steps")
        if view not in VIEWS:
            raise ConfigError("env_kwargs.view", view, f"use one of {', '.join(VIEWS)}")
        self.layout, self.max_steps = layout_of(layout), steps
        self._shaping, self._cook_time = shaping, cook_time
        self._vector = KitchenView(self.layout, steps=steps, cook_time=cook_time)
        self._planes = KitchenPlanes(self.layout, steps=steps, cook_time=cook_time) if view == "planes" else None
        obs = ArraySpec((self._vector.width,) if self._planes is None else self._planes.shape)
        agent = EnvSpec({"obs": obs}, ActionSpec("discrete", num_actions=NUM_ACTIONS))
        self.spec = TeamSpec({f"cook_{i}": agent for i in range(NUM_COOKS)})
        self.state_spec = ArraySpec((self._vector.width,))
        self._constants = Constants(**self._tables(starts_alone))

    def _tables(self, alone: bool) -> dict[str, Array]:
        layout = self.layout
        cells, places = np.arange(len(layout.ground)), np.zeros(len(layout.ground), np.int64)
        places[layout.places] = np.arange(len(layout.places))
        ahead = layout.ahead
        walks = [*np.where(layout.ground[ahead] == FLOOR, ahead, cells), cells, cells]
        worth = np.array([SHAPED.get(event, 0.0) for event in range(NUM_EVENTS)], np.float32)
        return {
            "starts": np.array(layout.starts),
            "ground": layout.ground,
            "ahead": ahead,
            "places": places,
            "numbers": np.arange(len(layout.places))[:, None],
            "walks": np.stack(walks),
            "worth": worth,
            "never": np.zeros((1, NUM_COOKS), bool),
            **table(alone=alone),
        }

    # ------------------------------------------------------------------------------------------------------------ the game
    def initial(self, num: int, generator: torch.Generator) -> Batch:
        place, layout = generator.device, self.layout
        both = torch.zeros(num, NUM_COOKS, dtype=torch.int64, device=place)
        return Batch(
            at=both + self._constants.beside(both)["starts"],
            facing=both + NORTH,
            held=both,
            things=both.new_zeros(num, len(layout.places)),
            ticks=both.new_zeros(num, layout.num_pots),
            time=both.new_zeros(num),
            soups=torch.zeros(num, device=place),
            shaped=torch.zeros(num, device=place),
        )

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        action = actions[0].T
        held, things, sold, worth = self._use_hands(state, action)
        at, facing = self._move(state["at"].T, state["facing"].T, action)
        things, ticks = self._cook(things, state["ticks"].T)
        after = {
            "at": at.T,
            "facing": facing.T,
            "held": held.T,
            "things": things.T,
            "ticks": ticks.T,
            "time": state["time"] + 1,
        }
        after |= {"soups": state["soups"] + sold, "shaped": state["shaped"] + worth.sum(0)}
        reward = (sold * PRICE + worth * self._shaping).T
        return after, reward, xp.broadcast_to(constants["never"], reward.shape)

    def _use_hands(self, state: Leaves, action: Array) -> tuple[Array, Array, Array, Array]:
        """One hand after the other: what is held then `[2, E]`, what lies where `[S, E]`, soups that are paid `[E]`, and what
        steps on the way are worth `[2, E]`."""
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        held, things = list(state["held"].T), state["things"].T
        front = constants["ahead"][state["facing"].T, state["at"].T]
        # who does not use its hand stands before the floor, where hands do nothing
        kinds, places = constants["ground"][front] * (action == INTERACT), constants["places"][front]
        worlds = xp.arange(len(held[0])) if xp is np else xp.arange(len(held[0]), device=action.device)
        in_use, events, worth = self._pots_in_use(things), [], []
        for i in range(NUM_COOKS):
            useful = self._wants_dish(held, things, in_use)
            row = number(kinds[i], held[i], things[places[i], worlds])
            held[i], event = constants["held"][row], constants["event"][row]
            things = xp.where(constants["numbers"] == places[i], constants["there"][row], things)
            worth.append(constants["worth"][event] * (useful | (event != DISH_TAKEN)))
            events.append(event)
        sold = floats(xp.stack(events) == DELIVERED).sum(0)
        return xp.stack(held), things, sold, xp.stack(worth)

    def _pots_in_use(self, things: Array) -> Array:
        """How many pots have onions, but for full ones that nobody has lit. `[E]`"""
        pots = things[-self.layout.num_pots :]
        return ((pots != 0) & (pots != IDLE + FULL - 1)).sum(0)

    def _wants_dish(self, held: Sequence[Array], things: Array, in_use: Array) -> Array:
        """Where a dish from the pile is of use. `[E]`"""
        in_hands = (held[0] == DISH) * 1 + (held[1] == DISH)
        return (in_hands < in_use) & ~(things[: -self.layout.num_pots] == DISH).any(0)

    def _move(self, at: Array, facing: Array, action: Array) -> tuple[Array, Array]:
        """Where both are then, and where they look. `[2, E]` each"""
        constants, xp = self._constants.beside(at), module_of(at)
        to = constants["walks"][action, at]
        bump = (to[0] == to[1]) | ((to[0] == at[1]) & (to[1] == at[0]))
        return xp.where(bump, at, to), xp.where(action < STAY, action, facing)

    def _cook(self, things: Array, ticks: Array) -> tuple[Array, Array]:
        """A step of time for all pots."""
        xp, num = module_of(things), self.layout.num_pots
        counters, pots = things[:-num], things[-num:]
        cooking = (pots >= COOKING) & (pots < READY)
        ticks = xp.where(cooking, ticks + 1, 0)
        ready = ticks >= self._cook_time
        return xp.concatenate((counters, pots + ready * FULL)), xp.where(ready, 0, ticks)

    # ------------------------------------------------------------------------------------------------------- what is seen
    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": self._vector.of(state) if self._planes is None else self._planes.of(state)}]

    def global_state(self, state: Leaves) -> Array:
        return self._vector.of(state)[:, 0]

    def episode_stats(self, state: Leaves) -> Leaves:
        """Soups that were paid, and what both got for steps on the way, before `shaping`. `[E]` each"""
        return {"soups": state["soups"], "shaped": state["shaped"]}

    def picture(self, state: Leaves, world: int = 0) -> str:
        """A world from above, in letters (`picture.py`)."""
        return picture(self.layout, state, world)
