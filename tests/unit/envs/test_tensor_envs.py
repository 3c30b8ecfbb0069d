"""Tensor environments, each against Gymnasium's own, step by step; and the vector around them, on the host and in tensors."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter, by_noise
from toy_envs import PlainFourRooms

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.device import (
    TENSOR_ENVS,
    Acrobot,
    ArrayEnv,
    CartPole,
    FourRooms,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    TensorEnv,
    TensorVector,
)
from runnel.envs.device.episodes import MAX_RECORDS
from runnel.envs.device.grid import rooms
from runnel.envs.registry import make_vector, probe_env
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.vector import VectorEnv

NUM = 400


class InTensors:
    """The same environment without its numpy form: a vector of it works as on a device."""

    def __init__(self, env):
        self.name, self.spec, self.max_steps = env.name, env.spec, env.max_steps
        self.initial, self.transition, self.observe = env.initial, env.transition, env.observe


def uniform(low, high, seed=0):
    """Random states, every third one with a coordinate at one of its bounds."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, (NUM, len(low)))
    for i in range(0, NUM, 3):
        k = rng.integers(len(low))
        x[i, k] = (low, high)[rng.integers(2)][k]
    return x.astype(np.float32)


def cartpole_cases():
    states = uniform([-2.4, -3, -0.25, -3], [2.4, 3, 0.25, 3])
    return {"state": states}, lambda env, i: setattr(env, "state", states[i].astype(np.float64))


def pendulum_cases():
    x = uniform([-4 * math.pi, -8], [4 * math.pi, 8])
    return {"angle": x[:, 0], "speed": x[:, 1]}, lambda env, i: setattr(env, "state", x[i].astype(np.float64))


def mountain_car_cases():
    x = uniform([-1.2, -0.07], [0.6, 0.07])
    x[:80, 0] = np.linspace(0.4, 0.55, 80)
    x[80:120, 0] = np.linspace(-1.2, -1.1, 40)
    return {"state": x}, lambda env, i: setattr(env, "state", x[i].astype(np.float64))


def acrobot_cases():
    x = uniform([-math.pi, -math.pi, -4 * math.pi, -9 * math.pi], [math.pi, math.pi, 4 * math.pi, 9 * math.pi])
    state = dict(zip(("a", "b", "da", "db"), np.ascontiguousarray(x.T), strict=True))
    return state, lambda env, i: setattr(env, "state", x[i].astype(np.float64))


def rooms_cases():
    cells = np.argwhere(~rooms(9))
    rng = np.random.default_rng(0)
    agent, goal = rng.integers(0, len(cells), NUM), rng.integers(0, len(cells), NUM)

    def put(env, i):
        env.agent, env.goal = tuple(cells[agent[i]].tolist()), tuple(cells[goal[i]].tolist())

    return {"agent": agent, "goal": goal}, put


CASES = {
    "CartPole-v1": (CartPole, cartpole_cases, 1e-6),
    "Pendulum-v1": (Pendulum, pendulum_cases, 2e-5),
    "MountainCar-v0": (MountainCar, mountain_car_cases, 1e-6),
    "MountainCarContinuous-v0": (MountainCarContinuous, mountain_car_cases, 1e-6),
    "Acrobot-v1": (Acrobot, acrobot_cases, 2e-3),  # four stages in float32, stiff at the highest speeds
    "FourRooms": (FourRooms, rooms_cases, 1e-7),
}


def twin_of(name):
    return PlainFourRooms() if name == "FourRooms" else gym.make(name, disable_env_checker=True).unwrapped


def some_actions(spec, num=NUM, seed=1):
    rng = np.random.default_rng(seed)
    if spec.action.kind == "discrete":
        return rng.integers(0, spec.action.num_actions, num)
    return rng.uniform(1.5 * np.array(spec.action.low), 1.5 * np.array(spec.action.high), (num, 1)).astype(np.float32)


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_steps_like_gymnasium(name, form):
    make, cases, tolerance = CASES[name]
    env, twin = make(), twin_of(name)
    state, put = cases()
    actions = some_actions(env.spec)
    given = {k: x.copy() for k, x in state.items()}
    if form == "torch":
        state = {k: torch.from_numpy(x.copy()) for k, x in state.items()}
        following, reward, terminated = env.transition(state, torch.from_numpy(actions))
    else:
        following, reward, terminated = env.transition(state, actions)
    obs = np.asarray(env.observe(following)["obs"])
    assert obs.dtype == np.float32
    for k, x in given.items():
        assert np.array_equal(np.asarray(state[k]), x), "the state that was given is never written to"
    errors, ended = [], 0
    for i in range(NUM):
        twin.reset(seed=0)
        put(twin, i)
        action = int(actions[i]) if env.spec.action.kind == "discrete" else np.clip(actions[i], *_box(env.spec))
        want, earned, over, _, _ = twin.step(action)
        errors.append(np.abs(obs[i] - want).max())
        assert errors[-1] < tolerance, (i, obs[i], want)
        assert float(reward[i]) == pytest.approx(earned, rel=1e-6, abs=tolerance)
        assert bool(terminated[i]) == over
        ended += over
    assert np.median(errors) < 1e-5
    assert 0 < ended < NUM or name == "Pendulum-v1"


