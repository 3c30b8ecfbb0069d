"""VMAS: its `simple_spread` under random actions."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import vmas

sys.path.insert(0, str(Path(__file__).parent))
from work import EPISODE, NUM_DRAWS, WindowWatch, arguments, tell


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    env = vmas.make_env("simple_spread", args.num_envs, device="cpu", continuous_actions=False, seed=args.seed, n_agents=3)
    generator = torch.Generator().manual_seed(args.seed)
    num_actions = env.action_space[0].n
    draws = [
        [torch.randint(0, num_actions, (args.num_envs, 1), generator=generator) for _ in range(env.n_agents)]
        for _ in range(NUM_DRAWS)
    ]
    watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
    steps, going = 0, True
    env.reset()
    while going:
        for _ in range(EPISODE):
            env.step(draws[steps // args.num_envs % NUM_DRAWS])
            steps += args.num_envs
        env.reset()
        going = watch.update(steps)
    tell(watch.answer())


if __name__ == "__main__":
    main()
