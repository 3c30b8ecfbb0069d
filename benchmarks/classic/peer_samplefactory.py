"""Sample Factory: its runner with an observer that keeps time. `--vec serial`, or `--vec workers=2` for processes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

sys.path.insert(0, str(Path(__file__).parent))
from clock import Watch, arguments, make_watch, refuse, tell


class Timekeeper(AlgoObserver):
    """Looks after every training step; once the window has closed, the budget of the run is cut to what it has spent."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        steps = sum(runner.env_steps.values())
        if steps and not self._watch.update(steps):
            runner.cfg.train_for_env_steps = 0


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    return gym.make(name, render_mode=render_mode)


def flags(env: str, num_envs: int, vec: str, seed: int) -> list[str]:
    serial = vec in ("", "serial")
    workers = 1 if serial else int(vec.removeprefix("workers="))
    values = {
        "algo": "APPO",
        "env": env,
        "experiment": "benchmark",
        "train_dir": ".",
        "seed": seed,
        "device": "cpu",
        "serial_mode": serial,
        "async_rl": not serial,
        "num_workers": workers,
        "num_envs_per_worker": num_envs // workers,
        "worker_num_splits": 1 if serial else 2,
        "rollout": 128,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": num_envs * 32,
        "num_batches_per_epoch": 4,
        "num_epochs": 4,
        "learning_rate": 2.5e-4,
        "encoder_mlp_layers": "64 64",
        "nonlinearity": "tanh",
        "normalize_input": False,
        "normalize_returns": False,
        "with_vtrace": False,
        "train_for_env_steps": 1_000_000_000,
        "save_every_sec": 100_000,
        "decorrelate_experience_max_seconds": 0,
    }
    found = []
    for name, value in values.items():
        found += [f"--{name}", *value.split()] if name == "encoder_mlp_layers" else [f"--{name}={value}"]
    return found


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo",))
    register_env(args.env, make_env)
    argv = flags(args.env, args.num_envs, args.vec, args.seed)
    parser, _ = parse_sf_args(argv=argv)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    watch = make_watch(args, start=time.perf_counter())
    runner.register_observer(Timekeeper(watch))
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner.init()
        runner.run()
    tell(watch.answer())


if __name__ == "__main__":
    main()
