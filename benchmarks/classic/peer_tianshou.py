"""Tianshou: PPO by its procedural interface, timed at the beginning of each training step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gymnasium as gym
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch, refuse, tell

EPOCH_STEPS = 1_000_000


class Closed(Exception):
    """The window has closed."""


def make(env: DummyVectorEnv) -> PPO:
    observed, actions = env.observation_space[0], env.action_space[0]

    def body() -> Net:
        return Net(state_shape=observed.shape, hidden_sizes=(64, 64), activation=torch.nn.Tanh)

    actor = DiscreteActor(preprocess_net=body(), action_shape=actions.n, softmax_output=False)
    policy = DiscreteActorPolicy(actor=actor, action_space=actions, observation_space=observed)
    return PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=body()),
        optim=AdamOptimizerFactory(lr=2.5e-4, eps=1e-5),
        max_grad_norm=0.5,
    )


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo",))
    torch.set_num_threads(args.threads)
    env = DummyVectorEnv([lambda: gym.make(args.env) for _ in range(args.num_envs)])
    env.seed(args.seed)
    algorithm, batch = make(env), args.num_envs * 128
    watch = make_watch(args, start=time.perf_counter())

    def look(epoch: int, steps: int) -> None:
        if steps and not watch.update(steps):
            raise Closed

    params = OnPolicyTrainerParams(
        max_epochs=args.max_steps // EPOCH_STEPS,
        epoch_num_steps=EPOCH_STEPS,
        training_collector=Collector(algorithm, env, VectorReplayBuffer(batch, args.num_envs)),
        collection_step_num_env_steps=batch,
        batch_size=batch // 4,
        update_step_num_repetitions=4,
        training_fn=look,
        verbose=False,
        show_progress=False,
    )
    try:
        algorithm.run_training(params)
    except Closed:
        tell(watch.answer())


if __name__ == "__main__":
    main()