def _box(spec):
    return np.array(spec.action.low, np.float32), np.array(spec.action.high, np.float32)


@pytest.mark.parametrize("name", [n for n in CASES if n != "FourRooms"])
def test_spaces_and_time_limits_are_gymnasiums(name):
    env = TENSOR_ENVS[name]()
    assert isinstance(env, TensorEnv)
    assert env.max_steps == gym.spec(name).max_episode_steps
    assert env.spec == probe_env(name)
    assert env.name == f"tensor:{name}"


def test_four_rooms_looks_like_its_plain_form():
    assert FourRooms().spec == probe_env(PlainFourRooms)
    walls, plain = rooms(11), PlainFourRooms(size=11)
    assert [[plain.is_wall(r, c) for c in range(11)] for r in range(11)] == walls.tolist()
    state = FourRooms().initial(2000, torch.Generator().manual_seed(0))
    assert not (state["agent"] == state["goal"]).any()
    assert sorted(set(state["agent"].tolist())) == sorted(set(state["goal"].tolist())) == list(range(int((~rooms(9)).sum())))
    with pytest.raises(ConfigError, match="odd"):
        FourRooms(size=8)


@pytest.mark.parametrize("name", [n for n in CASES if n != "FourRooms"])
def test_first_states_are_drawn_as_in_gymnasium(name):
    env, twin = TENSOR_ENVS[name](), twin_of(name)
    ours = env.observe(env.initial(2000, torch.Generator().manual_seed(0)))["obs"].numpy()
    theirs = np.stack([twin.reset(seed=i)[0] for i in range(500)])
    assert np.abs(ours.mean(0) - theirs.mean(0)).max() < 0.15 * max(theirs.std(), 0.1)
    assert np.abs(ours.min(0) - theirs.min(0)).max() < 0.1
    assert np.abs(ours.max(0) - theirs.max(0)).max() < 0.1


# -------------------------------------------------------------------------------------------------------------- vectors
def vectors(env, num, **kwargs):
    return TensorVector(env, num, **kwargs), TensorVector(InTensors(env), num, **kwargs)


