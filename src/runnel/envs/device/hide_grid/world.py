"""Hide-and-seek on a grid, on tensors: blocks that are pushed and locked, doors to close, a ladder to climb."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.detectors import detectors
from runnel.envs.device.hide_grid.moves import NUM_ACTIONS, STAY, GridBoard, Moves
from runnel.envs.device.hide_grid.picture import picture
from runnel.envs.device.hide_grid.plan import CELLS, NOWHERE, SEEKERS, WIDTH, GridSizes, draw
from runnel.envs.device.hide_grid.sight import GridSight
from runnel.envs.device.hide_grid.view import GridView
from runnel.envs.device.team import TeamWorld

_COLUMNS = {"agents": "cells", "facing": "facing", "up": "up", "holds": "holds"}
"""Leaves of a state that moves take agent by agent, with their names there."""
_MEASURES = 4
"""Numbers of blocks and ladder that are taken at the end of preparation and again at the end of the episode."""
CLOSED = "closed_prep"
"""The share of episodes in which at the end of preparation a locked block stands in every door."""


class HideAndSeekGrid(TeamWorld, ArrayEnv):
    """Hide-and-seek (Baker et al. 2020, arXiv:1909.07528) on 12 x 12 cells, small enough for a CPU.

    `hiders` begin with `blocks` blocks in a room of 3 to 5 cells a side in one of the corners; `seekers` and a ladder are
    outside. The room has a door, or with probability `two_doors` two. In the first `preparation` of the `steps` seekers do not
    decide, and nobody is paid. Then at each step, if no seeker sees a hider, each hider is paid 1 and each seeker -1; else the
    other way round.

    One acts after the other, hiders first. Actions: nothing; steps up, down, left, right; hold (or let go); lock (or unlock).

    - Who steps against a block pushes it, where the cell behind it is free, also out of other hands. After preparation it also
      shoves who stands behind it, where the next cell is free: only a lock keeps a block in its place.
    - Who holds the block or the ladder in front takes it along: pushes, pulls, or slides it aside. One thing has one holder.
    - Who holds something can lock it. What is locked cannot be moved; only the team that locked it unlocks it.
    - Who stands on the ladder can step onto a wall or a block, and from there onto others; who steps off is down again.
      Nothing is moved or taken up that somebody stands on.
    - One sees within 67.5 degrees to both sides of where one looks, where no wall and no block is between. Who is up sees over
      them, and is seen.

    What an agent sees is written in `view.py`. The global state has everything, where policies see only what is in sight.
    """

    name = "tensor:HideAndSeekGrid"
    all_stay = True

    def __init__(
        self,
        hiders: int = 2,
        seekers: int = 2,
        blocks: int = 2,
        steps: int = 60,
        preparation: float = 0.4,
        two_doors: float = 0.25,
    ) -> None:
        self.sizes = GridSizes(hiders, seekers, blocks, steps, preparation, two_doors)
        self.max_steps = steps
        self._moves, self._sight, self._view = Moves(self.sizes), GridSight(self.sizes), GridView(self.sizes)
        agent = EnvSpec({"obs": ArraySpec((self._view.width,))}, ActionSpec("discrete", num_actions=NUM_ACTIONS))
        names = [f"hider_{i}" for i in range(hiders)] + [f"seeker_{i}" for i in range(seekers)]
        # paid by teams: nothing is left over only where both are of one size
        self.spec = TeamSpec(dict.fromkeys(names, agent), zero_sum=hiders == seekers)
        self.state_spec = ArraySpec((self._view.state_width,))
        seek = np.array(self.sizes.teams) == SEEKERS
        self._constants = Constants(
            seek=seek,
            paid=np.where(seek, -1.0, 1.0).astype(np.float32),
            # by 2 for preparation, and 1 for a hider who is seen
            hiding=np.array([1.0, -1.0, 0.0, 0.0], np.float32),
            never=np.zeros((1, self.sizes.agents), bool),
            places=np.stack(np.divmod(np.arange(CELLS), WIDTH)).astype(np.float32),
        )

    # ------------------------------------------------------------------------------------------------------------ the game
    def initial(self, num: int, generator: torch.Generator) -> Batch:
        state = draw(self.sizes, num, generator)
        zeros = torch.zeros(num, device=generator.device)
        state |= {"seen": zeros.bool(), "earned": zeros, "ups": zeros, "prepared": zeros[:, None].repeat(1, _MEASURES + 1)}
        state["sees"] = self._sees(state)
        return state

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        time, constants, xp = state["time"], self._constants.beside(state["time"]), module_of(state["time"])
        prep = time < self.sizes.prep_steps
        # seekers do not decide in preparation (`active`), so no action of theirs is ever logged there; nor does one count
        action = xp.where(constants["seek"] & prep[:, None], STAY, actions[0])
        board = GridBoard(
            ground=state["ground"].T,
            things=state["things"].T,
            locks=state["locks"].T,
            calm=prep,
            **{of: list(state[key].T) for key, of in _COLUMNS.items()},
        )
        self._moves.play(board, action.T)
        moved = {key: xp.stack(getattr(board, of)).T for key, of in _COLUMNS.items()}
        after = {**state, **moved, "things": board.things.T, "locks": board.locks.T, "time": time + 1}
        after["sees"] = self._sees(after)
        seen = self._is_seen(after)
        paid = constants["hiding"][prep * 2 + seen]
        reward = paid[:, None] * constants["paid"]
        after |= self._counted(state, after, paid, prep, seen)
        return after, reward, xp.broadcast_to(constants["never"], reward.shape)

    def _sees(self, state: Leaves) -> Array:
        """Whom and what each agent sees. `[E, A + N, A]`"""
        found = self._sight.of(*(state[key].T for key in ("words", "agents", "facing", "up", "things")))
        return found.swapaxes(0, 2)

    def _is_seen(self, state: Leaves) -> Array:
        """Where a seeker sees a hider. `[E]`"""
        hiders = self.sizes.hiders
        return state["sees"].swapaxes(0, 2)[hiders:, :hiders].any(0).any(0)

    def active(self, state: Leaves) -> Array:
        return ~self._constants.beside(state["time"])["seek"] | (state["time"] >= self.sizes.prep_steps)[:, None]

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": self._view.of(state)}]

    def global_state(self, state: Leaves) -> Array:
        return self._view.everything(state)

    def picture(self, state: Leaves, world: int = 0) -> str:
        """A world from above, in letters (`picture.py`)."""
        return picture(self.sizes, state, world)

    # ---------------------------------------------------------------------------------------------------------- statistics
    def _counted(self, state: Leaves, after: Leaves, paid: Array, prep: Array, seen: Array) -> Leaves:
        """What is counted over an episode: the hiders' return, whether they were seen, the seekers' steps high up; and at the
        end of preparation, what was moved and locked by then."""
        xp, hiders = module_of(paid), self.sizes.hiders
        done = after["time"] == self.sizes.prep_steps
        return {
            "earned": state["earned"] + paid,
            "seen": state["seen"] | (seen & ~prep),
            "ups": state["ups"] + (after["up"].T[hiders:] & ~prep).sum(0),
            "prepared": xp.where(done, xp.stack((*self._measured(after), self._is_closed(after))), state["prepared"].T).T,
            "came_from": xp.where(done, after["things"].T, state["came_from"].T).T,
        }

    def _measured(self, state: Leaves) -> Array:
        """How far the block that moved furthest is from where it was at the beginning of the phase, how many blocks are locked;
        and the same of the ladder. `[_MEASURES, E]`"""
        xp, blocks = module_of(state["time"]), self.sizes.blocks
        places = self._constants.beside(state["time"])["places"]
        here, there = places[:, state["things"].T], places[:, state["came_from"].T]
        moved = xp.sqrt(((here - there) ** 2).sum(0))
        locked = state["locks"].T > 0
        return xp.stack((xp.amax(moved[:blocks], 0), locked[:blocks].sum(0), moved[blocks], locked[blocks] * 1.0))

    def _is_closed(self, state: Leaves) -> Array:
        """1 where a locked block stands in every door, else 0. `[E]`"""
        doors, blocks, xp = state["doors"].T, self.sizes.blocks, module_of(state["time"])
        shut = (doors[:, None] == state["things"].T[:blocks]) & (state["locks"].T[:blocks] > 0)
        closed = (shut.any(1) | (doors == NOWHERE)).all(0)
        return xp.where(closed, 1.0, 0.0)

    def episode_stats(self, state: Leaves) -> Leaves:
        """The detectors, and `CLOSED`, of episodes that end in `state`, `[E]` each."""
        before, now = state["prepared"].T, self._measured(state)
        steps = max(self.sizes.steps - self.sizes.prep_steps, 1) * self.sizes.seekers
        of_things = [x for k in range(_MEASURES) for x in (before[k], now[k])]
        rest = state["ups"] / steps, ~state["seen"], state["earned"], -state["earned"]
        return dict(zip((*detectors("ladder"), CLOSED), (*of_things, *rest, before[_MEASURES]), strict=True))
