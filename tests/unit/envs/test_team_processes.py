"""Environments of teams in child processes: the episodes of the serial vector, and what becomes of lost workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from team_envs import Leaver, Masked, Turns
from test_team_vectors import ROUTES, seen

from runnel.core.errors import DataError
from runnel.core.routes import sides_of, team_routes
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.processes import ProcessTeam
from runnel.envs.team.serial import SerialTeam

BOTH = ("x=x", "y=y")


@contextmanager
def vectors(make: Callable[[], Any], teams: tuple[str, ...], *, num_envs: int = 5, **more: Any) -> Iterator[tuple[Any, Any]]:
    """A serial vector and one of two processes."""
    sides = sides_of(team_routes(teams), ParallelEnv(make(), "probe").spec())
    alone = SerialTeam(make, num_envs, sides=sides, seed=1, index0=3, name="toy", restart=more.get("restart", False))
    apart = ProcessTeam(make, num_envs, sides=sides, seed=1, index0=3, name="toy", num_workers=2, **more)
    try:
        yield alone, apart
    finally:
        apart.close()


def actions(vector: TeamVector, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rng.integers(0, 2, len(out.reward))) for name, out in vector.outs.items()}


def step(vector: TeamVector, chosen: dict[str, torch.Tensor]) -> dict[str, Any]:
    vector.send(chosen)
    vector.recv()
    return seen(vector)  # type: ignore[arg-type]


def play(vector: TeamVector, rng: np.random.Generator) -> None:
    """Three steps."""
    for _ in range(3):
        step(vector, actions(vector, rng))


CASES = [(Leaver, ROUTES), (Turns, (".*=shared",)), (Turns, BOTH), (lambda: Masked(True), ROUTES)]


def chosen_for(make: Callable[[], Any], vector: TeamVector, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    found = actions(vector, rng)
    masks = {name: out.action_mask for name, out in vector.outs.items() if out.action_mask is not None}
    return found | {name: mask.long().argmax(1) for name, mask in masks.items()}


@pytest.mark.parametrize(("make", "teams"), CASES)
def test_it_plays_the_episodes_of_the_serial_vector(make: Callable[[], Any], teams: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    with vectors(make, teams) as (alone, apart):
        assert isinstance(apart, TeamVector)
        for vector in (alone, apart):
            vector.reset()
        for _ in range(14):
            chosen = chosen_for(make, alone, rng)
            assert step(alone, chosen) == step(apart, chosen)
        assert alone.episodes() == apart.episodes()


@pytest.mark.parametrize(("make", "teams"), CASES[:2])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_checkpoint_of_one_goes_on_in_the_other(make: Callable[[], Any], teams: tuple[str, ...], steps: int) -> None:
    rng = np.random.default_rng(0)
    with vectors(make, teams) as (alone, apart), vectors(make, teams) as (alone_again, apart_again):
        for vector in (alone, apart):
            vector.reset()
        for _ in range(steps):
            chosen = actions(alone, rng)
            assert step(alone, chosen) == step(apart, chosen)
        alone_again.restore(apart.snapshot())
        apart_again.restore(alone.snapshot())
        for _ in range(7):
            chosen = actions(alone, rng)
            expected = step(alone, chosen)
            assert step(alone_again, chosen) == expected
            assert step(apart_again, chosen) == expected
        assert alone.episodes() == alone_again.episodes() == apart_again.episodes()


class Dies(Turns):
    """The process of environment 4 (seeds tell which it is) ends, or hangs, at the second move of its first episode."""

    how = "dies"
    number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed
        return super().reset(seed=seed)

    def step(self, found: dict[str, Any]) -> Any:
        if self._t == 1 and self.seed in FATAL:
            if self.how == "dies":
                os._exit(7)
            if self.how == "raises":
                raise RuntimeError("it broke")
            time.sleep(60)
        return super().step(found)


class Hangs(Dies):
    how = "hangs"


class Breaks(Dies):
    how = "raises"


FATAL: set[int] = set()


@pytest.fixture
def fatal() -> Iterator[None]:
    """The seed of the first episode of environment 4 (index0 + 1) is fatal."""
    with vectors(Turns, BOTH) as (alone, _):
        alone.reset()
        FATAL.add(alone._copies[1].seed)
    yield
    FATAL.clear()


@pytest.mark.parametrize(
    ("make", "problem", "more"),
    [(Dies, "died: its process exited with code 7", {}), (Hangs, "hung: a step took more than 0.5 s", {"step_timeout_s": 0.5})],
)
def test_episodes_of_a_lost_worker_are_cut_and_it_is_made_again(
    make: Callable[[], Any], problem: str, more: dict[str, Any], fatal: None
) -> None:
    """Workers have environments 3 and 4, and 5 to 7. The first is lost: both of its environments are cut, at what each agent
    saw at its last decision, and the others go on as if nothing had been."""
    rng = np.random.default_rng(0)
    with vectors(make, BOTH, restart=True, **more) as (_, apart), vectors(Turns, BOTH) as (alone, _):
        for vector in (alone, apart):
            vector.reset()
        chosen = actions(alone, rng)
        assert step(alone, chosen) == step(apart, chosen)
        before = {name: out.obs["obs"].clone() for name, out in alone.outs.items()}
        chosen = actions(alone, rng)
        step(alone, chosen)
        step(apart, chosen)
        x, y = apart.outs["x"], apart.outs["y"]
        assert x.final_rows == y.final_rows == [0, 1]
        assert x.truncated.tolist() == y.truncated.tolist() == [True, True, False, False, False]
        assert not x.terminated.any()
        assert x.reward.tolist() == [0.0, 0.0, -0.5, -0.5, -0.5]
        assert x.final_obs["obs"][:2].tolist() == [[0.0, 0.0]] * 2
        assert torch.equal(y.final_obs["obs"][:2], before["y"][:2])
        assert x.active.tolist() == [True, True, True, True, True]
        faults = apart.faults()
        assert [(f["kind"], f["env"], f["episode"], f["step"]) for f in faults] == [
            ("env_lost", 3, 0, 2),
            ("env_failed", 4, 0, 2),
        ]
        assert faults[0]["error"].startswith(problem)
        for _ in range(4):
            chosen = actions(alone, rng)
            step(alone, chosen)
            step(apart, chosen)
        assert [e.env for e in apart.episodes()] == [5, 6, 7, 3, 4]
        assert not apart.faults()


def test_what_raises_in_a_worker_is_made_anew_there_or_ends_the_run(fatal: None) -> None:
    rng = np.random.default_rng(0)
    with vectors(Breaks, BOTH, restart=True) as (alone, apart):
        for vector in (alone, apart):
            vector.reset()
        for _ in range(9):
            chosen = actions(alone, rng)
            assert step(alone, chosen) == step(apart, chosen)
        (one,), (other,) = alone.faults(), apart.faults()
        assert {k: x for k, x in one.items() if k != "error"} == {k: x for k, x in other.items() if k != "error"}
        assert (one["kind"], one["env"]) == ("env_failed", 4)
        assert alone.episodes() == apart.episodes()
    with vectors(Breaks, BOTH) as (_, apart):
        apart.reset()
        with pytest.raises(DataError, match=r"environment 'toy' \(index 4, episode 0, step 2\) raised RuntimeError: it broke"):
            play(apart, rng)
    with vectors(Dies, BOTH) as (_, apart):
        apart.reset()
        with pytest.raises(DataError, match=r"environment 'toy' \(index 4, episode 0, step 2\) died: its process exited"):
            play(apart, rng)


def test_actions_outside_of_their_space_are_refused_before_they_are_sent() -> None:
    with vectors(Turns, BOTH) as (_, apart):
        apart.reset()
        with pytest.raises(DataError, match="policy 'x' gave actions outside of their space"):
            apart.send({"x": torch.full((5,), 2), "y": torch.zeros(5, dtype=torch.int64)})
