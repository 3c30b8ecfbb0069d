"""Tensor worlds of several agents, each against a package that has the same game: mpe2, OpenSpiel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from runnel.envs.device import (
    Climbing,
    ConnectFour,
    Kuhn,
    Leduc,
    MatrixGame,
    Penalty,
    Reference,
    RockPaperScissors,
    Spread,
    Tag,
    TicTacToe,
    TwoStep,
)
from runnel.envs.spaces import MASK

mpe2 = pytest.importorskip("mpe2")
pyspiel = pytest.importorskip("pyspiel")
NUM_GAMES = 200


# ------------------------------------------------------------------------------------------------------------- particles
def put(twin: Any, positions: Any, velocities: Any = None) -> None:
    """Move the bodies of a world of mpe2 to `[2, N]`."""
    bodies = twin.unwrapped.world.entities
    for i, body in enumerate(bodies):
        body.state.p_pos = positions[:, i].astype(np.float64)
        if velocities is not None and i < velocities.shape[1]:
            body.state.p_vel = velocities[:, i].astype(np.float64)


def where(twin: Any) -> tuple[Any, Any]:
    """Positions `[2, N]` and velocities `[2, A]` in a world of mpe2."""
    world = twin.unwrapped.world
    places, speeds = [body.state.p_pos for body in world.entities], [agent.state.p_vel for agent in world.agents]
    return np.stack(places, axis=1), np.stack(speeds, axis=1)


def placed(env: Any, twin: Any) -> dict[str, Any]:
    """The state of `env` in which all is as it is in `twin`."""
    places, speeds = where(twin)
    state = {"bodies": np.concatenate([places.reshape(-1), speeds.reshape(-1)])[None].astype(np.float32)}
    if isinstance(env, Reference):
        world = twin.unwrapped.world
        state["goals"] = np.array([[world.landmarks.index(agent.goal_b) for agent in world.agents]])
        state["said"] = np.array([[int(agent.state.c.argmax()) if agent.state.c.any() else 10 for agent in world.agents]])
    return state


def seen_in(env: Any, state: dict[str, Any]) -> list[Any]:
    """What each agent sees in the first world."""
    found = {}
    for kind, leaves in zip(env.spec.kinds, env.observe(state), strict=True):
        found |= dict(zip(kind, leaves["obs"][0], strict=True))
    return [found[place] for place in range(len(env.spec.agents))]


def both_step(
    env: Any, twin: Any, state: dict[str, Any], rng: np.random.Generator, num_actions: int
) -> tuple[Any, float, bool]:
    """One step of both with the same random actions: our next state, the greatest difference, and whether two agents touch."""
    agents = twin.possible_agents
    actions = rng.integers(0, num_actions, len(agents))
    obs, rewards, _, truncated, _ = twin.step({agent: int(a) for agent, a in zip(agents, actions, strict=True)})
    state, reward, over = env.transition(state, [actions[None, list(kind)] for kind in env.spec.kinds])
    mine = seen_in(env, state)
    wrong = max(np.abs(mine[i] - obs[agent]).max() for i, agent in enumerate(agents))
    wrong = max(wrong, *(abs(float(reward[0, i]) - rewards[agent]) for i, agent in enumerate(agents)))
    assert not over.any()
    assert reward.dtype == mine[0].dtype == np.float32
    assert np.abs(env.global_state(state)[0] - twin.state()).max() < 1e-4
    return state, wrong, all(truncated.values())


@pytest.mark.parametrize("num", [2, 3])
def test_spread_plays_whole_episodes_as_mpe2_does(num: int) -> None:
    """From the first states of mpe2, 50 episodes of each size without a correction: measured 2e-6 at most."""
    from mpe2 import simple_spread_v3

    env, twin, rng = Spread(N=num), simple_spread_v3.parallel_env(N=num, max_cycles=25), np.random.default_rng(0)
    worst = 0.0
    for episode in range(50):
        seen, _ = twin.reset(seed=episode)
        state, cut, steps = placed(env, twin), False, 0
        assert np.abs(env.observe(state)[0]["obs"][0] - np.stack(list(seen.values()))).max() < 1e-6
        while not cut:
            state, wrong, cut = both_step(env, twin, state, rng, 5)
            worst, steps = max(worst, wrong), steps + 1
        assert steps == env.max_steps
    assert worst < 1e-5


def test_spread_in_a_crowd_steps_as_mpe2_does() -> None:
    """Four agents who are drawn together before every step, and set right: contacts at most steps, measured 2e-6 at most."""
    from mpe2 import simple_spread_v3

    kwargs = {"N": 4, "local_ratio": 0.3}
    env, twin, rng = Spread(**kwargs), simple_spread_v3.parallel_env(**kwargs), np.random.default_rng(1)
    worst, bumps = 0.0, 0
    for episode in range(20):
        twin.reset(seed=episode)
        for _ in range(25):
            put(twin, where(twin)[0] * 0.7, where(twin)[1])
            before = placed(env, twin)
            put(twin, before["bodies"][0, :16].reshape(2, 8), before["bodies"][0, 16:].reshape(2, 4))
            _, wrong, _ = both_step(env, twin, before, rng, 5)
            worst = max(worst, wrong)
            agents = where(twin)[0][:, :4]
            apart = np.linalg.norm(agents[:, :, None] - agents[:, None], axis=0)
            bumps += bool((apart[np.triu_indices(4, 1)] < 0.3).any())
    assert worst < 1e-5
    assert bumps > 150


@pytest.mark.parametrize("counts", [(1, 3, 2), (2, 2, 3)])
def test_tag_steps_as_mpe2_does(counts: tuple[int, int, int]) -> None:
    """30 episodes that begin in a crowd, at the rim, or as mpe2 draws them, and are set right before every step, because what
    touches drives rounding apart: under 1e-5."""
    from mpe2 import simple_tag_v3

    kwargs = dict(zip(("num_good", "num_adversaries", "num_obstacles"), counts, strict=True))
    env, twin, rng = Tag(**kwargs), simple_tag_v3.parallel_env(**kwargs), np.random.default_rng(2)
    assert list(env.spec.agents) == twin.possible_agents
    num, prey = sum(counts), slice(counts[1], counts[0] + counts[1])
    worst, caught, outside = 0.0, 0, 0
    for episode in range(30):
        twin.reset(seed=episode)
        put(twin, where(twin)[0] * (0.3, 1.5, 1.0)[episode % 3])
        cut = False
        while not cut:
            state = placed(env, twin)
            put(twin, state["bodies"][0, : 2 * num].reshape(2, -1), state["bodies"][0, 2 * num :].reshape(2, -1))
            state, wrong, cut = both_step(env, twin, state, rng, 5)
            worst, places = max(worst, wrong), where(twin)[0]
            apart = np.linalg.norm(places[:, : counts[1], None] - places[:, None, prey], axis=0)
            caught, outside = caught + bool((apart < 0.125).any()), outside + bool((abs(places[:, prey]) > 1.0).any())
    assert worst < 1e-5
    assert caught > 20
    assert outside > 50


@pytest.mark.parametrize("local_ratio", [0.5, 0.2])
def test_reference_plays_whole_episodes_as_mpe2_does(local_ratio: float) -> None:
    """From the first states of mpe2, 40 episodes without a correction."""
    from mpe2 import simple_reference_v3

    env, twin = Reference(local_ratio=local_ratio), simple_reference_v3.parallel_env(local_ratio=local_ratio)
    rng, worst = np.random.default_rng(3), 0.0
    for episode in range(40):
        seen, _ = twin.reset(seed=episode)
        state, cut = placed(env, twin), False
        assert max(np.abs(mine - seen[a]).max() for mine, a in zip(seen_in(env, state), seen, strict=True)) < 1e-6
        while not cut:
            state, wrong, cut = both_step(env, twin, state, rng, 50)
            worst = max(worst, wrong)
    assert worst < 1e-5


def test_reference_of_two_choices_is_that_of_one() -> None:
    one, two = Reference(max_cycles=5), Reference(max_cycles=5, two_choices=True)
    both = torch.arange(50).repeat(2).view(50, 2)
    state = one.initial(50, torch.Generator().manual_seed(1))
    ours, paid, over = two.transition(state, [torch.stack([both % 5, both // 5], 2)])
    theirs, as_much, _ = one.transition(state, [both])
    assert len(set(both.flatten().tolist())) == 50
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(paid, as_much)
    assert not over.any()


@pytest.mark.parametrize("env", [Tag(), Tag(2, 2, 0), Reference(), Spread()])
def test_particles_are_the_same_in_tensors(env: Any) -> None:
    drawn, rng = env.initial(64, torch.Generator().manual_seed(0)), np.random.default_rng(0)
    states = [in_form(form, drawn) for form in ("numpy", "torch")]
    for _ in range(10):
        specs = list(env.spec.agents.values())
        actions = [rng.integers(0, specs[kind[0]].action.num_actions, (64, len(kind))) for kind in env.spec.kinds]
        results = [env.transition(states[0], actions), env.transition(states[1], [torch.from_numpy(x) for x in actions])]
        states = [dict(state) for state, _, _ in results]
        for mine, other in zip(env.observe(states[0]), env.observe(states[1]), strict=True):
            np.testing.assert_allclose(mine["obs"], other["obs"].numpy(), atol=2e-4)
        np.testing.assert_allclose(env.global_state(states[0]), env.global_state(states[1]).numpy(), atol=2e-4)
        assert env.global_state(states[0]).shape == (64, *env.state_spec.shape)
        # whether two agents touch may differ by rounding
        assert (np.abs(results[0][1] - results[1][1].numpy()) < 2e-4).mean() > 0.99
        assert not results[1][2].any()


def test_first_states_of_tag_and_reference() -> None:
    bodies = Tag().initial(4000, torch.Generator().manual_seed(0))["bodies"]
    agents, obstacles = bodies[:, :12].view(-1, 2, 6)[..., :4], bodies[:, :12].view(-1, 2, 6)[..., 4:]
    assert not bodies[:, 12:].any()
    for found, reach in ((agents, 1.0), (obstacles, 0.9)):
        assert reach - 0.01 < found.abs().max() <= reach
        assert found.std() == pytest.approx(reach / 3**0.5, rel=0.02)
    state = Reference().initial(6000, torch.Generator().manual_seed(0))
    assert (state["goals"].flatten().bincount() / 12000).tolist() == pytest.approx([1 / 3] * 3, abs=0.02)
    assert (state["goals"][:, 0] == state["goals"][:, 1]).float().mean().item() == pytest.approx(1 / 3, abs=0.03)
    assert not Reference().observe(state)[0]["obs"][..., 11:].any()


def test_first_states_of_spread_are_uniform() -> None:
    places = Spread().observe(Spread().initial(4000, torch.Generator().manual_seed(0)))[0]["obs"]
    assert not places[..., :2].any()
    own = places[..., 2:4].flatten()
    landmarks = (places[:, 0, 4:10].view(-1, 3, 2) + places[:, :1, 2:4]).flatten()
    for found in (own, landmarks):
        assert found.min() < -0.99
        assert found.max() > 0.99
        assert abs(found.mean()) < 0.02


# -------------------------------------------------------------------------------------------------- games of OpenSpiel
def rows_of(state: Any) -> int:
    return len(next(iter(state.values())))


def in_form(form: str, batch: Any) -> dict[str, Any]:
    return {k: x.clone() if form == "torch" else x.numpy().copy() for k, x in batch.items()}


def play_both(env: Any, form: str, begin: Callable[[Any, int], Any], look: Callable[[Any, int, Any], None]) -> list[Any]:
    """Play random games in `env` and in OpenSpiel side by side; `begin(state, row)` makes the other, `look(game, seat, obs)`
    compares what a player sees. Returns the games as they ended."""
    rng = np.random.default_rng(0)
    state = in_form(form, env.initial(NUM_GAMES, torch.Generator().manual_seed(1)))
    games = [begin(state, row) for row in range(NUM_GAMES)]
    running = set(range(NUM_GAMES))
    while running:
        (seen,), active = env.observe(state), env.active(state)
        actions = np.zeros((NUM_GAMES, 2), np.int64)
        for row in running:
            game, mover = games[row], games[row].current_player()
            assert active[row].tolist() == [mover == 0, mover == 1]
            assert np.flatnonzero(np.asarray(seen[MASK][row, mover])).tolist() == game.legal_actions()
            for seat in range(2):
                look(game, seat, np.asarray(seen["obs"][row, seat]))
            actions[row, mover] = rng.choice(game.legal_actions())
        given = torch.from_numpy(actions) if form == "torch" else actions
        state, reward, over = env.transition(state, [given])
        for row in sorted(running):
            game = games[row]
            game.apply_action(int(actions[row, game.current_player()]))
            while game.is_chance_node():
                game.apply_action(int(state["public"][row]))
            assert over[row].tolist() == [game.is_terminal()] * 2
            assert reward[row].tolist() == (game.returns() if game.is_terminal() else [0.0, 0.0])
            if game.is_terminal():
                for seat in range(2):
                    look(game, seat, np.asarray(env.observe(state)[0]["obs"][row, seat]))
                running.discard(row)
    return games


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize(("make", "name", "histories"), [(Kuhn, "kuhn_poker", 30), (Leduc, "leduc_poker", 120)])
def test_poker_is_played_as_in_openspiel(make: Callable[[], Any], name: str, histories: int, form: str) -> None:
    """Information states of both players, legal moves, turns and chips; all 30 ends of Kuhn poker are met."""
    other = pyspiel.load_game(name)

    def begin(state: Any, row: int) -> Any:
        game = other.new_initial_state()
        for card in state["cards"][row]:
            game.apply_action(int(card))
        return game

    def look(game: Any, seat: int, obs: Any) -> None:
        assert obs.tolist() == game.information_state_tensor(seat)

    games = play_both(make(), form, begin, look)
    assert len({tuple(game.history()) for game in games}) >= histories
    assert len({tuple(game.returns()) for game in games}) >= 4


def planes(tensor: list[float], order: tuple[int, int]) -> list[float]:
    """Two of the planes of OpenSpiel's observation of a board of three."""
    each = np.array(tensor).reshape(3, -1)
    return each[list(order)].reshape(-1).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize(("make", "name", "mine"), [(TicTacToe, "tic_tac_toe", (2, 1)), (ConnectFour, "connect_four", (0, 1))])
