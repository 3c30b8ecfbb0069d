"""Atari by name (`atari:Breakout`), with the preprocessing of Machado et al. (2018) and Mnih et al. (2015).

ale-py's own compiled vector does it: random no-ops and FIRE first, every action repeated for 4 frames, the maximum of the last
two, 84 x 84 grey, a stack of 4. docs/guides/environments.md lists all steps, beside those of other libraries.

ale-py's `episodic_life` starts a new game at every lost life, so nothing after the first life would ever be played. Here a lost
life ends the episode and the game goes on (`life_loss_info`), as in the papers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.spaces import Channels
from runnel.core.state import Settings, State
from runnel.envs.fire import FiringVector
from runnel.envs.spaces import Info, Obs
from runnel.envs.vector.batch import Rows
from runnel.envs.vector.cpu_base import episode_seed
from runnel.envs.vector.gym_vector import Convert, Flags, GymVector, Masked

if TYPE_CHECKING:
    import gymnasium as gym

PREFIX = "atari:"
STANDARD = {"episodic_life": True, "reward_clip": True, "frame_stack": 4}
"""Defaults for training. Evaluation plays whole games and counts the score."""
STEPS_A_SEED = 4096


def rom_name(target: str) -> str:
    """The name of `atari:SpaceInvaders` in ale-py.

    >>> rom_name("atari:SpaceInvaders"), rom_name("atari:breakout")
    ('space_invaders', 'breakout')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.removeprefix(PREFIX)).lower()


def make_arcade(target: str, num_envs: int, *, threads: int = 0, kwargs: Settings | None = None) -> gym.vector.VectorEnv:
    """ale-py's vector of `num_envs` games. `kwargs`: `episodic_life`, `reward_clip`, `frame_stack`, and ale-py's own names."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, 'Atari is not installed; pip install "runnel[atari]"') from error
    options = {**STANDARD, **(kwargs or {})}
    try:
        vec = AtariVectorEnv(
            rom_name(target),
            num_envs,
            num_threads=threads,
            life_loss_info=options.pop("episodic_life"),
            reward_clipping=options.pop("reward_clip"),
            stack_num=options.pop("frame_stack"),
            **options,
        )
    except (AssertionError, TypeError) as error:
        raise ConfigError("env", target, f"{error}; games are named like atari:Breakout and atari:SpaceInvaders") from error
    return _firing(vec) if options.get("use_fire_reset", True) else vec


def _firing(vec: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """`vec` with FIRE as the first action of every life, if the game has that action."""
    from ale_py import Action

    actions = list(vec.ale.get_action_set())
    if Action.FIRE not in actions:
        return vec
    return FiringVector(vec, np.array([0.0, 0.0, 1.0], np.float32) if vec.continuous else actions.index(Action.FIRE))


class ArcadeResets(Masked):
    """Resets of ale-py's vector. A game that goes on after a lost life needs no reset.

    A reset with a seed loads the game's ROM again, which takes 0.15 s, twenty times the rest of it. A reset without a seed
    goes on with the present generator. So a row gets a seed only once in `STEPS_A_SEED` steps, and a resume replays from there.
    """

    def __init__(self, vec: gym.vector.VectorEnv, name: str, index0: int) -> None:
        super().__init__(vec, name, index0)
        self._unseeded = np.zeros(0, np.int64)
        """Rows to which the next reset gives no seed."""

    def _reset(self, rows: Rows) -> tuple[Obs, Info]:
        due = (self._episode[rows] < 0) | (self._clock - self._start[rows] >= STEPS_A_SEED)
        self._episode[rows] += 1
        self._start[rows[due]] = self._clock
        for row in rows[due].tolist():
            self._used[row] = episode_seed(self._seed, self._index0 + row, int(self._episode[row]))
        self._unseeded = rows[~due]
        return self._reset_to(rows, self._used[rows].tolist())

    def _reset_to(self, rows: Rows, seeds: list[int]) -> tuple[Obs, Info]:
        mask = np.isin(np.arange(self.vec.num_envs), rows)
        options = None if mask.all() else {"reset_mask": mask}
        # -1 is ale-py's word for no seed
        obs, info = self.vec.reset(seed=np.where(np.isin(rows, self._unseeded), -1, seeds), options=options)
        self._unseeded = rows[:0]
        return obs, info

    def save(self) -> State | None:
        return {**(super().save() or {}), "fires": isinstance(self.vec, FiringVector)}

    def load(self, state: State, convert: Convert) -> Obs | None:
        """Replay. A checkpoint from before FIRE was played after a lost life is replayed without it."""
        if not isinstance(self.vec, FiringVector):
            return super().load(state, convert)
        self.vec.presses = bool(state.get("fires", False))
        try:
            return super().load(state, convert)
        finally:
            self.vec.presses = True

    def _check_over(self, over: Rows, clock: int) -> None:
        """An early end is no error here: the caller compares the frame at the end of the replay."""
        self._unseeded = over

    def _over(self, rows: Rows, truncated: Flags, info: Info) -> Rows:
        over: Rows = rows[(info["lives"][rows] == 0) | truncated[rows]]
        return over


def arcade_vector(
    target: str,
    num_envs: int,
    *,
    seed: int,
    index0: int = 0,
    threads: int = 0,
    kwargs: Settings | None = None,
    channels: Channels | None = None,
) -> GymVector:
    """`num_envs` Atari games, stepped by `threads` threads of ale-py (0: one for each core)."""
    resets = ArcadeResets(make_arcade(target, num_envs, threads=threads, kwargs=kwargs), target, index0)
    stack = {**STANDARD, **(kwargs or {})}["frame_stack"]
    return GymVector(resets, seed=seed, index0=index0, name=target, has_mask=False, stack=int(stack), channels=channels)
