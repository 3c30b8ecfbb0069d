"""Players of team environments that do not learn: what a number of a trained team is held against.

A player takes the observations of all agents that decide, and gives their actions. `play` counts what an environment itself
pays, in its own unit: the mean over agents of their returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

Obs = Mapping[str, Any]
Player = Callable[[Obs], dict[str, Any]]
LEFT, RIGHT, DOWN, UP = 1, 2, 3, 4
COAST = 0.3
"""How far a particle still drifts, in units of its speed: steps of 0.1, of which each keeps three quarters of the speed."""


def at_random(spaces: Callable[[str], Any], seed: int) -> Player:
    """Uniformly random actions."""
    for_agent: dict[str, Any] = {}

    def act(obs: Obs) -> dict[str, Any]:
        for agent in obs:
            if agent not in for_agent:
                for_agent[agent] = spaces(agent)
                for_agent[agent].seed(seed + len(for_agent))
        return {agent: for_agent[agent].sample() for agent in obs}

    return act


def steer(towards: np.ndarray, speed: np.ndarray) -> int:
    """The push that brings a particle closer to what lies at `towards`, along the axis on which it is further off."""
    off = towards - COAST * speed
    axis = int(np.abs(off).argmax())
    if abs(off[axis]) < 0.05:
        return 0
    return (RIGHT if off[0] > 0 else LEFT) if axis == 0 else (UP if off[1] > 0 else DOWN)


def share_out() -> Player:
    """simple_spread by a script: at the start each agent is given one landmark, so that the sum of ways is shortest."""
    goals: dict[str, int] = {}

    def act(obs: Obs) -> dict[str, Any]:
        agents = list(obs)
        ways = np.stack([obs[a][4 : 4 + 2 * len(agents)].reshape(-1, 2) for a in agents])
        if all(not obs[a][:2].any() for a in agents):  # everybody stands still: an episode begins
            goals.update(zip(agents, linear_sum_assignment(np.linalg.norm(ways, axis=2))[1], strict=True))
        return {a: steer(ways[i, goals[a]], obs[a][:2]) for i, a in enumerate(agents)}

    return act


def play(make: Callable[[], Any], player: Player, *, episodes: int, seed: int) -> np.ndarray:
    """Returns of `episodes` episodes of a parallel environment: the mean over its agents. `[episodes]`"""
    env, returns = make(), np.zeros(episodes)
    for i in range(episodes):
        obs, _ = env.reset(seed=seed + i)
        while env.agents:
            obs, rewards, *_ = env.step(player({a: obs[a] for a in env.agents}))
            returns[i] += sum(rewards.values()) / len(env.possible_agents)
    env.close()
    return returns
