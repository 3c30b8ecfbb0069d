"""Hide-and-seek, on a grid and with bodies: its stages, each claimed by detectors and confirmed by a cross-table.

python -m benchmarks.learning.hide_and_seek                   # the grid, all that is missing: seeds 1, 2, 3 (CPU)
python -m benchmarks.learning.hide_and_seek --only 'quadrant*' --device cuda --at-once 3 --minutes 9 --store FOLDER
python -m benchmarks.learning.hide_and_seek --table           # only write the table and the figures again

Hiders and seekers learn by PPO against their present selves: no pool, no shaped reward. A stage is claimed by the means of a
window of updates (`stages.py`), and the parameters that the window led to are kept beside the run (`keeping.py`), a run of
their own that `runnel record` plays. Claims are confirmed by matches between them, played on the device of the run. What is
cut (`--minutes`) goes on at the next call; `--store` keeps each run as one file for machines that begin anew. A seed that has
a result with the same settings is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS
from benchmarks.learning import keeping, seeds, stages
from benchmarks.learning.detector_figure import draw
from benchmarks.learning.hide_and_seek_worlds import WORLDS
from benchmarks.learning.seatings import RANDOM, hiders_and_seekers
from benchmarks.learning.seeds import How, Row

OUT = RESULTS / "learning" / "hide-and-seek"
EPISODES = 1000
"""Of each cell of a cross-table."""
JUDGING_S = 90.0
"""What is left of a piece for the cross-table."""
MOST_BYTES = 16_000_000
"""A checkpoint that is larger does not travel between two machines."""
BUILT = {"num_box_lock_prep": 3.0, "max_box_move_prep": 2.0, "closed_prep": 10.0}
"""A fort on the grid, beside random play. In rooms of 3 to 5 cells random steps move a block by 0.9 cells and a door is 2 cells
away, so three times as far is not to be had there; in its place every door must be shut and locked ten times as often as at
random."""
LEAST = {
    "num_box_lock_prep": 0.5,
    "max_box_move_prep": 0.5,
    "max_ramp_move": 0.5,
    "seekers_high": 0.02,
    "num_ramp_lock_prep": 0.25,
}
"""With bodies, random play moves boxes by 2 cm in preparation and is never high up, so three or five times as much is still
nothing: half of the episodes must have a locked box, moved by half a metre, and so on. Fixed before the first run."""


@dataclass(frozen=True)
class Entry:
    """A run of both teams, and what its detectors are held against."""

    key: str
    recipe: str
    settings: Row
    built: Mapping[str, float] = field(default_factory=lambda: stages.BUILT)
    climbing: str = "ramp"
    least: Mapping[str, float] = field(default_factory=dict)
    even_at_random: bool = True
    """Whether random seekers do no better than random hiders. Where they do, a chase must do much better than they."""

    @property
    def every(self) -> int:
        """Updates of a window, which ends at a checkpoint."""
        return int(self.settings["checkpoint"]["every"])

    def signs(self, chance: Mapping[str, float], world: Any) -> stages.Signs:
        most = 0.0 if self.even_at_random else float(world.max_steps - world.preparation)
        return stages.Signs(chance, self.built, self.climbing, self.least, most)


SETTINGS: Row = {
    "env": "tensor:HideAndSeekGrid",
    "teams": ("hider_.*=hiders", "seeker_.*=seekers"),
    "total_steps": 8_000_000,
    "num_envs": 256,
    "num_steps": 60,
    "net": {"hidden": (64, 64), "activation": "relu"},
    "ppo": {"num_epochs": 2, "num_minibatches": 16, "lr": 3e-3, "gamma": 0.995, "entropy_coef": 0.01, "normalise_reward": True},
    "checkpoint": {"every": 10, "keep": 1000},
}
"""A segment is an episode of every world, so an update has all phases of 256 games."""
GRID = Entry("grid", "ippo", SETTINGS, BUILT, "ladder")
ENTRIES = (GRID, *(Entry(key, "ippo", settings, least=LEAST, even_at_random=False) for key, settings in WORLDS.items()))


def train(entry: Entry, seed: int, how: How) -> Row:
    """Train one seed, and judge what it has reached."""
    # judged step by step on a few worlds, for which compiling would take longer than playing
    kwargs = {key: x for key, x in entry.settings.get("env_kwargs", {}).items() if key != "compiled"}
    world = hiders_and_seekers(entry.settings["env"], kwargs)
    how = replace(how, limit_s=how.limit_s - min(JUDGING_S, how.limit_s / 4))
    chance = stages.at_random(world, episodes=EPISODES, device=how.device)
    signs = entry.signs(chance, world)

    def keeper(folder: Path) -> keeping.Keeper:
        return keeping.Keeper(folder, entry.every, lambda points: stages.claims(points, signs))

    run, spent = seeds.trained(f"hide-and-seek/{entry.key}", entry.recipe, entry.settings, seed, how, keeper)
    points = stages.curve(run.rows(), entry.every)
    claimed = stages.claims(points, signs)
    size = keeping.checkpoint_bytes(run.path)
    if size > MOST_BYTES:
        print(
            f"{entry.key}: a checkpoint has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}; use fewer worlds", flush=True
        )
    rate = {"steps_per_s": round(run.steps / max(spent["wall_s"], 1e-9)), "checkpoint_mb": round(size / 1e6, 2)}
    judged = _judged(run.path, claimed, world, how)
    told = {"at_random": chance, "claims": {stage: _told(claim) for stage, claim in claimed.items()}, **judged}
    return {**told, "missing": missing(points, claimed), "curve": points, **rate, **spent}


def _told(claim: stages.Claim) -> Row:
    return {"steps": claim.first["steps"], "best_at": claim.best["steps"], "version": claim.best["version"]}


def _judged(path: Path, claimed: Mapping[str, stages.Claim], world: Any, how: How) -> Row:
    """The cross-table of random play and the kept versions of the stages."""
    kept = {stage: path / keeping.KEPT / stage for stage in stages.STAGES if stage in claimed}
    if not kept:
        return {}
    players = {stages.AT_RANDOM: RANDOM} | {stage: str(folder) for stage, folder in kept.items()}
    table = stages.cross_table(players, world, episodes=EPISODES, seed=100_000, device=how.device)
    versions = {stage: keeping.kept_version(folder) for stage, folder in kept.items()}
    return {"versions": versions, "cross": table.row(), "confirmed": stages.confirmed(table)}


def missing(points: Sequence[Row], claimed: Mapping[str, stages.Claim]) -> Row:
    """Of the first stage that did not come: until which step it was waited for, and how each detector stood over the last fifth
    of the run and at its greatest."""
    stage = next((stage for stage in stages.STAGES if stage not in claimed), None)
    if stage is None or not points:
        return {}
    last = points[-max(1, len(points) // 5) :]
    names = [name for name in points[0] if name not in ("steps", "version")]
    late = {name: round(sum(p[name] for p in last) / len(last), 4) for name in names}
    return {"stage": stage, "steps": points[-1]["steps"], "late": late, "most": {n: max(p[n] for p in points) for n in names}}


def table(_: Sequence[Row], rows: Sequence[Row]) -> str:
    """For each seed when each stage came, then its cross-table and its curve; and a figure of each entry."""
    heads = [f"{name} at steps" for name in stages.STAGES.values()]
    lines = [f"| entry | seed | {' | '.join(heads)} | surfed | confirmed | steps | steps/s | minutes | of them GPU | MB |"]
    lines.append("|" + " --- |" * (len(heads) + 9))
    for row in rows:
        at = [f"{row['claims'][k]['steps']:,}" if k in row["claims"] else "not" for k in (*stages.STAGES, stages.SURF)]
        sure = ", ".join(f"{k}: {'yes' if ok else 'no'}" for k, ok in row.get("confirmed", {}).items())
        rate, size = (row.get(k, "") for k in ("steps_per_s", "checkpoint_mb"))
        took = f"{row['wall_s'] / 60:.1f}", f"{row.get('device_s', 0.0) / 60:.1f}"
        cells = [row["key"], row["seed"], *at, sure, f"{row['steps']:,}{' (cut)' if row.get('cut') else ''}", rate, *took, size]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    parts = ["\n".join(lines)]
    for row in rows:
        parts += _of_seed(row)
    draw(rows, OUT)
    return "\n\n".join(parts)


def _of_seed(row: Row) -> list[str]:
    parts = [f"Seed {row['seed']} of {row['key']}:"]
    parts += [stages.text_of(row["cross"])] if "cross" in row else []
    if absent := row.get("missing"):
        name = stages.STAGES[absent["stage"]]
        parts.append(f"{name[0].upper()}{name[1:]} did not come within {absent['steps']:,} steps; tried: `{row['settings']}`.")
    more = [name for name in ("closed_prep", "seekers_high", "max_ramp_move", "max_ramp_move_prep") if name in row["at_random"]]
    if row["curve"]:
        parts.append(stages.curve_text(row["curve"], row["at_random"], more=more))
    return parts


if __name__ == "__main__":
    seeds.main(OUT, ENTRIES, train, table, only=(GRID.key,))
