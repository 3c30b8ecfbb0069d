"""Vectors of tensor worlds of several agents: the same as serial ones, row by row; and a resume in the middle of episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensor_worlds import Chase, InTensors, fixed, legal_actions, shown, sides

import runnel as rl
from runnel.core.checks import check_tensor_team
from runnel.core.errors import ConfigError, DataError
from runnel.envs.device import (
    TENSOR_TEAMS,
    Kuhn,
    Leduc,
    MatrixGame,
    Reference,
    Spread,
    Tag,
    TeamView,
    TensorTeam,
    TicTacToe,
    TwoStep,
)
from runnel.envs.registry import SeveralAgentsError, make_env, make_team_env, make_tensor_team, probe_env
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam

KINDS = ("cat_.*=cats", "mouse_.*=mice")
ALONE = ("mouse_0=first", "cat_.*=cats", "mouse_1=second")
ONE = (".*=shared",)
HUNT = ("adversary_.*=hunters", "agent_.*=prey")


@pytest.mark.parametrize(
    ("make", "teams", "in_tensors"),
    [
        *(
            (make, teams, in_tensors)
            for in_tensors in (False, True)
            for make, teams in (
                (Chase, KINDS),
                (Chase, ALONE),
                (partial(Chase, known=True), KINDS),
                (Leduc, ("player_0=first", "player_1=second")),
                (TicTacToe, ONE),
                (TwoStep, ONE),
                (partial(MatrixGame, rounds=2), ONE),
            )
        ),
        # numpy and torch round these differently, on some processors
        (partial(Spread, N=2, max_cycles=3), ONE, False),
        (partial(Tag, max_cycles=3), HUNT, False),
        (partial(Reference, max_cycles=4), ONE, False),
    ],
)
def test_plays_row_by_row_what_one_world_after_the_other_plays(
    make: Callable[[], Any], teams: tuple[str, ...], in_tensors: bool
) -> None:
    """The second vector is `SerialTeam`, tested for itself, over views; with it the global state, joined or the world's own."""
    make, num = fixed(make, seed=3), 5
    for shared in (False, True):
        mine = sides(make, teams, shared=shared)
        env = InTensors(make()) if in_tensors else make()
        vector, twin = (
            TensorTeam(env, num, sides=mine, seed=1, index0=7),
            SerialTeam(lambda: TeamView(make()), num, sides=mine, seed=1, index0=7, name="x"),
        )
        assert isinstance(vector, TeamVector)
        vector.reset()
        twin.reset()
        rng = np.random.default_rng(0)
        ended: list[tuple[Any, ...]] = []
        for _ in range(40):
            assert shown(vector) == shown(twin)
            actions = legal_actions(vector, rng)
            vector.send(actions)
            vector.recv()
            twin.send(actions)
            ours, theirs = vector.episodes(), twin.episodes()
            assert [(e.env, e.length) for e in ours] == [(e.env, e.length) for e in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.total == pytest.approx(b.total, abs=1e-9)
                assert dict(a.by_policy) == pytest.approx(dict(b.by_policy), abs=1e-9)
            ended += ours
        assert len(ended) >= 10
        assert vector.faults() == []


def test_chase_has_what_it_is_for() -> None:
    """Early leavers, an agent that waits, one that is cut, and one that ends without having decided, in one world."""
    vector = TensorTeam(Chase(), 64, sides=sides(Chase, KINDS), seed=1)
    rng, seen = np.random.default_rng(1), set()
    for _ in range(60):
        waits = ~vector.outs["cats"].active.view(-1, 2)[:, 1]  # type: ignore[union-attr]
        vector.send(legal_actions(vector, rng))
        cats, mice = vector.outs["cats"], vector.outs["mice"]
        assert not (cats.terminated & cats.truncated).any()
        flags = {
            "left early": mice.terminated.any() and not cats.terminated.any(),
            "cut": bool(cats.truncated.any()),
            "cut in part": bool((mice.truncated.view(-1, 2).sum(1) == 1).any()),
            "ended while it waited": bool((waits & cats.terminated.view(-1, 2)[:, 1]).any()),
        }
        seen |= {name for name, there in flags.items() if there}
    assert seen == {"left early", "cut", "cut in part", "ended while it waited"}


@pytest.mark.parametrize("steps", [0, 4, 9])
@pytest.mark.parametrize(("make", "teams"), [(Chase, KINDS), (Leduc, ONE)])
def test_goes_on_bit_for_bit_in_the_middle_of_episodes(make: Callable[[], Any], teams: tuple[str, ...], steps: int) -> None:
    rng = np.random.default_rng(0)
    first = TensorTeam(make(), 8, sides=sides(make, teams, shared=True), seed=1)
    first.reset()
    for _ in range(steps):
        first.send(legal_actions(first, rng))
    second = TensorTeam(make(), 8, sides=sides(make, teams, shared=True), seed=99)
    second.restore(first.snapshot())
    for _ in range(160):  # until the store of first states is drawn anew
        actions = legal_actions(first, rng)
        first.send(actions)
        second.send(actions)
        assert shown(first) == shown(second)
    assert first.episodes() == second.episodes()


class Counts(Chase):
    """`Chase` that says of each episode what its sum was at the end, and how many steps it had."""

    def episode_stats(self, state: Any) -> Any:
        return {"sum": state["sum"], "steps": state["t"]}


@pytest.mark.parametrize("in_tensors", [False, True])
def test_a_world_says_numbers_of_its_episodes(in_tensors: bool) -> None:
    """Each episode has those of its last state, also where a policy has the name of a number, and after a resume."""
    teams = ("cat_.*=sum", "mouse_.*=mice")
    env: Any = Counts()
    if in_tensors:
        env = InTensors(env)
        env.episode_stats = Counts().episode_stats
    first, second = (TensorTeam(env, 8, sides=sides(Chase, teams), seed=seed) for seed in (1, 2))
    rng, found = np.random.default_rng(0), []
    for step in range(40):
        sums, actions = first._state["sum"], legal_actions(first, rng)
        total = sums + np.stack([actions[policy].numpy().reshape(8, 2) for policy in ("sum", "mice")]).sum((0, 2))
        first.send(actions)
        if step == 20:  # with episodes in the log that nobody has read
            second.restore(first.snapshot())
            said = first.episodes()
            assert second.episodes() == said
            found += said
        elif step != 19:
            said = first.episodes()
            for e in said:
                # who waits plays nothing, so the sum may be less than what was played
                assert 1 <= e.statistics["sum"] <= total[e.env]
            found += said
    assert len(found) > 30
    assert all(e.statistics["steps"] == e.length for e in found)
    assert {tuple(e.statistics) for e in found} == {("sum", "steps")}
    assert all(set(e.by_policy) == {"sum", "mice"} for e in found)
    assert {len(e.channels) for e in found} == {0}


def test_first_states_come_from_the_seed_and_the_number_of_the_first_world() -> None:
    def begins(seed: int, index0: int = 0, reset: int | None = None) -> list[Any]:
        vector = TensorTeam(Spread(), 4, sides=sides(Spread, ONE), seed=seed, index0=index0)
        vector.reset(reset)
        rng = np.random.default_rng(0)
        for _ in range(30):  # over the end of the first episodes
            vector.send(legal_actions(vector, rng))
        found: list[Any] = vector.outs["shared"].obs["obs"].tolist()
        return found

    assert begins(1) == begins(1) == begins(2, reset=1)
    assert begins(1) != begins(2)
    assert begins(1) != begins(1, index0=4)


def test_of_very_many_episodes_no_world_is_left_out_in_a_step() -> None:
    vector = TensorTeam(MatrixGame(), 600, sides=sides(MatrixGame, ONE), seed=1)
    vector.send({"shared": torch.zeros(1200, dtype=torch.int64)})
    assert sorted(e.env for e in vector.episodes()) == list(range(600))


@pytest.mark.parametrize("name", TENSOR_TEAMS)
def test_every_world_passes_its_checks_and_looks_the_same_in_numpy_and_in_tensors(name: str) -> None:
    assert not rl.check_env(f"tensor:{name}", num_steps=24, max_steps=40)
    env = TENSOR_TEAMS[name]()
    assert env.name == f"tensor:{name}"
    assert ParallelEnv(TeamView(env), name).spec() == env.spec
    mine = sides(TENSOR_TEAMS[name], HUNT if name == "Tag" else ONE)
    vectors = [TensorTeam(world, 16, sides=mine, seed=2) for world in (env, InTensors(env))]
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = legal_actions(vectors[0], rng)
        for vector in vectors:
            vector.send(actions)
        for first, second in zip(*(vector.outs.values() for vector in vectors), strict=True):
            assert all(torch.allclose(x, second.obs[key], atol=2e-5) for key, x in first.obs.items())
            assert torch.allclose(first.reward, second.reward, atol=2e-5)
            assert torch.equal(first.terminated | first.truncated, second.terminated | second.truncated)


# --------------------------------------------------------------------------------------------------------- names and errors
def test_a_world_is_known_by_its_name_and_sent_to_recipes_for_teams() -> None:
    view = make_team_env("tensor:Spread", kwargs={"N": 4})
    assert view.possible_agents == [f"agent_{i}" for i in range(4)]
    for ask in (make_env, probe_env):
        with pytest.raises(SeveralAgentsError, match="train it with a recipe for teams"):
            ask("tensor:Spread")
    with pytest.raises(ConfigError, match="it has one agent"):
        make_tensor_team("tensor:CartPole-v1")
    with pytest.raises(ConfigError, match=r"known tensor environments: .*tensor:Ladder.*tensor:TwoStep"):
        make_tensor_team("tensor:Spraed")
    with pytest.raises(DataError, match="M"):
        make_tensor_team("tensor:Spread", kwargs={"M": 4})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Spread(N=0), "use at least one agent"),
        (lambda: Spread(local_ratio=1.5), "it is a share"),
        (lambda: Spread(max_cycles=0), "at least one step"),
        (lambda: Tag(num_adversaries=0), "use at least 1"),
        (lambda: Reference(local_ratio=-0.1), "it is a share"),
        (lambda: MatrixGame([[1.0, 2.0], [3.0, 4.0]]), r"payoffs.*shared=True"),
        (lambda: MatrixGame([[1.0], [3.0, 4.0]]), "it is no table of numbers"),
        (lambda: MatrixGame([[1.0, float("nan")]] * 2, shared=True), "finite numbers"),
        (lambda: MatrixGame(rounds=0), "at least one round"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_actions_outside_of_their_space_are_refused() -> None:
    vector = TensorTeam(Kuhn(), 2, sides=sides(Kuhn, ONE), seed=1)
    with pytest.raises(DataError, match="policy 'shared' gave actions outside of their space"):
        vector.send({"shared": torch.tensor([0, 2, 0, 0])})
    with pytest.raises(DataError, match="actions of shape"):
        vector.send({"shared": torch.zeros(2, dtype=torch.int64)})


class Wrong(Chase):
    """One part of what it gives is not as it should be."""

    def __init__(self, part: str) -> None:
        super().__init__(known=True)
        self.part = part

    def transition(self, state: Any, actions: Any) -> Any:
        following, reward, over = super().transition(state, actions)
        return following, reward.double() if self.part == "reward" else reward, over[:, :1] if self.part == "over" else over

    def observe(self, state: Any) -> Any:
        cats, mice = super().observe(state)
        if self.part == "mask":
            mice["action_mask"] = mice["obs/b"]
        return [cats] if self.part == "kinds" else [cats, mice]

    def active(self, state: Any) -> Any:
        return super().active(state)[:, 0] if self.part == "active" else super().active(state)

    def global_state(self, state: Any) -> Any:
        return super().global_state(state)[:, :1] if self.part == "state" else super().global_state(state)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("reward", r"the rewards of transition is \[3, 4\] of torch.float64 for 3 copies, expected \[3, 4\] of torch.float32"),
        ("over", r"terminated of transition is \[3, 1\] of torch.bool for 3 copies, expected \[3, 4\]"),
        ("mask", r"observe\(state\)\[1\]\['action_mask'\] is \[3, 2, 2\] of torch.float32"),
        ("kinds", r"observe\(state\) is a list of 1, expected a list with one dict of leaves for each kind of agents \(2\)"),
        ("active", r"active\(state\) is \[3\] of torch.bool for 3 copies, expected \[3, 4\]"),
        ("state", r"global_state\(state\) is \[3, 1\] of torch.float32 for 3 copies, expected \[3, 2\]"),
    ],
)
def test_a_world_that_breaks_the_contract_is_told_in_words(part: str, text: str) -> None:
    with pytest.raises(DataError, match=text):
        check_tensor_team(Wrong(part))
