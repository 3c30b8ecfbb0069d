"""A study of staleness: naive PPO against decoupled PPO as rollouts grow older, on a small task, with seeds.

python -m benchmarks.llm.staleness --out results --workers 2          # the runs, a table and a figure
python -m benchmarks.llm.staleness --out results --report             # the table and the figure of runs that are there

One supervised warm-up for each seed; then, from the same weights, both losses at every lag. Admission starts all completions of
the window at once, so that a batch is trained on as late as its lag allows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LOSSES = ("naive", "decoupled")
PROMPTS, GROUP = 32, 8


def warm_up(folder: Path, *, seed: int, updates: int) -> str:
    """The folder of a model that has imitated a little: all runs of a seed start from it."""
    import runnel as rl

    run = rl.train(
        "sft", task="reverse", seed=seed, total_updates=updates, out=str(folder), name=f"warm-{seed}", demo_rows=64, **quiet()
    )
    return str(run.path)


def quiet() -> dict[str, Any]:
    return {"track": (), "checkpoint.every": 0, "placement.threads": 1, "eval.episodes": 256}


def one(args: argparse.Namespace) -> dict[str, Any]:
    """One run: rewards on unseen words along the way, and how old its tokens were."""
    import runnel as rl

    evals: list[tuple[int, float]] = []
    rows: list[dict[str, Any]] = []
    lag = args.lag
    settings: dict[str, Any] = {
        "task": "reverse",
        "seed": args.seed,
        "init_from": args.start,
        "num_prompts": PROMPTS,
        "group_size": GROUP,
        "total_updates": args.updates,
        "learner.lr": args.lr,
        "learner.num_minibatches": args.minibatches,
        "learner.warmup_updates": 30,
        "staleness.mode": "window" if lag else "sync",
        "engine.num_slots": (lag + 1) * PROMPTS * GROUP,
        "eval.every": args.eval_every,
        "out": args.folder,
        "name": f"{args.loss}-lag{lag}-seed{args.seed}-lr{args.lr:g}",
        **quiet(),
    }
    if lag:
        settings["staleness.max_lag"] = lag
    settings |= json.loads(args.set)
    rl.train(
        "grpo" if args.loss == "naive" else "decoupled",
        on_eval=lambda row: evals.append((int(row.get("version", len(evals))), float(row["mean"]))),
        on_update=lambda row: rows.append(dict(row)),
        **settings,
    )
    tail = rows[len(rows) // 2 :]
    shown = {
        name: mean([r["metrics"][name] for r in tail if name in r["metrics"]])
        for name in ("staleness/mean", "ess", "clip_fraction", "entropy")
    }
    return {"loss": args.loss, "lag": lag, "seed": args.seed, "lr": args.lr, "evals": evals, "tail": shown}


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def launch(arguments: Sequence[str]) -> dict[str, Any]:
    """A run in a process of its own, on one thread."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.llm.staleness", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout)[-400:], "arguments": list(arguments)}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def study(args: argparse.Namespace) -> None:
    """The whole grid; each finished run is written at once."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    common = ["--folder", str(out / "runs"), "--updates", str(args.updates), "--eval-every", str(args.eval_every)]
    common += ["--minibatches", str(args.minibatches), "--set", args.set]
    with ThreadPoolExecutor(args.workers) as pool:
        seeds = list(range(1, args.seeds + 1))
        asked = [["--warm", "--seed", str(s), "--warm-updates", str(args.warm_updates), *common] for s in seeds]
        starts = {s: found["folder"] for s, found in zip(seeds, pool.map(launch, asked), strict=True)}
        runs = [
            ["--one", "--loss", loss, "--lag", str(lag), "--seed", str(s), "--lr", str(lr), "--start", starts[s], *common]
            for lag in sorted(args.lags, reverse=True)
            for lr in args.lrs
            for s in seeds
            for loss in LOSSES
        ]
        begun = time.time()
        with (out / "staleness.jsonl").open("a") as file:
            for found in pool.map(launch, runs):
                file.write(json.dumps(found) + "\n")
                file.flush()
                last = found["evals"][-1][1] if found.get("evals") else found.get("error", "")[-200:]
                said = f"{found.get('loss')} lag {found.get('lag')} lr {found.get('lr')} seed {found.get('seed')}: {last}"
                print(f"[{time.time() - begun:.0f} s] {said}", flush=True)


def report(out: Path) -> None:
    """`table.md` and `curve.svg` from the finished runs in `out`: final reward by lag and loss, and the way there."""
    import runnel as rl
    from runnel.report.plots import Series, curve_svg

    rows = [json.loads(line) for line in (out / "staleness.jsonl").read_text().splitlines()]
    evals = {(r["loss"], r["lag"], r["seed"]): r["evals"] for r in rows if r.get("evals")}
    lines = [
        "| lag | naive | decoupled | decoupled - naive | naive against lag 0 | decoupled against lag 0 | seeds |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    series = []
    for lag in sorted({lag for _, lag, _ in evals}):
        seeds = [s for s in range(100) if all((loss, g, s) in evals for loss in LOSSES for g in (0, lag))]
        if not seeds:
            continue
        final = {(loss, g): [evals[loss, g, s][-1][1] for s in seeds] for loss in LOSSES for g in (0, lag)}
        gaps = [b - a for a, b in zip(final["naive", lag], final["decoupled", lag], strict=True)]
        lost = [[b - a for a, b in zip(final[loss, 0], final[loss, lag], strict=True)] for loss in LOSSES]
        parts = [final["naive", lag], final["decoupled", lag], gaps, *(lost if lag else [])]
        said = [f"{p.mean:.3f} ({p.low:.3f} to {p.high:.3f})" for p in map(rl.eval.summarise, parts)]
        lines.append(f"| {lag} | {' | '.join(said + [''] * (5 - len(said)))} | {len(seeds)} |")
        for loss in LOSSES:
            steps = [version for version, _ in evals[loss, lag, seeds[0]]]
            means = [rl.eval.summarise([evals[loss, lag, s][i][1] for s in seeds]).mean for i in range(len(steps))]
            series.append(Series(f"{loss}, lag {lag}", steps, means, marks=True))
    (out / "table.md").write_text("\n".join(lines) + "\n")
    title = "Unseen words reversed, mean over seeds, by loss and largest lag of a sample"
    curve_svg(series, out / "curve.svg", title=title, x_label="updates", y_label="share of 256 words")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="staleness")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--warm-updates", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=30)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--set", default="{}", help="JSON of more settings for every run")
    parser.add_argument("--report", action="store_true", help="only the table and the figure")
    for name, kind in (("loss", str), ("lag", int), ("seed", int), ("lr", float), ("start", str), ("folder", str)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.warm:
        print(json.dumps({"folder": warm_up(Path(args.folder), seed=args.seed, updates=args.warm_updates)}))
    elif args.one:
        print(json.dumps(one(args)))
    else:
        if not args.report:
            study(args)
        report(Path(args.out))


if __name__ == "__main__":
    main()
