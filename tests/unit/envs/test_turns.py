"""Games in turns (PettingZoo's AEC API): who gets what and when, games as PettingZoo plays them, and a resume in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_team_processes import step, vectors
from test_team_vectors import play, seen, team, zeros
from turn_envs import Breaks, Columns, Forgets, Ring, Saved, Stays, Wild, columns

import runnel as rl
from runnel.core.errors import ConfigError, DataError
from runnel.envs.registry import make_team_env
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.envs.vector.cpu_base import episode_seed
from runnel.ops.decisions import decisions

EACH = ("p_0=a", "p_1=b", "p_2=c")
TICTACTOE = "pettingzoo:classic.tictactoe_v3"


def tictactoe() -> Any:
    return make_team_env(TICTACTOE)


def test_each_step_is_one_decision_and_rewards_are_kept_until_the_next_one_of_the_agent() -> None:
    vector = team(Ring, 1, EACH)
    vector.reset()
    record = []
    for _ in range(8):
        active = "".join(agent for agent in "abc" if vector.outs[agent].active[0])
        vector.send(zeros(vector))
        outs = [vector.outs[agent] for agent in "abc"]
        record.append((active, [out.reward.item() for out in outs], [out.terminated.item() for out in outs]))
    assert record == [
        ("a", [0.0, -0.5, 0.0], [False, False, False]),
        ("b", [0.0, 0.0, -1.0], [False, False, False]),
        ("c", [0.0, 0.0, 0.0], [False, False, False]),
        ("a", [0.0, 0.0, 0.0], [False, False, False]),
        ("b", [0.0, 1.0, 0.0], [False, True, False]),  # it dies: what it was paid for that is not kept any longer
        ("c", [0.0, 0.0, 0.0], [False, False, False]),
        ("a", [0.0, 0.0, 0.5], [False, False, False]),
        ("c", [0.5, 0.0, 1.0], [False, False, False]),
    ]
    (episode,) = vector.episodes()
    assert (episode.length, dict(episode.by_policy)) == (8, {"a": 0.5, "b": 0.5, "c": 0.5})


def test_a_truncation_ends_all_that_are_still_there_each_at_its_own_final_observation() -> None:
    vector = team(Ring, 1, EACH)
    vector.reset()
    play(vector, 8)
    ends = {name: (out.final_rows, out.truncated.item(), out.terminated.item()) for name, out in vector.outs.items()}
    assert ends == {"a": ([0], True, False), "b": ([], False, False), "c": ([0], True, False)}
    assert vector.outs["a"].final_obs["obs"][0, :2].tolist() == [8.0, 0.0]
    assert vector.outs["c"].final_obs["obs"][0, :2].tolist() == [8.0, 2.0]
    assert vector.outs["a"].final_obs["action_mask"][0].tolist() == [True, True]  # it waited: it had no mask, nor needs one


def test_masks_are_those_of_whoever_decides_and_others_are_open() -> None:
    vector = team(Ring, 1, EACH)
    vector.reset()
    play(vector, 1)
    masks = {}
    for name, out in vector.outs.items():
        assert out.action_mask is not None
        masks[name] = out.action_mask[0].tolist()
    assert masks == {"a": [True, True], "b": [True, True], "c": [True, True]}
    play(vector, 1)
    assert vector.outs["c"].action_mask[0].tolist() == [True, False]  # type: ignore[index]


def random_legal(vector: Any, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """An open action for each row."""
    chosen = {}
    for name, out in vector.outs.items():
        scores = torch.from_numpy(rng.random(tuple(out.action_mask.shape)))
        chosen[name] = torch.where(out.action_mask, scores, -1.0).argmax(1)
    return chosen


@pytest.mark.parametrize("make", [tictactoe, Columns])
def test_a_game_is_the_one_that_pettingzoo_plays(make: Callable[[], Any]) -> None:
    """Ten games, in which the vector and PettingZoo's own loop take the same actions: who decides, sees what, is paid."""
    vector, rng = team(make, 1, (".*=shared",)), np.random.default_rng(0)
    vector.reset()
    (out, agents), env = (vector.outs["shared"], vector.sides["shared"].agents), make()
    for _ in range(10):
        env.reset()
        paid = dict.fromkeys(agents, 0.0)
        for agent in env.agent_iter():
            obs, reward, terminated, truncated, _ = env.last()
            paid[agent] += reward
            if terminated or truncated:
                env.step(None)
                continue
            assert out.active.tolist() == [name == agent for name in agents]  # type: ignore[union-attr]
            row = agents.index(agent)
            assert np.array_equal(out.obs["obs/observation"][row].numpy(), obs["observation"])
            assert np.array_equal(out.action_mask[row].numpy(), obs["action_mask"])  # type: ignore[index]
            chosen = random_legal(vector, rng)
            vector.send(chosen)
            env.step(int(chosen["shared"][row]))
        assert out.terminated.tolist() == [True, True]
        assert out.reward.tolist() == [paid[name] for name in agents]
    assert len(vector.episodes()) == 10


