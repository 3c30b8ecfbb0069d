"""runnel's side: a vector of worlds under random actions, or `rl.train` with a callback that keeps time."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

import runnel as rl

sys.path.insert(0, str(Path(__file__).parent))
from work import EPISODE, NUM_DRAWS, WindowWatch, arguments, tell


def step(args: argparse.Namespace, watch: WindowWatch) -> None:
    """As a sampler steps it: actions in, what agents see, rewards and ends out."""
    torch.set_num_threads(args.threads)
    config = rl.graphs.TeamConfig(env="tensor:Spread", env_kwargs={"N": 3, "max_cycles": EPISODE})
    vector = rl.graphs.TeamTask(config).vector(args.num_envs, seed=args.seed)
    vector.reset()
    ((policy, out),) = vector.outs.items()
    generator = torch.Generator().manual_seed(args.seed)
    draws = [torch.randint(0, 5, out.reward.shape, generator=generator) for _ in range(NUM_DRAWS)]
    steps, going = 0, True
    while going:
        for _ in range(EPISODE):
            vector.send({policy: draws[steps // args.num_envs % NUM_DRAWS]})
            vector.recv()
            steps += args.num_envs
        vector.episodes()
        going = watch.update(steps)


def train(args: argparse.Namespace, watch: WindowWatch) -> None:
    settings = {"env": "tensor:Spread", "env_kwargs": {"N": 3, "max_cycles": EPISODE}, "num_envs": args.num_envs}
    settings |= {"num_steps": EPISODE, "ppo.num_epochs": args.epochs, "placement.threads": args.threads, "seed": args.seed}
    settings |= {"track": (), "eval.episodes": 0, "checkpoint.every": 0, "out": "runs", "total_steps": 10**9}
    rl.train("ippo", on_update=lambda row: watch.update(row["steps"]), progress=False, **settings)


def main() -> None:
    args = arguments()
    watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
    (train if args.work == "train" else step)(args, watch)
    tell(watch.answer())


if __name__ == "__main__":
    main()
