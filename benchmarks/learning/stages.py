"""The stages of hide-and-seek: what the detectors of a run must show, and the cross-table of checkpoints that confirms a claim.

Detectors are metrics `episode/NAME` of a run (names: `runnel/envs/device/detectors.py`), held against those of random play. A
stage is claimed where its signature holds over a window of updates, and confirmed by matches: its hiders and seekers against
those of the stage before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import runnel as rl
from runnel.core.routes import sides_of, team_routes
from runnel.envs.device.detectors import HIDERS, SEEKERS, UNSEEN
from runnel.envs.device.team_vector import TensorTeam
from runnel.envs.registry import make_tensor_team

Row = dict[str, Any]
PREFIX = "episode/"
WINDOWS = 50
"""Points of a curve: each is the mean over that share of the run."""
BUILT = {"num_box_lock_prep": 3.0, "max_box_move_prep": 3.0}
"""How many times as much as at random boxes must be locked and moved in preparation, for a fort."""
SOME_UNSEEN = 0.3
"""In which share of episodes nobody may ever be seen, for a fort."""
RANDOM = "at random"


def curve(run: rl.Run) -> list[Row]:
    """The detectors of a run as means over windows of its updates, with the number of the last step and version of each."""
    rows = [row for row in run.rows() if any(k.startswith(PREFIX) for k in row["metrics"])]
    names = [k for k in rows[0]["metrics"] if k.startswith(PREFIX)]
    found = []
    for part in np.array_split(np.arange(len(rows)), min(WINDOWS, len(rows))):
        means = {k.removeprefix(PREFIX): round(float(np.mean([rows[i]["metrics"][k] for i in part])), 4) for k in names}
        found.append({"steps": rows[part[-1]]["steps"], "version": rows[part[-1]]["version"], **means})
    return found


def signatures(
    point: Mapping[str, float], chance: Mapping[str, float], best: float = 0.0, built: Mapping[str, float] = BUILT
) -> Iterator[str]:
    """The stages whose signature a point of a curve has, where random play has `chance`; `best` is the best return that seekers
    had before it.

    chase: seekers are paid more than hiders, and boxes are not used as in a fort. fort: in preparation boxes are moved and
    locked three times as much as at random, hiders are paid more than seekers, who had been better before, and in 30 % of the
    episodes nobody is ever seen.
    """
    stands = all(point[name] >= times * chance[name] for name, times in built.items())
    if point[SEEKERS] > 0 and not stands:
        yield "chase"
    if stands and point[HIDERS] > 0 and best > 0 and point[UNSEEN] > SOME_UNSEEN:
        yield "fort"


@dataclass(frozen=True)
class Claim:
    """A stage that a curve has reached: where its signature first held, and where its team was paid most while it held."""

    first: Row
    best: Row


def claims(points: Sequence[Row], chance: Mapping[str, float], built: Mapping[str, float] = BUILT) -> dict[str, Claim]:
    """The stages that a curve reaches, in their order; of a chase that comes back after a fort, nothing counts."""
    found: dict[str, Claim] = {}
    best = -np.inf
    for point in points:
        for stage in signatures(point, chance, best, built):
            if stage == "chase" and "fort" in found:
                continue
            known, team = found.get(stage), SEEKERS if stage == "chase" else HIDERS
            if known is None or point[team] > known.best[team]:
                found[stage] = Claim(known.first if known else point, point)
        best = max(best, point[SEEKERS])
    return found


@dataclass(frozen=True)
class CrossTable:
    """What hiders of each player (rows) are paid by seekers of each player (columns), with half the width of its 95 %
    interval."""

    players: tuple[str, ...]
    mean: list[list[float]]
    half: list[list[float]]
    episodes: int

    def row(self) -> Row:
        """As plain data."""
        return {"players": list(self.players), "mean": self.mean, "half": self.half, "episodes": self.episodes}


def cross_table(
    players: Mapping[str, str], env: str, *, kwargs: Mapping[str, Any] | None = None, episodes: int, seed: int
) -> CrossTable:
    """Every player's hiders against every player's seekers, its own too; `players` by name are what `rl.match` takes."""
    names = list(players)
    # as if they were partners, because those also play with themselves
    match = rl.match(dict(players), env, kwargs=kwargs, episodes=episodes, seed=seed, cross_play=True)
    place = list(match.seats).index("hider")
    mean, half = (np.zeros((len(names), len(names))) for _ in range(2))
    for i, hider in enumerate(names):
        for j, seeker in enumerate(names):
            sits = {"hider": hider, "seeker": seeker}
            (games,) = [g for g in match.games if g.players == tuple(sits[seat] for seat in match.seats)]
            returns = games.returns[:, place]
            mean[i, j], half[i, j] = returns.mean(), 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
    return CrossTable(tuple(names), mean.round(2).tolist(), half.round(2).tolist(), episodes)


def confirmed(table: CrossTable, chase: str, fort: str | None) -> dict[str, bool]:
    """Whether each stage beats those of the stage before: seekers of the chase hiders that play at random; hiders of the fort
    the seekers of the chase, against whom their own stage's hiders lose."""
    at = {name: i for i, name in enumerate(table.players)}

    def paid(hider: str, seeker: str) -> tuple[float, float]:
        i, j = at[hider], at[seeker]
        return table.mean[i][j] - table.half[i][j], table.mean[i][j] + table.half[i][j]

    found = {"chase": paid(RANDOM, chase)[1] < 0}
    if fort is not None:
        found["fort"] = paid(fort, chase)[0] > 0 > paid(chase, chase)[1]
    return found


