"""SBX, Stable-Baselines3 in JAX: SAC, DQN and PPO with the callback of SB3. The warm-up holds the compiling."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from sbx import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch, refuse, tell
from peer_sb3 import Timekeeper


def make(args: argparse.Namespace) -> Any:
    env = make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed)
    if args.algo == "sac":
        return SAC(
            "MlpPolicy", env, batch_size=256, learning_starts=500, policy_kwargs={"net_arch": [256, 256]}, seed=args.seed
        )
    if args.algo == "dqn":
        return DQN(
            "MlpPolicy",
            env,
            learning_rate=2.5e-4,
            buffer_size=10_000,
            learning_starts=500,
            batch_size=128,
            train_freq=10,
            gradient_steps=1,
            target_update_interval=500,
            exploration_initial_eps=0.05,
            exploration_final_eps=0.05,
            policy_kwargs={"net_arch": [120, 84]},
            seed=args.seed,
        )
    return PPO("MlpPolicy", env, n_steps=128, batch_size=args.num_envs * 32, n_epochs=4, learning_rate=2.5e-4, seed=args.seed)


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo", "dqn", "sac"))
    watch = make_watch(args, start=time.perf_counter())
    make(args).learn(args.max_steps, callback=Timekeeper(watch))
    tell(watch.answer())


if __name__ == "__main__":
    main()
