"""A world of hide-and-seek from above, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from runnel.core.state import Array
from runnel.envs.device.hide_and_seek.layouts import AGENT, WALL, Size
from runnel.envs.device.hide_and_seek.play import HIDERS, NOBODY
from runnel.envs.device.hide_and_seek.sight import HALF_CONE

FLOOR, WALLS, BOX, RAMP, LOW = (235, 232, 225), (90, 86, 82), (196, 160, 98), (122, 150, 88), (182, 208, 150)
TEAMS = ((52, 98, 196), (204, 66, 60))
ABOVE = (250, 250, 250)
MARGIN, RIM, LOOK = 0.6, 0.06, 2.5
"""What is shown beyond the walls, how wide rims are, and how far a cone is drawn, in metres."""


def draw(world: Mapping[str, Array], size: Size, pixels: int) -> Array:
    """A world (leaves without the dimension of worlds) as `[pixels, pixels, 3]`, uint8; x to the right, y up."""
    half = size.side / 2 + MARGIN
    at = (np.arange(pixels) + 0.5) / pixels * 2 * half - half
    x, y = np.meshgrid(at, -at)
    picture = np.empty((pixels, pixels, 3), np.float64)
    picture[:] = FLOOR
    for i in np.flatnonzero(world["here"]).tolist():
        _cone(picture, x, y, world, i, TEAMS[int(i >= size.hiders)])
    for cx, cy, hx, hy in world["walls"]:
        picture[(np.abs(x - cx) <= hx) & (np.abs(y - cy) <= hy)] = WALLS
    for k in np.flatnonzero(world["there"]).tolist():
        _thing(picture, x, y, world, k, is_ramp=k >= size.boxes)
    for i in np.flatnonzero(world["here"]).tolist():
        _agent(picture, x, y, world, i, TEAMS[int(i >= size.hiders)])
    return picture.round().astype(np.uint8)


def _cone(picture: Array, x: Array, y: Array, world: Mapping[str, Array], i: int, colour: tuple[int, ...]) -> None:
    dx, dy = x - world["pos"][i, 0], y - world["pos"][i, 1]
    far, yaw = np.hypot(dx, dy), float(world["yaw"][i])
    looks = (dx * math.cos(yaw) + dy * math.sin(yaw) >= far * math.cos(HALF_CONE)) & (far < LOOK)
    if not world["high"][i]:
        looks[looks] = ~_hidden(world["pos"][i], dx[looks], dy[looks], world)
    picture[looks] = picture[looks] * 0.82 + np.array(colour) * 0.18


def _hidden(eye: Array, dx: Array, dy: Array, world: Mapping[str, Array]) -> Array:
    """Whether a wall or a thing lies between an eye and the points at `dx`, `dy` from it."""
    turned = [(*p, t, *h) for p, t, h in zip(world["place"], world["turn"], world["half"], strict=True)]
    found = np.zeros(dx.shape, bool)
    for cx, cy, turn, hx, hy in turned + [(x, y, 0.0, hx, hy) for x, y, hx, hy in world["walls"]]:
        cos, sin = math.cos(turn), math.sin(turn)
        enter, leave = np.zeros(dx.shape), np.ones(dx.shape)
        for c, s, half in ((cos, sin, hx), (-sin, cos, hy)):
            at, way = (eye[0] - cx) * c + (eye[1] - cy) * s, dx * c + dy * s
            way = np.where(np.abs(way) < 1e-9, 1e-9, way)
            first, last = (-half - at) / way, (half - at) / way
            enter, leave = np.maximum(enter, np.minimum(first, last)), np.minimum(leave, np.maximum(first, last))
        found |= enter < leave
    return found


def _thing(picture: Array, x: Array, y: Array, world: Mapping[str, Array], k: int, *, is_ramp: bool) -> None:
    (cx, cy), turn, (hx, hy) = world["place"][k], float(world["turn"][k]), world["half"][k]
    u = (x - cx) * math.cos(turn) + (y - cy) * math.sin(turn)
    v = (y - cy) * math.cos(turn) - (x - cx) * math.sin(turn)
    inside = (np.abs(u) <= hx) & (np.abs(v) <= hy)
    picture[inside] = RAMP if is_ramp else BOX
    if is_ramp:  # the lower, the lighter
        share = (0.5 - u[inside] / (2 * hx))[:, None]
        picture[inside] = np.array(LOW) * share + np.array(RAMP) * (1.0 - share)
    owner = int(world["owner"][k])
    if owner != NOBODY:
        rim = inside & ((np.abs(u) > hx - RIM) | (np.abs(v) > hy - RIM))
        picture[rim] = TEAMS[0 if owner == HIDERS else 1]


def _agent(picture: Array, x: Array, y: Array, world: Mapping[str, Array], i: int, colour: tuple[int, ...]) -> None:
    dx, dy = x - world["pos"][i, 0], y - world["pos"][i, 1]
    far, yaw = np.hypot(dx, dy), float(world["yaw"][i])
    picture[far <= AGENT] = colour
    if world["high"][i]:
        picture[(far <= AGENT) & (far > AGENT - RIM)] = ABOVE
    nose = (dx * math.cos(yaw) + dy * math.sin(yaw) > far * 0.9) & (far <= AGENT) & (far > AGENT * 0.4)
    picture[nose] = ABOVE
    for k in np.flatnonzero(world["holds"][i]):  # a line to what is held
        to = world["place"][k] - world["pos"][i]
        along = (dx * to[0] + dy * to[1]) / max(float(to @ to), 1e-9)
        beside = np.abs(dy * to[0] - dx * to[1]) / max(float(np.hypot(*to)), 1e-9)
        picture[(along >= 0) & (along <= 1) & (beside < WALL / 2)] = colour
