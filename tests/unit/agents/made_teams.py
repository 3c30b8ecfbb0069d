"""Rounds of a made-up team, and the truth about them step by step: agents wait, die early, and come back with the next episode.

The game is played in plain Python, one environment after the other, and then written into the segments of its policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runnel.core.records import Batch, Header, Segment, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import ACTIVE, AGENT, CLOCK, trajectory_stream

NUM_ACTIONS = 3
GROUPS = {"one": 1, "two": 2}
"""Agents of each policy."""


def spec(num_agents: int) -> EnvSpec:
    """What rows of a policy with so many agents hold."""
    shared = {"shared/state": ArraySpec((2,)), AGENT: ArraySpec((num_agents,)), CLOCK: ArraySpec((), torch.int64)}
    return EnvSpec({"obs": ArraySpec((3,)), **shared}, ActionSpec("discrete", num_actions=NUM_ACTIONS))


@dataclass
class Moment:
    """One step of one environment."""

    state: Any
    clock: int
    seen: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What each agent sees that decides."""
    action: dict[tuple[str, int], int] = field(default_factory=dict)
    logprob: dict[tuple[str, int], float] = field(default_factory=dict)
    paid: dict[tuple[str, int], float] = field(default_factory=dict)
    flags: dict[tuple[str, int], bool] = field(default_factory=dict)
    """Of agents whose last step this is: whether they are truncated."""
    over: bool = False
    final: Any = None


def play(seed: int, *, num_steps: int = 12, num_envs: int = 3, groups: dict[str, int] = GROUPS) -> list[list[Moment]]:
    """`num_steps + 1` moments of each environment; the state says which environment and step it is of."""
    agents = [(policy, i) for policy, num in groups.items() for i in range(num)]
    return [_one(make_rng(seed, "team", e), e, num_steps, agents) for e in range(num_envs)]


def _one(rng: np.random.Generator, env: int, num_steps: int, agents: list[tuple[str, int]]) -> list[Moment]:
    found: list[Moment] = []
    clock, length = int(rng.integers(3)), int(rng.integers(3, 8))
    acted, gone = set(agents) if clock else set[tuple[str, int]](), set[tuple[str, int]]()
    for t in range(num_steps + 1):
        now = Moment(np.array([env + 0.1 * t, rng.normal()], np.float32), clock)
        here = [agent for agent in agents if agent not in gone]
        deciding = [agent for agent in here if rng.random() < 0.7] or [here[0]]
        for agent in deciding:
            now.seen[agent] = rng.normal(size=3).astype(np.float32)
            now.action[agent] = int(rng.integers(NUM_ACTIONS))
            now.logprob[agent] = float(np.log(rng.uniform(0.2, 0.5)))
        acted |= set(deciding)
        now.paid = {agent: float(rng.normal()) for agent in here}
        clock += 1
        now.over = clock >= length
        leaving = [agent for agent in here if agent in acted and rng.random() < 0.15] if not now.over else here
        if not now.over and len(leaving) == len(here):
            leaving = leaving[1:]
        now.flags = {agent: bool(rng.random() < 0.5) for agent in leaving if agent in acted}
        gone |= set(leaving)
        now.final = rng.normal(size=2).astype(np.float32)
        found.append(now)
        if now.over:
            clock, length, acted, gone = 0, int(rng.integers(3, 8)), set(), set()
    return found


def segments_of(
    played: list[list[Moment]], *, groups: dict[str, int] = GROUPS, num_segments: int = 1
) -> dict[str, list[Segment]]:
    """The round as streams hold it; the environments may be dealt out over several segments."""
    width = len(played) // num_segments
    parts = [played[i * width : (i + 1) * width] for i in range(num_segments)]
    return {policy: [_segment(part, policy, num, i) for i, part in enumerate(parts)] for policy, num in groups.items()}


def _segment(played: list[list[Moment]], policy: str, num_agents: int, writer: int) -> Segment:
    num_steps, num_envs = len(played[0]) - 1, len(played)
    stream = trajectory_stream(
        spec(num_agents), num_steps=num_steps, num_envs=num_envs * num_agents, name=policy, active=True, unit_rows=num_agents
    )
    arrays, ends = stream.allocate(), list[tuple[int, Any, int]]()
    for t in range(num_steps + 1):
        for e, moments in enumerate(played):
            for i in range(num_agents):
                _write(arrays, moments[t], (policy, i), t, e * num_agents + i, num_steps)
                if t < num_steps and (policy, i) in moments[t].flags:
                    ends.append((t * num_envs * num_agents + e * num_agents + i, moments[t].final, i))
    for place, (index, state, i) in enumerate(ends):
        arrays["final_index"][place] = index
        arrays["final_shared/state"][place] = torch.from_numpy(state)
        arrays[f"final_{AGENT}"][place, i] = 1.0
        arrays["final_obs"][place] = 0.5
    used = {"F": len(ends)}
    return Segment(0, stream, Header(used=used, writer=writer), trim(stream, arrays, used))


def _write(arrays: Batch, now: Moment, agent: tuple[str, int], t: int, row: int, num_steps: int) -> None:
    if agent in now.seen:
        arrays[ACTIVE][t, row] = True
        arrays["obs"][t, row] = torch.from_numpy(now.seen[agent])
        arrays["shared/state"][t, row] = torch.from_numpy(now.state)
        arrays[AGENT][t, row, agent[1]] = 1.0
        arrays[CLOCK][t, row] = now.clock
    if t < num_steps:
        arrays["action"][t, row] = now.action.get(agent, 0)
        arrays["logprob"][t, row] = now.logprob.get(agent, -1.0)
        arrays["rewards/env"][t, row] = now.paid.get(agent, 0.0)
        if agent in now.flags:
            arrays["truncated" if now.flags[agent] else "terminated"][t, row] = True


def credit_loop(
    played: list[list[Moment]], value: Any, *, gamma: float, lam: float, num_agents: int
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages of the team, and where they count, in plain Python. `[T, E]` twice. `value` is V of one state."""
    num_steps = len(played[0]) - 1
    advantages, counts = np.zeros((num_steps, len(played))), np.zeros((num_steps, len(played)), bool)
    for e, moments in enumerate(played):
        ahead: float | None = None
        for t in reversed(range(num_steps)):
            now = moments[t]
            # everybody decides at some step of each moment here, so a step of the team is a step of the environment
            if now.over:
                following, ahead = (value(now.final) if any(now.flags.values()) else 0.0), 0.0
            else:
                following = value(moments[t + 1].state)
            delta = sum(now.paid.values()) / num_agents + gamma * following - value(now.state)
            advantages[t, e] = ahead = delta + gamma * lam * (ahead or 0.0)
            counts[t, e] = True
    return advantages, counts
