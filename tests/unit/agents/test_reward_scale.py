"""`normalise_reward` against Gymnasium's NormalizeReward: the same deviation whatever `num_steps`, actors and ranks are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward
from made_segments import make_net, make_segment

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from fake_streams import FakeClient, FakeWriter

import runnel as rl
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.contracts.learning import SingleProcess
from runnel.core.trajectories import CARRIED, trajectory_stream
from runnel.envs.device import CartPole, TensorVector
from runnel.envs.device.sampler import DeviceSampler
from runnel.envs.registry import make_vector
from runnel.envs.sampler import VecEnvSampler
from runnel.nets.layers import ReturnScale
from runnel.run.checkpoint import Checkpoints, read_parts

STEPS, ENVS, GAMMA = 64, 4, 0.9


class Pays(gym.Env):  # type: ignore[misc]
    """Pays a wave with a bias, whatever is done, and is cut after 20 steps (where Gymnasium's rule and ours are the same)."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.ones(1, np.float32), 2.0 + float(np.sin(self.t)), False, self.t == 20, {}


def gymnasium_deviation() -> float:
    vec = NormalizeReward(SyncVectorEnv([Pays] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP), gamma=GAMMA)
    vec.reset(seed=0)
    for _ in range(STEPS):
        vec.step(np.zeros(ENVS, np.int64))
    return float(np.sqrt(vec.return_rms.var))


@pytest.mark.parametrize(("num_steps", "num_actors", "num_env_groups"), [(1, 1, 1), (4, 2, 1), (16, 1, 2), (64, 1, 1)])
def test_the_deviation_is_that_of_gymnasium_whatever_the_segments(
    tmp_path: Path, num_steps: int, num_actors: int, num_env_groups: int
) -> None:
    settings = {"num_minibatches": 1, "num_epochs": 1, "normalise_reward": True, "gamma": GAMMA}
    shape = {"num_steps": num_steps, "num_actors": num_actors, "num_envs": ENVS // num_actors, "num_env_groups": num_env_groups}
    quiet = {"eval": {"episodes": 0}, "track": (), "net": {"hidden": (4,)}, "checkpoint": {"every": 0}}
    run = rl.train("ppo", env=Pays, total_steps=STEPS * ENVS, out=str(tmp_path), ppo=settings, **shape, **quiet)
    newest = Checkpoints(run.path / "checkpoints").newest(("params",))[0]
    scale = read_parts(newest)["worker-trainer"]["learner"]["reward_scale"]
    assert int(scale["statistics.count"]) == STEPS * ENVS
    # Gymnasium starts from a variance of 1 that counts as 1e-4 of a step
    assert float(scale["statistics.var"]) ** 0.5 == pytest.approx(gymnasium_deviation(), rel=1e-4)


def numpy_returns(rewards: Any, ended: Any, gamma: float) -> Any:
    """Stable-Baselines3's VecNormalize: the return grows, is counted, and is forgotten where an episode ended."""
    found, now = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards)):
        now = now * gamma + rewards[t]
        found[t] = now
        now = np.where(ended[t], 0.0, now)
    return found


@pytest.mark.parametrize("length", [1, 3, 8, 24])
def test_a_stream_in_pieces_is_scaled_as_in_one(length: int) -> None:
    rng = np.random.default_rng(0)
    rewards, ended = rng.normal(1.0, 1.0, (24, 3)), rng.random((24, 3)) < 0.15
    scale, carried = ReturnScale(gamma=0.99), torch.zeros(3)
    returns = numpy_returns(rewards, ended, 0.99)
    for first in range(0, 24, length):
        x, over = (torch.from_numpy(a[first : first + length]) for a in (rewards, ended))
        out = scale(x.float(), over, carried, SingleProcess())
        last = first + length - 1
        carried = torch.from_numpy(np.where(ended[last], 0.0, returns[last])).float()
        seen = returns[: first + length]
        np.testing.assert_allclose(scale.statistics.var.item(), seen.var(), rtol=1e-5)
        np.testing.assert_allclose(out.numpy(), np.clip(x.numpy() / seen.std(), -10, 10), rtol=1e-4)


def sampler_of(kind: str, num_steps: int) -> tuple[Any, FakeWriter]:
    how: dict[str, Any] = {"routes": [AgentRoute()], "noise_size": 1, "seed": 0, "name": "a", "carried": {"rewards/env": 0.9}}
    vector: Any = make_vector("CartPole-v1", 3, seed=0) if kind == "host" else TensorVector(CartPole(), 3, seed=0)
    sampler = VecEnvSampler([vector], **how) if kind == "host" else DeviceSampler(vector, **how)
    stream = trajectory_stream(vector.spec, num_steps=num_steps, num_envs=3, carried=("rewards/env",))
    return sampler, FakeWriter(stream)


def drive(sampler: Any, writer: FakeWriter, client: FakeClient, num: int) -> list[Any]:
    while len(writer.committed) < num:
        sampler.step({"policy": client}, {"trajectories": writer})
        client.poll()
    return [x for _, x in writer.committed[:num]]


@pytest.mark.parametrize(("kind", "direct"), [("host", True), ("host", False), ("tensors", True), ("tensors", False)])
def test_segments_say_what_return_their_episodes_bring_along(kind: str, direct: bool) -> None:
    sampler, writer = sampler_of(kind, 7)
    found = drive(sampler, writer, FakeClient(direct=direct), 12)
    rewards, ended = (torch.cat([x[k] for x in found]) for k in ("rewards/env", "terminated"))
    assert ended.sum() > 3
    returns = numpy_returns(rewards.double().numpy(), ended.numpy(), 0.9)
    for i, x in enumerate(found):
        before = np.zeros(3) if i == 0 else np.where(ended[7 * i - 1], 0.0, returns[7 * i - 1])
        np.testing.assert_allclose(x[CARRIED].numpy(), before, rtol=1e-5)


@pytest.mark.parametrize(("kind", "direct", "calls"), [("host", False, 17), ("tensors", True, 2)])
def test_a_resume_goes_on_bit_for_bit(kind: str, direct: bool, calls: int) -> None:
    (sampler, writer), client = sampler_of(kind, 7), FakeClient(direct=direct, delay=0 if direct else 1)
    for _ in range(calls):
        sampler.step({"policy": client}, {"trajectories": writer})
        client.poll()
    state, twin_writer, twin_client = sampler.snapshot(), writer.twin(), client.twin()
    twin, _ = sampler_of(kind, 7)
    twin.restore(state, {"trajectories": twin_writer})
    writer.committed.clear()
    ours, theirs = drive(sampler, writer, client, 5), drive(twin, twin_writer, twin_client, 5)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, theirs, strict=True) for k in a)
    assert ours[-1][CARRIED].any()


def test_a_stream_that_carries_nothing_is_refused() -> None:
    learner = PPOLearner(PPOConfig(normalise_reward=True), make_net(), seed=0)
    with pytest.raises(rl.ConfigError, match="give return_gamma to on_policy_graph"):
        learner.prepare({"trajectories": [make_segment(carried=False)]}, progress=0.0)
