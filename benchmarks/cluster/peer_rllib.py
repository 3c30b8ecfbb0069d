"""RLlib on the same work: PPO or APPO, two env runners of four environments, two layers of 64."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import gymnasium as gym
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

sys.path.insert(0, str(Path(__file__).parents[1] / "classic"))
from clock import WindowWatch, tell

NUM_ENVS, NUM_STEPS = 8, 128
BATCH = NUM_ENVS * NUM_STEPS


class Slow(gym.Wrapper):
    """CartPole whose steps sleep."""

    def __init__(self, step_ms: float) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._step_s = step_ms / 1000.0

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        if self._step_s:
            time.sleep(self._step_s)
        return found


def configure(algo: str, seed: int, num_runners: int) -> Any:
    shared: dict[str, Any] = {
        "lr": 2.5e-4,
        "gamma": 0.99,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.01,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "use_kl_loss": False,
        "train_batch_size_per_learner": BATCH,
        "num_epochs": 4,
    }
    if algo == "ppo":
        config: Any = PPOConfig().training(minibatch_size=BATCH // 4, **shared)
    else:
        config = APPOConfig().training(**{k: v for k, v in shared.items() if k != "num_epochs"})
    config = config.environment("slow").debugging(seed=seed, log_level="ERROR")
    config = config.env_runners(
        num_env_runners=num_runners, num_envs_per_env_runner=NUM_ENVS // num_runners, rollout_fragment_length=NUM_STEPS
    )
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return config.learners(num_learners=0).rl_module(model_config=model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=("ppo", "appo"), default="ppo")
    parser.add_argument("--step-ms", type=float, default=1.0, help="0: CartPole as it is")
    parser.add_argument("--policy-workers", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2, help="among which 8 environments are shared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--window", type=float, default=15.0)
    args = parser.parse_args()
    ray.init(
        address="local", num_cpus=args.actors + 2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False
    )
    register_env("slow", lambda _: Slow(args.step_ms))
    algorithm = configure(args.algo, args.seed, args.actors).build_algo()
    watch = None
    while True:
        found = algorithm.train()
        if watch is None:
            watch = WindowWatch(time.perf_counter(), warmup_s=args.warmup, window_s=args.window)
        if not watch.update(int(found["num_env_steps_sampled_lifetime"])):
            break
    tell(watch.answer())
    sys.stdout.flush()
    ray.shutdown()


if __name__ == "__main__":
    main()
