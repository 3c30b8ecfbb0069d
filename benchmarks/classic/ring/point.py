"""One point of the ring curve: steps per second of one actor whose environments are split into `--ring` groups of one."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import runnel as rl

sys.path.insert(0, str(Path(__file__).parents[1]))
from clock import WindowWatch, tell

RECIPE = Path(__file__).with_name("collect.py")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ring", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True, help="length of a step of the environment")
    parser.add_argument(
        "--where", choices=("serial", "processes"), default="serial", help="serial: computes; processes: sleeps"
    )
    parser.add_argument("--inline", action="store_true", help="the policy answers in the actor, without a policy worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=1.5)
    parser.add_argument("--window", type=float, default=5.0)
    args = parser.parse_args()
    watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
    rl.train(
        str(RECIPE),
        on_update=lambda row: watch.update(row["steps"]),
        progress=False,
        seed=args.seed,
        env="runnel.envs.toy:StepTime",
        env_kwargs={"step_ms": args.step_ms, "busy": args.where == "serial", "env": "runnel.envs.toy:Counter"},
        num_envs=args.ring,
        num_env_groups=args.ring,
        num_steps=128,
        launcher="local",
        out="runs",
        track=(),
        **{
            "vector.backend": args.where,
            "placement.policy_workers": 0 if args.inline else 1,
            "eval.episodes": 0,
            "checkpoint.every": 0,
        },
    )
    tell(watch.answer())


if __name__ == "__main__":
    main()
