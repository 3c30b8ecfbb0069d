"""runnel's side: `rl.train("ppo")` with a callback that keeps time. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import runnel as rl

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 8,
    "num_steps": 128,
    "mlp.hidden": (64, 64),
    "mlp.activation": "tanh",
    "ppo.lr": 2.5e-4,
    "ppo.gamma": 0.99,
    "ppo.lam": 0.95,
    "ppo.clip": 0.2,
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 4,
    "ppo.entropy_coef": 0.01,
    "ppo.value_coef": 1.0,
    "ppo.value_clip": None,
    "ppo.max_grad_norm": 0.5,
    "ppo.normalise_advantage": True,
    "ppo.target_kl": None,
    "placement.threads": 1,
    "track": (),
    "eval.episodes": 0,
    "checkpoint.every": 0,
}


def main() -> None:
    args = arguments()
    watch = make_watch(args, start=time.perf_counter())
    rl.train(
        "ppo",
        on_episode=lambda row: watch.episode(row["return"]),
        on_update=lambda row: watch.update(row["steps"]),
        live=False,
        seed=args.seed,
        total_steps=args.max_steps,
        out="runs",
        **SETTINGS,
    )
    print(json.dumps(watch.answer()))


if __name__ == "__main__":
    main()
