"""SmolLM2-135M-Instruct learns to add and subtract: GRPO on reasoning-gym's chain_sum, held-out prompts, over seeds.

python -m benchmarks.llm.smollm2 --device cuda --seeds 1 2 3 --out benchmarks/results/llm/smollm2-chain-sum
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import runnel as rl
from runnel.report.plots import Series, curve_svg

SETTINGS: dict[str, Any] = {
    "model": "smollm2",
    "task": "reasoning_gym:chain_sum",
    "data.settings": ("min_terms=2", "max_terms=2", "min_digits=1", "max_digits=2"),
    "data.suffix": "\nAnswer with the number alone.",
    "data.extract": "last_number",
    "num_prompts": 64,
    "group_size": 16,
    "max_tokens": 24,
    "learner.lr": 1e-5,
    "learner.warmup_updates": 5,
    "eval.every": 10,
    "eval.episodes": 256,
    "checkpoint.every": 0,
}
KEPT = ("version", "tokens", "mean", "low", "high", "num")
SHOWN = ("reward/mean", "entropy", "mismatch/kl", "mismatch/max_ratio", "completion_length", "groups_zero_signal")


def train(seed: int, *, updates: int, out: str, **more: Any) -> dict[str, Any]:
    """One run: its evaluations, and some of its metrics at every tenth update."""
    start, rows = time.time(), list[dict[str, Any]]()

    def watch(row: dict[str, Any]) -> None:
        if row["version"] % 10 == 0:
            shown = {name: row["metrics"][name] for name in SHOWN if name in row["metrics"]}
            rows.append({"version": row["version"], "seconds": time.time() - start, **shown})

    run = rl.train("grpo", seed=seed, total_updates=updates, on_update=watch, out=out, track=(), **{**SETTINGS, **more})
    evals = {
        row["version"]: {k: row[k] for k in ("version", "tokens", "mean", "low", "high", "num")} for row in run.rows("eval")
    }
    return {"seed": seed, "evals": list(evals.values()), "metrics": rows}


def untrained(out: str, **more: Any) -> dict[str, Any]:
    """The same evaluation before any training: one small update at a learning rate of 0."""
    still = {"num_prompts": 1, "group_size": 2, "learner.lr": 0.0, "eval.every": 0, "total_updates": 1}
    run = rl.train("grpo", seed=1, out=out, track=(), name="untrained", **{**SETTINGS, **still, **more})
    return {k: run.eval[k] for k in ("mean", "low", "high", "num")} | {"version": 0}


def draw(result: dict[str, Any], path: Path) -> None:
    """Evaluations over updates, one line a seed."""
    lines = []
    for one in result["seeds"]:
        rows = [result["untrained"], *one["evals"]]
        columns = {k: [row[k] for row in rows] for k in ("version", "mean", "low", "high")}
        span = {"low": columns["low"], "high": columns["high"]}
        lines.append(Series(f"seed {one['seed']}", columns["version"], columns["mean"], **span, marks=True))
    title = "SmolLM2-135M-Instruct on sums and differences of numbers of up to two digits"
    curve_svg(lines, path, title=title, x_label="updates", y_label="share of 221 unseen problems, greedy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default="benchmarks/results/llm/smollm2-chain-sum")
    args = parser.parse_args()
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    before = untrained(str(folder / "runs"), device=args.device)
    result: dict[str, Any] = {"settings": SETTINGS, "untrained": before, "seeds": []}
    for seed in args.seeds:
        result["seeds"].append(train(seed, updates=args.updates, out=str(folder / "runs"), device=args.device))
        (folder / "result.json").write_text(json.dumps(result, indent=1))
        print(f"seed {seed}: {before['mean']:.3f} -> {result['seeds'][-1]['evals'][-1]['mean']:.3f}", flush=True)
    draw(result, folder / "curve.svg")


if __name__ == "__main__":
    main()
