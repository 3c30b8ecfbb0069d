"""A real environment whose agents die early, each at its own step: knights, archers and zombies of PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_team_vectors import seen

from runnel.core.routes import sides_of, team_routes
from runnel.envs.registry import make_team_env
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.processes import ProcessTeam
from runnel.envs.team.serial import SerialTeam
from runnel.envs.vector.cpu_base import episode_seed

SETTINGS = {"max_cycles": 120, "spawn_delay": 2, "max_zombies": 30, "line_death": True}
TEAMS = ("archer_.*=archer", "knight_.*=knight")


def make() -> Any:
    """Players who walk off the field die, and so do those whom a zombie reaches."""
    return make_team_env("pettingzoo:butterfly.knights_archers_zombies_v11", kwargs=SETTINGS)


@pytest.fixture(scope="module")
def alone() -> SerialTeam:
    """Two environments, numbers 1 and 2 of seed 0, at their first step."""
    vector = SerialTeam(make, 2, sides=sides_of(team_routes(TEAMS), ParallelEnv(make(), "kaz").spec()), seed=0, index0=1)
    vector.reset()
    return vector


def actions(t: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(t)
    return {policy: torch.from_numpy(rng.integers(0, 6, 4)) for policy in ("archer", "knight")}


def test_rows_through_deaths_and_new_episodes_are_those_of_the_environment_and_the_same_in_processes(alone: SerialTeam) -> None:
    """The truth is the environment itself, stepped by hand under the same seeds: 260 steps are two whole episodes and more.
    Half way, two processes go on from a checkpoint in which some are dead."""
    hands, number = [make(), make()], [0, 0]
    shown = [env.reset(seed=episode_seed(0, 1 + i, 0))[0] for i, env in enumerate(hands)]
    apart: ProcessTeam | None = None
    deaths, both = set[tuple[int, int, str]](), False
    try:
        for t in range(260):
            chosen = actions(t)
            for i, env in enumerate(hands):
                for policy, out in alone.outs.items():
                    assert out.active is not None
                    for k, agent in enumerate(alone.sides[policy].agents):
                        assert bool(out.active[2 * i + k]) == (agent in env.agents)
                        wanted = shown[i][agent] if agent in env.agents else 0.0 * out.obs["obs"][0].numpy()
                        assert np.array_equal(out.obs["obs"][2 * i + k].numpy(), np.float32(wanted))
            alone.send(chosen)
            if apart is not None:
                apart.send(chosen)
                apart.recv()
                assert seen(apart) == seen(alone)  # type: ignore[arg-type]
            for i, env in enumerate(hands):
                by_agent = {a: int(chosen[p][2 * i + k]) for p, side in alone.sides.items() for k, a in enumerate(side.agents)}
                told = env.step({agent: by_agent[agent] for agent in env.agents})
                for policy, side in alone.sides.items():
                    out = alone.outs[policy]
                    assert out.final_rows is not None
                    for k, agent in enumerate(side.agents):
                        row = 2 * i + k
                        assert out.reward[row].item() == np.float32(told[1].get(agent, 0.0))
                        ends = bool(told[2].get(agent, False)), bool(told[3].get(agent, False))
                        assert (out.terminated[row].item(), out.truncated[row].item()) == ends
                        assert (row in out.final_rows) == any(ends)
                        if any(ends):
                            last = out.final_obs["obs"][out.final_rows.index(row)].numpy()
                            assert np.array_equal(last, np.float32(told[0][agent]))
                            deaths |= {(i, t, agent)} if env.agents else set()
                shown[i] = told[0]
                if not env.agents:
                    number[i] += 1
                    shown[i] = env.reset(seed=episode_seed(0, 1 + i, number[i]))[0]
            active = torch.cat([out.active for out in alone.outs.values() if out.active is not None])
            if apart is None and t >= 60 and not active.all():
                both = True
                apart = ProcessTeam(make, 2, sides=alone.sides, seed=7, index0=1, num_workers=2)
                apart.restore(alone.snapshot())
    finally:
        if apart is not None:
            apart.close()
    assert len(deaths) >= 4, "some died while others lived on"
    assert both
    assert all(n >= 2 for n in number), "and all came back with the next episode"
