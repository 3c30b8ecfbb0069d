"""RLlib: PPO of its new stack, one call of `train` an update. `--vec runners=2` samples in two other processes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch, refuse, tell


def configure(args: argparse.Namespace) -> PPOConfig:
    runners = int(args.vec.removeprefix("runners=") or 0)
    each, batch = args.num_envs // max(runners, 1), args.num_envs * 128
    config = PPOConfig().environment(args.env).debugging(seed=args.seed, log_level="ERROR")
    config = config.env_runners(num_env_runners=runners, num_envs_per_env_runner=each, rollout_fragment_length=128)
    config = config.learners(num_learners=0).rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    )
    return config.training(
        lr=2.5e-4,
        gamma=0.99,
        lambda_=0.95,
        clip_param=0.2,
        entropy_coeff=0.01,
        vf_loss_coeff=0.5,
        grad_clip=0.5,
        use_kl_loss=False,
        train_batch_size_per_learner=batch,
        minibatch_size=batch // 4,
        num_epochs=4,
    )


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo",))
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    algorithm = configure(args).build_algo()
    watch = make_watch(args, start=time.perf_counter())
    while True:
        found = algorithm.train()
        if not watch.update(int(found["num_env_steps_sampled_lifetime"])):
            break
    tell(watch.answer())
    sys.stdout.flush()
    ray.shutdown()


if __name__ == "__main__":
    main()
