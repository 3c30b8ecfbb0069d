"""Games of OpenSpiel as environments: the legal actions and returns of pyspiel, exact states, and names that lead nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyspiel
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel as rl
from runnel.core.errors import DataError
from runnel.core.routes import sides_of, team_routes
from runnel.envs.registry import make_team_env
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.run.trust import code_in

GAMES = ("kuhn_poker", "leduc_poker", "connect_four", "tic_tac_toe", "liars_dice", "matrix_rps", "goofspiel(num_cards=4)")
"""In turns and at once, with and without chance, with an information state or an observation."""
MIXED = ("oh_hell", "markov_soccer", "coop_box_pushing", "matching_pennies_3p")
"""Three players; rewards on the way; chance between moves at once."""


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from((*GAMES, *MIXED)), seed=st.integers(0, 2**31 - 1))
def test_random_games_have_the_legal_actions_and_the_returns_of_pyspiel(name: str, seed: int) -> None:
    """The other side is pyspiel alone, led along the same history; what is seen is its tensor."""
    env = ParallelEnv(make_team_env(f"openspiel:{name}"), name)
    game, rng, paid = pyspiel.load_game(name), np.random.default_rng(seed), dict.fromkeys(env.agents, 0.0)
    obs, _ = env.reset(seed=seed)
    table, over, kind = env.env.table if hasattr(env.env, "table") else env.env.env.table, False, game.get_type()
    for _ in range(60):
        if over:
            break
        state = game.deserialize_state(table.state.serialize())
        deciding = range(len(env.agents)) if state.is_simultaneous_node() else [state.current_player()]
        assert env.live == [f"player_{i}" for i in deciding]
        for i in deciding:
            seen = obs[f"player_{i}"]
            assert np.flatnonzero(seen["action_mask"]).tolist() == state.legal_actions(i)
            tensor = state.information_state_tensor if kind.provides_information_state_tensor else state.observation_tensor
            assert seen["observation"].tolist() == np.float32(tensor(i)).tolist()
        actions = {agent: int(rng.choice(np.flatnonzero(obs[agent]["action_mask"]))) for agent in env.live}
        obs, _, over, _, _ = env.step(actions)
        paid = {agent: paid[agent] + env.rewards.get(agent, 0.0) for agent in paid}
    if over:
        assert list(paid.values()) == pytest.approx(table.state.returns(), abs=1e-9)
        assert all(flags == (True, False) for flags in env.flags.values())


def test_chance_has_the_probabilities_of_the_game_and_comes_from_the_seed_of_reset() -> None:
    """Who holds which of three cards: each of six deals 1/6. The bound is 5 standard deviations of 3,000 deals."""
    env = make_team_env("openspiel:kuhn_poker")
    deals = []
    for seed in range(3000):
        env.reset(seed=seed)
        deals.append(env.table.state.history_str())
    shares = {deal: deals.count(deal) / 3000 for deal in set(deals)}
    assert len(shares) == 6
    assert max(abs(share - 1 / 6) for share in shares.values()) < 5 * np.sqrt(1 / 6 * 5 / 6 / 3000)
    again = []
    for seed in range(5):
        env.reset(seed=seed)
        again.append(env.table.state.history_str())
    assert again == deals[:5]


@pytest.mark.parametrize("name", GAMES)
def test_pettingzoo_s_own_tests_and_ours_pass(name: str) -> None:
    """`check_env` runs `api_test` and `seed_test` on games in turns, `parallel_api_test` on others; a warning fails it."""
    report = rl.check_env(f"openspiel:{name}", num_steps=32, max_steps=100)
    assert not report
    assert not report.warnings
    assert not report.hints


def team(name: str, seed: int = 1) -> SerialTeam:
    def make() -> Any:
        return make_team_env(f"openspiel:{name}")

    sides = sides_of(team_routes((".*=shared",)), ParallelEnv(make(), name).spec())
    return SerialTeam(make, 3, sides=sides, seed=seed, name=name)


@pytest.mark.parametrize("name", ["leduc_poker", "goofspiel(num_cards=4)"])
def test_a_vector_goes_on_bit_for_bit_without_a_replay(name: str) -> None:
    rng, first = np.random.default_rng(0), team(name)

    def play(*vectors: SerialTeam) -> None:
        mask = vectors[0].outs["shared"].action_mask
        assert mask is not None
        actions = torch.tensor([rng.choice(np.flatnonzero(row)) for row in mask.numpy()])
        for vector in vectors:
            vector.send({"shared": actions})

    first.reset()
    for _ in range(7):
        play(first)
    saved = first.snapshot()
    assert all("game" in env["env"]["state"] for env in saved["envs"])
    second = team(name, seed=9)
    second.restore(saved)
    for _ in range(20):
        play(first, second)
        for key, x in first.outs["shared"].obs.items():
            assert torch.equal(x, second.outs["shared"].obs[key])
        assert torch.equal(first.outs["shared"].reward, second.outs["shared"].reward)
    assert first.episodes() == second.episodes()


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("kun_poker", {}, "OpenSpiel has no game 'kun_poker'; did you mean kuhn_poker"),
        ("goofspiel", {"num_card": 4}, "env_kwargs = .*OpenSpiel refuses them for goofspiel: Unknown parameter 'num_card'"),
        ("goofspiel(num_cards=4)", {"players": 3}, "has its parameters in the name already; give them in one place"),
        ("mfg_crowd_modelling", {}, "a mean-field game has no players of its own"),
        ("negotiation", {}, "draws its chance inside of OpenSpiel, where no seed of a reset reaches"),
        ("morpion_solitaire", {}, "gives no tensor of what its players see"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(name: str, kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(rl.ConfigError, match=text):
        make_team_env(f"openspiel:{name}", kwargs=kwargs)


def test_parameters_reach_the_game_and_a_name_is_no_code() -> None:
    assert len(make_team_env("openspiel:kuhn_poker", kwargs={"players": 3}).possible_agents) == 3
    assert not code_in("ippo", {"env": "openspiel:kuhn_poker"})


def test_an_illegal_move_is_refused() -> None:
    env = make_team_env("openspiel:tic_tac_toe")
    env.reset(seed=0)
    env.step(4)
    with pytest.raises(DataError, match="player_1 plays 4, which is not legal now; its action_mask has what is"):
        env.step(4)
