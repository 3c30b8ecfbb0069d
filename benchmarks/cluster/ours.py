"""runnel's sides: PPO or APPO on environments of set step time, by the local launcher or by Ray. Prints one JSON line."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import runnel as rl

sys.path.insert(0, str(Path(__file__).parents[1] / "classic"))
from clock import WindowWatch, tell


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher", choices=("local", "ray"), required=True)
    parser.add_argument("--algo", choices=("ppo", "appo"), default="ppo")
    parser.add_argument("--step-ms", type=float, default=1.0, help="0: CartPole as it is")
    parser.add_argument("--policy-workers", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2, help="among which 8 environments are shared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--window", type=float, default=15.0)
    args = parser.parse_args()
    started: list[WindowWatch] = []

    def on_update(row: dict[str, Any]) -> bool:
        if not started:  # the launchers differ in how they start; here they run
            started.append(WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window))
        return started[0].update(row["steps"])

    learning = {"lr": 2.5e-4, "num_epochs": 4, "num_minibatches": 4, "entropy_coef": 0.01, "value_coef": 1.0}
    learning |= {"normalise_obs": False, "normalise_reward": False}
    window = {"staleness.mode": "window", "staleness.max_lag": 2} if args.algo == "appo" else {}
    rl.train(
        args.algo,
        on_update=on_update,
        seed=args.seed,
        total_steps=10**9,
        env="runnel.envs.toy:StepTime" if args.step_ms else "CartPole-v1",
        env_kwargs={"step_ms": args.step_ms} if args.step_ms else {},
        num_actors=args.actors,
        num_envs=8 // args.actors,
        num_steps=128,
        launcher=args.launcher,
        out="runs",
        track=(),
        **{
            "compiled": "off",
            "vector.backend": "serial",
            "eval.episodes": 0,
            "checkpoint.every": 0,
            "placement.policy_workers": args.policy_workers,
            **{f"{args.algo}.{name}": value for name, value in learning.items()},
            **window,
        },
    )
    tell(started[0].answer())


if __name__ == "__main__":
    main()
