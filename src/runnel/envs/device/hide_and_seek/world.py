"""Hide-and-seek with boxes, ramps and locks, on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionLeaf, ActionSpec, ArraySpec, EnvSpec, TeamSpec, multi_action
from runnel.core.state import Array as Picture
from runnel.envs.device.arrays import Array, Constants
from runnel.envs.device.base import Leaves
from runnel.envs.device.hide_and_seek import physics, play, sight
from runnel.envs.device.hide_and_seek.geometry import Rects, distance
from runnel.envs.device.hide_and_seek.layouts import AGENT, layout_table, size_of
from runnel.envs.device.hide_and_seek.physics import FORCE, STEP, TORQUE, Bodies, Fixed
from runnel.envs.device.hide_and_seek.picture import draw
from runnel.envs.device.hide_and_seek.stages import first_stages, next_stages, stage_numbers
from runnel.envs.device.hide_and_seek.views import Views
from runnel.envs.device.team import TeamWorld
from runnel.kernels.fusing import Fused

PUSHES = (0.0, -1.0, -0.5, 0.5, 1.0)
"""Shares of the greatest force; the first is none."""
ACT = "act"
OUTSIDE, OUT = 0.3, -10.0
"""How far behind the inner side of the outer walls an agent is outside, and what it is paid there at each step."""


class HideAndSeek(TeamWorld):
    """Hiders and seekers among boxes, ramps and walls with doors (Baker et al. 2020, arXiv:1909.07528), in 2.5 dimensions.

    In the first 40 % of an episode (`preparation`) seekers do not act and nobody is paid. After that hiders are paid 1 at each
    step in which no seeker sees any of them, else -1, and seekers the opposite. Outside of the outer walls an agent is paid 10
    less.

    An action is a force ahead and to the left, a torque (each: none, back or right in full, in half, ahead or left in half, in
    full), whether to hold on to something, and nothing, lock or unlock. `size` is `quadrant` (6 x 6 m, a room with two doors of
    which one may be missing, 2 against 2, 2 boxes and a ramp, 80 steps; the ramp cannot be locked) or `arena` (12 x 12 m,
    rooms, 1 to 3 against 1 to 3, 3 to 9 boxes, some of them long, 2 ramps, 160 steps). An agent that walks up a ramp which
    leans against something is above walls and things, and sees over them, until nothing is below it. With `surfing` it can
    hold on to the box it stands on, and move with it. There are `num_layouts` rooms, each in eight directions.

    With `compiled`, what a step does and what agents see goes through `torch.compile` on a GPU: a tenth of the kernels, after a
    minute or two of compiling. On a CPU it changes nothing.
    """

    name = "tensor:HideAndSeek"
    fps, all_stay = 1.0 / STEP, True

    def __init__(
        self,
        size: str = "quadrant",
        surfing: bool = False,
        omniscient: bool = True,
        lidar: int = 30,
        num_layouts: int = 1024,
        preparation: float = 0.4,
        compiled: bool = False,
    ) -> None:
        for field, value, least in (("lidar", lidar, 0), ("num_layouts", num_layouts, 1)):
            if value < least:
                raise ConfigError(f"env_kwargs.{field}", value, f"use at least {least}")
        if not 0.0 <= preparation < 1.0:
            raise ConfigError("env_kwargs.preparation", preparation, "is a share of the steps: use 0 or more, and less than 1")
        self.size, self._size_name, self._num_layouts = size_of(size), size, num_layouts
        self._surfing, self._lidar = surfing, lidar
        s = self.size
        self.max_steps, self.preparation = s.steps, int(s.steps * preparation)
        self._views = Views(s, self.preparation, omniscient=omniscient)
        obs = self._views.spec | ({"obs/lidar": ArraySpec((lidar,))} if lidar else {})
        parts = [ActionSpec("discrete", num_actions=n) for n in (len(PUSHES), len(PUSHES), len(PUSHES), 2, 3)]
        agent = EnvSpec(obs, multi_action(parts, [ActionLeaf((), (len(parts),), "int64", len(parts))]))
        names = [f"hider_{i}" for i in range(s.hiders)] + [f"seeker_{i}" for i in range(s.seekers)]
        self.spec = TeamSpec(dict.fromkeys(names, agent))
        self.state_spec = self._views.state_spec
        itself = np.eye(s.agents + s.things, dtype=bool)[:, s.agents :]
        team = np.array([play.HIDERS] * s.hiders + [play.SEEKERS] * s.seekers)
        self._constants = Constants(
            pushes=np.array(PUSHES, np.float32),
            team=team[:, None],
            seeks=team[:, None] == play.SEEKERS,
            lockable=np.arange(s.things)[:, None] < (s.things if s.lock_ramps else s.boxes),
            box=np.arange(s.things)[:, None] < s.boxes,
            itself=itself[:, :, None],
            others=~np.eye(s.things, dtype=bool)[:, :, None],
            apart=~np.eye(s.agents, dtype=bool)[:, :, None],
            never=np.zeros((1, s.agents), bool),
        )
        self._table: Constants | None = None
        self._step: Callable[[Leaves], tuple[Leaves, Tensor]] = Fused(self._stepped) if compiled else self._stepped
        self._look: Callable[[Leaves], Leaves] = Fused(self._looked) if compiled else self._looked

    # ----------------------------------------------------------------------------------------------------------- chance
    def initial(self, num: int, generator: torch.Generator) -> Batch:
        device = generator.device
        if self._table is None:
            self._table = Constants(**layout_table(self._size_name, self._num_layouts))
        which = torch.randint(0, self._num_layouts, (num,), generator=generator, device=device)
        row = {key: x[which] for key, x in self._table.beside(which).items()}
        mirrors = torch.randint(0, 2, (num, 3), generator=generator, device=device).bool()
        yaw = (torch.rand(num, self.size.agents, generator=generator, device=device) * 2.0 - 1.0) * torch.pi
        walls, thing = row["walls"], row["thing"]
        turn, place = thing[..., 2], _mirrored(thing[..., :2], mirrors)
        # a wall that is mirrored at the diagonal has its sides exchanged
        half = torch.where(mirrors[:, 2, None, None], walls[..., 2:].flip(-1), walls[..., 2:])
        flat = place.new_zeros(num, self.size.agents)
        state = {
            "pos": _mirrored(row["agent"], mirrors),
            "vel": place.new_zeros(num, self.size.agents, 2),
            "yaw": yaw,
            "spin": flat,
            "high": flat > 0,
            "climb": flat.long(),
            "here": row["here"],
            "place": place,
            "turn": _mirrored_angle(turn, mirrors),
            "half": thing[..., 3:],
            "there": row["there"],
            "owner": torch.zeros_like(turn, dtype=torch.int64),
            "holds": torch.zeros(num, self.size.agents, self.size.things, dtype=torch.bool, device=device),
            "offset": place.new_zeros(num, self.size.agents, 3),
            "walls": torch.cat([_mirrored(walls[..., :2], mirrors), half], -1),
            "t": torch.zeros(num, dtype=torch.int64, device=device),
            **first_stages(place),
        }
        return Batch(state | {"sees": self._sees(worlds_last(state)).movedim(-1, 0)})

    # ------------------------------------------------------------------------------------------------------------ steps
    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        changed, reward = self._step(worlds_last(state | {ACT: actions[0]}))
        after = {**state, **{key: x.movedim(-1, 0) for key, x in changed.items()}}
        never = self._constants.beside(state["pos"])["never"]
        return after, reward.T, never.expand(len(state["pos"]), -1)

    def _stepped(self, s: Leaves) -> tuple[Leaves, Tensor]:
        """The leaves that a step under the actions `ACT` changes, and rewards `[A, E]`; worlds last."""
        constants, act = self._constants.beside(s["pos"]), s[ACT]
        asleep = constants["seeks"] & (s["t"] < self.preparation)
        awake = s["here"] & ~asleep
        push = constants["pushes"].to(s["pos"].dtype)[act[:, :3]] * awake.unsqueeze(1)
        owner, holds, offset = self._handle(s, awake & (act[:, 3] == 1), act[:, 4] * awake)
        bodies, ax, ay = self._moved(s, owner, holds, offset, push)
        changed = {
            "pos": torch.stack([bodies.x, bodies.y], 1),
            "vel": torch.stack([bodies.vx, bodies.vy], 1),
            "yaw": bodies.yaw,
            "spin": bodies.spin,
            "place": torch.stack([bodies.things.x, bodies.things.y], 1),
            "turn": bodies.turn,
            "owner": owner,
            "holds": holds,
            "offset": offset,
            "t": s["t"] + 1,
        }
        changed |= self._climbed(s | changed, ax, ay)
        changed["sees"] = self._sees(s | changed)
        found = changed["sees"][self.size.hiders :, : self.size.hiders].any(1).any(0)
        reward = self._rewards(s, changed["pos"], found)
        changed |= next_stages(s, s | changed, found, reward, self.preparation, self.size)
        return changed, reward

    def _handle(self, s: Leaves, wants: Tensor, word: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Locks, then holds, with where from the holders the things are."""
        constants, things = self._constants.beside(s["pos"]), things_of(s)
        far = distance(s["pos"][:, 0].unsqueeze(1), s["pos"][:, 1].unsqueeze(1), things)
        seen, high = s["sees"][:, self.size.agents :], s["high"].unsqueeze(1)
        may_grab = seen & ~high
        if self._surfing:
            may_grab = may_grab | ((far <= AGENT + play.STANDS) & constants["box"] & s["there"] & high)
        else:
            wants = wants & ~s["high"]
        reach = play.within_reach(far, seen & constants["lockable"], may_grab)
        owner = play.locked(s["owner"], reach.lock, word, constants["team"])
        holds, new = play.grabbed(s["holds"], reach.grab, wants, owner == play.NOBODY)
        chosen = new.to(far.dtype)
        dx, dy = ((s["place"][:, i] - s["pos"][:, i].unsqueeze(1)).mul(chosen).sum(1) for i in range(2))
        cos, sin = s["yaw"].cos(), s["yaw"].sin()
        offset = torch.stack([dx * cos + dy * sin, dy * cos - dx * sin, (s["turn"] * chosen).sum(1) - s["yaw"]], 1)
        return owner, holds, torch.where(new.any(1, keepdim=True), offset, s["offset"])

    def _moved(self, s: Leaves, owner: Tensor, holds: Tensor, offset: Tensor, push: Tensor) -> tuple[Bodies, Tensor, Tensor]:
        """The bodies after a step, and the accelerations of the agents in it."""
        constants, things = self._constants.beside(s["pos"]), things_of(s)
        held, holding = holds.any(0), holds.any(1)
        fixed = Fixed(
            walls=walls_of(s),
            inertia=(things.hx.square() + things.hy.square()) / 3.0,
            loose=s["there"] & (owner == play.NOBODY) & ~held,
            held=held,
            low=~s["high"],
            level=(s["high"] == s["high"].unsqueeze(1)) & constants["apart"],
            others=constants["others"],
            holding=holding,
        )
        cos, sin = s["yaw"].cos(), s["yaw"].sin()
        strength = torch.where(holding, FORCE / physics.MASS_OF_HOLDER, FORCE).to(cos.dtype)
        ahead, left, turning = push.unbind(1)
        ax, ay = (ahead * cos - left * sin) * strength, (ahead * sin + left * cos) * strength
        (x, y), (vx, vy) = s["pos"].unbind(1), s["vel"].unbind(1)
        bodies = Bodies(x, y, vx, vy, s["yaw"], s["spin"], things, s["turn"], holds=holds, offset=offset)
        return physics.move(bodies, fixed, ax, ay, turning * TORQUE), ax, ay

    def _climbed(self, s: Leaves, ax: Tensor, ay: Tensor) -> Leaves:
        """Who is above, and for how many steps agents have walked against a ramp."""
        things, walls, boxes = things_of(s), walls_of(s), self.size.boxes
        x, y = s["pos"].unbind(1)
        going = play.going_up(x, y, ax, ay, things.some(boxes, self.size.things)) & play.leaning(things, walls, boxes)
        climb = torch.where((going & ~s["holds"][:, boxes:]).any(1) & ~s["high"], s["climb"] + 1, 0)
        far = distance(x.unsqueeze(1), y.unsqueeze(1), things.then(walls)).amin(1)
        high = torch.where(s["high"], far <= AGENT + play.STANDS, climb >= play.CLIMB)
        return {"high": high, "climb": torch.where(high, 0, climb)}

    def _sees(self, s: Leaves) -> Tensor:
        """Which agents and things each agent sees. `[A, A + N, E]`"""
        constants, things = self._constants.beside(s["pos"]), things_of(s)
        x, y = s["pos"].unbind(1)
        to_x, to_y = torch.cat([x, things.x]), torch.cat([y, things.y])
        ahead = sight.in_cone(x, y, s["yaw"], to_x, to_y)
        free = sight.free_line(x, y, to_x, to_y, things, walls_of(s), constants["itself"]) | s["high"].unsqueeze(1)
        above = torch.cat([s["high"], torch.zeros_like(s["there"])])
        real = torch.cat([s["here"] & constants["apart"], s["there"].expand(self.size.agents, -1, -1)], 1)
        sees: Tensor = ahead & (free | above) & real & s["here"].unsqueeze(1)
        return sees

    def _rewards(self, s: Leaves, pos: Tensor, found: Tensor) -> Tensor:
        """What each agent is paid for being at `pos`. `[A, E]`, float32"""
        seeks = self._constants.beside(found)["seeks"]
        paid = torch.where(found == seeks, 1.0, -1.0) * (s["t"] >= self.preparation)
        outside = pos.abs().amax(1) > self.size.side / 2 + OUTSIDE
        reward: Tensor = ((paid + outside * OUT) * s["here"]).float()
        return reward

    # --------------------------------------------------------------------------------------------------------- what is seen
    def active(self, state: Leaves) -> Array | None:
        """Who acts: not seekers in the preparation, from whose steps then nothing is learned, and not who is not there."""
        s = worlds_last(state)
        asleep = self._constants.beside(state["pos"])["seeks"] & (s["t"] < self.preparation)
        return (s["here"] & ~asleep).T

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{key: x.movedim(-1, 0) for key, x in self._look(worlds_last(state)).items()}]

    def _looked(self, s: Leaves) -> Leaves:
        """What agents see; worlds last."""
        seen = self._views(s)
        if self._lidar:
            x, y = s["pos"].unbind(1)
            seen["obs/lidar"] = sight.lidar(x, y, s["yaw"], s["high"], things_of(s), walls_of(s), self._lidar)
        return seen

    def global_state(self, state: Leaves) -> Array:
        return self._views.state(worlds_last(state)).T

    def episode_stats(self, state: Leaves) -> dict[str, Array]:
        """How the episodes went so far, each `[E]` (`stages.py`)."""
        return stage_numbers(worlds_last(state), self.preparation, self.size)

    def render(self, state: Leaves, index: int, pixels: int = 480) -> Picture:
        """World `index` of many from above, `[pixels, pixels, 3]` uint8: hiders blue, seekers red, with what they look at,
        boxes, ramps with their low side light; what is locked has a rim in the colour of the team, who is above a light one."""
        world = {key: torch.as_tensor(x)[index].cpu().numpy() for key, x in state.items()}
        return draw(world, self.size, pixels)


