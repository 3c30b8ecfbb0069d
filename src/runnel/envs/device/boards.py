"""Games of two players who put stones on a board in turn, on tensors: tic-tac-toe and Connect Four."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.team import TeamWorld
from runnel.envs.spaces import MASK


class Board(TeamWorld, ArrayEnv):
    """`player_0` and `player_1` put a stone in turn; `player_0` begins. Who has `length` stones in a line wins.

    The winner gets 1 and the other one -1; a full board without a line is a draw of 0. Who plays a move that the mask forbids
    loses. Observation: where own stones are, then where the other's are, row after row, each 0 or 1. Whose turn it is
    not, waits.

    With `falls` a move is a column, and the stone falls to its lowest free cell (row 0 is the lowest); else it is a cell.
    """

    max_steps = 0

    def __init__(self, height: int, width: int, *, length: int, falls: bool) -> None:
        cells, self._falls, self._length = height * width, falls, length
        self._height, self._width = height, width
        num_moves = width if falls else cells
        action = ActionSpec("discrete", num_actions=num_moves)
        agent = EnvSpec({"obs": ArraySpec((2 * cells,))}, action, has_mask=True)
        self.spec = TeamSpec({"player_0": agent, "player_1": agent}, zero_sum=True)
        paid = [[[0.0, 0.0], [1.0, -1.0], [-1.0, 1.0]], [[0.0, 0.0], [-1.0, 1.0], [1.0, -1.0]]]
        self._constants = Constants(
            lines=lines(height, width, length),
            moves=np.arange(num_moves),
            rows=np.arange(height)[:, None],
            turns=np.eye(2, dtype=bool),
            swapped=np.array([1, 0]),
            # by whose turn it was, and whether that move did nothing, won, or was forbidden
            paid=np.array(paid, np.float32),
        )

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        stones = torch.zeros(num, 2, self._height * self._width, device=generator.device)
        return Batch(stones=stones, turn=torch.zeros(num, dtype=torch.int64, device=generator.device))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        turn, stones = state["turn"], state["stones"]
        constants, xp = self._constants.beside(turn), module_of(turn)
        move = xp.where(turn == 1, actions[0][:, 1], actions[0][:, 0])
        put = self._put(stones[:, 0] + stones[:, 1], constants["moves"] == move[:, None], constants["rows"])
        stones = stones + (put[:, None] & constants["turns"][turn][:, :, None])
        mine = xp.where((turn == 1)[:, None], stones[:, 1], stones[:, 0])
        forbidden = ~put.any(1)
        won = ((mine @ constants["lines"]) == self._length).any(1) & ~forbidden
        full = (stones[:, 0] + stones[:, 1]).all(1)
        over = xp.broadcast_to((won | forbidden | full)[:, None], (len(won), 2))
        return {"stones": stones, "turn": 1 - turn}, constants["paid"][turn, won + 2 * forbidden], over

    def _put(self, taken: Array, chosen: Array, rows: Array) -> Array:
        """Where the stone of a chosen move `[B, moves]` comes to lie; nowhere if the move is forbidden. `[B, cells]`"""
        if not self._falls:
            return chosen & (taken == 0)
        heights = taken.reshape(-1, self._height, self._width).sum(1)
        return ((rows == heights[:, None]) & chosen[:, None]).reshape(len(taken), -1)

    def active(self, state: Leaves) -> Array:
        return self._constants.beside(state["turn"])["turns"][state["turn"]]

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        stones, xp = state["stones"], module_of(state["stones"])
        swapped = stones[:, self._constants.beside(stones)["swapped"]]
        taken = stones[:, 0] + stones[:, 1]
        free = taken[:, -self._width :] == 0 if self._falls else taken == 0
        mask = xp.broadcast_to(free[:, None], (len(free), 2, free.shape[1]))
        return [{"obs": xp.concatenate((stones, swapped), 2), MASK: mask}]


class TicTacToe(Board):
    """Tic-tac-toe, as `tic_tac_toe` of OpenSpiel: three in a line on 3 x 3 cells. At best play it is a draw."""

    name = "tensor:TicTacToe"

    def __init__(self) -> None:
        super().__init__(3, 3, length=3, falls=False)


class ConnectFour(Board):
    """Connect Four, as `connect_four` of OpenSpiel: four in a line on 6 rows of 7 columns, in which stones fall down."""

    name = "tensor:ConnectFour"

    def __init__(self) -> None:
        super().__init__(6, 7, length=4, falls=True)


def lines(height: int, width: int, length: int) -> Array:
    """The cells of every line of `length` on a board, level, upright and slanted. `[cells, lines]`

    >>> lines(3, 3, 3).shape[1], lines(6, 7, 4).shape[1]
    (8, 69)
    """
    found = []
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + i * down, column + i * right) for i in range(length)]
                if all(0 <= r < height and 0 <= c < width for r, c in cells):
                    line = np.zeros(height * width, np.float32)
                    line[[r * width + c for r, c in cells]] = 1.0
                    found.append(line)
    return np.stack(found, axis=1)