def test_boards_are_played_as_in_openspiel(make: Callable[[], Any], name: str, mine: tuple[int, int], form: str) -> None:
    """Stones of both players, legal moves, turns and results; wins of both and draws are met."""
    other = pyspiel.load_game(name)

    def look(game: Any, seat: int, obs: Any) -> None:
        assert obs.tolist() == planes(game.observation_tensor(0), mine if seat == 0 else mine[::-1])

    games = play_both(make(), form, lambda state, row: other.new_initial_state(), look)
    results = {game.returns()[0] for game in games}
    assert results == ({1.0, -1.0, 0.0} if name == "tic_tac_toe" else {1.0, -1.0})


def test_connect_four_can_be_drawn_and_a_forbidden_move_loses() -> None:
    """Columns filled so that nobody has four in a line, from OpenSpiel; then a move into a full column."""
    env, game = ConnectFour(), pyspiel.load_game("connect_four").new_initial_state()
    order = [
        0,
        1,
        0,
        1,
        1,
        0,
        1,
        0,
        0,
        1,
        0,
        1,
        2,
        3,
        2,
        3,
        3,
        2,
        3,
        2,
        2,
        3,
        2,
        3,
        4,
        5,
        4,
        5,
        5,
        4,
        5,
        4,
        4,
        5,
        4,
        5,
        6,
        6,
        6,
        6,
        6,
        6,
    ]
    state = in_form("numpy", env.initial(2, torch.Generator()))
    for i, move in enumerate(order):
        assert not game.is_terminal()
        game.apply_action(move)
        state, reward, over = env.transition(state, [np.full((2, 2), move)])
        assert bool(over[0, 0]) == game.is_terminal()
        if i == 11:  # column 0 is full, and player 0 is to move
            _, forbidden, lost = env.transition(state, [np.zeros((2, 2), np.int64)])
            assert lost.all()
            assert forbidden.tolist() == [[-1.0, 1.0]] * 2
    assert game.returns() == [0.0, 0.0] == reward[0].tolist()
    assert over.all()


