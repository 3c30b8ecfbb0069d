"""Hide-and-seek on a grid: chase and fort, each with its detectors and a cross-table.

python -m benchmarks.learning.hide_and_seek                   # all that is missing: seeds 1, 2, 3
python -m benchmarks.learning.hide_and_seek --seeds 1 --minutes 20
python -m benchmarks.learning.hide_and_seek --table           # only write the table again

Hiders and seekers learn by `ippo` on `tensor:HideAndSeekGrid`, each team with a policy of its own, against the present policy
of the other: no pool, no shaped reward. A stage is claimed by the means of a window of the run, and confirmed by matches
between kept versions (`stages.py`). A seed that has a result with the same settings is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import RESULTS
from benchmarks.learning import seeds, stages
from benchmarks.learning.seeds import How, Row

OUT = RESULTS / "learning" / "hide-and-seek"
ENV = "tensor:HideAndSeekGrid"
EPISODES = 1000
"""Of each cell of a cross-table."""
BUILT = {"num_box_lock_prep": 3.0, "max_box_move_prep": 2.0, "closed_prep": 10.0}
"""A fort, beside random play. In rooms of 3 to 5 cells random steps move a block by 0.9 cells and a door is 2 cells away, so
three times as far is not to be had here; in its place every door must be shut and locked ten times as often as at random."""


@dataclass(frozen=True)
class Entry:
    """A run of both teams."""

    key: str
    recipe: str
    settings: Row


SETTINGS: Row = {
    "env": ENV,
    "teams": ("hider_.*=hiders", "seeker_.*=seekers"),
    "total_steps": 8_000_000,
    "num_envs": 256,
    "num_steps": 60,
    "net": {"hidden": (64, 64), "activation": "relu"},
    "ppo": {"num_epochs": 2, "num_minibatches": 16, "lr": 3e-3, "gamma": 0.995, "entropy_coef": 0.01, "normalise_reward": True},
    "checkpoint": {"every": 10, "keep": 1000},
}
"""A segment is an episode of every world, so an update has all phases of 256 games."""
ENTRIES = (Entry("grid", "ippo", SETTINGS),)


def train(entry: Entry, seed: int, how: How) -> Row:
    """Train one seed, and judge what it has reached."""
    run, spent = seeds.trained(f"hide-and-seek/{entry.key}", entry.recipe, entry.settings, seed, how)
    points, chance = stages.curve(run), stages.at_random(ENV, episodes=4096)
    claimed = stages.claims(points, chance, BUILT)
    firsts = {stage: {"steps": claim.first["steps"], "best_at": claim.best["steps"]} for stage, claim in claimed.items()}
    judged = _judged(run.path, claimed, entry.settings["checkpoint"]["every"])
    return {"at_random": chance, "claims": firsts, **judged, "curve": points, **spent}


def _judged(path: Path, claimed: dict[str, stages.Claim], every: int) -> Row:
    """The cross-table of random play and the kept versions that are nearest to where each stage was at its best."""
    if "chase" not in claimed:
        return {}
    kept = {stage: max(every, round(claim.best["version"] / every) * every) for stage, claim in claimed.items()}
    players = {stages.RANDOM: "random"} | {stage: f"run:{path}@{version}" for stage, version in kept.items()}
    table = stages.cross_table(players, ENV, episodes=EPISODES, seed=100_000)
    found = stages.confirmed(table, "chase", "fort" if "fort" in claimed else None)
    return {"versions": kept, "cross": table.row(), "confirmed": found}


def table(_: Sequence[Row], rows: Sequence[Row]) -> str:
    """For each seed when each stage came, then its cross-table and its curve."""
    lines = ["| entry | seed | chase at steps | fort at steps | confirmed | steps | minutes of CPU |", "|" + " --- |" * 7]
    for row in rows:
        at = [f"{row['claims'][k]['steps']:,}" if k in row["claims"] else "not" for k in ("chase", "fort")]
        sure = ", ".join(f"{k}: {'yes' if ok else 'no'}" for k, ok in row.get("confirmed", {}).items())
        cells = [row["key"], row["seed"], *at, sure, f"{row['steps']:,}", f"{row['cpu_s'] / 60:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    parts = ["\n".join(lines)]
    for row in rows:
        parts.append(f"Seed {row['seed']} of {row['key']}:")
        parts += [stages.text_of(row["cross"])] if "cross" in row else []
        parts.append(stages.curve_text(row["curve"], row["at_random"], more=("closed_prep", "seekers_high")))
    return "\n\n".join(parts)


if __name__ == "__main__":
    seeds.main(OUT, ENTRIES, train, table)
