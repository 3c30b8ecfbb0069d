"""Vectors of environments: one contract (`contract.py`), several ways to step (`serial.py`, `processes.py`, ...)."""

from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.contract import Episode, Fault, StepOut, VectorEnv
from runnel.envs.vector.cpu_base import episode_seed
from runnel.envs.vector.serial import SerialVector, look_at

__all__ = ["Episode", "Fault", "SerialVector", "StepOut", "VectorConfig", "VectorEnv", "episode_seed", "look_at"]
