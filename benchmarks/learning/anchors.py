"""Players of team environments that do not learn: what a number of a trained team is held against.

A player takes the observations of its agents that decide, and gives their actions. `play` counts what an environment itself
pays, in its own unit: the mean over those agents of their returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

Obs = Mapping[str, Any]
Player = Callable[[Obs], dict[str, Any]]
LEFT, RIGHT, DOWN, UP = 1, 2, 3, 4
NUM_MOVES = 5
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


def as_boxes(player: Player) -> Player:
    """The same player where a move is a box: all of one push, and nothing of the others."""
    return lambda obs: {agent: np.eye(NUM_MOVES, dtype=np.float32)[move] for agent, move in player(obs).items()}


def tell_and_walk() -> Player:
    """simple_reference by a script: say the number of the landmark to which the other is to go, and walk to the one that the
    other has said."""

    def act(obs: Obs) -> dict[str, Any]:
        actions = {}
        for agent, seen in obs.items():
            landmarks, colour, heard = seen[2:8].reshape(3, 2), seen[8:11], seen[11:]
            move = steer(landmarks[heard.argmax()], seen[:2]) if heard.any() else 0
            actions[agent] = 5 * int(colour.argmax()) + move
        return actions

    return act


PREY, PREY_SPEED = slice(12, 14), slice(14, 16)
"""Where a hunter of simple_tag sees the prey, and how fast it is."""
HUNTERS = slice(8, 14)
"""Where its prey sees the three hunters."""


def chase() -> Player:
    """Hunters of simple_tag by a script: each pushes itself towards the prey."""
    return lambda obs: {a: steer(seen[PREY], seen[:2] - seen[PREY_SPEED]) for a, seen in obs.items()}


def flee() -> Player:
    """The prey of simple_tag by a script: of five pushes it takes the one that brings it to where hunters are far (by the sum
    of 1 / distance), and not out of the field."""
    pushes = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)

    def act(obs: Obs) -> dict[str, Any]:
        actions = {}
        for agent, seen in obs.items():
            steps = COAST * seen[:2] + 0.4 * pushes
            near = 1.0 / (np.linalg.norm(seen[HUNTERS].reshape(3, 1, 2) - steps, axis=2) + 0.05)
            outside = np.maximum(np.abs(seen[2:4] + steps) - 0.9, 0.0)
            actions[agent] = int((near.sum(0) + 10.0 * outside.sum(1)).argmin())
        return actions

    return act


NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)
WAYS = {NORTH: (-1, 0), SOUTH: (1, 0), WEST: (0, -1), EAST: (0, 1)}


def forage() -> Player:
    """Level-based foraging for two by a script: both go to the food that is nearest to both together, each to another side of
    it, and lift it when both are there."""

    def act(obs: Obs) -> dict[str, Any]:
        actions = {}
        for agent, seen in obs.items():
            things = [tuple(int(x) for x in thing[:2]) for thing in seen.reshape(-1, 3)]
            *food, me, other = things
            food = [place for place in food if place[0] >= 0]
            actions[agent] = _forager(food, me, other) if food else NONE
        return actions

    return act


def _forager(food: Sequence[tuple[int, int]], me: tuple[int, int], other: tuple[int, int]) -> int:
    """What the player at `me` does. The one at `other` thinks the same, so both find the same plan."""
    first, second = sorted((me, other))
    plans = []
    for row, column in food:
        sides = [(row + down, column + right) for down, right in WAYS.values()]
        pairs = [(a, b) for a in sides for b in sides if a != b]
        plans += [(max(_ways(first, a), _ways(second, b)), _ways(first, a) + _ways(second, b), a, b) for a, b in pairs]
    goals = dict(zip((first, second), min(plans)[2:], strict=True))
    if goals == {first: first, second: second}:
        return LOAD
    return _towards(me, goals[me], {*food, other})


def _ways(a: tuple[int, int], b: tuple[int, int]) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(me: tuple[int, int], goal: tuple[int, int], taken: set[tuple[int, int]], size: int = 8) -> int:
    """The first step of a shortest way around what is `taken`, or none where there is no way."""
    if me == goal:
        return NONE
    came: dict[tuple[int, int], int] = {me: NONE}
    edge = [me]
    while edge:
        after = []
        for row, column in edge:
            for way, (down, right) in WAYS.items():
                place = (row + down, column + right)
                if place in came or place in taken or not (min(place) >= 0 and max(place) < size):
                    continue
                came[place] = came[row, column] or way
                if place == goal:
                    return came[place]
                after.append(place)
        edge = after
    return NONE


def play(
    make: Callable[[], Any], player: Player, *, episodes: int, seed: int, who: str = "", beside: Player | None = None
) -> np.ndarray:
    """Returns of `episodes` episodes of a parallel environment: the mean over the agents whose names begin with `who`, whom
    `player` plays. `beside` plays the others. `[episodes]`"""
    env, returns = make(), np.zeros(episodes)
    mine = [agent for agent in env.possible_agents if agent.startswith(who)]
    for i in range(episodes):
        obs, _ = env.reset(seed=seed + i)
        while env.agents:
            actions = player({a: obs[a] for a in env.agents if a in mine})
            if beside is not None:
                actions |= beside({a: obs[a] for a in env.agents if a not in mine})
            obs, rewards, *_ = env.step(actions)
            returns[i] += sum(rewards[a] for a in mine) / len(mine)
    env.close()
    return returns
