"""Acrobot on tensors."""

from __future__ import annotations

import math

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.device.arrays import Array, Constants, columns, module_of, plus, plus_product
from runnel.envs.device.base import ArrayEnv, Leaves

Four = tuple[Array, Array, Array, Array]


class Acrobot(ArrayEnv):
    """Gymnasium's Acrobot-v1 (Sutton 1996, with the equations of Sutton and Barto's book): a double pendulum, driven at its
    elbow. Its tip has to rise one link above the base. All lengths and masses are 1; one Runge-Kutta step of 0.2 s.

    State: both angles (0: hanging down; the second relative to the first) and their speeds, `[B]` each.
    """

    name = "tensor:Acrobot-v1"
    max_steps = 500
    gravity, centre, inertia, dt = 9.8, 0.5, 1.0, 0.2
    max_speeds = (4.0 * math.pi, 9.0 * math.pi)

    def __init__(self) -> None:
        self.spec = EnvSpec({"obs": ArraySpec((6,))}, ActionSpec("discrete", num_actions=3))
        self._constants = Constants(torque=np.array([-1.0, 0.0, 1.0], np.float32))

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        x = torch.empty(4, num, device=generator.device).uniform_(-0.1, 0.1, generator=generator)
        return Batch(a=x[0], b=x[1], da=x[2], db=x[3])

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        now: Four = (state["a"], state["b"], state["da"], state["db"])
        xp = module_of(action)
        torque = self._constants.beside(action)["torque"][action]
        a, b, da, db = self._integrate(now, torque)
        a, b = (_wrap(x) for x in (a, b))
        da, db = (xp.clip(x, -limit, limit) for x, limit in zip((da, db), self.max_speeds, strict=True))
        there = xp.cos(a) + xp.cos(a + b) < -1.0
        return {"a": a, "b": b, "da": da, "db": db}, xp.where(there, 0.0, -xp.ones_like(a)), there

    def _integrate(self, now: Four, torque: Array) -> Four:
        """Classical Runge-Kutta over `dt`."""
        k1 = self._rates(now, torque)
        k2 = self._rates(_ahead(now, k1, self.dt / 2.0), torque)
        k3 = self._rates(_ahead(now, k2, self.dt / 2.0), torque)
        k4 = self._rates(_ahead(now, k3, self.dt), torque)
        a, b, da, db = (
            plus(x, plus(p + s, q + r, 2.0), self.dt / 6.0) for x, p, q, r, s in zip(now, k1, k2, k3, k4, strict=True)
        )
        return a, b, da, db

    def _rates(self, state: Four, torque: Array) -> Four:
        """Time derivatives of the state."""
        a, b, da, db = state
        xp = module_of(a)
        c, g, i = self.centre, self.gravity, self.inertia
        cos, sin = xp.cos(b), xp.sin(b)
        d1 = cos * (2.0 * c) + (2.0 * c * c + 1.0 + 2.0 * i)
        d2 = cos * c + (c * c + i)
        phi2 = xp.sin(a + b) * (c * g)  # cos(x - pi / 2) = sin(x)
        bend = plus_product(db * db, da, db, 2.0) * sin
        phi1 = plus(plus(phi2, bend, -c), xp.sin(a), (c + 1.0) * g)
        ratio = d2 / d1
        elbow = torque - phi2 + ratio * phi1
        elbow = plus_product(elbow, da * da, sin, -c) / (c * c + i - d2 * ratio)
        return da, db, -(d2 * elbow + phi1) / d1, elbow

    def observe(self, state: Leaves) -> Leaves:
        a, b = state["a"], state["b"]
        xp = module_of(a)
        return {"obs": columns(xp.cos(a), xp.sin(a), xp.cos(b), xp.sin(b), state["da"], state["db"])}


def _ahead(now: Four, rates: Four, dt: float) -> Four:
    a, b, da, db = (plus(x, rate, dt) for x, rate in zip(now, rates, strict=True))
    return a, b, da, db


def _wrap(angle: Array) -> Array:
    """The same angle within half a turn of 0."""
    return plus(angle, module_of(angle).round(angle * (0.5 / math.pi)), -2.0 * math.pi)
