"""Environments whose state is arrays: all copies step at once, in numpy on the CPU or as tensors on a device.

`base.py` defines such an environment, and each of ours has a file. `vector.py` puts one behind the vector contract, and
`sampler.py` plays whole segments of it. `team.py` defines worlds of several agents, `team_vector.py` puts one behind the
contract of vectors of teams, and `team_view.py` shows one world in Python.
"""

from runnel.envs.device.acrobot import Acrobot
from runnel.envs.device.base import ArrayEnv, TensorEnv
from runnel.envs.device.battle.world import Battle
from runnel.envs.device.boards import ConnectFour, TicTacToe
from runnel.envs.device.cartpole import CartPole
from runnel.envs.device.grid import FourRooms
from runnel.envs.device.hazard import GoalBeyondHazard
from runnel.envs.device.hide_grid.world import HideAndSeekGrid
from runnel.envs.device.hide_and_seek import HideAndSeek
from runnel.envs.device.kitchen.world import Kitchen
from runnel.envs.device.ladder import Ladder
from runnel.envs.device.matrix import Climbing, MatrixGame, Penalty, RockPaperScissors, TwoStep
from runnel.envs.device.meeting import Meeting
from runnel.envs.device.mountain_car import MountainCar, MountainCarContinuous
from runnel.envs.device.pendulum import Pendulum
from runnel.envs.device.poker import Kuhn, Leduc
from runnel.envs.device.reference import Reference
from runnel.envs.device.spread import Spread
from runnel.envs.device.tag import Tag
from runnel.envs.device.team import TeamWorld, TensorTeamEnv
from runnel.envs.device.team_vector import TensorTeam
from runnel.envs.device.team_view import TeamView
from runnel.envs.device.vector import TensorVector

TENSOR_ENVS: dict[str, type[TensorEnv]] = {
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
    "FourRooms": FourRooms,
    "GoalBeyondHazard": GoalBeyondHazard,
    "Ladder": Ladder,
}

TENSOR_TEAMS: dict[str, type[TensorTeamEnv]] = {
    "Spread": Spread,
    "Tag": Tag,
    "Reference": Reference,
    "Kuhn": Kuhn,
    "Leduc": Leduc,
    "TicTacToe": TicTacToe,
    "ConnectFour": ConnectFour,
    "MatrixGame": MatrixGame,
    "RockPaperScissors": RockPaperScissors,
    "Climbing": Climbing,
    "Penalty": Penalty,
    "TwoStep": TwoStep,
    "Meeting": Meeting,
    "HideAndSeek": HideAndSeek,
    "HideAndSeekGrid": HideAndSeekGrid,
    "Kitchen": Kitchen,
    "Battle": Battle,
}

__all__ = [
    "TENSOR_ENVS",
    "TENSOR_TEAMS",
    "Acrobot",
    "ArrayEnv",
    "Battle",
    "CartPole",
    "Climbing",
    "ConnectFour",
    "FourRooms",
    "GoalBeyondHazard",
    "HideAndSeek",
    "HideAndSeekGrid",
    "Kitchen",
    "Kuhn",
    "Ladder",
    "Leduc",
    "MatrixGame",
    "Meeting",
    "MountainCar",
    "MountainCarContinuous",
    "Penalty",
    "Pendulum",
    "Reference",
    "RockPaperScissors",
    "Spread",
    "Tag",
    "TeamView",
    "TeamWorld",
    "TensorEnv",
    "TensorTeam",
    "TensorTeamEnv",
    "TensorVector",
    "TicTacToe",
    "TwoStep",
]
