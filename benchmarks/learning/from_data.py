"""Learning from a recorded run: RLPD beside SAC at equal steps and updates, and clones of a teacher, on Pendulum-v1.

python -m benchmarks.learning.from_data                 # 15 minutes of one core; writes results/learning/from_data
python -m benchmarks.learning.from_data --seeds 1 2 --table

A teacher (SAC, 10,000 steps, settings of the zoo, a seed that no learner has) is trained once, and 20 episodes of it are
recorded with the actions that it draws. All learners have the zoo's settings of SAC for Pendulum (two layers of 256, rates of
1e-3, one update a step from step 1,000 on) and are evaluated on 50 greedy episodes every 1,000 updates. What is written down is
everything that was run: nothing is left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import machine, venvs
from benchmarks.harness import RESULTS

import runnel as rl
from runnel.eval.statistics import mean_interval

Row = dict[str, Any]
RUNS = venvs.ROOT / "runs" / "from_data"
OUT = RESULTS / "learning" / "from_data"
ENV, TEACHER_SEED, TEACHER_STEPS, EPISODES = "Pendulum-v1", 100, 10_000, 20
STEPS, EVERY = 5_000, 1_000
RATES: Row = {"actor_lr": 1e-3, "critic_lr": 1e-3}
PLAIN: Row = {"track": (), "checkpoint": {"every": 0}, "progress": False, "env": ENV}
EVALS: Row = {"every": EVERY, "episodes": 50}
ONLINE: Row = {"total_steps": STEPS, "min_fill": 1_000, "update_ratio": 1.0, "eval": EVALS}
AS_SAC: Row = {"num_critics": 2, "subset": 2, "layer_norm": False, "actor_every": 1}
LEARNERS: dict[str, tuple[str, Row]] = {
    "SAC": ("sac", {"sac": RATES}),
    "SAC's critics, half of each batch from the data": ("rlpd", {"rlpd": {**RATES, **AS_SAC}}),
    "RLPD (10 critics, layer normalisation)": ("rlpd", {"rlpd": {**RATES, "actor_every": 1}}),
    "behaviour cloning, 4,000 updates": ("bc", {"total_updates": 4_000, "eval": EVALS}),
}


def teach() -> tuple[rl.Run | Path, rl.data.Dataset]:
    """The teacher and its episodes; made once."""
    data = RUNS / "data"
    run: rl.Run | Path = RUNS / "teacher"
    if not data.is_dir():
        run = rl.train("sac", total_steps=TEACHER_STEPS, seed=TEACHER_SEED, out=str(RUNS), name="teacher", **PLAIN)
        rl.record_data(run, data, episodes=EPISODES, stochastic=True, seed=TEACHER_SEED)
    return run, rl.data.Dataset.open(data)


def learn(name: str, seed: int, data: rl.data.Dataset) -> Row:
    """One learner with one seed: the means of its evaluations, by version."""
    recipe, settings = LEARNERS[name]
    given = settings if recipe == "bc" else {**ONLINE, **settings}
    given = given if recipe == "sac" else {**given, "data": str(data.folder)}
    start = time.process_time()
    run = rl.train(recipe, seed=seed, out=str(RUNS), **PLAIN, **given)
    if run.interrupted:
        raise KeyboardInterrupt  # a run that was stopped has measured nothing
    curve = [[row["version"], row["steps"], round(row["mean"], 1)] for row in run.rows("eval")]
    return {"learner": name, "seed": seed, "curve": curve, "cpu_s": round(time.process_time() - start, 1)}


def table(rows: list[Row]) -> str:
    """Means over seeds with half the width of their 95 % interval, by version."""
    of_each = [{version for version, *_ in row["curve"] if version % EVERY == 0} for row in rows]
    versions = sorted(set.intersection(*of_each))
    head = [*(f"{v:,} updates" for v in versions), "at the end", "seeds", "seconds of CPU a run"]
    lines = [f"| learner | {' | '.join(head)} |", f"|{' --- |' * (len(head) + 1)}"]
    for name in LEARNERS:
        mine = [row for row in rows if row["learner"] == name]
        cells = []
        columns = [[mean for row in mine for v, _, mean in row["curve"] if v == version] for version in versions]
        for found in (*columns, [row["curve"][-1][-1] for row in mine]):
            mean, half = map(float, mean_interval(np.array(found)))
            cells.append(f"{mean:.0f} ± {half:.0f}")
        seconds = [row["cpu_s"] for row in mine]
        cells.append(str(len(mine)))
        cells.append(f"{sum(seconds) / max(len(seconds), 1):.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--table", action="store_true", help="only write the table of what was run again")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "rows.json"
    known: Row = json.loads(path.read_text("utf-8")) if path.is_file() else {"rows": []}
    if not args.table:
        _, data = teach()
        returns = data.returns()
        known |= {"data": {"digest": data.digest, "mean": float(returns.mean()), "episodes": data.num_episodes}}
        known |= {"machine": machine.facts()}
        done = {(row["learner"], row["seed"]) for row in known["rows"]}
        for seed in args.seeds:
            for name in LEARNERS:
                if (name, seed) not in done:
                    known["rows"].append(learn(name, seed, data))
                    path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
                    print(json.dumps(known["rows"][-1]), flush=True)
    made = known["data"]
    text = f"Data: {made['episodes']} episodes of the teacher as it explores, mean return {made['mean']:.0f}.\n\n"
    (OUT / "table.md").write_text(f"{text}{table(known['rows'])}\n", "utf-8")
    print(table(known["rows"]))


if __name__ == "__main__":
    main()