@pytest.mark.parametrize("in_tensors", [False, True])
def test_long_play_follows_gymnasium_with_autoreset(in_tensors):
    vector = vectors(CartPole(), 4, seed=3, index0=10)[in_tensors]
    assert isinstance(vector, VectorEnv)
    assert (vector.out.final_rows is None) == in_tensors
    env = gym.make("CartPole-v1").unwrapped
    out = vector.reset()
    assert (out.obs["obs"].abs() <= 0.05).all()
    ended = []
    for t in range(200):
        before = out.obs["obs"].clone()
        action = torch.tensor([(t // 3 + i) % 2 for i in range(4)])
        vector.send(action)
        assert vector.ready()
        out = vector.recv()
        for i in range(4):
            env.reset(seed=0)
            env.state = before[i].double().numpy()
            obs, _, terminated, _, _ = env.step(int(action[i]))
            assert bool(out.terminated[i]) == terminated
            final = out.final_obs["obs"][i if in_tensors else out.final_rows.index(i)] if in_tensors or terminated else None
            if terminated:
                ended.append(10 + i)
                assert np.abs(final.numpy() - obs).max() < 1e-6
                assert (out.obs["obs"][i].abs() <= 0.05).all()
            else:
                assert np.abs(out.obs["obs"][i].numpy() - obs).max() < 1e-6
    episodes = vector.episodes()
    assert [e.env for e in episodes] == ended
    assert all(e.total == e.length > 5 for e in episodes)
    assert sum(e.length for e in episodes) <= 800
    assert vector.episodes() == vector.faults() == []


@pytest.mark.parametrize("in_tensors", [False, True])
def test_truncation_at_500(in_tensors):
    def balance(obs):
        return (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).long()

    vector = vectors(CartPole(), 3, seed=0)[in_tensors]
    out = vector.reset()
    for t in range(1, 1001):
        out = vector.step(balance(out.obs["obs"]))
        assert not out.terminated.any()
        assert out.truncated.tolist() == [t % 500 == 0] * 3
    assert [(e.total, e.length) for e in vector.episodes()] == [(500.0, 500)] * 6


@pytest.mark.parametrize("in_tensors", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_restored_vector_goes_on_bit_for_bit(name, in_tensors):
    make = CASES[name][0]
    vector, twin = (vectors(make(), 5, seed=s)[in_tensors] for s in (1, 2))
    vector.reset()
    actions = torch.from_numpy(some_actions(make().spec, 5 * 260)).view(260, 5, *make().spec.action.shape)
    for a in actions[:130]:
        vector.step(a)
    twin.restore(vector.snapshot())
    assert torch.equal(vector.out.obs["obs"], twin.out.obs["obs"])
    for a in actions[130:]:
        ours, theirs = vector.step(a), twin.step(a)
        for key in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(ours, key), getattr(theirs, key))
        assert torch.equal(ours.obs["obs"], theirs.obs["obs"])
    episodes = vector.episodes()
    assert episodes == twin.episodes()
    assert all(e.length <= make.max_steps for e in episodes)
    assert vector.snapshot()["engine"].keys() == twin.snapshot()["engine"].keys()


@pytest.mark.parametrize("in_tensors", [False, True])
def test_a_seed_starts_the_same_game(in_tensors):
    vector, other = (vectors(Pendulum(), 4, seed=s)[in_tensors] for s in (1, 2))
    first = vector.reset().obs["obs"].clone()
    assert not torch.equal(first, other.reset().obs["obs"])
    vector.step(torch.zeros(4, 1))
    assert torch.equal(other.reset(seed=1).obs["obs"], first)
    assert torch.equal(vector.reset().obs["obs"], first)


@pytest.mark.parametrize("in_tensors", [False, True])
def test_records_are_exact_up_to_their_bound_and_spread_evenly_above(in_tensors):
    class Countdown:
        """Ends after as many steps as its first observation says, modulo 3, plus 1; pays the step number."""

        name, max_steps = "countdown", 0
        spec = EnvSpec({"obs": ArraySpec(())}, ActionSpec("discrete", num_actions=2))

        def initial(self, num, generator):
            return Batch(t=torch.zeros(num))

        def transition(self, state, action):
            t = state["t"] + 1.0
            return {"t": t}, t, t >= 3.0

        def observe(self, state):
            return {"obs": state["t"]}

    class InNumpy(Countdown, ArrayEnv):
        pass

    vector = TensorVector(Countdown() if in_tensors else InNumpy(), 100, seed=0)
    vector.reset()
    for _ in range(6):
        vector.step(torch.zeros(100, dtype=torch.long))
    assert [(e.env, e.total, e.length) for e in vector.episodes()] == [(i, 6.0, 3) for i in range(100)] * 2
    for _ in range(30):
        vector.step(torch.zeros(100, dtype=torch.long))
    episodes = vector.episodes()
    assert len(episodes) == (1000 if in_tensors else MAX_RECORDS)  # on a device the bound is higher, for evaluations
    assert {(e.total, e.length) for e in episodes} == {(6.0, 3)}
    assert len({e.env for e in episodes}) > 60


def test_segments_of_a_vector_in_tensors_are_dense():
    vector = vectors(CartPole(), 3, seed=0)[1]
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


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        (
            "reward",
            lambda x: x[:1],
            r"Drifts: the reward of transition is \[1\] of torch.float32 for 3 copies, expected \[3\]",
        ),
        ("reward", lambda x: x.unsqueeze(-1), r"the reward of transition is \[3, 1\]"),
        ("reward", lambda x: 1.0, r"the reward of transition is 1.0 for 3 copies"),
        (
            "terminated",
            lambda x: x.float(),
            r"terminated of transition is \[3\] of torch.float32 .* expected \[3\] of torch.bool",
        ),
        (
            "obs",
            lambda x: x[:, :1],
            r"observe\(state\)\['obs/x'\] is \[3, 1\] of torch.float32 for 3 copies, expected \[3, 2\]",
        ),
    ],
)
def test_a_tensor_environment_is_tried_when_it_is_made(method, wrong, message):
    class Drifts(Drift):
        def transition(self, state, action):
            following, reward, terminated = super().transition(state, action)
            found = {"reward": reward, "terminated": terminated}
            found |= {method: wrong(found[method])} if method in found else {}
            return following, found["reward"], found["terminated"]

        def observe(self, state):
            shown = super().observe(state)
            return Batch(shown | {"obs/x": wrong(shown["obs/x"])}) if method == "obs" else shown

    with pytest.raises(DataError, match=message):
        TensorVector(Drifts(), 2, seed=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_on_a_device_the_same_numbers_and_no_wait(name):
    env = CASES[name][0]()
    state = {k: torch.from_numpy(x) for k, x in CASES[name][1]()[0].items()}
    actions = torch.from_numpy(some_actions(env.spec))
    want = env.transition(state, actions)
    there = {k: x.cuda() for k, x in state.items()}
    actions = actions.cuda()
    env.transition(there, actions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = env.transition(there, actions)
        shown = env.observe(got[0])["obs"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(shown.cpu(), env.observe(want[0])["obs"], atol=1e-3, rtol=1e-3)
    assert (got[2].cpu() != want[2]).sum() <= 1
