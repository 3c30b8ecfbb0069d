"""Writes `kitchens.json`: single steps of Overcooked-AI from random states, which `tensor:Kitchen` is held against.

    python tests/unit/envs/record_kitchens.py FOLDER_OF_overcooked_ai/src

The package (1.1.0 on PyPI, MIT licence) needs gym, which our tests do not install; only its rules are loaded here, from an
unpacked source archive.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from kitchen_states import State, busy, random_states

from runnel.envs.device import Kitchen
from runnel.envs.device.kitchen.layouts import LAYOUTS, POT

OUT = Path(__file__).with_name("kitchens.json")
NUM, COOK_TIME = 25, 20
NAMES = {"counter_circuit": "counter_circuit_o_1order"}
"""Where Overcooked-AI 1.1.0 calls a layout of 2019 otherwise."""


def package(folder: str) -> Any:
    """The rules, without the rest of the package."""
    whole = types.ModuleType("overcooked_ai_py")
    whole.__path__ = [str(Path(folder) / "overcooked_ai_py")]
    sys.modules["overcooked_ai_py"] = whole
    from overcooked_ai_py.mdp import overcooked_mdp

    return overcooked_mdp


class Twin:
    """A kitchen of Overcooked-AI."""

    def __init__(self, mdp: Any, env: Kitchen, name: str, alone: bool) -> None:
        from overcooked_ai_py.mdp.actions import Action, Direction

        self._mdp, self._env, self._alone = mdp, env, alone
        self._ways, self._actions = Direction.INDEX_TO_DIRECTION, Action.INDEX_TO_ACTION
        self.game = mdp.OvercookedGridworld.from_layout_name(NAMES.get(name, name))

    def _place(self, cell: int) -> tuple[int, int]:
        row, column = divmod(cell, self._env.layout.width)
        return column, row

    def _thing(self, item: int, place: tuple[int, int]) -> Any:
        if item > 2:
            return self._mdp.SoupState.get_soup(place, num_onions=item - 2, finished=True)
        return self._mdp.ObjectState(("onion", "dish")[item - 1], place) if item else None

    def _pot(self, code: int, ticks: int, place: tuple[int, int]) -> Any:
        phase, onions = divmod(code - 6, 3)
        return self._mdp.SoupState.get_soup(place, num_onions=onions + 1, cooking_tick=(-1, ticks, COOK_TIME)[phase])

    def state(self, one: State) -> Any:
        mdp, layout = self._mdp, self._env.layout
        places = [self._place(cell) for cell in one["at"]]
        cooks = [
            mdp.PlayerState(place, self._ways[way], self._thing(item, place))
            for place, way, item in zip(places, one["facing"], one["held"], strict=True)
        ]
        objects, ticks = {}, iter(one["ticks"])
        for cell, code in zip(layout.places, one["things"], strict=True):
            place, tick = self._place(cell), next(ticks) if cell in layout.cells(POT) else 0
            if code:
                objects[place] = self._pot(code, tick, place) if cell in layout.cells(POT) else self._thing(code, place)
        return mdp.OvercookedState(cooks, objects, all_orders=self.game.start_all_orders, timestep=one["time"])

    def step(self, state: Any, actions: list[int]) -> tuple[Any, Any]:
        """One step; with `alone`, as in the game of 2019, pots are lit by nobody and full ones light themselves."""
        if self._alone:
            self.game.soup_to_be_cooked_at_location = lambda *_: False
            self.game.step_environment_effects = self._light_and_cook
        return self.game.get_state_transition(state, [self._actions[action] for action in actions])

    def _light_and_cook(self, state: Any) -> None:
        for pot in [state.objects[p] for p in self.game.get_pot_locations() if p in state.objects]:
            if pot.is_idle and len(pot.ingredients) == 3:
                pot.begin_cooking()
        self._mdp.OvercookedGridworld.step_environment_effects(self.game, state)

    def numbers(self, state: Any) -> State:
        """A state of theirs in our numbers."""
        layout = self._env.layout
        found: State = {"at": [y * layout.width + x for x, y in state.player_positions]}
        found["facing"] = [self._ways.index(way) for way in state.player_orientations]
        found["held"] = [_item(cook.held_object) for cook in state.players]
        pots = [state.objects.get(self._place(cell)) for cell in layout.cells(POT)]
        lying = [_item(state.objects.get(self._place(cell))) for cell in layout.places[: -len(pots)]]
        found["things"] = lying + [_content(pot) for pot in pots]
        found["ticks"] = [pot._cooking_tick if pot is not None and pot.is_cooking else 0 for pot in pots]
        return found


def _item(thing: Any) -> int:
    return 0 if thing is None else 2 + len(thing.ingredients) if thing.name == "soup" else 1 + (thing.name == "dish")


def _content(pot: Any) -> int:
    return 0 if pot is None else 5 + len(pot.ingredients) + (6 if pot.is_ready else 0 if pot.is_idle else 3)


def marks(planes: np.ndarray) -> list[int]:
    """A number for each plane `[26, H, W]`, which says what stands in it and where."""
    cells = np.arange(1, planes[0].size + 1).reshape(planes.shape[1:])
    return [int(x) for x in (planes * cells * cells).sum((1, 2))]


def record(mdp: Any, name: str, alone: bool, rng: np.random.Generator) -> dict[str, Any]:
    env = Kitchen(name, starts_alone=alone)
    twin = Twin(mdp, env, name, alone)
    before = random_states(env, NUM, rng, cook_time=COOK_TIME, alone=alone)
    actions, steps = busy(env, before, rng), []
    for w in range(NUM):
        one = {key: x[w].tolist() for key, x in before.items() if key not in ("soups", "shaped")}
        after, said = twin.step(twin.state(one), actions[w].tolist())
        layers = twin.game.lossless_state_encoding(after)
        steps.append({
            "before": one, "actions": actions[w].tolist(), "after": twin.numbers(after),
            "paid": sum(said["sparse_reward_by_agent"]), "worth": said["shaped_reward_by_agent"],
            "planes": [marks(planes.transpose(2, 1, 0)) for planes in layers],
        })  # fmt: skip
    return {"layout": name, "alone": alone, "steps": steps}


if __name__ == "__main__":
    mdp, rng = package(sys.argv[1]), np.random.default_rng(0)
    found = [record(mdp, name, alone, rng) for name in LAYOUTS for alone in (True, False)]
    OUT.write_text("\n".join(["[", ",\n".join(json.dumps(case, separators=(",", ":")) for case in found), "]", ""]))