def worlds_last(state: Leaves) -> Leaves:
    """Leaves `[E, ...]` as `[..., E]`."""
    return {key: x.movedim(0, -1) for key, x in state.items()}


def things_of(s: Leaves) -> Rects:
    """Boxes and ramps. `[N, E]`"""
    (x, y), (hx, hy), turn = s["place"].unbind(1), s["half"].unbind(1), s["turn"]
    return Rects(x, y, turn.cos(), turn.sin(), hx, hy)


def walls_of(s: Leaves) -> Rects:
    """Walls. `[W, E]`"""
    x, y, hx, hy = s["walls"].unbind(1)
    return Rects(x, y, torch.ones_like(x), torch.zeros_like(x), hx, hy)


def _mirrored(points: Tensor, mirrors: Tensor) -> Tensor:
    """Points `[E, K, 2]` mirrored left to right, up to down, and at the diagonal, where `mirrors` `[E, 3]` says so."""
    sign = 1.0 - 2.0 * mirrors[:, None, :2].to(points.dtype)
    points = points * sign
    return torch.where(mirrors[:, 2, None, None], points.flip(-1), points)


def _mirrored_angle(turn: Tensor, mirrors: Tensor) -> Tensor:
    """The same of directions."""
    turn = torch.where(mirrors[:, :1], torch.pi - turn, turn)
    turn = torch.where(mirrors[:, 1:2], -turn, turn)
    return torch.where(mirrors[:, 2:], torch.pi / 2 - turn, turn)
