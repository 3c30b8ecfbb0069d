"""Poker that networks learn, judged exactly: how much a perfect opponent wins against what was trained.

python -m benchmarks.learning.poker                              # all that is missing
python -m benchmarks.learning.poker --only 'kuhn: *' --seeds 1 2 3
python -m benchmarks.learning.poker --table                      # only write the table again

A run trains on `tensor:Kuhn` or `tensor:Leduc`, and OpenSpiel's game is then solved against its policy (`rl.games`): NashConv /
2, in antes. Beside it stand strategies that do not learn, and PSRO with exact best responses. A seed that has a result with
the same settings is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.harness import RESULTS
from benchmarks.learning import seeds
from benchmarks.learning.seeds import How, Row

import runnel as rl
from runnel.eval.statistics import mean_interval

OUT = RESULTS / "learning" / "poker"
GAMES = {"kuhn": ("tensor:Kuhn", "kuhn_poker"), "leduc": ("tensor:Leduc", "leduc_poker")}


@dataclass(frozen=True)
class Learner:
    """A recipe with its settings in a game, and the exploitability that it is asked to come below (None: it is only told)."""

    game: str
    name: str
    recipe: str
    settings: Row
    goal: float | None = None

    @property
    def key(self) -> str:
        return f"{self.game}: {self.name}"


LEARNERS = (
    # 300,000 games, the budget after which OpenSpiel's NFSP has 0.135
    Learner("kuhn", "nfsp", "nfsp", {"total_steps": 720_000, "num_envs": 128, "num_steps": 16}, goal=0.1),
    # PSRO whose best responses are learned: a member of the pool is drawn before each game, as Nash picks it
    Learner(
        "kuhn",
        "selfplay, its pool by nash",
        "selfplay",
        {
            "total_steps": 400_000,
            "num_envs": 128,
            "num_steps": 16,
            "ppo": {"num_epochs": 4, "entropy_coef": 0.05, "lr": 1e-3},
            "pool": {"pick": "nash", "latest": 0.0, "every": 6, "size": 40},
        },
    ),
    Learner(
        "leduc",
        "nfsp",
        "nfsp",
        {
            "total_steps": 1_000_000,
            "num_envs": 128,
            "num_steps": 16,
            "net": {"hidden": (128,)},
            "nfsp": {"replay_size": 200_000},
        },
    ),
)


def train(learner: Learner, seed: int, how: How) -> Row:
    """Train one seed, and solve the game against it."""
    env, name = GAMES[learner.game]
    run, spent = seeds.trained(
        f"poker/{learner.game}-{learner.recipe}", learner.recipe, {"env": env, **learner.settings}, seed, how
    )
    if "pool" in learner.settings:
        policies, shares = rl.run.frozen_policies(run.path)
        solved = rl.games.exploitability(name, *policies.values(), weights=list(shares.values()))
    else:
        solved = rl.games.exploitability(name, rl.load(run.path))
    found = {"exploitability": solved.value, "gains": list(solved.gains), "value": solved.values[0]}
    return {**found, **spent}


def anchor_rows() -> list[Row]:
    """Strategies that do not learn, and populations whose best responses are exact."""
    rows = []
    for key, (_, name) in GAMES.items():
        game = rl.games.SmallGame(name)
        first = [np.eye(seat.legal.shape[1])[seat.legal.argmax(axis=1)] for seat in game.seats]
        rows.append({"key": f"{key}: all moves alike", "exploitability": game.exploitability(game.uniform())})
        rows.append({"key": f"{key}: always the first move", "exploitability": game.exploitability((first[0], first[1]))})
        for solver, iterations in (("latest", 50), ("uniform", 50), ("risk_averse", 50), ("nash", 7), ("nash", 50)):
            found = rl.games.psro(game, solver=solver, iterations=iterations)[-1].exploitability
            rows.append({"key": f"{key}: exact PSRO, {solver}, iteration {iterations}", "exploitability": found})
    return rows


def table(anchors: Sequence[Row], rows: Sequence[Row]) -> str:
    """All that was run: each seed, the mean over seeds with half the width of its 95 % interval, and what was asked for."""
    head = ("player", "seeds", "mean over seeds", "asked for", "moves", "CPU seconds of a run")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    lines += [f"| {row['key']} | | {row['exploitability']:.4f} | | | |" for row in anchors]
    for learner in LEARNERS:
        mine = [row for row in rows if row["key"] == learner.key]
        if not mine:
            continue
        values = np.array([row["exploitability"] for row in mine])
        mean, half = map(float, mean_interval(values)) if len(mine) > 1 else (float(values[0]), float("nan"))
        goal = "" if learner.goal is None else f"< {learner.goal:g}"
        each, cpu = ", ".join(f"{x:.3f}" for x in values), np.mean([row["cpu_s"] for row in mine])
        lines.append(f"| {learner.key} | {each} | {mean:.3f} ± {half:.3f} | {goal} | {mine[0]['steps']:,} | {cpu:.0f} |")
    return "Exploitability (NashConv / 2), in antes.\n\n" + "\n".join(lines)


if __name__ == "__main__":
    seeds.main(OUT, LEARNERS, train, table, anchor_rows)
