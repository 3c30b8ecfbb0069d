"""TorchRL: PPO from its collector, advantage, loss and buffer, as its own examples put them together."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

sys.path.insert(0, str(Path(__file__).parent))
from clock import arguments, make_watch, refuse, tell


def networks(env: Any) -> tuple[ProbabilisticActor, ValueOperator]:
    width = env.observation_spec["observation"].shape[-1]
    shape = {"num_cells": [64, 64], "activation_class": torch.nn.Tanh}
    body = MLP(in_features=width, out_features=env.action_spec.shape[-1], **shape)
    actor = ProbabilisticActor(
        TensorDictModule(body, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        spec=env.action_spec,
    )
    return actor, ValueOperator(MLP(in_features=width, out_features=1, **shape), in_keys=["observation"])


def train(args: argparse.Namespace) -> None:
    env = SerialEnv(args.num_envs, lambda: GymEnv(args.env, categorical_action_encoding=False))
    env.set_seed(args.seed)
    actor, critic = networks(env)
    batch = args.num_envs * 128
    collector = Collector(env, actor, frames_per_batch=batch, total_frames=-1)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5)
    optimiser = torch.optim.Adam(loss.parameters(), lr=2.5e-4, eps=1e-5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(batch), sampler=SamplerWithoutReplacement(), batch_size=batch // 4
    )
    watch, steps = make_watch(args, start=time.perf_counter()), 0
    for data in collector:
        for _ in range(4):
            with torch.no_grad():
                advantage(data)
            buffer.extend(data.reshape(-1))
            for rows in buffer:
                parts = loss(rows)
                total = parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]
                total.backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
                optimiser.zero_grad()
        steps += batch
        if not watch.update(steps):
            break
    collector.shutdown()
    tell(watch.answer())


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo",))
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()