def by_last(episodes: int) -> dict[str, list[tuple[float, bool, bool]]]:
    """What PettingZoo says of each decision of each agent, when the agent is asked again or has ended."""
    env, found = Wild(), {agent: [] for agent in ("p_0", "p_1", "p_2")}  # type: dict[str, list[tuple[float, bool, bool]]]
    for number in range(episodes):
        env.reset(seed=episode_seed(1, 0, number))
        decided: set[str] = set()
        for agent in env.agent_iter():
            _, reward, terminated, truncated, _ = env.last()
            if agent in decided:
                found[agent].append((float(reward), terminated, truncated))
            decided.add(agent)
            env.step(None if terminated or truncated else 0)
    return found


def test_every_decision_gets_the_reward_and_the_end_that_pettingzoo_gives_it() -> None:
    """In 40 games of which everything is drawn, through the vector and the credit of learners (`ops/decisions.py`)."""
    vector = team(Wild, 1, EACH)
    vector.reset()
    outs = {agent: vector.outs[policy] for agent, policy in (("p_0", "a"), ("p_1", "b"), ("p_2", "c"))}
    kept: dict[str, list[list[torch.Tensor]]] = {agent: [] for agent in outs}
    ended = 0
    while ended < 40:
        active = {agent: out.active.clone() for agent, out in outs.items()}  # type: ignore[union-attr]
        vector.send(zeros(vector))
        for agent, out in outs.items():
            kept[agent].append([x.clone() for x in (out.reward, out.terminated, out.truncated)] + [active[agent]])
        ended += len(vector.episodes())
    expected = by_last(40)
    for agent, out in outs.items():
        rewards, terminated, truncated, active_ = (torch.stack(part) for part in zip(*kept[agent], strict=True))
        assert out.active is not None
        now = torch.cat([active_, out.active[None]])
        found = decisions(rewards, torch.zeros_like(rewards), terminated, truncated, now)
        rows = zip(found.rewards[found.counts], found.terminated[found.counts], found.truncated[found.counts], strict=True)
        assert [(x.item(), y.item(), z.item()) for x, y, z in rows] == expected[agent]


def test_tictactoe_by_hand() -> None:
    """The first player fills the left column; the second gets -1 at the step after its last move but one."""
    vector = team(tictactoe, 1, ("player_1=x", "player_2=o"))
    vector.reset()
    x, o = vector.outs["x"], vector.outs["o"]
    for move, (mine, other) in enumerate([(0, x), (3, o), (1, x), (4, o), (2, x)]):
        assert other.active.tolist() == [True]
        assert (x if other is o else o).active.tolist() == [False]
        assert other.action_mask.sum() == 9 - move  # type: ignore[union-attr]
        vector.send({name: torch.tensor([mine]) for name in ("x", "o")})
    assert (x.reward.item(), o.reward.item()) == (1.0, -1.0)
    assert x.final_obs["obs/observation"][0, 0].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert o.final_obs["obs/observation"][0, 0].tolist() == [[0, 1], [0, 1], [0, 1]]


