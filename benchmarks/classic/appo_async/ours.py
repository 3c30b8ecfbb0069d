"""runnel's sides: PPO or APPO on environments of set step time, laid out in one of four ways. Prints one JSON line.

serial: all environments in one process, one after the other. processes: a vector of `--workers` processes. actors: `--workers`
actor processes that share the environments. ring: one actor, `--workers` groups of environments, each group a process. Steps
that compute are shared by two workers, one a core; steps that sleep have a worker for each environment.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import runnel as rl

sys.path.insert(0, str(Path(__file__).parents[1]))
from clock import WindowWatch, tell

NUM_ENVS, NUM_STEPS = 8, 128
LAYOUTS = ("serial", "processes", "actors", "ring")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=("ppo", "appo"), required=True)
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--appo-layout", choices=LAYOUTS, help="another layout for APPO alone, to find its best")
    parser.add_argument("--workers", type=int, help="default: 2 with --busy, else one for each environment")
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--busy", action="store_true", help="steps compute; without it they sleep")
    parser.add_argument("--hidden", type=int, default=64, help="width of the two hidden layers")
    parser.add_argument("--max-lag", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--window", type=float, default=12.0)
    args = parser.parse_args()
    args.workers = args.workers or (2 if args.busy else NUM_ENVS)
    if args.algo == "appo" and args.appo_layout:
        args.layout = args.appo_layout
    return args


def layout(args: argparse.Namespace) -> dict[str, Any]:
    """Which process steps which environments; 8 of them and 1,024 steps an update in every layout."""
    n = args.workers
    match args.layout:
        case "serial":
            found: dict[str, Any] = {"num_envs": NUM_ENVS, "vector.backend": "serial"}
        case "processes":
            found = {"num_envs": NUM_ENVS, "vector.backend": "processes", "vector.num_workers": n}
        case "actors":
            found = {"num_actors": n, "num_envs": NUM_ENVS // n, "vector.backend": "serial", "launcher": "local"}
        case _:
            vector = {"vector.backend": "processes", "vector.num_workers": NUM_ENVS // n}
            found = {"num_envs": NUM_ENVS, "num_env_groups": n, **vector}
    if args.algo == "appo":
        segments = n if args.layout in ("actors", "ring") else 1
        found = {"num_actors": 1, **found, "launcher": "local", "num_segments": segments}
    return found


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The same learning on both sides, but for what makes APPO asynchronous."""
    learning = {"lr": 2.5e-4, "num_epochs": 4, "num_minibatches": 4, "entropy_coef": 0.01, "value_coef": 1.0}
    learning |= {"normalise_obs": False, "normalise_reward": False}
    found: dict[str, Any] = {f"{args.algo}.{name}": value for name, value in learning.items()}
    found["net.hidden"] = (args.hidden, args.hidden)
    if args.algo == "appo":
        found |= {"staleness.mode": "window", "staleness.max_lag": args.max_lag}
    return found


def main() -> None:
    args = arguments()
    watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
    lags: list[float] = []

    def on_update(row: dict[str, Any]) -> bool:
        lags.append(row["metrics"]["staleness/mean"])
        return watch.update(row["steps"])

    rl.train(
        args.algo,
        on_update=on_update,
        progress=False,
        seed=args.seed,
        total_steps=10**9,
        env="runnel.envs.toy:StepTime",
        env_kwargs={"step_ms": args.step_ms, "jitter": args.jitter, "busy": args.busy},
        num_steps=NUM_STEPS,
        out="runs",
        track=(),
        **{"eval.episodes": 0, "checkpoint.every": 0, **layout(args), **settings(args)},
    )
    tell(watch.answer(), lag=sum(lags) / len(lags))


if __name__ == "__main__":
    main()
