"""Environments worth a first try. Nothing is imported here, so `runnel list` starts at once."""

from __future__ import annotations

KNOWN = {
    "CartPole-v1": "balance a pole on a cart; discrete, solved at 475",
    "Acrobot-v1": "swing a two-link arm up; discrete, sparse",
    "MountainCar-v0": "drive out of a valley; discrete, hard to explore",
    "Pendulum-v1": "swing a pendulum up and hold it; continuous",
    "MountainCarContinuous-v0": "drive out of a valley; continuous",
    "FrozenLake-v1": "cross the ice without falling in; discrete observation",
    "HalfCheetah-v5": 'run forward; continuous (pip install "runnel[mujoco]")',
    "atari:Breakout": 'Atari from pixels, 84 x 84 x 4 (pip install "runnel[atari]")',
    "MinAtar/Breakout-v1": "a small Breakout on a 10 x 10 board (pip install minatar)",
    "envpool:HalfCheetah-v4": "run forward, in C++ on threads (pip install envpool)",
    "pettingzoo:mpe2.simple_spread_v3": 'three agents share out three places; recipe ippo (pip install "runnel[teams]")',
    "pettingzoo:classic.tictactoe_v3": 'two agents in turns, with masks; recipe ippo (pip install "runnel[teams]")',
    "tensor:CartPole-v1": "CartPole as tensors on any device, thousands at once",
    "tensor:Pendulum-v1": "as tensors; so are Acrobot-v1, MountainCar-v0 and MountainCarContinuous-v0",
    "tensor:FourRooms": "a grid world as tensors: find the goal through four rooms",
    "tensor:GoalBeyondHazard": "go round a hazard, whose cost is to stay under a limit",
    "tensor:Ladder": "a ladder as tensors, which is told how high it is (docs/guides/curricula.md)",
    "tensor:Spread": "mpe2's simple_spread_v3 as tensors, thousands at once; so are Tag and Reference; recipes ippo, mappo",
    "tensor:ConnectFour": "a board game in turns, with masks; so are TicTacToe, Kuhn and Leduc (poker); recipes ippo, mappo",
    "tensor:TwoStep": "a team paid by tables; so are MatrixGame, RockPaperScissors, Climbing, Penalty; recipes ippo, mappo",
    "runnel.envs.toy:Recall": "remember a cue; needs a recurrent network",
    "runnel.envs.toy:TruncationTrap": "constant reward, truncated only: tests bootstrapping",
    "runnel.envs.toy:MaskedBandit": "one decision with action masks",
    "runnel.envs.toy:PointMass": "push a point to the origin; continuous, learned in seconds",
}