def text_of(table: Mapping[str, Any]) -> str:
    """A cross-table in Markdown: rows are hiders, columns seekers; numbers are the return of one hider."""
    lines = [f"| hiders of \\ seekers of | {' | '.join(table['players'])} |", "|" + " --- |" * (len(table["players"]) + 1)]
    for name, means, halves in zip(table["players"], table["mean"], table["half"], strict=True):
        cells = [f"{m:+.1f} ± {h:.1f}" for m, h in zip(means, halves, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def at_random(env: str, *, kwargs: Mapping[str, Any] | None = None, episodes: int, seed: int = 0) -> dict[str, float]:
    """The detectors of random play."""
    world: Any = make_tensor_team(env, kwargs=dict(kwargs or {}))
    sides = sides_of(team_routes([]), world.spec)
    vector = TensorTeam(world, 256, sides=sides, seed=seed)
    rng, found = np.random.default_rng(seed), []
    (side,) = sides.values()
    while len(found) < episodes:
        drawn = rng.integers(0, side.spec.action.num_actions, 256 * len(side.agents))
        vector.send({name: torch.from_numpy(drawn) for name in sides})
        found += vector.episodes()
    return {name: round(float(np.mean([e.statistics[name] for e in found])), 4) for name in found[0].statistics}


SHOWN = (SEEKERS, UNSEEN, "max_box_move_prep", "num_box_lock_prep", "max_box_move", "num_box_lock")


def curve_text(points: Sequence[Row], chance: Mapping[str, float], *, lines: int = 16, more: Sequence[str] = ()) -> str:
    """Some points of a curve in Markdown, with random play above them; `more` detectors beside those that all worlds have."""
    shown = (*SHOWN, *more)
    chosen = [points[i] for i in np.unique(np.linspace(0, len(points) - 1, lines).round().astype(int))]
    text = [f"| steps | {' | '.join(f'`{name}`' for name in shown)} |", "|" + " --- |" * (len(shown) + 1)]
    text.append(f"| at random | {' | '.join(f'{chance[name]:.2f}' for name in shown)} |")
    return "\n".join(text + [f"| {p['steps']:,} | {' | '.join(f'{p[name]:.2f}' for name in shown)} |" for p in chosen])
