"""runnel's side of every row: `rl.train` with a callback that keeps time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import runnel as rl

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch, tell

COMMON: dict[str, Any] = {"track": (), "eval.episodes": 0, "checkpoint.every": 0, "out": "runs", "zoo": False}
PPO_PRESETS: dict[str, dict[str, Any]] = {
    "same": {
        "num_steps": 128,
        "ppo.lr": 2.5e-4,
        "ppo.num_epochs": 4,
        "ppo.num_minibatches": 4,
        "ppo.entropy_coef": 0.01,
        "ppo.value_coef": 1.0,
    },
    "wide": {
        "num_steps": 64,
        "net.hidden": (128,),
        "net.shared": True,
        "ppo.lr": 2.5e-4,
        "ppo.num_epochs": 1,
        "ppo.num_minibatches": 8,
    },
    "tuned": {
        "num_steps": 32,
        "ppo.lr": 2e-3,
        "ppo.gamma": 0.98,
        "ppo.gae_lambda": 0.8,
        "ppo.num_epochs": 4,
        "ppo.num_minibatches": 4,
    },
}


def ppo(args: argparse.Namespace) -> dict[str, Any]:
    same = {"ppo.gamma": 0.99, "ppo.gae_lambda": 0.95, "ppo.clip_range": 0.2, "ppo.max_grad_norm": 0.5}
    same |= {"ppo.normalise_advantage": True}
    same |= {"ppo.normalise_obs": False, "ppo.normalise_reward": False}  # nor do the peers
    return {**same, **PPO_PRESETS[args.preset]}


def dqn(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "num_steps": 10,
        "update_ratio": 0.1,
        "min_fill": 500,
        "replay.capacity": 10_000,
        "net.hidden": (120, 84),
        "net.activation": "relu",
        "dqn.lr": 2.5e-4,
        "dqn.batch_size": 128,
        "dqn.epsilon": 0.05,
        "dqn.double": False,
        "dqn.huber": 1.0,
        "dqn.target_every": 32,
        "replay.prioritised": False,
    }


def sac(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "num_steps": 1,
        "update_ratio": 1.0,
        "min_fill": 500,
        "replay.capacity": 1_000_000,
        "net.hidden": (256, 256),
        "net.activation": "relu",
        "sac.batch_size": 256,
    }


def main() -> None:
    args = arguments()
    settings = {"ppo": ppo, "dqn": dqn, "sac": sac}[args.algo](args)
    settings |= {"env": args.env, "num_envs": args.num_envs, "placement.threads": args.threads}
    if args.vec:
        settings["vector.backend"] = args.vec
    watch = make_watch(args, start=time.perf_counter())
    rl.train(
        args.algo,
        on_episode=lambda row: watch.episode(row["return"]),
        on_update=lambda row: watch.update(row["steps"]),
        progress=False,
        seed=args.seed,
        total_steps=args.max_steps,
        **{**COMMON, **settings, **json.loads(args.set)},
    )
    tell(watch.answer())


if __name__ == "__main__":
    main()