CASES = [(Ring, EACH), (Saved, EACH), (Ring, (".*=shared",)), (tictactoe, (".*=shared",))]


@pytest.mark.parametrize(("make", "teams"), CASES)
@pytest.mark.parametrize("steps", [2, 6, 13])
def test_a_vector_goes_on_bit_for_bit_in_the_middle_of_a_game(
    make: Callable[[], Any], teams: tuple[str, ...], steps: int
) -> None:
    """After two steps of `Ring` somebody waits, after six one is dead."""
    rng = np.random.default_rng(0)
    first, second = (team(make, 3, teams, seed=seed) for seed in (1, 99))
    first.reset()
    for _ in range(steps):
        first.send(random_legal(first, rng))
    second.restore(first.snapshot())
    for _ in range(9):
        chosen = random_legal(first, rng)
        for vector in (first, second):
            vector.send(chosen)
        assert seen(first) == seen(second)
    assert first.episodes() == second.episodes()


def test_processes_play_the_same_games_and_go_on_in_the_other_vector() -> None:
    rng = np.random.default_rng(0)
    with vectors(Ring, EACH) as (alone, apart), vectors(Ring, EACH) as (alone_again, apart_again):
        for vector in (alone, apart):
            vector.reset()
        for _ in range(6):
            chosen = random_legal(alone, rng)
            assert step(alone, chosen) == step(apart, chosen)
        alone_again.restore(apart.snapshot())
        apart_again.restore(alone.snapshot())
        for _ in range(10):
            chosen = random_legal(alone, rng)
            expected = step(alone, chosen)
            assert expected == step(alone_again, chosen) == step(apart_again, chosen)
        assert alone.episodes() == alone_again.episodes() == apart_again.episodes()


def test_a_game_that_breaks_is_cut_for_those_who_have_decided_and_had_not_left() -> None:
    """`p_1` was dead already; the two others are truncated at what each saw at its own last decision."""
    vector = team(Breaks, 1, EACH, restart=True)
    vector.reset()
    play(vector, 6)
    a, b, c = (vector.outs[name] for name in "abc")
    assert [x.truncated.item() for x in (a, b, c)] == [True, False, True]
    assert (a.final_obs["obs"][0, :2].tolist(), c.final_obs["obs"][0, :2].tolist()) == ([3.0, 0.0], [5.0, 2.0])
    assert [x.active.item() for x in (a, b, c)] == [True, False, False]  # type: ignore[union-attr]
    (fault,) = vector.faults()
    assert "the table fell over" in fault["error"]
    assert not vector.episodes()


@pytest.mark.parametrize("target", [Columns, columns, "turn_envs:columns", lambda: Columns()])
def test_a_users_own_game_is_known_by_its_methods(target: Any) -> None:
    env = ParallelEnv(make_team_env(target), "columns")
    assert list(env.spec().agents) == ["first_0", "second_0"]
    assert env.live == ["first_0"]


def test_a_game_that_is_made_already_is_no_recipe_for_more() -> None:
    with pytest.raises(ConfigError, match="it is not callable; give an environment class or a function that makes one"):
        make_team_env(Columns())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"is made already; a run makes its own: give the class \(env=Columns\)"):
        rl.train("ippo", env=Columns(), total_updates=1)


def test_one_who_ended_and_stays_is_named() -> None:
    vector = SerialTeam(Stays, 1, sides=team(Columns, 1, (".*=shared",)).sides, seed=1, name="stays")
    vector.reset()
    for action in (1, 0):
        vector.send({"shared": torch.tensor([action, action])})
    with pytest.raises(DataError, match=r"'first_0' has ended, but step\(None\) did not take it out of `agents`"):
        vector.send({"shared": torch.tensor([2, 2])})


def test_rewards_are_those_of_last_even_where_a_game_forgets_to_set_them_back() -> None:
    """That is PettingZoo's meaning; `check-env` tells the mistake."""
    vector = team(Forgets, 1, EACH)
    vector.reset()
    play(vector, 8)
    assert vector.outs["c"].reward.item() != 1.0
