"""Learners beside one another on data of one teacher: the rows of all runs in a file, and the table of their evaluations."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import machine, venvs
from benchmarks.harness import RESULTS

import runnel as rl
from runnel.eval.statistics import mean_interval

Row = dict[str, Any]


@dataclass(frozen=True)
class Teacher:
    """Who is trained once, and recorded: recipe, settings, seed (one that no learner has), episodes, and more for
    `rl.record_data`."""

    recipe: str
    settings: Row
    seed: int
    episodes: int
    more: Row

    def data(self, folder: Path) -> rl.data.Dataset:
        """Its episodes, with the actions that it draws; made once."""
        data = folder / "data"
        if not data.is_dir():
            run = rl.train(self.recipe, seed=self.seed, out=str(folder), name="teacher", **self.settings)
            rl.record_data(run, data, episodes=self.episodes, stochastic=True, seed=self.seed, **self.more)
        return rl.data.Dataset.open(data)


@dataclass(frozen=True)
class Study:
    """Learners by name: recipe and settings, with the teacher's data. They are evaluated every `every` updates."""

    name: str
    teacher: Teacher
    learners: dict[str, tuple[str, Callable[[rl.data.Dataset], Row]]]
    every: int

    @property
    def out(self) -> Path:
        return RESULTS / "learning" / self.name

    def main(self) -> None:
        """Play what is missing, and write the table of everything that was run: nothing is left out."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
        parser.add_argument("--table", action="store_true", help="only write the table of what was run again")
        args = parser.parse_args()
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "rows.json"
        known: Row = json.loads(path.read_text("utf-8")) if path.is_file() else {"rows": []}
        if not args.table:
            self._play(known, path, args.seeds)
        made = known["data"]
        text = f"Data: {made['episodes']} episodes of the teacher as it explores, mean return {made['mean']:.0f}.\n\n"
        found = self.table(known["rows"])
        (self.out / "table.md").write_text(f"{text}{found}\n", "utf-8")
        print(found)

    def _play(self, known: Row, path: Path, seeds: Sequence[int]) -> None:
        folder = venvs.ROOT / "runs" / self.name
        data = self.teacher.data(folder)
        returns = data.returns()
        known["data"] = {"digest": data.digest, "mean": float(returns.mean()), "episodes": data.num_episodes}
        known["machine"] = machine.facts()
        done = {(row["learner"], row["seed"]) for row in known["rows"]}
        for seed in seeds:
            for name in self.learners:
                if (name, seed) not in done:
                    known["rows"].append(self._learn(name, seed, data, folder))
                    path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
                    print(json.dumps(known["rows"][-1]), flush=True)

    def _learn(self, name: str, seed: int, data: rl.data.Dataset, folder: Path) -> Row:
        """One learner with one seed: the means of its evaluations, by version."""
        recipe, settings = self.learners[name]
        start = time.process_time()
        run = rl.train(recipe, seed=seed, out=str(folder), **settings(data))
        if run.interrupted:
            raise KeyboardInterrupt  # a run that was stopped has measured nothing
        curve = [[row["version"], row["steps"], round(row["mean"], 1)] for row in run.rows("eval")]
        return {"learner": name, "seed": seed, "curve": curve, "cpu_s": round(time.process_time() - start, 1)}

    def table(self, rows: list[Row]) -> str:
        """Means over seeds with half the width of their 95 % interval, by version."""
        of_each = [{version for version, *_ in row["curve"] if version % self.every == 0} for row in rows]
        versions = sorted(set.intersection(*of_each))
        head = [*(f"{v:,} updates" for v in versions), "at the end", "seeds", "seconds of CPU a run"]
        lines = [f"| learner | {' | '.join(head)} |", f"|{' --- |' * (len(head) + 1)}"]
        for name in self.learners:
            mine = [row for row in rows if row["learner"] == name]
            cells = []
            columns = [[mean for row in mine for v, _, mean in row["curve"] if v == version] for version in versions]
            for found in (*columns, [row["curve"][-1][-1] for row in mine]):
                mean, half = map(float, mean_interval(np.array(found)))
                cells.append(f"{mean:.0f} ± {half:.0f}")
            seconds = [row["cpu_s"] for row in mine]
            cells += [str(len(mine)), f"{sum(seconds) / max(len(seconds), 1):.0f}"]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines)
