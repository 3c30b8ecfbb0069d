"""What agents observe in hide-and-seek, and the global state.

Others, boxes and ramps are sets of entities (`nets/entities.py`), seen from where an agent stands and looks. `NAME_mask` says
which of them the agent sees, `NAME_exists` which there are: that is for critics alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runnel.core.spaces import ArraySpec
from runnel.envs.device.arrays import Constants
from runnel.envs.device.base import Leaves
from runnel.envs.device.hide_and_seek.layouts import Size
from runnel.envs.device.hide_and_seek.physics import MAX_SPEED, MAX_SPIN
from runnel.envs.device.hide_and_seek.play import HIDERS, NOBODY, SEEKERS

OWN, OTHER, BOX, RAMP = 12, 9, 10, 8
"""How many numbers are said of oneself, of another agent, a box, a ramp."""
WHERE = 3.0
"""Distances are told in units of this."""


class Views:
    """Observations of all agents of worlds of one size. With `omniscient` there are masks for critics, and what an agent does
    not see is there for them; else it is zeros."""

    def __init__(self, size: Size, preparation: int, *, omniscient: bool) -> None:
        self._size, self._preparation, self._omniscient = size, preparation, omniscient
        agents = range(size.agents)
        self._constants = Constants(
            others=np.array([[j for j in agents if j != i] for i in agents], np.int64)[:, :, None],
            team=np.array([[0.0]] * size.hiders + [[1.0]] * size.seekers, np.float32),
        )
        sets = {"agents": (size.agents - 1, OTHER), "boxes": (size.boxes, BOX), "ramps": (size.ramps, RAMP)}
        self.spec = {"obs/self": ArraySpec((OWN,))}
        for name, (num, width) in sets.items():
            self.spec |= {f"obs/{name}": ArraySpec((num, width)), f"obs/{name}_mask": ArraySpec((num,))}
            if omniscient:
                self.spec[f"obs/{name}_exists"] = ArraySpec((num,))
        self.state_spec = ArraySpec((size.agents * 9 + size.things * 7 + 2,))

    def __call__(self, s: Leaves) -> dict[str, Tensor]:
        """All but the lidar, from leaves with worlds last. `[A, ..., E]`"""
        frame = _Frame(s)
        team = self._constants.beside(s["pos"])["team"].to(s["pos"].dtype)
        found = {"obs/self": self._own(s, frame, team)}
        num, boxes, sees = self._size.agents, self._size.boxes, s["sees"]
        there = s["there"].expand(num, -1, -1)
        others, index = self._others(s, frame, team)
        exist = (s["here"] & s["here"].unsqueeze(1)).gather(1, index)
        self._add(found, "agents", others, sees[:, :num].gather(1, index), exist)
        things = self._things(s, frame, team)
        box = torch.cat([things["place"], _turned(s, 2.0), things["size"], things["of"]], 2)
        self._add(found, "boxes", box[:, :boxes], sees[:, num : num + boxes], there[:, :boxes])
        ramp = torch.cat([things["place"], _turned(s, 1.0), things["of"]], 2)
        self._add(found, "ramps", ramp[:, boxes:], sees[:, num + boxes :], there[:, boxes:])
        return found

    def _add(self, found: dict[str, Tensor], name: str, features: Tensor, seen: Tensor, exist: Tensor) -> None:
        shown, dtype = exist if self._omniscient else seen, features.dtype
        found[f"obs/{name}"] = features.masked_fill(~shown.unsqueeze(2), 0.0)
        found[f"obs/{name}_mask"] = seen.to(dtype)
        if self._omniscient:
            found[f"obs/{name}_exists"] = exist.to(dtype)

    def _time(self, s: Leaves, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What is left of the preparation, and of the episode. `[E]`"""
        t = s["t"].to(dtype)
        return (1.0 - t / self._preparation).clamp(min=0.0), 1.0 - t / self._size.steps

    def _own(self, s: Leaves, frame: _Frame, team: Tensor) -> Tensor:
        dtype, half = s["pos"].dtype, self._size.side / 2
        forward, left = frame.turned(s["vel"].unsqueeze(1))
        prepare, rest = (x.expand_as(s["yaw"]) for x in self._time(s, dtype))
        parts = [s["pos"][:, 0] / half, s["pos"][:, 1] / half, s["yaw"].cos(), s["yaw"].sin()]
        parts += [forward[:, 0] / MAX_SPEED, left[:, 0] / MAX_SPEED, s["spin"] / MAX_SPIN, s["high"].to(dtype)]
        return torch.stack([*parts, s["holds"].any(1).to(dtype), team.expand_as(s["yaw"]), prepare, rest], 1)

    def _others(self, s: Leaves, frame: _Frame, team: Tensor) -> tuple[Tensor, Tensor]:
        """What is said of the other agents `[A, A - 1, F, E]`, and which they are `[A, A - 1, E]`."""
        dtype, yaw = s["pos"].dtype, s["yaw"]
        place = frame.seen_from(s["pos"].unsqueeze(0))
        faster = frame.turned(s["vel"] - s["vel"].unsqueeze(1))
        angle = yaw - yaw.unsqueeze(1)
        flags = [s["high"], team == team.unsqueeze(1), s["holds"].any(1)]
        told = [flag.expand_as(angle).to(dtype) for flag in flags]
        features = torch.stack([*place, *(v / MAX_SPEED for v in faster), angle.cos(), angle.sin(), *told], 2)
        index = self._constants.beside(s["pos"])["others"].expand(-1, -1, features.shape[3])
        return features.gather(1, index.unsqueeze(2).expand(-1, -1, features.shape[2], -1)), index

    def _things(self, s: Leaves, frame: _Frame, team: Tensor) -> dict[str, Tensor]:
        """What is said of boxes and ramps alike. `[A, N, ..., E]`"""
        dtype, num = s["pos"].dtype, self._size.agents
        place = torch.stack(frame.seen_from(s["place"].unsqueeze(0)), 2)
        locked, mine = s["owner"] != NOBODY, s["owner"] == team.unsqueeze(1) + 1
        held = s["holds"].any(0)
        of = [locked & mine, locked & ~mine, s["holds"], held & ~s["holds"]]
        size = s["half"].expand(num, -1, -1, -1)
        return {"place": place, "size": size, "of": torch.stack(of, 2).to(dtype)}

    def state(self, s: Leaves) -> Tensor:
        """The global state: all agents and all things from above, and the time. `[D, E]`"""
        dtype, half = s["pos"].dtype, self._size.side / 2
        here, there = s["here"].unsqueeze(1), s["there"].unsqueeze(1)
        yaw, turn = s["yaw"].unsqueeze(1), s["turn"].unsqueeze(1)
        flags = torch.stack([s["high"], s["holds"].any(1)], 1).to(dtype)
        agent = torch.cat([s["pos"] / half, s["vel"] / MAX_SPEED, yaw.cos(), yaw.sin(), flags], 1)
        owned = torch.stack([s["owner"] == HIDERS, s["owner"] == SEEKERS], 1).to(dtype)
        thing = torch.cat([s["place"] / half, turn.cos(), turn.sin(), owned], 1)
        agent, thing = agent.masked_fill(~here, 0.0), thing.masked_fill(~there, 0.0)
        parts = [torch.cat([agent, here.to(dtype)], 1), torch.cat([thing, there.to(dtype)], 1)]
        return torch.cat([*(part.flatten(0, 1) for part in parts), torch.stack(self._time(s, dtype))])


class _Frame:
    """Where agents are, and how they look."""

    def __init__(self, s: Leaves) -> None:
        self._cos, self._sin, self._pos = s["yaw"].cos().unsqueeze(1), s["yaw"].sin().unsqueeze(1), s["pos"].unsqueeze(1)

    def turned(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors `[A, K, 2, E]` as agents see them: ahead and to the left. `[A, K, E]`"""
        x, y = vectors.unbind(2)
        return x * self._cos + y * self._sin, y * self._cos - x * self._sin

    def seen_from(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Places `[1, K, 2, E]` from where agents are, in units of `WHERE`."""
        ahead, left = self.turned(places - self._pos)
        return ahead / WHERE, left / WHERE


def _turned(s: Leaves, times: float) -> Tensor:
    """How things are turned, as agents see it; twice the angle for boxes, which look the same from both ends. `[A, N, 2, E]`"""
    angle = (s["turn"] - s["yaw"].unsqueeze(1)) * times
    return torch.stack([angle.cos(), angle.sin()], 2)
