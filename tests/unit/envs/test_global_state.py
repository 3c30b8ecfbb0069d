"""What the critics of a team read: the state of an environment or the joined observations, in rows, ends and resumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from team_envs import Leaver, Turns

from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.core.routes import Side, sides_of, team_routes
from runnel.core.trajectories import AGENT, CLOCK
from runnel.envs.segments import SegmentRequests
from runnel.envs.team.global_state import SEEN, STATE, with_global_state
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.processes import ProcessTeam
from runnel.envs.team.serial import SerialTeam

ROUTES = ("early_.*=early", "late_.*=late")


class Known(Turns):
    """Its state is the number of moves and twice that."""

    state_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def state(self) -> Any:
        return np.array([self._t, 2 * self._t], np.float32)


def sides(make: Any, teams: tuple[str, ...] = (), *, clock: bool = False) -> dict[str, Side]:
    probe = ParallelEnv(make(), "probe")
    found = sides_of(team_routes(teams), probe.spec())
    return {policy: with_global_state(side, probe, clock=clock) for policy, side in found.items()}


def team(make: Any = Leaver, teams: tuple[str, ...] = ROUTES, num_envs: int = 2, *, clock: bool = False) -> SerialTeam:
    return SerialTeam(make, num_envs, sides=sides(make, teams, clock=clock), seed=1, name="toy")


def play(vector: Any, num_steps: int) -> None:
    for _ in range(num_steps):
        vector.send({name: torch.zeros(len(out.reward), dtype=torch.int64) for name, out in vector.outs.items()})
        vector.recv()


def test_observations_are_joined_and_who_has_left_is_zeros() -> None:
    vector = team(num_envs=1)
    vector.reset()
    early, late = vector.outs["early"].obs, vector.outs["late"].obs
    assert early[SEEN].shape == (1, 3 + 4 + 2)
    joined = [*early["obs"][0].tolist(), *late["obs"][0].tolist(), 1.0, 1.0]
    assert early[SEEN][0].tolist() == late[SEEN][0].tolist() == joined
    play(vector, 2)  # the first agent leaves: its end is beside what the other sees, and then it is zeros
    final = vector.outs["early"].final_obs
    assert vector.outs["early"].final_rows == [0]
    assert final[SEEN][0].tolist() == [*final["obs"][0].tolist(), *late["obs"][0].tolist(), 1.0, 1.0]
    assert late[SEEN][0].tolist() == [0.0, 0.0, 0.0, *late["obs"][0].tolist(), 0.0, 1.0]
    assert not early[SEEN].any()
    assert not early[AGENT].any()
    play(vector, 3)  # the other one is cut: the one before stays gone, and a new episode begins
    last = vector.outs["late"].final_obs
    assert last[SEEN][0].tolist() == [0.0, 0.0, 0.0, *last["obs"][0].tolist(), 0.0, 1.0]
    assert early[SEEN][0, -2:].tolist() == [1.0, 1.0]


def test_the_state_of_an_environment_comes_first_and_rows_say_which_agent_they_are() -> None:
    vector = team(Known, ())
    vector.reset()
    out = vector.outs["shared"]
    play(vector, 3)
    assert set(out.obs) == {"obs", STATE, AGENT}
    assert out.obs[STATE].tolist() == [[0.0, 0.0], [3.0, 6.0]] * 2, "the one that waits has zeros"
    assert out.obs[AGENT].tolist() == [[0.0, 0.0], [0.0, 1.0]] * 2
    play(vector, 1)
    assert out.final_rows == [0, 1, 2, 3]
    assert out.final_obs[STATE].tolist() == [[4.0, 8.0]] * 4
    assert out.final_obs[AGENT].tolist() == [[1.0, 0.0], [0.0, 1.0]] * 2
    assert out.obs[STATE].tolist() == [[0.0, 0.0]] * 4, "of the next episode"


def test_the_clock_counts_the_steps_of_an_episode() -> None:
    vector = team(num_envs=1, clock=True)
    vector.reset()
    found = []
    for _ in range(7):
        found.append([out.obs[CLOCK].item() if out.active.item() else None for out in vector.outs.values()])  # type: ignore[union-attr]
        play(vector, 1)
    assert found == [[0, 0], [1, 1], [None, 2], [None, 3], [None, 4], [0, 0], [1, 1]], "who has left has none"


def test_a_state_that_is_not_of_its_space_is_refused() -> None:
    class Wrong(Known):
        def state(self) -> Any:
            return np.zeros(3, np.float32)

    with pytest.raises(DataError, match=r"'shared/state' of shape \(3,\), but its space says \(2,\)"):
        team(Wrong, ()).reset()


def test_no_request_carries_it() -> None:
    out = team().outs["late"]
    requests = SegmentRequests(out, 1, make_rng(0, "noise"), {})
    requests.prepare(2)
    assert set(requests.rows[0]) == {"obs", "noise"}


def arrays(vector: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, out in vector.outs.items():
        last = {f"final_{key}": x[: len(out.final_rows)] for key, x in out.final_obs.items()}
        found |= {f"{name}/{key}": x.clone() for key, x in {**out.obs, **last}.items()}
    return found


@pytest.mark.parametrize(("make", "teams"), [(Leaver, ROUTES), (Known, ())])
def test_processes_play_the_same_and_a_resume_goes_on(make: Any, teams: tuple[str, ...]) -> None:
    vector = team(make, teams, num_envs=3, clock=True)
    apart = ProcessTeam(make, 3, sides=sides(make, teams, clock=True), seed=1, name="toy", num_workers=2)
    try:
        vector.reset()
        apart.reset()
        for step in range(12):
            play(vector, 1)
            play(apart, 1)
            found, wanted = arrays(apart), arrays(vector)
            assert all(torch.equal(found[key], x) for key, x in wanted.items()), step
            again = team(make, teams, num_envs=3, clock=True)
            again.restore(vector.snapshot())
            now = {f"{name}/{key}": x for name, out in again.outs.items() for key, x in out.obs.items()}
            assert all(torch.equal(x, wanted[key]) for key, x in now.items())
            vector = again
    finally:
        apart.close()
