"""Ways to search, at equal environment steps: PPO on CartPole-v1, each winner trained anew on fresh seeds.

python -m benchmarks.tune.run
python -m benchmarks.tune.run --repeats 2 --budget 20000 --steps 2000      # does it run at all?

Each way gets the same number of environment steps; trials that were pruned count for what they used. Random search spends them
on whole trials; TPE chooses them by what it has seen; with Hyperband most end early, so that there are more. What counts is
not the number by which a winner was selected but its mean return over fresh seeds (`test`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import runnel as rl
from benchmarks import machine
from benchmarks.harness import RESULTS
from runnel import tune
from runnel.eval.statistics import bootstrap_interval
from runnel.track.folder import RunFolder

NAME = "tune/ppo-cartpole"
WAYS: dict[str, dict[str, Any]] = {
    "random": {"sampler": "random", "pruner": "none"},
    "tpe": {"sampler": "tpe", "pruner": "none"},
    "tpe + hyperband": {"sampler": "tpe", "pruner": "hyperband"},
}
SPACE = {
    "ppo.lr": "log(1e-5, 3e-2)",
    "ppo.gamma": "{0.9, 0.95, 0.98, 0.99, 0.999}",
    "ppo.gae_lambda": "0.7..1",
    "ppo.clip_range": "{0.05, 0.1, 0.2, 0.4}",
    "ppo.num_epochs": "int(1, 20)",
    "ppo.entropy_coef": "{0, 0.01, 0.1}",
}
SETTINGS: dict[str, Any] = {"num_steps": 32, "vector.backend": "serial", "compiled": "off", "eval.episodes": 20}
Row = dict[str, Any]


def steps_of(study: tune.Study, trial: Row) -> int:
    """Environment steps that a trial has used."""
    rows = RunFolder(study.path / trial["run"]).read_rows()[0]
    return max((r["steps"] for r in rows if r["kind"] == "update"), default=0)


def search(way: str, repeat: int, *, steps: int, budget: int, out: Path) -> Row:
    """One search: its winner within the budget, and what was used."""
    trials, used = budget // steps, 0
    while True:
        options = {**WAYS[way], "trials": trials, "search_seed": repeat}
        study = tune.search("ppo", space=SPACE, out=out, options=options, total_steps=steps, **SETTINGS)
        if study.status != "finished":
            raise SystemExit(130)
        costs = [steps_of(study, t) for t in study.trials]
        if sum(costs) >= budget - steps // 2:
            break
        trials += max(1, (budget - sum(costs)) // steps)
    best: Row | None = None
    for trial, cost in zip(study.trials, costs, strict=True):
        used += cost
        if used > budget + steps // 2:
            break
        if trial["state"] == "complete" and (best is None or trial["value"] > best["value"]):
            best = trial
    assert best is not None
    return {
        "way": way,
        "repeat": repeat,
        "selected": best["value"],
        "params": best["params"],
        "trials": len(costs),
        "steps": sum(costs),
    }


def judge(row: Row, seeds: int, *, steps: int, out: Path) -> Row:
    """Train a winner on fresh seeds."""
    name = row["way"].replace(" ", "")
    runs = [
        rl.train(
            "ppo",
            total_steps=steps,
            seed=s,
            out=str(out),
            name=f"{name}-{row['repeat']}-{s}",
            track=(),
            **SETTINGS,
            **row["params"],
        )
        for s in range(1, seeds + 1)
    ]
    return {**row, "test": mean(float(run.eval["mean"]) for run in runs if run.eval is not None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=6, help="searches of each way, each with a seed of its own (6)")
    parser.add_argument("--steps", type=int, default=2_000, help="environment steps of a whole trial (2,000)")
    parser.add_argument("--budget", type=int, default=40_000, help="environment steps of a search (40,000)")
    parser.add_argument("--test-seeds", type=int, default=4, help="fresh seeds that judge each winner (4)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for way in WAYS:
                out = Path(folder) / f"{way}-{repeat}".replace(" ", "")
                row = judge(
                    search(way, repeat, steps=args.steps, budget=args.budget, out=out),
                    args.test_seeds,
                    steps=args.steps,
                    out=out / "judged",
                )
                rows.append(row)
                told = (
                    f"selected {row['selected']:6.1f}, test {row['test']:6.1f}, {row['trials']} trials, {row['steps']:,} steps"
                )
                print(f"{way:16} repeat {repeat}: {told}", flush=True)
    text = table(rows)
    print(text)
    if not args.no_save:
        save(rows, text, vars(args))


def table(rows: list[Row]) -> str:
    """Means over repeats, with the interval of the honest number."""
    lines = [
        "| way | trials | steps | selected | test on fresh seeds | 95% interval |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way in WAYS:
        some = [r for r in rows if r["way"] == way]
        low, high = bootstrap_interval([r["test"] for r in some])
        numbers = [mean(r[k] for r in some) for k in ("trials", "steps", "selected", "test")]
        lines.append(
            f"| {way} | {numbers[0]:.1f} | {numbers[1]:,.0f} | {numbers[2]:.1f} | {numbers[3]:.1f} | {low:.1f} to {high:.1f} |"
        )
    return "\n".join(lines)


def save(rows: list[Row], text: str, args: Row) -> None:
    """The table, and the numbers behind it."""
    folder = RESULTS / NAME
    folder.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine.facts(), "arguments": args, "rows": rows}
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "table.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
