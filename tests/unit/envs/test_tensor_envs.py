import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter, by_noise

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError
from runnel.core.protocols import AgentRoute
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.device import CartPole, TensorVector
from runnel.envs.registry import make_vector
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.vector import VectorEnv


def test_cartpole_steps_like_gymnasium():
    rng = np.random.default_rng(0)
    states = rng.uniform([-2.4, -3, -0.25, -3], [2.4, 3, 0.25, 3], (500, 4)).astype(np.float32)
    actions = rng.integers(0, 2, 500)
    following, reward, terminated = CartPole().transition(Batch(state=torch.from_numpy(states)), torch.from_numpy(actions))
    env = gym.make("CartPole-v1").unwrapped
    for i in range(500):
        env.reset(seed=0)
        env.state = states[i].astype(np.float64)
        obs, expected, over, _, _ = env.step(int(actions[i]))
        assert np.abs(following["state"][i].numpy() - obs).max() < 1e-6
        assert (float(reward[i]), bool(terminated[i])) == (expected, over)
    assert 50 < terminated.sum() < 450


def test_long_play_follows_gymnasium_with_autoreset():
    vector = TensorVector(CartPole(), 4, seed=3)
    assert isinstance(vector, VectorEnv)
    env = gym.make("CartPole-v1").unwrapped
    out = vector.reset()
    assert (out.obs["obs"].abs() <= 0.05).all()
    ended = []
    for t in range(200):
        before = out.obs["obs"].clone()
        action = torch.tensor([(t // 3 + i) % 2 for i in range(4)])
        out = vector.step(action)
        for i in range(4):
            env.reset(seed=0)
            env.state = before[i].double().numpy()
            obs, _, terminated, _, _ = env.step(int(action[i]))
            assert np.abs(out.final_obs["obs"][i].numpy() - obs).max() < 1e-6
            assert bool(out.terminated[i]) == terminated
            if terminated:
                ended.append(i)
                assert (out.obs["obs"][i].abs() <= 0.05).all()
            else:
                assert torch.equal(out.obs["obs"][i], out.final_obs["obs"][i])
    episodes = vector.episodes()
    assert [e.env for e in episodes] == ended
    assert all(e.total == e.length > 5 for e in episodes)
    assert sum(e.length for e in episodes) <= 800


def test_truncation_at_500():
    def balance(obs):
        return (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).long()

    vector = TensorVector(CartPole(), 3, seed=0)
    out = vector.reset()
    for t in range(1, 1001):
        out = vector.step(balance(out.obs["obs"]))
        assert not out.terminated.any()
        assert out.truncated.tolist() == [t % 500 == 0] * 3
    assert [(e.total, e.length) for e in vector.episodes()] == [(500.0, 500)] * 6


def test_segments_of_a_tensor_vector_are_dense():
    vector = make_vector("tensor:CartPole-v1", 3, seed=0)
    sampler = VecEnvSampler([vector], routes=[AgentRoute()], noise_size=1, seed=0, name="a")
    writer = FakeWriter(trajectory_stream(vector.spec, num_steps=30, num_envs=3))
    assert sampler.step({"policy": FakeClient(by_noise)}, {"trajectories": writer}) == 90
    header, x = writer.committed[0]
    assert header.used == {"F": 90}
    assert x["final_index"].tolist() == list(range(90))
    final, over = x["final_obs"].view(30, 3, 4), x["terminated"] | x["truncated"]
    assert over.any()
    assert torch.equal(final[~over], x["obs"][1:][~over])
    assert not torch.equal(final[over], x["obs"][1:][over])
    assert len(sampler.events()) == int(over.sum())


class Drift:
    """A user's tensor environment: two leaves, never terminates, no time limit."""

    name, max_steps = "drift", 0
    spec = EnvSpec({"obs/x": ArraySpec((2,)), "obs/t": ArraySpec(())}, ActionSpec("continuous", (2,)))

    def initial(self, num, generator):
        return Batch(x=torch.zeros(num, 2), t=torch.zeros(num))

    def transition(self, state, action):
        return Batch(x=state["x"] + action, t=state["t"] + 1), action.sum(1), torch.zeros(len(action), dtype=torch.bool)

    def observe(self, state):
        return Batch({"obs/x": state["x"], "obs/t": state["t"]})


def test_a_users_tensor_environment_by_name():
    vector = make_vector(f"tensor:{__file__}:Drift", 2, seed=0)
    vector.reset()
    for _ in range(3):
        out = vector.step(torch.full((2, 2), 0.5))
    assert out.obs["obs/x"].tolist() == [[1.5, 1.5]] * 2
    assert out.obs["obs/t"].tolist() == [3, 3]
    assert vector.episodes() == []
    with pytest.raises(ConfigError, match="TensorEnv"):
        make_vector("tensor:builtins:dict", 2, seed=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_segment_on_a_device_is_played_without_a_wait():
    vector = make_vector("tensor:CartPole-v1", 64, seed=0, device="cuda")
    sampler = VecEnvSampler([vector], routes=[AgentRoute()], noise_size=1, seed=0, name="a")
    writer = FakeWriter(trajectory_stream(vector.spec, num_steps=16, num_envs=64, device="cuda"))
    lane, client = sampler._lanes[0], FakeClient(by_noise)
    lane.open(writer.reserve())
    torch.cuda.set_sync_debug_mode("error")
    try:
        lane.advance(client)
        lane.segment.finish()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    sampler._commit(lane, writer)
    x = writer.committed[0][1]
    assert all(leaf.device.type == "cuda" for leaf in x.values())
    assert torch.equal(x["final_index"].cpu(), torch.arange(1024))
