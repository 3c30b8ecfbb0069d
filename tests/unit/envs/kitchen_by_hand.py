"""A kitchen of Overcooked, one world in plain Python: the rules as sentences, on places, names and dicts."""

from __future__ import annotations

from typing import Any

Place = tuple[int, int]
Thing = str | tuple[str, int] | None
"""None, "onion", "dish", or ("soup", onions in it)."""
WAYS: dict[str, Place] = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
ACTIONS = (*WAYS, "nothing", "hand")
THINGS: tuple[Thing, ...] = (None, "onion", "dish", ("soup", 1), ("soup", 2), ("soup", 3))


class Pot:
    """`cooked`: None before it cooks, else the steps that it has cooked."""

    def __init__(self, onions: int = 0, cooked: int | None = None) -> None:
        self.onions, self.cooked = onions, cooked


class ByHand:
    """One world, as `world` of a batch of states is. `cook_time` steps make a soup."""

    def __init__(self, env: Any, state: dict[str, Any], world: int, *, cook_time: int, alone: bool) -> None:
        self.rows, self.steps, self.cook_time, self.alone = env.layout.rows, env.max_steps, cook_time, alone
        one = {key: x[world].tolist() for key, x in state.items()}
        width = len(self.rows[0])
        self.at = [divmod(cell, width) for cell in one["at"]]
        self.looks = [tuple(WAYS)[way] for way in one["facing"]]
        self.holds = [THINGS[item] for item in one["held"]]
        self.counters: dict[Place, Thing] = {}
        self.pots: dict[Place, Pot] = {}
        ticks = iter(one["ticks"])
        for cell, code in zip(env.layout.places, one["things"], strict=True):
            place = divmod(cell, width)
            if self.letter(place) == "X":
                self.counters[place] = THINGS[code]
            else:
                self.pots[place] = pot_of(code, next(ticks), cook_time)
        self.time = one["time"]
        self.events: list[str] = []

    def letter(self, place: Place) -> str:
        return self.rows[place[0]][place[1]].replace("1", " ").replace("2", " ")

    def front(self, i: int) -> Place:
        down, right = WAYS[self.looks[i]]
        return self.at[i][0] + down, self.at[i][1] + right

    # ------------------------------------------------------------------------------------------------------------ rules
    def step(self, actions: list[int]) -> tuple[int, list[int]]:
        """What is paid for soups, and what the steps on the way of each cook are worth."""
        names = [ACTIONS[action] for action in actions]
        used = sum(0 < pot.onions < 3 or pot.cooked is not None for pot in self.pots.values())
        paid, worth = 0, [0, 0]
        for i, name in enumerate(names):
            if name == "hand":
                sold, worth[i] = self.hand(i, used)
                paid += sold
        self.move(names)
        for pot in self.pots.values():
            if self.alone and pot.onions == 3 and pot.cooked is None:
                pot.cooked = 0
            if pot.cooked is not None and pot.cooked < self.cook_time:
                pot.cooked += 1
        self.time += 1
        return paid, worth

    def hand(self, i: int, used: int) -> tuple[int, int]:
        place, thing = self.front(i), self.holds[i]
        letter = self.letter(place)
        if letter == "O" and thing is None:
            self.holds[i] = "onion"
        elif letter == "D" and thing is None:
            useful = "dish" not in self.counters.values() and self.holds.count("dish") < used
            self.holds[i] = "dish"
            self.events += ["dish"] * useful
            return 0, 3 if useful else 0
        elif letter == "X":
            if thing is None or self.counters[place] is None:
                self.holds[i], self.counters[place] = self.counters[place], thing
        elif letter == "P":
            return 0, self.at_pot(i, self.pots[place])
        elif letter == "S" and isinstance(thing, tuple):
            self.holds[i] = None
            self.events.append("sold" if thing[1] == 3 else "refused")
            return (20 if thing[1] == 3 else 0), 0
        return 0, 0

    def at_pot(self, i: int, pot: Pot) -> int:
        if self.holds[i] == "onion" and pot.cooked is None and pot.onions < 3:
            pot.onions += 1
            self.holds[i] = None
            self.events.append("placed")
            return 3
        if self.holds[i] == "dish" and pot.cooked is not None and pot.cooked >= self.cook_time:
            self.holds[i] = ("soup", pot.onions)
            pot.onions, pot.cooked = 0, None
            self.events.append("taken")
            return 5
        if self.holds[i] is None and pot.cooked is None and pot.onions and not self.alone:
            pot.cooked = 0
        return 0

    def move(self, names: list[str]) -> None:
        wanted = []
        for i, name in enumerate(names):
            if name in WAYS:
                self.looks[i] = name
            ahead = self.front(i)
            wanted.append(ahead if name in WAYS and self.letter(ahead) == " " else self.at[i])
        if wanted[0] != wanted[1] and wanted != [self.at[1], self.at[0]]:
            self.at = wanted

    # ------------------------------------------------------------------------------------------------- what cooks see
    def vector(self, i: int) -> list[float]:
        """What cook `i` sees."""
        found = [*self.cook(i), *self.cook(1 - i)]
        for thing in self.counters.values():
            found += flags(thing)
        for pot in self.pots.values():
            cooking = pot.cooked is not None and pot.cooked < self.cook_time
            found += [float(pot.onions >= n) for n in (1, 2, 3)] + [float(cooking)]
            found += [float(pot.cooked is not None and not cooking), (pot.cooked or 0) / self.cook_time if cooking else 0.0]
        return [*found, float(self.steps - self.time < 40)]

    def cook(self, i: int) -> list[float]:
        floor = [(r, c) for r, row in enumerate(self.rows) for c in range(len(row)) if self.letter((r, c)) == " "]
        found = [float(place == self.at[i]) for place in floor] + [float(way == self.looks[i]) for way in WAYS]
        return found + flags(self.holds[i]) + [float(self.letter(self.front(i)) == letter) for letter in "XODPS"]

    def planes(self, i: int) -> list[list[list[float]]]:
        """What cook `i` sees on planes, by name of the plane at each cell."""
        cells = [[self.planes_at(i, (r, c)) for c in range(len(self.rows[0]))] for r in range(len(self.rows))]
        return [[[float(cell.get(name, 0)) for cell in row] for row in cells] for name in PLANES]

    def planes_at(self, i: int, place: Place) -> dict[str, float]:
        found: dict[str, float] = {self.letter(place): 1, "urgent": self.steps - self.time < 40}
        lying: list[Thing] = [self.counters.get(place)]
        for who, k in (("me", i), ("other", 1 - i)):
            if self.at[k] == place:
                found |= {who: 1, f"{who} {self.looks[k]}": 1}
                lying.append(self.holds[k])
        for thing in lying:
            if isinstance(thing, tuple):
                found |= {"in soup": thing[1], "done": 1}
            elif thing is not None:
                found[thing] = 1
        pot = self.pots.get(place)
        if pot is not None and pot.cooked is None:
            found["in pot"] = pot.onions
        elif pot is not None and pot.cooked is not None:
            found |= {"in soup": pot.onions, "left": self.cook_time - pot.cooked, "done": pot.cooked >= self.cook_time}
        return found


PLANES = (
    "me",
    "other",
    *(f"{who} {way}" for who in ("me", "other") for way in WAYS),
    "P",
    "X",
    "O",
    "T",
    "D",
    "S",
    "in pot",
    "t1",
)
PLANES += ("in soup", "t2", "left", "done", "dish", "onion", "t3", "urgent")
"""Names in the order of the planes; T and t1 to t3 are those of tomatoes."""


def flags(thing: Thing) -> list[float]:
    return [float(thing == "onion"), float(thing == "dish"), thing[1] / 3 if isinstance(thing, tuple) else 0.0]


def pot_of(code: int, ticks: int, cook_time: int) -> Pot:
    """The pot that a number stands for: nothing, then 1 to 3 onions that do not cook (from 6), cook (9), are ready (12)."""
    if not code:
        return Pot()
    phase, onions = divmod(code - 6, 3)
    return Pot(onions + 1, (None, ticks, cook_time)[phase])
