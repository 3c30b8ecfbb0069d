"""Sample Factory on the same environments: asynchronous, the rest as in `classic/peer_samplefactory.py`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

sys.path.insert(0, str(Path(__file__).parents[1]))
from clock import WindowWatch, tell
from peer_samplefactory import Timekeeper, flags

NAME, NUM_ENVS = "slow-cartpole", 8


class Slow(gym.Wrapper):
    """CartPole whose steps take a set time: what `runnel.envs.toy:StepTime` does, for a Python without runnel."""

    def __init__(self, args: argparse.Namespace, render_mode: str | None) -> None:
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self._step_s, self._jitter, self._busy = args.step_ms / 1000.0, args.jitter, args.busy
        self._rng = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        seconds = self._step_s * (1.0 + self._jitter * self._rng.uniform(-1.0, 1.0))
        if not self._busy:
            time.sleep(seconds)
            return found
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return found


def make_env(
    args: argparse.Namespace, name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None
) -> gym.Env:
    return Slow(args, render_mode)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, help="default: 2 with --busy, else 4")
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--window", type=float, default=12.0)
    args, _ = parser.parse_known_args()
    args.workers = args.workers or (2 if args.busy else 4)
    return args


def main() -> None:
    args = arguments()
    register_env(NAME, partial(make_env, args))
    more = ["--encoder_mlp_layers", str(args.hidden), str(args.hidden)]
    argv = [*flags(NAME, NUM_ENVS, f"workers={args.workers}", args.seed), *more]
    parser, _ = parse_sf_args(argv=argv)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
    runner.register_observer(Timekeeper(watch))
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner.init()
        runner.run()
    tell(watch.answer())


if __name__ == "__main__":
    main()
