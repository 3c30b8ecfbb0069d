"""The side of Stable-Baselines3: `PPO.learn` with a callback that keeps time. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

sys.path.insert(0, str(Path(__file__).parent))
from clock import SolveWatch, WindowWatch, arguments, make_watch


class Timekeeper(BaseCallback):
    """A rollout starts where the update before it ended: that is when the watch looks."""

    def __init__(self, watch: WindowWatch | SolveWatch) -> None:
        super().__init__()
        self._watch, self._going = watch, True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._going = self._watch.update(self.num_timesteps)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._watch.episode(info["episode"]["r"])
        return self._going

    def _on_training_end(self) -> None:
        self._watch.update(self.num_timesteps)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    watch = make_watch(args, start=time.perf_counter())
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=args.seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        normalize_advantage=True,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=args.seed,
        device="cpu",
        verbose=0,
    )
    model.learn(args.max_steps, callback=Timekeeper(watch))
    print(json.dumps(watch.answer()))


if __name__ == "__main__":
    main()
