"""The stages of hide-and-seek: what the detectors of a run must show, and the cross-table of checkpoints that confirms a claim.

Detectors are metrics `episode/NAME` of a run (names: `runnel/envs/device/detectors.py`), held against those of random play. A
stage is claimed where its signature holds over a window of updates, and confirmed by matches: its hiders and seekers against
those of the stage before. Names of stages are those of OpenAI (Baker et al. 2020, arXiv:1909.07528) and of SRL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.learning.seatings import RANDOM, played

from runnel.envs.device.detectors import HIDERS, SEEKERS, SEEKERS_HIGH, UNSEEN

Row = dict[str, Any]
PREFIX = "episode/"
AT_RANDOM = "at random"
"""The player of a cross-table that is no stage."""
STAGES = {
    "chase": "running and chasing",
    "fort": "fort building",
    "ramp": "ramp use",
    "defence": "ramp defence",
}
"""The stages in their order, each with the name that papers give it."""
SURF, SURFED, SOME_SURFED = "surf", "surfed", 0.05
"""Box surfing: the detector of a world that has it, and in which share of the episodes somebody must surf."""
BUILT = {"num_box_lock_prep": 3.0, "max_box_move_prep": 3.0}
"""How many times as much as at random boxes must be locked and moved in preparation, for a fort."""
SOME_UNSEEN = 0.3
"""In which share of episodes nobody may ever be seen, for a fort."""
CLIMBED, FALLS = 5.0, 0.2
"""How many times as much as at random ramps must be moved and seekers be high up, for the use of ramps; by which share of its
range so far the hiders' return must fall then, and recover for the defence."""
TAKEN_CARE, LESS = 1.5, 0.5
"""How many times as far as in the stage before ramps must be moved in preparation (or three times as often as at random be
locked), and at most which share of what seekers did with them there may be left, for the defence."""


@dataclass(frozen=True)
class Signs:
    """What signatures are held against: random play (`chance`), how much more of what a fort takes (`built`), and what this
    world's seekers climb on. Where random play does next to nothing, a multiple of it says little: then `least` is what a
    detector must reach at all."""

    chance: Mapping[str, float]
    built: Mapping[str, float] = field(default_factory=lambda: BUILT)
    climbing: str = "ramp"
    least: Mapping[str, float] = field(default_factory=dict)
    most: float = 0.0
    """The greatest return of a seeker. With it a chase must be halfway from random play to there: where seekers are paid more
    than hiders even at random, that says nothing. 0: it is enough to be paid more."""

    @property
    def chased(self) -> float:
        """What seekers are paid more than, if they chase."""
        return max(0.0, (self.chance[SEEKERS] + self.most) / 2) if self.most else 0.0

    def reached(self, point: Row, name: str, times: float) -> bool:
        """Whether a detector is so many times as much as at random, and enough."""
        return bool(point[name] >= max(times * self.chance[name], self.least.get(name, 0.0)))


