"""Hide-and-seek on a grid, one world in plain Python: the rules as sentences, on rows and columns, dicts and sets."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

Place = tuple[int, int]
WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
NAMES = tuple(WAYS)


class ByHand:
    """One world. Places are (row, column) from 0 to 11; things are called `block 0`, ..., `ladder`."""

    def __init__(self, state: dict[str, Any], world: int, *, hiders: int, steps: int, prep: int) -> None:
        one = {key: x[world].tolist() for key, x in state.items()}
        self.steps, self.prep, self.time = steps, prep, one["time"]
        self.walls = {place(cell) for cell, kind in enumerate(one["ground"]) if kind == 1}
        self.doors = [place(cell) if cell else None for cell in one["doors"]]
        self.room = one["room"]
        names = [f"hider {i}" if i < hiders else f"seeker {i - hiders}" for i in range(len(one["agents"]))]
        self.at = dict(zip(names, map(place, one["agents"]), strict=True))
        self.looks = dict(zip(names, (NAMES[f] for f in one["facing"]), strict=True))
        self.is_up = dict(zip(names, one["up"], strict=True))
        things = [*(f"block {i}" for i in range(len(one["things"]) - 1)), "ladder"]
        self.lies = dict(zip(things, map(place, one["things"]), strict=True))
        self.owner = {t: (None, "hider", "seeker")[o] for t, o in zip(things, one["locks"], strict=True)}
        self.hand = {name: things[h - 1] if h else None for name, h in zip(names, one["holds"], strict=True)}
        self.begun = dict(self.lies)
        self.prepared = dict.fromkeys(("max_box_move", "num_box_lock", "max_ladder_move", "num_ladder_lock"), 0.0)
        self.closed = False
        self.seen, self.earned, self.ups, self.shoves, self.losses = False, 0, 0, 0, 0

    # ------------------------------------------------------------------------------------------------------------ rules
    def step(self, actions: list[int]) -> list[float]:
        """All act in their order; what everybody is paid."""
        preparing = self.time < self.prep
        for name, action in zip(self.at, actions, strict=True):
            if not (preparing and name.startswith("seeker")):
                self._act(name, action)
        self.time += 1
        found = any(self.sees(s, self.at[h], self.is_up[h]) for s in self.seekers for h in self.hiders)
        pay = 0 if preparing else -1 if found else 1
        self._count(pay, found and not preparing, preparing)
        return [float(pay if name in self.hiders else -pay) for name in self.at]

    @property
    def hiders(self) -> list[str]:
        return [name for name in self.at if name.startswith("hider")]

    @property
    def seekers(self) -> list[str]:
        return [name for name in self.at if name.startswith("seeker")]

    def _act(self, name: str, action: int) -> None:
        if action == 5:
            self._hold(name)
        elif action == 6:
            self._lock(name)
        elif action:
            way = NAMES[action - 1]
            if self.hand[name]:
                self._carry(name, WAYS[way])
            else:
                self.looks[name] = way
                self._walk(name, WAYS[way])

    def _hold(self, name: str) -> None:
        if self.hand[name]:
            self.hand[name] = None
            return
        front = after(self.at[name], WAYS[self.looks[name]])
        thing = self._thing_at(front)
        if not thing or self.is_up[name] or self.owner[thing] or thing in self.hand.values() or front in self.at.values():
            return
        self.hand[name] = thing

    def _lock(self, name: str) -> None:
        thing = self._thing_at(after(self.at[name], WAYS[self.looks[name]]))
        if not thing or self.is_up[name] or any(t == thing and n != name for n, t in self.hand.items()):
            return
        team = name.split()[0]
        if self.owner[thing] == team:
            self.owner[thing] = None
        elif self.hand[name] == thing:
            self.owner[thing] = team
        else:
            return
        self.hand[name] = None

    def _carry(self, name: str, way: Place) -> None:
        thing = self.hand[name]
        assert thing
        mine = {self.at[name], self.lies[thing]}
        goals = {after(self.at[name], way), after(self.lies[thing], way)}
        if self.lies[thing] in self.at.values() or not all(self._is_clear(goal) for goal in goals - mine):
            return
        self.at[name], self.lies[thing] = after(self.at[name], way), after(self.lies[thing], way)

    def _walk(self, name: str, way: Place) -> None:
        goal = after(self.at[name], way)
        if not on_board(goal) or goal in self.at.values():
            return
        thing = self._thing_at(goal)
        solid = goal in self.walls or thing not in (None, "ladder")
        if self.is_up[name] or self.at[name] == self.lies["ladder"]:
            self.at[name], self.is_up[name] = goal, solid
            return
        if goal in self.walls:
            return
        if solid:
            assert thing
            if self.owner[thing] or not self._make_room(after(goal, way), way):
                return
            self.lies[thing] = after(goal, way)
            for other, held in self.hand.items():
                if held == thing:
                    self.hand[other] = None
                    self.losses += 1
        self.at[name] = goal

    def _make_room(self, where: Place, way: Place) -> bool:
        """Whether something can be pushed to `where`: it is clear, or somebody on its floor can be shoved away from there."""
        if self._is_clear(where):
            return True
        shoved = next((name for name, at in self.at.items() if at == where), None)
        open_ = where not in self.walls and not self._thing_at(where)
        if not shoved or not open_ or self.time < self.prep or not self._is_clear(after(where, way)):
            return False
        self.at[shoved], self.hand[shoved] = after(where, way), None
        self.shoves += 1
        return True

    def _thing_at(self, where: Place) -> str | None:
        return next((thing for thing, lies in self.lies.items() if lies == where), None)

    def _is_clear(self, where: Place) -> bool:
        return on_board(where) and where not in self.walls and not self._thing_at(where) and where not in self.at.values()

    # ------------------------------------------------------------------------------------------------------------ sight
    def sees(self, name: str, target: Place, up: bool = False) -> bool:
        here = self.at[name]
        if target == here:
            return True
        dr, dc = target[0] - here[0], target[1] - here[1]
        ahead = WAYS[self.looks[name]]
        angle = math.degrees(math.acos((dr * ahead[0] + dc * ahead[1]) / math.hypot(dr, dc)))
        if angle > 67.5:
            return False
        if self.is_up[name] or up:
            return True
        solid = self.walls | {lies for thing, lies in self.lies.items() if thing != "ladder"}
        return not any(crosses(here, target, cell) for cell in solid - {here, target})

    # ------------------------------------------------------------------------------------------------------------ numbers
    def _count(self, pay: int, found: bool, preparing: bool) -> None:
        self.earned += pay
        self.seen |= found
        if not preparing:
            self.ups += sum(self.is_up[s] for s in self.seekers)
        if self.time == self.prep:
            locked = {self.lies[thing] for thing, owner in self.owner.items() if owner and thing != "ladder"}
            self.prepared, self.closed = self._moved(), all(door in locked for door in self.doors if door)
            self.begun = dict(self.lies)

    def _moved(self) -> dict[str, float]:
        blocks = [t for t in self.lies if t != "ladder"]
        far = {t: math.dist(self.lies[t], self.begun[t]) for t in self.lies}
        return {
            "max_box_move": max(far[t] for t in blocks),
            "num_box_lock": sum(self.owner[t] is not None for t in blocks),
            "max_ladder_move": far["ladder"],
            "num_ladder_lock": float(self.owner["ladder"] is not None),
        }

    def statistics(self) -> dict[str, float]:
        main = (self.steps - self.prep) * len(self.seekers)
        return {
            **{f"{key}_prep": value for key, value in self.prepared.items()},
            **self._moved(),
            "seekers_high": self.ups / main,
            "unseen": float(not self.seen),
            "closed_prep": float(self.closed),
            "hider_return": float(self.earned),
            "seeker_return": float(-self.earned),
        }

    # ------------------------------------------------------------------------------------------------------- what is seen
    def observation(self, name: str) -> dict[str, Any]:
        """What an agent is shown, by name: numbers of itself, of what is around, of others, things and doors."""
        here, team = self.at[name], name.split()[0]
        mates = [n for n in self.at if n != name and n.split()[0] == team]
        others = mates + [n for n in self.at if n.split()[0] != team]
        preparing = self.time < self.prep
        left = self.prep - self.time if preparing else self.steps - self.time
        hand, front = self.hand[name] or "", after(here, WAYS[self.looks[name]])
        ahead = self._thing_at(front)
        solid = self.walls | {lies for thing, lies in self.lies.items() if thing != "ladder"}
        near = [(here[0] + r, here[1] + c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
        of_owner = [bool(ahead) and self.owner[ahead or ""] == t for t in (team, self._other(team))]
        return {
            "self": [here[0] / 11, here[1] / 11],
            "looks": [self.looks[name] == way for way in NAMES],
            "flags": [self.is_up[name], here == self.lies["ladder"], hand.startswith("block"), hand == "ladder"],
            "team": [1 if team == "hider" else -1, preparing, left / (self.prep if preparing else self.steps - self.prep)],
            "around": [not on_board(p) or p in solid for p in near],
            "front": [(ahead or "").startswith("block"), ahead == "ladder", *of_owner],
            "others": [self._shown(name, self.at[n], self.is_up[n], [self.is_up[n]]) for n in others],
            "things": [self._shown(name, self.lies[t], False, self._locked(t, team)) for t in self.lies],
            "doors": [[1, (d[0] - here[0]) / 11, (d[1] - here[1]) / 11] if d else [0, 0, 0] for d in self.doors],
        }

    @staticmethod
    def _other(team: str) -> str:
        return "seeker" if team == "hider" else "hider"

    def _locked(self, thing: str, team: str) -> list[bool]:
        return [
            self.owner[thing] == team,
            self.owner[thing] == self._other(team),
            thing in self.hand.values(),
            self.lies[thing] in self.doors,
        ]

    def _shown(self, name: str, where: Place, up: bool, more: list[bool]) -> list[float]:
        here = self.at[name]
        if not self.sees(name, where, up):
            return [0.0] * (3 + len(more))
        return [1.0, (where[0] - here[0]) / 11, (where[1] - here[1]) / 11, *map(float, more)]


def place(cell: int) -> Place:
    """Row and column of a numbered cell, which has a rim around it."""
    return cell // 14 - 1, cell % 14 - 1


def after(where: Place, way: Place) -> Place:
    return where[0] + way[0], where[1] + way[1]


def on_board(where: Place) -> bool:
    return 0 <= where[0] < 12 and 0 <= where[1] < 12


def crosses(a: Place, b: Place, cell: Place) -> bool:
    """Whether the line from the middle of `a` to the middle of `b` goes through the inside of `cell`: the part of it that is
    between the cell's sides, in each direction, has a length above 0."""
    first, last = Fraction(0), Fraction(1)
    for axis in (0, 1):
        low, high = Fraction(2 * cell[axis] - 1, 2), Fraction(2 * cell[axis] + 1, 2)
        way = b[axis] - a[axis]
        if way == 0:
            if not low < a[axis] < high:
                return False
            continue
        enters, leaves = sorted((Fraction(low - a[axis]) / way, Fraction(high - a[axis]) / way))
        first, last = max(first, enters), min(last, leaves)
    return first < last
