"""Hide-and-seek for one world in plain Python, from its rules: lists of floats, loops, corners and sides, no arrays.

It shares numbers with the world (masses, sizes, reaches), and no code. Where the world projects, this looks at corners; where
the world cuts rays with slabs, this crosses sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

R, PART, PARTS = 0.2, 0.025, 4
HIDER, SEEKER = 1, 2
BINS = (0.0, -1.0, -0.5, 0.5, 1.0)
Point = tuple[float, float]


@dataclass
class Rect:
    x: float
    y: float
    turn: float
    hx: float
    hy: float
    ramp: bool = False
    owner: int = 0
    there: bool = True

    def axes(self) -> list[Point]:
        c, s = math.cos(self.turn), math.sin(self.turn)
        return [(c, s), (-s, c)]

    def corners(self) -> list[Point]:
        (ax, ay), (bx, by) = self.axes()
        return [
            (self.x + i * self.hx * ax + j * self.hy * bx, self.y + i * self.hx * ay + j * self.hy * by)
            for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]

    def inside(self, x: float, y: float) -> Point:
        return tuple((x - self.x) * a + (y - self.y) * b for a, b in self.axes())  # type: ignore[return-value]

    def radius(self) -> float:
        return math.hypot(self.hx, self.hy)


@dataclass
class Agent:
    x: float
    y: float
    vx: float
    vy: float
    yaw: float
    spin: float
    high: bool
    climb: int
    here: bool
    team: int
    held: int | None = None
    offset: list[float] = field(default_factory=list)


def gap(x: float, y: float, r: Rect) -> tuple[float, Point]:
    """From a point to a rectangle, and the direction away from it."""
    u, v = r.inside(x, y)
    (ax, ay), (bx, by) = r.axes()
    cu, cv = min(max(u, -r.hx), r.hx), min(max(v, -r.hy), r.hy)
    far = math.hypot(u - cu, v - cv)
    if far > 0:
        n = ((u - cu) / far, (v - cv) / far)
    else:
        far = max(abs(u) - r.hx, abs(v) - r.hy)
        along_u = abs(u) - r.hx >= abs(v) - r.hy
        n = (math.copysign(1.0, u), 0.0) if along_u else (0.0, math.copysign(1.0, v))
    return far, (n[0] * ax + n[1] * bx, n[0] * ay + n[1] * by)


def deepest_corner(r: Rect, n: Point) -> Point:
    """What of `r` is farthest along `n`, from its middle; a side that is nearly flush counts by its middle."""
    x = y = 0.0
    for (ax, ay), h in zip(r.axes(), (r.hx, r.hy), strict=True):
        share = min(max((n[0] * ax + n[1] * ay) / 0.1, -1.0), 1.0) * h
        x, y = x + share * ax, y + share * ay
    return x, y


def contact(a: Rect, b: Rect) -> tuple[float, Point, Point]:
    """Depth, normal from b to a, and the point from the middle of a: separating axes over corners."""

    def along(axis: Point) -> tuple[float, float]:
        spans = [[c[0] * axis[0] + c[1] * axis[1] for c in r.corners()] for r in (a, b)]
        (la, ha), (lb, hb) = ((min(s), max(s)) for s in spans)
        between = (la + ha) / 2 - (lb + hb) / 2
        return (ha - la + hb - lb) / 2 - abs(between), math.copysign(1.0, between)

    def least(r: Rect) -> tuple[float, Point]:
        found = [(*along(axis), axis) for axis in r.axes()]
        depth, sign, axis = found[0] if found[0][0] <= found[1][0] else found[1]
        return depth, (axis[0] * sign, axis[1] * sign)

    (depth_a, n_a), (depth_b, n_b) = least(a), least(b)
    if depth_a < depth_b - 1e-4:
        p = deepest_corner(b, n_a)
        return depth_a, n_a, (p[0] + b.x - a.x, p[1] + b.y - a.y)
    return depth_b, n_b, deepest_corner(a, (-n_b[0], -n_b[1]))


def near(a: Rect, b: Rect) -> bool:
    return math.hypot(a.x - b.x, a.y - b.y) < a.radius() + b.radius() + 0.01


def crosses(p: Point, q: Point, r: Rect) -> bool:
    """Whether a line from p to q meets a rectangle."""
    corners = r.corners()
    for c in (p, q):
        u, v = r.inside(*c)
        if abs(u) < r.hx and abs(v) < r.hy:
            return True
    return any(meet(p, q, corners[i], corners[(i + 1) % 4]) is not None for i in range(4))


def meet(p: Point, q: Point, c: Point, d: Point) -> float | None:
    """How far along p to q it crosses the line from c to d."""
    rx, ry, sx, sy = q[0] - p[0], q[1] - p[1], d[0] - c[0], d[1] - c[1]
    cross = rx * sy - ry * sx
    if abs(cross) < 1e-15:
        return None
    t = ((c[0] - p[0]) * sy - (c[1] - p[1]) * sx) / cross
    u = ((c[0] - p[0]) * ry - (c[1] - p[1]) * rx) / cross
    return t if 0 <= t <= 1 and 0 <= u <= 1 else None


class World:
    """One world, from a row of a state of the tensor world."""

    def __init__(
        self, row: dict[str, Any], *, hiders: int, boxes: int, side: float, preparation: int, lock_ramps: bool
    ) -> None:
        self.hiders, self.boxes, self.side, self.preparation = hiders, boxes, side, preparation
        self.lock_ramps, self.t = lock_ramps, int(row["t"])
        self.walls = [Rect(x, y, 0.0, hx, hy) for x, y, hx, hy in row["walls"]]
        things = zip(row["place"], row["turn"], row["half"], row["owner"], row["there"], strict=True)
        self.things = [
            Rect(*p, turn, *h, ramp=k >= boxes, owner=int(o), there=bool(t)) for k, (p, turn, h, o, t) in enumerate(things)
        ]
        self.agents = []
        for i in range(len(row["pos"])):
            held = [k for k, h in enumerate(row["holds"][i]) if h]
            self.agents.append(
                Agent(
                    *row["pos"][i],
                    *row["vel"][i],
                    row["yaw"][i],
                    row["spin"][i],
                    bool(row["high"][i]),
                    int(row["climb"][i]),
                    bool(row["here"][i]),
                    HIDER if i < hiders else SEEKER,
                    held[0] if held else None,
                    list(row["offset"][i]),
                )
            )

    # ------------------------------------------------------------------------------------------------------------- sight
    def sees(self, i: int, j: int) -> bool:
        """Whether agent i sees agent j, or from the number of agents on, a thing."""
        a, num = self.agents[i], len(self.agents)
        other: Any = self.agents[j] if j < num else self.things[j - num]
        real = a.here and i != j and (other.here if j < num else other.there)
        dx, dy = other.x - a.x, other.y - a.y
        angle = abs(math.remainder(math.atan2(dy, dx) - a.yaw, 2 * math.pi))
        if not real or angle > math.radians(67.5):
            return False
        if a.high or (j < num and other.high):
            return True
        return not any(crosses((a.x, a.y), (other.x, other.y), r) for r in [*self.things, *self.walls] if r is not other)

    def lidar(self, i: int, num: int) -> list[float]:
        a, found = self.agents[i], []
        for k in range(num):
            angle = a.yaw + k * 2 * math.pi / num
            end = (a.x + 5.0 * math.cos(angle), a.y + 5.0 * math.sin(angle))
            shares = [1.0]
            for r in [] if a.high else [*self.things, *self.walls]:
                if math.hypot(r.x - a.x, r.y - a.y) > 50:
                    continue
                c = r.corners()
                shares += [t for m in range(4) if (t := meet((a.x, a.y), end, c[m], c[(m + 1) % 4])) is not None]
                if gap(a.x, a.y, r)[0] < 0:
                    shares.append(0.0)
            found.append(min(shares))
        return found

    # -------------------------------------------------------------------------------------------------------------- step
    def step(self, actions: list[list[int]]) -> list[float]:
        prep = self.t < self.preparation
        sees = [[self.sees(i, len(self.agents) + k) for k in range(len(self.things))] for i in range(len(self.agents))]
        acts = [a if g.here and not (prep and g.team == SEEKER) else [0] * 5 for a, g in zip(actions, self.agents, strict=True)]
        self._lock(acts, sees)
        self._hold(acts, sees)
        push = []
        for a, act in zip(self.agents, acts, strict=True):
            most = 5.0 if a.held is not None else 10.0
            f, s = BINS[act[0]] * most, BINS[act[1]] * most
            c, d = math.cos(a.yaw), math.sin(a.yaw)
            push.append((f * c - s * d, f * d + s * c, BINS[act[2]] * 15.0))
        for _ in range(PARTS):
            self._part(push)
        self._climb(push)
        self.t += 1
        return self._rewards(prep)

    def _near(self, i: int, sees: list[list[bool]], *, lock: bool) -> int | None:
        a = self.agents[i]
        far = {
            k: gap(a.x, a.y, r)[0]
            for k, r in enumerate(self.things)
            if sees[i][k] and (not lock or self.lock_ramps or not r.ramp)
        }
        far = {k: d for k, d in far.items() if d <= R + 0.4}
        return min(far, key=lambda k: far[k]) if far else None

    def _lock(self, acts: list[list[int]], sees: list[list[bool]]) -> None:
        said: dict[tuple[int, int], set[int]] = {}
        for i, act in enumerate(acts):
            k = self._near(i, sees, lock=True)
            if act[4] and k is not None:
                said.setdefault((k, act[4]), set()).add(self.agents[i].team)
        for k, r in enumerate(self.things):
            lock, unlock = said.get((k, 1), set()), said.get((k, 2), set())
            if r.owner == 0 and lock:
                r.owner = min(lock)
            elif r.owner in unlock and r.owner not in lock:
                r.owner = 0

    def _hold(self, acts: list[list[int]], sees: list[list[bool]]) -> None:
        for a, act in zip(self.agents, acts, strict=True):
            if a.held is not None and (act[3] != 1 or a.high or self.things[a.held].owner):
                a.held = None
        taken = {a.held for a in self.agents if a.held is not None}
        for i, (a, act) in enumerate(zip(self.agents, acts, strict=True)):
            if act[3] != 1 or a.high or a.held is not None:
                continue
            k = self._near(i, sees, lock=False)
            if k is None or k in taken or self.things[k].owner:
                continue
            taken.add(k)
            r, c, s = self.things[k], math.cos(a.yaw), math.sin(a.yaw)
            dx, dy = r.x - a.x, r.y - a.y
            a.held, a.offset = k, [dx * c + dy * s, dy * c - dx * s, r.turn - a.yaw]

    def _carry(self) -> None:
        for a in self.agents:
            if a.held is not None:
                r, c, s = self.things[a.held], math.cos(a.yaw), math.sin(a.yaw)
                r.x, r.y = a.x + a.offset[0] * c - a.offset[1] * s, a.y + a.offset[0] * s + a.offset[1] * c
                r.turn = a.yaw + a.offset[2]

    def _part(self, push: list[tuple[float, float, float]]) -> None:
        before_a = [(a.x, a.y, a.yaw) for a in self.agents]
        before_t = [(r.x, r.y, r.turn) for r in self.things]
        for a, (ax, ay, turning) in zip(self.agents, push, strict=True):
            keep = 1 - 5.0 * PART
            a.vx, a.vy = (a.vx + ax * PART) * keep, (a.vy + ay * PART) * keep
            speed = math.hypot(a.vx, a.vy)
            if speed > 3.0:
                a.vx, a.vy = a.vx * 3.0 / speed, a.vy * 3.0 / speed
            a.spin = min(max((a.spin + turning * PART) * keep, -3.0), 3.0)
            a.x, a.y, a.yaw = a.x + a.vx * PART, a.y + a.vy * PART, a.yaw + a.spin * PART
        self._carry()
        free = [(a.x, a.y) for a in self.agents]
        self._push_apart()
        stuck = {k for k, r in enumerate(self.things) if any(near(r, w) and contact(r, w)[0] > 0.02 for w in self.walls)}
        for k in stuck:
            self.things[k].x, self.things[k].y, self.things[k].turn = before_t[k]
        for i, a in enumerate(self.agents):
            if a.held in stuck:
                (a.x, a.y, a.yaw), a.vx, a.vy, a.spin = before_a[i], 0.0, 0.0, 0.0
            cx, cy = a.x - free[i][0], a.y - free[i][1]
            length = math.hypot(cx, cy)
            if length > 1e-9:
                into = min(0.0, (a.vx * cx + a.vy * cy) / length)
                a.vx, a.vy = a.vx - into * cx / length, a.vy - into * cy / length

    def _weights(self) -> tuple[list[float], list[float]]:
        """The inverse masses of things, and those against turning."""
        held = {a.held for a in self.agents}
        straight = [0.5 if k in held else 0.0 if r.owner or not r.there else 1.0 for k, r in enumerate(self.things)]
        turning = [3.0 / (r.hx**2 + r.hy**2) if w == 1.0 else 0.0 for r, w in zip(self.things, straight, strict=True)]
        return straight, turning

    def _push_apart(self) -> None:
        straight, turning = self._weights()
        agent = [[0.0, 0.0] for _ in self.agents]
        thing = [[0.0, 0.0, 0.0] for _ in self.things]
        for i, a in enumerate(self.agents):
            for j, b in enumerate(self.agents):
                far = math.hypot(a.x - b.x, a.y - b.y)
                if i != j and a.high == b.high and far < 2 * R:
                    agent[i][0] += (a.x - b.x) / far * (2 * R - far) / 2
                    agent[i][1] += (a.y - b.y) / far * (2 * R - far) / 2
            for k, r in enumerate(self.things):
                far, n = gap(a.x, a.y, r)
                if a.high or a.held == k or far >= R:
                    continue
                p = (a.x - n[0] * far - r.x, a.y - n[1] * far - r.y)
                arm = p[0] * n[1] - p[1] * n[0]
                mine = 0.5 if a.held is not None else 1.0
                size = (R - far) / (mine + straight[k] + arm**2 * turning[k])
                for axis in range(2):
                    agent[i][axis] += size * mine * n[axis]
                    thing[k][axis] -= size * straight[k] * n[axis]
                thing[k][2] -= size * arm * turning[k]
        for k, r in enumerate(self.things):
            for others in (self.things, self.walls):
                self._push_thing(k, r, others, straight, turning, thing)
        for a, (dx, dy) in zip(self.agents, agent, strict=True):
            if a.held is not None:
                dx, dy = dx + thing[a.held][0], dy + thing[a.held][1]
            scale = min(1.0, 0.1 / max(math.hypot(dx, dy), 1e-9))
            a.x, a.y = a.x + dx * scale, a.y + dy * scale
        for k, (r, (dx, dy, turned)) in enumerate(zip(self.things, thing, strict=True)):
            if straight[k] == 1.0:
                scale = min(1.0, 0.1 / max(math.hypot(dx, dy), 1e-9))
                r.x, r.y, r.turn = r.x + dx * scale, r.y + dy * scale, r.turn + min(max(turned, -0.1), 0.1)
        for a in self.agents:
            if not a.high:
                touching = [(gap(a.x, a.y, w)) for w in self.walls]
                pushes = [((R - far) * n[0], (R - far) * n[1]) for far, n in touching if far < R]
                a.x, a.y = (
                    now + max([0.0, *(p[axis] for p in pushes)]) + min([0.0, *(p[axis] for p in pushes)])
                    for axis, now in enumerate((a.x, a.y))
                )
        self._carry()

    def _push_thing(
        self, k: int, r: Rect, others: list[Rect], straight: list[float], turning: list[float], thing: list[list[float]]
    ) -> None:
        best: Any = None
        for m, other in enumerate(others):
            if other is not r and near(r, other):
                depth, n, p = contact(r, other)
                if depth > 0 and (best is None or depth > best[0]):
                    best = (depth, n, p, m)
        if best is None:
            return
        depth, n, p, m = best
        other, arm = others[m], p[0] * n[1] - p[1] * n[0]
        mine = straight[k] + arm**2 * turning[k]
        theirs = 0.0
        if others is self.things:
            far_arm = (p[0] + r.x - other.x) * n[1] - (p[1] + r.y - other.y) * n[0]
            theirs = straight[m] + far_arm**2 * turning[m]
        if mine > 0:
            size = depth / (mine + theirs)
            thing[k][0] += size * straight[k] * n[0]
            thing[k][1] += size * straight[k] * n[1]
            thing[k][2] += size * arm * (3.0 / (r.hx**2 + r.hy**2))

    def _climb(self, push: list[tuple[float, float, float]]) -> None:
        solid = [*self.things, *self.walls]
        for a, (ax, ay, _) in zip(self.agents, push, strict=True):
            going = False
            for k, r in enumerate(self.things):
                if not r.ramp:
                    continue
                up = r.axes()[0]
                top = (r.x + r.hx * up[0], r.y + r.hx * up[1])
                leans = any(gap(*top, other)[0] <= 0.3 for other in solid if not other.ramp)
                u, v = r.inside(a.x, a.y)
                before_it = -r.hx - R - 0.1 <= u <= -r.hx and abs(v) <= r.hy
                going |= leans and before_it and ax * up[0] + ay * up[1] > 0 and a.held != k
            climb = a.climb + 1 if going and not a.high else 0
            if a.high:
                a.high = any(gap(a.x, a.y, r)[0] <= R + 0.05 for r in solid)
            else:
                a.high = climb >= 3
            a.climb = 0 if a.high else climb

    def _rewards(self, prep: bool) -> list[float]:
        seen = any(self.sees(i, j) for i in range(self.hiders, len(self.agents)) for j in range(self.hiders))
        found = []
        for a in self.agents:
            paid = 0.0 if prep else 1.0 if seen == (a.team == SEEKER) else -1.0
            if max(abs(a.x), abs(a.y)) > self.side / 2 + 0.3:
                paid -= 10.0
            found.append(paid if a.here else 0.0)
        return found