def curve(rows: Sequence[Row], every: int) -> list[Row]:
    """The detectors of a run's rows as means over windows of `every` updates, with the number of the last step and version of
    each. What is not a whole window yet is left out."""
    windows: dict[int, list[Row]] = {}
    for row in rows:
        if any(k.startswith(PREFIX) for k in row["metrics"]):
            windows.setdefault((row["version"] - 1) // every, []).append(row)
    found = []
    for number, part in sorted(windows.items()):
        last = part[-1]
        if last["version"] == (number + 1) * every:
            names = [k for k in last["metrics"] if k.startswith(PREFIX)]
            means = {k.removeprefix(PREFIX): round(float(np.mean([r["metrics"].get(k, 0.0) for r in part])), 4) for k in names}
            found.append({"steps": last["steps"], "version": last["version"], **means})
    return found


@dataclass(frozen=True)
class Claim:
    """A stage that a curve has reached: where its signature first held, and where its team was paid most while it held."""

    first: Row
    best: Row


class Reading:
    """Reads a curve point by point. What counts for a stage ends where the next one is claimed: hiders who know how to defend
    against ramps build forts, too."""

    def __init__(self, signs: Signs) -> None:
        self._signs = signs
        self.claims: dict[str, Claim] = {}
        self._best, self._low, self._high = -np.inf, np.inf, -np.inf
        """The best return that seekers had; the least and the greatest of hiders."""
        self._top, self._bottom = -np.inf, np.inf
        """The greatest return of hiders since the fort, and the least since ramps were used."""

    def add(self, point: Row) -> None:
        """Another window of the run."""
        for number, stage in enumerate(STAGES):
            later = list(STAGES)[number + 1 :]
            if not any(name in self.claims for name in later) and getattr(self, f"_is_{stage}")(point):
                self._claim(stage, point, SEEKERS if stage in ("chase", "ramp") else HIDERS)
        if point.get(SURFED, 0.0) > SOME_SURFED:
            self._claim(SURF, point, SURFED)
        self._best = max(self._best, point[SEEKERS])
        self._low, self._high = min(self._low, point[HIDERS]), max(self._high, point[HIDERS])
        if "fort" in self.claims:
            self._top = max(self._top, point[HIDERS])
        if "ramp" in self.claims:
            self._bottom = min(self._bottom, point[HIDERS])

    def _claim(self, stage: str, point: Row, by: str) -> None:
        known = self.claims.get(stage)
        if known is None or point[by] > known.best[by]:
            self.claims[stage] = Claim(known.first if known else point, point)

    def _is_chase(self, point: Row) -> bool:
        """Seekers are paid more than hiders (and than at random), and boxes are not used as in a fort."""
        return point[SEEKERS] > self._signs.chased and not self._stands(point)

    def _is_fort(self, point: Row) -> bool:
        """In preparation boxes are moved and locked several times as much as at random, hiders are paid more than seekers, who
        had chased them before, and in 30 % of the episodes nobody is ever seen."""
        hidden = point[HIDERS] > 0 and point[UNSEEN] > SOME_UNSEEN
        return self._stands(point) and hidden and self._best > self._signs.chased

    def _stands(self, point: Row) -> bool:
        return all(self._signs.reached(point, name, times) for name, times in self._signs.built.items())

    def _is_ramp(self, point: Row) -> bool:
        """Behind a fort: in the main phase seekers are high up, and ramps are moved, five times as much as at random, and the
        return of hiders has fallen by a fifth of its range so far."""
        used = (SEEKERS_HIGH, f"max_{self._signs.climbing}_move")
        high = all(point[name] > 0 and self._signs.reached(point, name, CLIMBED) for name in used)
        return "fort" in self.claims and high and point[HIDERS] < self._top - FALLS * (self._high - self._low)

    def _is_defence(self, point: Row) -> bool:
        """Behind the use of ramps: hiders move ramps in preparation half as far again as there, or lock them three times as
        often as at random; seekers move ramps and are high up half as much as there at most; and the return of hiders has
        recovered by a fifth of its range so far."""
        if "ramp" not in self.claims:
            return False
        there, thing = self.claims["ramp"].best, self._signs.climbing
        moved, locked = f"max_{thing}_move_prep", f"num_{thing}_lock_prep"
        locks = point[locked] > there[locked] and self._signs.reached(point, locked, BUILT["num_box_lock_prep"])
        cared = locks or point[moved] >= TAKEN_CARE * there[moved]
        over = all(point[name] <= LESS * there[name] for name in (SEEKERS_HIGH, f"max_{thing}_move"))
        return cared and over and point[HIDERS] > self._bottom + FALLS * (self._high - self._low)


def claims(points: Sequence[Row], signs: Signs) -> dict[str, Claim]:
    """The stages that a curve reaches, in their order, and whether boxes were surfed on (`SURF`)."""
    reading = Reading(signs)
    for point in points:
        reading.add(point)
    return reading.claims


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


def cross_table(players: Mapping[str, str], world: Any, *, episodes: int, seed: int, device: str = "cpu") -> CrossTable:
    """Every player's hiders against every player's seekers, its own too, on the same first states; `players` by name are what
    `seatings.played` takes."""
    names = list(players)
    mean, half = (np.zeros((len(names), len(names))) for _ in range(2))
    for i, hider in enumerate(names):
        for j, seeker in enumerate(names):
            seats = {"hider": players[hider], "seeker": players[seeker]}
            returns = played(world, seats, episodes=episodes, seed=seed, device=device)[HIDERS].double().cpu().numpy()
            mean[i, j], half[i, j] = returns.mean(), 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
    return CrossTable(tuple(names), mean.round(2).tolist(), half.round(2).tolist(), episodes)


def confirmed(table: CrossTable) -> dict[str, bool]:
    """Whether each stage in the table beats the one before, by the intervals of what hiders are paid.

    chase: its seekers beat hiders that play at random, and more clearly than random seekers do. fort: its hiders beat the
    seekers of the chase, against whom their own stage's hiders lose. ramp: its seekers get more of hiders of the fort than the
    fort's own seekers do. defence: its hiders get more of seekers of the stage of ramps than the hiders of that stage.
    """
    at = {name: i for i, name in enumerate(table.players)}

    def paid(hider: str, seeker: str) -> tuple[float, float]:
        i, j = at[hider], at[seeker]
        return table.mean[i][j] - table.half[i][j], table.mean[i][j] + table.half[i][j]

    found = {}
    if "chase" in at:
        found["chase"] = paid(AT_RANDOM, "chase")[1] < min(0.0, paid(AT_RANDOM, AT_RANDOM)[0])
    if {"chase", "fort"} <= set(at):
        found["fort"] = paid("fort", "chase")[0] > 0 > paid("chase", "chase")[1]
    if {"fort", "ramp"} <= set(at):
        found["ramp"] = paid("fort", "ramp")[1] < paid("fort", "fort")[0]
    if {"ramp", "defence"} <= set(at):
        found["defence"] = paid("defence", "ramp")[0] > paid("ramp", "ramp")[1]
    return found


def text_of(table: Mapping[str, Any]) -> str:
    """A cross-table in Markdown: rows are hiders, columns seekers; numbers are the return of one hider."""
    lines = [f"| hiders of \\ seekers of | {' | '.join(table['players'])} |", "|" + " --- |" * (len(table["players"]) + 1)]
    for name, means, halves in zip(table["players"], table["mean"], table["half"], strict=True):
        cells = [f"{m:+.1f} ± {h:.1f}" for m, h in zip(means, halves, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def at_random(world: Any, *, episodes: int, seed: int = 0, device: str = "cpu") -> dict[str, float]:
    """The detectors of random play."""
    found = played(world, {"hider": RANDOM, "seeker": RANDOM}, episodes=episodes, seed=seed, device=device)
    return {name: round(float(x.double().mean()), 4) for name, x in found.items()}


SHOWN = (SEEKERS, UNSEEN, "max_box_move_prep", "num_box_lock_prep", "max_box_move", "num_box_lock")


def curve_text(points: Sequence[Row], chance: Mapping[str, float], *, lines: int = 16, more: Sequence[str] = ()) -> str:
    """Some points of a curve in Markdown, with random play above them; `more` detectors beside those that all worlds have."""
    shown = (*SHOWN, *more)
    chosen = [points[i] for i in np.unique(np.linspace(0, len(points) - 1, lines).round().astype(int))]
    text = [f"| steps | {' | '.join(f'`{name}`' for name in shown)} |", "|" + " --- |" * (len(shown) + 1)]
    text.append(f"| at random | {' | '.join(f'{chance[name]:.2f}' for name in shown)} |")
    return "\n".join(text + [f"| {p['steps']:,} | {' | '.join(f'{p[name]:.2f}' for name in shown)} |" for p in chosen])
