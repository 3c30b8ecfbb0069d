"""Board games learned by self-play on our tensor worlds, and judged by OpenSpiel's rules beside players that do not learn.

python -m benchmarks.learning.boards                                   # all that is missing
python -m benchmarks.learning.boards --only 'tic-tac-toe' --seeds 1 2 3
python -m benchmarks.learning.boards --only '*wide' --device cuda --at-once 3   # on a GPU
python -m benchmarks.learning.boards --table                           # only write the table again

A policy trains on `tensor:TicTacToe` or `tensor:ConnectFour` and then plays by OpenSpiel's rules, greedily, from both seats:
against a player that moves at random, against perfect play (minimax) or against Monte Carlo tree search. Needs `pip install
"runnel[games]"`. A seed that has a result with the same settings is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from benchmarks.harness import RESULTS
from benchmarks.learning import seeds
from benchmarks.learning.seeds import How, Row

import runnel as rl

Move = Callable[[Any], int]
"""From a state of OpenSpiel to a move."""
OUT = RESULTS / "learning" / "boards"


@dataclass(frozen=True)
class Board:
    """A game: our world, OpenSpiel's name, its size, and whether stones fall."""

    env: str
    name: str
    height: int
    width: int
    falls: bool

    def seen(self, state: Any) -> np.ndarray:
        """What whoever is to move sees, as our world shows it: own stones, then the other's."""
        stones = np.zeros((2, self.height * self.width), np.float32)
        for turn, move in enumerate(state.history()):
            cell = move
            if self.falls:
                column = stones.sum(0).reshape(self.height, self.width)[:, move]
                cell = int(column.sum()) * self.width + move
            stones[turn % 2, cell] = 1.0
        mine = state.current_player()
        return np.concatenate([stones[mine], stones[1 - mine]])


TIC_TAC_TOE = Board("tensor:TicTacToe", "tic_tac_toe", 3, 3, falls=False)
CONNECT_FOUR = Board("tensor:ConnectFour", "connect_four", 6, 7, falls=True)


@dataclass(frozen=True)
class Entry:
    """A run of self-play. `opponents` are by name the player, the games, and the random moves before a game. With `curve_games`
    the checkpoints on the way are judged too, by so many games against each opponent, other ones than those at the end."""

    key: str
    board: Board
    settings: Row
    opponents: dict[str, tuple[Callable[[int], Move], int, int]]
    curve_games: int = 0


# ---------------------------------------------------------------------------------------------------------------- players
def learned(board: Board, policy: Any) -> Move:
    """The policy of a run; the same state gets the same move."""
    known: dict[str, int] = {}
    moves = board.width if board.falls else board.height * board.width

    def move(state: Any) -> int:
        key = str(state)
        if key not in known:
            agent = f"player_{state.current_player()}"
            mask = np.zeros(moves, bool)
            mask[state.legal_actions()] = True
            seen = {agent: {"observation": board.seen(state), "action_mask": mask}}
            known[key] = int(_act(policy, seen, agent))
        return known[key]

    return move


def _act(policy: Any, seen: dict[str, dict[str, np.ndarray]], agent: str) -> int:
    obs, mask = seen[agent]["observation"], seen[agent]["action_mask"]
    return int(policy.act({agent: obs}, action_mask={agent: mask})[agent])


def at_random(seed: int) -> Move:
    rng = np.random.default_rng(seed)
    return lambda state: int(rng.choice(state.legal_actions()))


@cache
def value(state_text: str) -> int:
    """What perfect play gets the first player of tic-tac-toe, from a state that is written as its moves."""
    state = _after(state_text)
    if state.is_terminal():
        return int(state.returns()[0])
    best = max if state.current_player() == 0 else min
    return best(value(f"{state_text} {move}") for move in state.legal_actions())


@cache
def _tic_tac_toe() -> Any:
    import pyspiel

    return pyspiel.load_game("tic_tac_toe")


def _after(state_text: str) -> Any:
    state = _tic_tac_toe().new_initial_state()
    for move in state_text.split():
        state.apply_action(int(move))
    return state