# --------------------------------------------------------------------------------------------------- games by a table
def paid(env: Any, *choices: int) -> list[float]:
    """What the agents get for one joint choice, in a first round; agents of one kind each or all together."""
    actions = [np.array([[choices[i] for i in kind]]) for kind in env.spec.kinds]
    _, reward, _ = env.transition(in_form("numpy", env.initial(1, torch.Generator())), actions)
    found: list[float] = reward[0].tolist()
    return found


@pytest.mark.parametrize(("env", "name"), [(RockPaperScissors(), "matrix_rps"), (MatrixGame(), "matrix_pd")])
def test_tables_are_those_of_openspiel(env: Any, name: str) -> None:
    """The prisoner's dilemma of OpenSpiel has other numbers, in the same order of better and worse."""
    other = pyspiel.load_matrix_game(name)
    row, column = np.array(other.row_utilities()), np.array(other.col_utilities())
    ours = np.array([[paid(env, a, b) for b in range(row.shape[1])] for a in range(row.shape[0])])
    if name == "matrix_rps":
        assert ours.tolist() == np.stack([row, column], -1).tolist()
    for mine, theirs in ((ours[..., 0], row), (ours[..., 1], column)):
        assert np.argsort(mine.ravel()).tolist() == np.argsort(theirs.ravel()).tolist()


