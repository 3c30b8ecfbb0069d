"""A battle, one world in plain Python: units as objects, rules as sentences."""

from __future__ import annotations

import math
from typing import Any

from runnel.envs.device.battle.units import UNITS, Sides

SIDE, TICK = 32.0, 1 / 16
WAYS = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Fighter:
    """A unit. `foe` is the ally that an enemy struck last, `goal` where an enemy goes."""

    def __init__(self, name: str, x: float, y: float, health: float, wait: float) -> None:
        self.kind, self.name = UNITS[name], name
        self.x, self.y, self.health, self.wait = x, y, health, wait
        self.foe: Fighter | None = None
        self.goal = (0.0, 0.0)
        self.way: tuple[int, int] = (0, 0)
        self.target: Fighter | None = None

    @property
    def lives(self) -> bool:
        return self.health > 0

    def far(self, other: Fighter) -> float:
        return math.hypot(self.x - other.x, self.y - other.y)

    def share(self) -> list[float]:
        return [self.health / self.kind.health, min(max(self.wait / self.kind.reload, 0.0), 1.0)]


class ByHand:
    """One world, as `world` of a batch of states is."""

    def __init__(self, sides: Sides, state: dict[str, Any], world: int, *, bonus: float) -> None:
        one = {key: x[world].tolist() for key, x in state.items()}
        columns = [one[key] for key in ("x", "y", "health", "wait")]
        units = [Fighter(name, *numbers) for name, *numbers in zip(sides.units, *columns, strict=True)]
        self.kinds, self.bonus, num = sides.kinds, bonus, len(sides.allies)
        self.allies, self.enemies = units[:num], units[num:]
        many = len(self.enemies)
        for j, enemy in enumerate(self.enemies):
            enemy.foe = self.allies[one["aims"][j]] if one["aims"][j] >= 0 else None
            enemy.goal = one["goals"][j], one["goals"][many + j]
        self.hits = 0

    @property
    def units(self) -> list[Fighter]:
        return self.allies + self.enemies

    def step(self, actions: list[int]) -> tuple[float, bool]:
        """What every ally is paid, and whether the battle is over."""
        for ally, action in zip(self.allies, actions, strict=True):
            ally.way = WAYS[action] if action < 4 else (0, 0)
            ally.target = self.enemies[action - 5] if action >= 5 else None
        for enemy in self.enemies:
            self.order(enemy)
        before = [enemy.health for enemy in self.enemies]
        for _ in range(8):
            self.tick()
        harm = sum((old - e.health) / e.kind.health for old, e in zip(before, self.enemies, strict=True)) / len(self.enemies)
        here, there = any(a.lives for a in self.allies), any(e.lives for e in self.enemies)
        return harm + (self.bonus if here and not there else 0.0), not (here and there)

    def order(self, enemy: Fighter) -> None:
        near = [ally for ally in self.allies if ally.lives and enemy.far(ally) < enemy.kind.reach]
        if enemy.foe not in near:
            enemy.foe = min(near, key=enemy.far) if near else None
        enemy.target, enemy.way = enemy.foe, (0, 0)
        if enemy.target is None:
            seen = [ally for ally in self.allies if ally.lives and enemy.far(ally) < enemy.kind.sight]
            closest = min(seen, key=enemy.far) if seen else None
            x, y = (closest.x, closest.y) if closest else enemy.goal
            enemy.way = max(WAYS, key=lambda way: way[0] * (x - enemy.x) + way[1] * (y - enemy.y))

    def tick(self) -> None:
        lost, struck = dict.fromkeys(self.units, 0.0), []
        for unit in self.units:
            target = unit.target
            if target and unit.lives and target.lives and unit.wait <= 0 and unit.far(target) < unit.kind.reach:
                lost[target] += unit.kind.blow
                struck.append(unit)
        self.hits += len(struck)
        for unit in self.units:
            unit.wait = unit.kind.reload if unit in struck else unit.wait - TICK
            if unit.lives:
                unit.x = min(max(unit.x + unit.way[0] * unit.kind.speed * TICK, 0.0), SIDE)
                unit.y = min(max(unit.y + unit.way[1] * unit.kind.speed * TICK, 0.0), SIDE)
        for unit in self.units:
            unit.health = max(unit.health - lost[unit], 0.0)
            if not (0 < unit.x < SIDE and 0 < unit.y < SIDE):
                unit.health = 0.0
        self.push()

    def push(self) -> None:
        """Of two that overlap each is moved by half of what is missing."""
        moves = {}
        for a in self.units:
            moves[a] = (0.0, 0.0)
            for b in self.units:
                if a is not b and a.lives and b.lives:
                    far = a.far(b) + 1e-6
                    part = max((a.kind.radius + b.kind.radius) / far - 1, 0) / 2
                    moves[a] = moves[a][0] + (a.x - b.x) * part, moves[a][1] + (a.y - b.y) * part
        for unit, (dx, dy) in moves.items():
            unit.x, unit.y = unit.x + dx, unit.y + dy

    def sees(self, i: int) -> list[float]:
        """What an ally sees."""
        me, found = self.allies[i], []
        for other in self.units:
            if other is not me:
                (health, wait), sight = other.share(), me.kind.sight
                row = [health, (other.x - me.x) / sight, (other.y - me.y) / sight, wait, *self.kind(other)]
                seen = me.lives and other.lives and me.far(other) < sight
                found += row if seen else [0.0] * len(row)
        health, wait = me.share()
        own = [health, me.x / SIDE, me.y / SIDE, wait, *self.kind(me)]
        return found + (own if me.lives else [0.0] * len(own))

    def kind(self, unit: Fighter) -> list[float]:
        return [float(unit.name == kind) for kind in self.kinds]

    def may(self, i: int) -> list[bool]:
        """The open actions of an ally."""
        me = self.allies[i]
        return [me.lives] * 4 + [True] + [me.lives and e.lives and me.far(e) < me.kind.reach for e in self.enemies]

    def everything(self) -> list[float]:
        """The global state."""
        rows = [[*u.share()[:1], u.x / SIDE, u.y / SIDE, u.share()[1]] if u.lives else [0.0] * 4 for u in self.units]
        return [row[k] for k in range(4) for row in rows]