def perfect(seed: int) -> Move:
    """Minimax at tic-tac-toe; of several best moves one at random."""
    rng = np.random.default_rng(seed)

    def move(state: Any) -> int:
        text = " ".join(map(str, state.history()))
        sign = 1 if state.current_player() == 0 else -1
        worth = {move: sign * value(f"{text} {move}") for move in state.legal_actions()}
        most = max(worth.values())
        return int(rng.choice([move for move, w in worth.items() if w == most]))

    return move


def tree_search(seed: int) -> Move:
    """OpenSpiel's Monte Carlo tree search with 50 simulations of one random game each."""
    import pyspiel

    game = pyspiel.load_game("connect_four")
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    policy = pyspiel.ChildSelectionPolicy.UCT
    bot = pyspiel.MCTSBot(game, evaluator, 2.0, 50, 100, True, seed, False, policy)
    return lambda state: int(bot.step(state))


# ---------------------------------------------------------------------------------------------------------------- judging
def play(board: Board, mine: Move, other: Move, *, games: int, opening: int, seed: int) -> dict[str, list[int]]:
    """Wins, draws and losses of `mine` from each seat, half of `games` from each, after `opening` random moves."""
    import pyspiel

    game, rng = pyspiel.load_game(board.name), np.random.default_rng(seed)
    found = {"first": [0, 0, 0], "second": [0, 0, 0]}
    for i in range(games):
        seat, state = i % 2, game.new_initial_state()
        for _ in range(opening):
            state.apply_action(int(rng.choice(state.legal_actions())))
        while not state.is_terminal():
            state.apply_action((mine if state.current_player() == seat else other)(state))
        found["second" if seat else "first"][1 - int(state.returns()[seat])] += 1
    return found


def lines_lost(mine: Move) -> int:
    """Ways in which a player of tic-tac-toe that always moves alike can lose, over all moves that the other may make."""

    def count(text: str, seat: int) -> int:
        state = _after(text)
        if state.is_terminal():
            return int(state.returns()[seat] < 0)
        moves = [mine(state)] if state.current_player() == seat else state.legal_actions()
        return sum(count(f"{text} {move}", seat) for move in moves)

    return count("", 0) + count("", 1)


PPO: Row = {"num_epochs": 4, "num_minibatches": 4, "gamma": 1.0, "entropy_coef": 0.03}
FOUR: Row = {"num_epochs": 3, "num_minibatches": 16, "lr": "linear(1e-3, 2e-5)", "entropy_coef": 0.02}
FOUR |= {"gamma": 0.95, "gae_lambda": 0.8}
"""With a discount of 1 whoever is winning has no reason to win at once. docs/guides/self-play.md says what else was tried."""
WIDE: Row = {
    "total_steps": 80_000_000,
    "num_envs": 4096,
    "num_steps": 32,
    "net": {"hidden": (1024, 1024), "activation": "relu"},
    "ppo": {**FOUR, "num_minibatches": 32},
    "pool": {"every": 60, "size": 8, "pick": "pfsp", "latest": 0.95, "openings": 4},
}
"""On a GPU a step of the learner takes as long with few rows and a narrow network as with many and a wide one."""
AGAINST_FOUR: dict[str, tuple[Callable[[int], Move], int, int]] = {
    "at random": (at_random, 400, 2),
    "MCTS, 50 simulations": (tree_search, 400, 2),
}
ENTRIES = (
    Entry(
        "tic-tac-toe",
        TIC_TAC_TOE,
        {
            "total_steps": 1_500_000,
            "num_envs": 128,
            "num_steps": 32,
            "net": {"hidden": (256, 256)},
            "ppo": PPO,
            "pool": {"every": 20, "size": 2, "pick": "uniform", "latest": 0.8, "openings": 3},
        },
        {"at random": (at_random, 2000, 0), "perfect play": (perfect, 2000, 0)},
    ),
    Entry(
        "connect four",
        CONNECT_FOUR,
        {
            "total_steps": 5_000_000,
            "num_envs": 256,
            "num_steps": 32,
            "net": {"hidden": (256, 256), "activation": "relu"},
            "ppo": FOUR,
            "pool": {"every": 100, "size": 8, "pick": "pfsp", "latest": 0.95, "openings": 4},
            "checkpoint": {"every": 61, "keep": 100},
        },
        AGAINST_FOUR,
        curve_games=200,
    ),
    Entry("connect four, wide", CONNECT_FOUR, WIDE, AGAINST_FOUR),
)