def test_games_of_a_team_pay_all_alike_and_tables_may_be_of_any_size() -> None:
    assert [paid(Climbing(), *c)[0] for c in ((0, 0), (1, 0), (1, 2), (2, 2))] == [11.0, -30.0, 6.0, 5.0]
    assert [paid(Penalty(-100.0), *c)[1] for c in ((0, 2), (1, 1), (2, 2), (0, 1))] == [-100.0, 2.0, 10.0, 0.0]
    table = np.arange(2 * 3 * 4, dtype=float).reshape(2, 3, 4)
    three = MatrixGame(table, shared=True)
    assert [paid(three, a, b, c)[1] for a, b, c in np.ndindex(2, 3, 4)] == table.ravel().tolist()
    assert len(three.spec.kinds) == 3


def test_rounds_show_what_was_played_before() -> None:
    env = RockPaperScissors(rounds=2)
    state = in_form("numpy", env.initial(1, torch.Generator()))
    assert env.observe(state)[0]["obs"][0].tolist() == [[1.0] + [0.0] * 6] * 2
    state, reward, over = env.transition(state, [np.array([[2, 1]])])
    assert (reward.tolist(), over.tolist()) == ([[1.0, -1.0]], [[False, False]])
    assert env.observe(state)[0]["obs"][0].tolist() == [[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]] * 2
    assert env.transition(state, [np.array([[0, 0]])])[2].all()


def test_two_step_game_has_the_tables_of_the_paper() -> None:
    """Rashid et al. 2018, table 1: state 2A pays 7 for all, state 2B 0, 1, 1, 8; the second agent's first choice is nothing."""
    for first in range(2):
        for second in range(2):
            tables = []
            for a, b in np.ndindex(2, 2):
                env = TwoStep()
                state = in_form("numpy", env.initial(1, torch.Generator()))
                assert env.global_state(state).tolist() == [[1.0, 0.0, 0.0]]
                state, reward, over = env.transition(state, [np.array([[first, second]])])
                assert not reward.any()
                assert not over.any()
                assert env.global_state(state)[0].tolist() == [0.0, float(first == 0), float(first == 1)]
                assert env.observe(state)[0]["obs"][0, :, 3:].tolist() == [[1.0, 0.0], [0.0, 1.0]]
                _, reward, over = env.transition(state, [np.array([[a, b]])])
                assert over.all()
                assert reward[0, 0] == reward[0, 1]
                tables.append(float(reward[0, 0]))
            assert tables == ([7.0] * 4 if first == 0 else [0.0, 1.0, 1.0, 8.0])
