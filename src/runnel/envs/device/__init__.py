"""Environments whose state is arrays: all copies step at once, in numpy on the CPU or as tensors on a device.

`base.py` defines such an environment, and each of ours has a file. `vector.py` puts one behind the vector contract, and
`sampler.py` plays whole segments of it.
"""

from runnel.envs.device.acrobot import Acrobot
from runnel.envs.device.base import ArrayEnv, TensorEnv
from runnel.envs.device.cartpole import CartPole
from runnel.envs.device.grid import FourRooms
from runnel.envs.device.hazard import GoalBeyondHazard
from runnel.envs.device.ladder import Ladder
from runnel.envs.device.mountain_car import MountainCar, MountainCarContinuous
from runnel.envs.device.pendulum import Pendulum
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

__all__ = [
    "TENSOR_ENVS",
    "Acrobot",
    "ArrayEnv",
    "CartPole",
    "FourRooms",
    "GoalBeyondHazard",
    "Ladder",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "TensorEnv",
    "TensorVector",
]
