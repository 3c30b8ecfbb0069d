"""Draws Gymnasium's classic control tasks from their state, for machines without pygame, which Gymnasium's drawings need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, sin
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.state import Array

if TYPE_CHECKING:
    import gymnasium as gym

Frame = NDArray[np.uint8]
Pixels = Array
Point = tuple[float, float]
Colour = tuple[int, int, int]
WIDTH, HEIGHT = 420, 280
INK, WOOD, METAL, GOAL, LINE = (40, 44, 52), (202, 152, 101), (88, 110, 160), (200, 80, 70), (150, 155, 165)
_PAPER = 250


class Canvas:
    """A picture with `scale` pixels for a unit of length, and the origin at `centre` (pixels from the lower left)."""

    def __init__(self, scale: float, centre: Point) -> None:
        self._pixels = np.full((HEIGHT, WIDTH, 3), _PAPER, np.float32)
        self._x = (np.arange(WIDTH, dtype=np.float32) - centre[0]) / scale
        self._y = (HEIGHT - np.arange(HEIGHT, dtype=np.float32) - centre[1]) / scale
        self._scale = scale

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """A stroke with round ends."""
        low = (min(start[0], end[0]) - width, min(start[1], end[1]) - width)
        high = (max(start[0], end[0]) + width, max(start[1], end[1]) + width)
        part, x, y = self._around(low, high)
        dx, dy = end[0] - start[0], end[1] - start[1]
        along = ((x - start[0]) * dx + (y - start[1]) * dy) / max(dx * dx + dy * dy, 1e-12)
        along = np.clip(along, 0.0, 1.0)
        self._cover(part, width / 2 - np.hypot(x - start[0] - along * dx, y - start[1] - along * dy), colour)

    def disc(self, at: Point, radius: float, colour: Colour) -> None:
        self.line(at, at, 2 * radius, colour)

    def box(self, at: Point, size: Point, colour: Colour) -> None:
        """An upright rectangle around `at`."""
        part, x, y = self._around((at[0] - size[0], at[1] - size[1]), (at[0] + size[0], at[1] + size[1]))
        self._cover(part, np.minimum(size[0] / 2 - np.abs(x - at[0]), size[1] / 2 - np.abs(y - at[1])), colour)

    def below(self, height: Callable[[Pixels], Pixels], colour: Colour) -> None:
        """Paint everything under a curve."""
        self._cover(self._pixels, height(self._x)[None] - self._y[:, None], colour)

    def _around(self, low: Point, high: Point) -> tuple[Pixels, Pixels, Pixels]:
        """A view of the pixels of a box, and their coordinates."""
        columns = np.searchsorted(self._x, (low[0], high[0]))
        rows = HEIGHT - np.searchsorted(self._y[::-1], (high[1], low[1]))
        across, down = slice(*columns.tolist()), slice(*np.maximum(rows, 0).tolist())
        return self._pixels[down, across], self._x[None, across], self._y[down, None]

    def _cover(self, part: Pixels, inside: Pixels, colour: Colour) -> None:
        """Paint where `inside`, the distance from the edge, is above 0. One pixel at the edge is blended."""
        share = np.clip(inside * self._scale + 0.5, 0.0, 1.0)[:, :, None]
        part += share * (np.array(colour, np.float32) - part)

    def frame(self) -> Frame:
        return self._pixels.astype(np.uint8)


def cart_pole(state: Sequence[float]) -> Frame:
    """A pole on a cart."""
    x, _, angle, _ = (float(v) for v in state)
    canvas = Canvas(WIDTH / 5.2, (WIDTH / 2, 90))
    canvas.line((-2.6, 0.0), (2.6, 0.0), 0.015, LINE)
    canvas.box((x, 0.0), (0.52, 0.3), INK)
    canvas.line((x, 0.08), (x + 1.3 * sin(angle), 0.08 + 1.3 * cos(angle)), 0.1, WOOD)
    canvas.disc((x, 0.08), 0.06, METAL)
    return canvas.frame()


def pendulum(state: Sequence[float]) -> Frame:
    """A rod that is to stand up."""
    angle = float(state[0])
    canvas = Canvas(105.0, (WIDTH / 2, HEIGHT / 2))
    canvas.line((0.0, 0.0), (-sin(angle), cos(angle)), 0.2, GOAL)
    canvas.disc((0.0, 0.0), 0.05, INK)
    return canvas.frame()


def acrobot(state: Sequence[float]) -> Frame:
    """Two links; the tip is to rise above the line."""
    first, second = float(state[0]), float(state[1])
    middle = (sin(first), -cos(first))
    tip = (middle[0] + sin(first + second), middle[1] - cos(first + second))
    canvas = Canvas(60.0, (WIDTH / 2, HEIGHT / 2))
    canvas.line((-3.5, 1.0), (3.5, 1.0), 0.03, LINE)
    canvas.line((0.0, 0.0), middle, 0.18, METAL)
    canvas.line(middle, tip, 0.18, METAL)
    for joint in ((0.0, 0.0), middle):
        canvas.disc(joint, 0.1, WOOD)
    return canvas.frame()


def mountain_car(state: Sequence[float]) -> Frame:
    """A car in a valley, and the flag on its right side."""
    x = float(state[0])

    def height(at: Any) -> Any:
        return np.sin(3 * at) * 0.45 + 0.55

    canvas = Canvas(WIDTH / 2.0, (WIDTH * 1.28 / 2.0, 20))
    canvas.below(height, (214, 219, 226))
    flag = 0.5
    canvas.line((flag, height(flag)), (flag, height(flag) + 0.18), 0.012, INK)
    canvas.box((flag + 0.04, height(flag) + 0.155), (0.07, 0.05), GOAL)
    slope = 3 * 0.45 * cos(3 * x)
    length = (1 + slope * slope) ** 0.5
    up, along = (-slope / length, 1 / length), (1 / length, slope / length)
    body = (x + 0.04 * up[0], float(height(x)) + 0.04 * up[1])
    ends = [(body[0] + side * 0.05 * along[0], body[1] + side * 0.05 * along[1]) for side in (-1, 1)]
    canvas.line(ends[0], ends[1], 0.05, METAL)
    for end in ends:
        canvas.disc((end[0] - 0.025 * up[0], end[1] - 0.025 * up[1]), 0.02, INK)
    return canvas.frame()


SKETCHES: dict[str, Callable[[Sequence[float]], Frame]] = {
    "CartPoleEnv": cart_pole,
    "PendulumEnv": pendulum,
    "AcrobotEnv": acrobot,
    "MountainCarEnv": mountain_car,
    "Continuous_MountainCarEnv": mountain_car,
}
"""By class name of the environment."""


def sketch_of(env: gym.Env) -> Callable[[], Frame] | None:
    """A function that draws the present state of `env`; None for other environments."""
    draw = SKETCHES.get(type(env.unwrapped).__name__)
    if draw is None or not type(env.unwrapped).__module__.startswith("gymnasium.envs.classic_control"):
        return None
    return lambda: draw(env.unwrapped.state)