def train(entry: Entry, seed: int, how: How) -> Row:
    """Train one seed, and play it against all opponents."""
    name = f"boards/{entry.key.replace(',', '').replace(' ', '-')}"
    run, spent = seeds.trained(name, "selfplay", {"env": entry.board.env, **entry.settings}, seed, how)
    return {**judge(entry, run), **spent}


def judge(entry: Entry, run: rl.Run) -> Row:
    """Games of a finished run against each opponent."""
    policy = rl.load(run.path)
    mine = learned(entry.board, policy)
    found: Row = {
        "games": {
            name: play(entry.board, mine, make(7), games=num, opening=opening, seed=100_000)
            for name, (make, num, opening) in entry.opponents.items()
        }
    }
    if entry.board is TIC_TAC_TOE:
        found["lines_lost"] = lines_lost(mine)
    return {**found, "curve": curve(entry, run, policy)} if entry.curve_games else found


def curve(entry: Entry, run: rl.Run, policy: Any) -> list[Row]:
    """Each checkpoint of a run: its steps, and the share of games that it wins against each opponent. `policy` is made to play
    as it did then."""
    (net,) = {id(each.net): each.net for each in policy.policies.values()}.values()
    steps, found = {row["version"]: row["steps"] for row in run.rows()}, []
    for version in sorted(int(path.name) for path in (run.path / "checkpoints").iterdir()):
        net.load_state_dict(rl.run.stored_params(f"run:{run.path}@{version}"))
        mine = learned(entry.board, policy)
        won = {}
        for name, (make, _, opening) in entry.opponents.items():
            by_seat = play(entry.board, mine, make(8), games=entry.curve_games, opening=opening, seed=200_000).values()
            won[name] = sum(wins for wins, _, _ in by_seat) / entry.curve_games
        found.append({"steps": steps[version], "won": won})
    return found


def table(_: Sequence[Row], rows: Sequence[Row]) -> str:
    """Each seed from both seats: wins, draws, losses; and together the share of points, a draw being half a win."""
    head = ("game", "seed", "opponent", "first: won, drawn, lost", "second", "points", "steps", "minutes of CPU")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in rows:
        for name, by_seat in row["games"].items():
            first, second = by_seat["first"], by_seat["second"]
            points = sum(w + d / 2 for w, d, _ in (first, second)) / sum(first + second)
            cells = [row["key"], row["seed"], name, " ".join(map(str, first)), " ".join(map(str, second))]
            lines.append(f"| {' | '.join(map(str, cells))} | {points:.3f} | {row['steps']:,} | {row['cpu_s'] / 60:.1f} |")
    cut = [f"- {row['key']}, seed {row['seed']}, was cut: it has not come to its end" for row in rows if row.get("cut")]
    return "\n".join([*lines, *([""] if cut else []), *cut, *(line for row in rows if "curve" in row for line in _curve(row))])


def _curve(row: Row) -> list[str]:
    """The curve of one seed as a table: how much was won when."""
    names = list(row["curve"][0]["won"])
    lines = ["", f"Share of games won on the way, {row['key']}, seed {row['seed']}:", ""]
    lines += [f"| steps | {' | '.join(names)} |", "|" + " --- |" * (1 + len(names))]
    lines += [f"| {at['steps']:,} | " + " | ".join(f"{at['won'][n]:.2f}" for n in names) + " |" for at in row["curve"]]
    return lines


if __name__ == "__main__":
    seeds.main(OUT, ENTRIES, train, table)
