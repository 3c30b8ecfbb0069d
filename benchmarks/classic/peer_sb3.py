"""Stable-Baselines3: `learn` with a callback that keeps time; PPO, DQN and SAC, on its own vectors or through an adapter."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

sys.path.insert(0, str(Path(__file__).parent))
from clock import Watch, arguments, make_watch, refuse, tell

ATARI = {"episodic_life": True, "reward_clip": True}


class Timekeeper(BaseCallback):
    """A rollout starts where the update before it ended: that is when the watch looks."""

    def __init__(self, watch: Watch) -> None:
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


class Adapter(VecEnv):
    """A vector of Gymnasium or EnvPool that resets by itself on the step after an end, as SB3 wants to see it."""

    def __init__(self, env: Any, num_envs: int) -> None:
        one = getattr(env, "single_observation_space", env.observation_space)
        act = getattr(env, "single_action_space", env.action_space)
        self._cast = np.float32 if one.dtype == np.float64 else one.dtype
        if one.dtype == np.float64:
            one = gym.spaces.Box(one.low.astype(np.float32), one.high.astype(np.float32), dtype=np.float32)
        if isinstance(act, gym.spaces.Box):
            act = gym.spaces.Box(act.low.astype(np.float32), act.high.astype(np.float32), dtype=np.float32)
        self._env, self._actions = env, np.zeros(0)
        super().__init__(num_envs, one, act)

    def reset(self) -> np.ndarray:
        return self._env.reset()[0].astype(self._cast, copy=False)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        obs, rewards, terminated, truncated, _ = self._env.step(self._actions)
        obs, ends = obs.astype(self._cast, copy=False), terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(ends):
            infos[i] = {"terminal_observation": obs[i], "TimeLimit.truncated": bool(truncated[i] and not terminated[i])}
        return obs, rewards.astype(np.float32, copy=False), ends, infos

    def close(self) -> None:
        self._env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def make_env(args: argparse.Namespace) -> VecEnv:
    if args.vec == "envpool":
        import envpool

        more = ATARI if "Breakout" in args.env or "Pong" in args.env else {}
        pool = envpool.make(
            args.env, env_type="gymnasium", num_envs=args.num_envs, num_threads=min(2, args.num_envs), seed=args.seed, **more
        )
        return VecMonitor(Adapter(pool, args.num_envs))
    if args.vec == "makevec":
        vector = gym.make_vec(args.env, num_envs=args.num_envs, vectorization_mode="vector_entry_point")
        return VecMonitor(Adapter(vector, args.num_envs))
    return make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed)


def make_ppo(args: argparse.Namespace, env: VecEnv) -> PPO:
    if args.preset == "tuned":  # rl-zoo3's values for CartPole-v1
        schedule = {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left}
        work: dict[str, Any] = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, **schedule}
    else:
        work = {"n_steps": 128, "batch_size": args.num_envs * 32, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01}
    if len(env.observation_space.shape or ()) == 3:
        return PPO("CnnPolicy", env, seed=args.seed, device="cpu", **work)
    net = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    return PPO("MlpPolicy", env, policy_kwargs=net, seed=args.seed, device="cpu", **work)


def make_dqn(args: argparse.Namespace, env: VecEnv) -> DQN:
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
        device="cpu",
    )


def make_sac(args: argparse.Namespace, env: VecEnv) -> SAC:
    return SAC(
        "MlpPolicy",
        env,
        batch_size=256,
        learning_starts=500,
        policy_kwargs={"net_arch": [256, 256]},
        seed=args.seed,
        device="cpu",
    )


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo", "dqn", "sac"), presets=("same", "tuned"))
    torch.set_num_threads(args.threads)
    watch = make_watch(args, start=time.perf_counter())
    make = {"ppo": make_ppo, "dqn": make_dqn, "sac": make_sac}[args.algo]
    model: BaseAlgorithm = make(args, make_env(args))
    model.learn(args.max_steps, callback=Timekeeper(watch))
    tell(watch.answer())


if __name__ == "__main__":
    main()
