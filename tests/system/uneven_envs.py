"""Simulators whose steps take very different times: most are quick, some take twenty times as long."""

from __future__ import annotations

import time
from typing import Any

from toy_envs import DictGoal

from runnel.envs.toy import PointMass


def pause(draw: float, step_s: float) -> None:
    time.sleep(step_s * (20.0 if draw < 0.05 else draw))


class UnevenPointMass(PointMass):
    """A `PointMass` on a slow, uneven simulator."""

    def step(self, action: Any) -> Any:
        pause(float(self.np_random.random()), 0.002)
        return super().step(action)


class UnevenGoal(DictGoal):
    """A `DictGoal` on a slow, uneven simulator."""

    def step(self, action: Any) -> Any:
        pause(float(self.np_random.random()), 0.002)
        return super().step(action)
