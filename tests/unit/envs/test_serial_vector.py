import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from toy_envs import DictGoal

from runnel.core.errors import ConfigError, DataError
from runnel.envs.registry import make_vector, probe_env
from runnel.envs.toy import BadEnv, Counter, MaskedBandit, PointMass, TruncationTrap
from runnel.envs.vector import SerialVector, VectorEnv, episode_seed


def actions_for(vector, steps, seed=0):
    rng = np.random.default_rng(seed)
    spec, b = vector.spec.action, vector.num_envs
    if spec.kind == "discrete":
        return torch.from_numpy(rng.integers(0, spec.num_actions, (steps, b)))
    return torch.from_numpy(rng.uniform(-2, 2, (steps, b, *spec.shape)).astype(np.float32))


def record(vector, actions):
    """Everything that `actions` do, copied."""
    log = []
    for a in actions:
        out = vector.step(a)
        finals = {k: x[: len(out.final_rows)].clone() for k, x in out.final_obs.items()}
        log.append([*(x.clone() for x in out.obs.values()), out.reward.clone(), out.terminated.clone(), out.truncated.clone()])
        log[-1] += [torch.tensor(out.final_rows), *finals.values()]
    return log, [(e.env, e.total, e.length) for e in vector.episodes()]


def same(a, b):
    return a[1] == b[1] and all(torch.equal(x, y) for s, t in zip(a[0], b[0], strict=True) for x, y in zip(s, t, strict=True))


def test_it_plays_what_gymnasium_plays_episode_by_episode():
    vector = make_vector("CartPole-v1", 3, seed=7, index0=5)
    assert isinstance(vector, VectorEnv)
    obs = vector.reset().obs["obs"].clone()
    actions = actions_for(vector, 120)
    envs, episode, totals, ended = [gym.make("CartPole-v1") for _ in range(3)], [0] * 3, [0.0] * 3, []
    expected = np.stack([e.reset(seed=episode_seed(7, 5 + i, 0))[0] for i, e in enumerate(envs)])
    for t in range(120):
        assert np.array_equal(obs.numpy(), expected)
        out = vector.step(actions[t])
        finals = dict(zip(out.final_rows, out.final_obs["obs"], strict=False))
        for i, env in enumerate(envs):
            expected[i], reward, terminated, truncated, _ = env.step(int(actions[t, i]))
            totals[i] += reward
            assert (out.reward[i], out.terminated[i], out.truncated[i]) == (reward, terminated, truncated)
            assert (i in finals) == (terminated or truncated)
            if i in finals:
                assert np.array_equal(finals[i].numpy(), expected[i])
                episode[i] += 1
                ended.append((5 + i, totals[i]))
                totals[i] = 0.0
                expected[i] = env.reset(seed=episode_seed(7, 5 + i, episode[i]))[0]
        obs = out.obs["obs"].clone()
    assert len(ended) > 6
    episodes = vector.episodes()
    assert [(e.env, e.total) for e in episodes] == ended
    assert [e.length for e in episodes] == [int(e.total) for e in episodes]
    assert vector.episodes() == []


def test_truncation_is_not_termination():
    vector = make_vector(TruncationTrap, 2, seed=0, kwargs={"max_steps": 3})
    vector.reset()
    flags = []
    for _ in range(6):
        out = vector.step(torch.zeros(2, dtype=torch.int64))
        assert not out.terminated.any()
        flags.append(out.truncated.tolist())
    assert flags == [[False] * 2, [False] * 2, [True] * 2] * 2


def test_the_tensors_of_a_step_stay_where_they_are():
    vector = make_vector(DictGoal, 2, seed=0)
    out = vector.reset()
    places = {k: x.data_ptr() for k, x in out.obs.items()}
    for a in actions_for(vector, 30):
        assert vector.step(a) is out
    assert places == {k: x.data_ptr() for k, x in out.obs.items()}


def test_masks_belong_to_the_next_decision():
    vector = make_vector(MaskedBandit, 4, seed=3)
    out = vector.reset()
    for _ in range(20):
        assert (out.action_mask.sum(1) == 2).all()
        best = (out.action_mask * torch.arange(1, 5)).argmax(1)
        out = vector.step(best)
        assert out.terminated.all()
        assert torch.allclose(out.reward, best / 3)
    with pytest.raises(DataError, match="arm"):
        vector.step((~out.action_mask).float().argmax(1))


def test_seeds_of_reset_start_another_sequence():
    vector = make_vector("CartPole-v1", 2, seed=1)
    first = vector.reset().obs["obs"].clone()
    assert not torch.equal(vector.reset(seed=2).obs["obs"], first)
    assert torch.equal(vector.reset(seed=1).obs["obs"], first)


CASES = [
    ("CartPole-v1", {}),
    ("Pendulum-v1", {}),
    (PointMass, {"noise": 0.3, "dims": 2}),
    (Counter, {"end_chance": 0.2}),
    (DictGoal, {}),
    (MaskedBandit, {}),
]


@pytest.mark.parametrize(("target", "kwargs"), CASES)
@pytest.mark.parametrize("played", [0, 23])
def test_a_restored_vector_goes_on_bit_for_bit(target, kwargs, played):
    def act(vector, steps):
        if target is not MaskedBandit:
            return record(vector, actions_for(vector, steps, seed=played))
        log = []
        for _ in range(steps):
            out = vector.step(vector.out.action_mask.float().argmax(1))
            log.append([out.reward.clone(), out.action_mask.clone()])
        return log, [(e.env, e.total, e.length) for e in vector.episodes()]

    vector = make_vector(target, 3, seed=11, kwargs=kwargs)
    vector.reset()
    act(vector, played)
    if target is not MaskedBandit:
        vector.step(actions_for(vector, 1)[0])
    state = vector.snapshot()
    twin = make_vector(target, 3, seed=999, kwargs=kwargs)
    twin.restore(state)
    assert all(torch.equal(twin.out.obs[k], x) for k, x in vector.out.obs.items())
    assert same(act(vector, 60), act(twin, 60))


def test_an_environment_with_its_own_state_is_not_replayed(monkeypatch):
    vector = make_vector(Counter, 1, seed=0, kwargs={"length": 100})
    vector.reset()
    for _ in range(40):
        vector.step(torch.ones(1, dtype=torch.int64))
    state = vector.snapshot()
    monkeypatch.setattr(Counter, "step", lambda self, action: pytest.fail("it was stepped"))
    twin = make_vector(Counter, 1, seed=0, kwargs={"length": 100})
    twin.restore(state)
    assert twin.out.obs["obs"].item() == 40


@pytest.mark.parametrize("outer", [lambda env: env, gym.wrappers.OrderEnforcing])
def test_a_time_limit_around_a_stateful_environment_comes_back(outer):
    def make():
        return outer(gym.wrappers.TimeLimit(Counter(length=1000), max_episode_steps=10))

    vector = SerialVector(make, 1, seed=0)
    vector.reset()
    for _ in range(7):
        vector.step(torch.zeros(1, dtype=torch.int64))
    twin = SerialVector(make, 1, seed=0)
    twin.restore(vector.snapshot())
    cuts = [bool(twin.step(torch.zeros(1, dtype=torch.int64)).truncated) for _ in range(3)]
    assert cuts == [False, False, True]


def test_a_wrapper_with_memory_forces_a_replay():
    def make():
        return gym.wrappers.FrameStackObservation(Counter(length=100), stack_size=3)

    vector = SerialVector(make, 1, seed=0)
    vector.reset()
    for _ in range(5):
        vector.step(torch.zeros(1, dtype=torch.int64))
    twin = SerialVector(make, 1, seed=0)
    twin.restore(vector.snapshot())
    assert twin.step(torch.zeros(1, dtype=torch.int64)).obs["obs"].flatten().tolist() == [4, 5, 6]


def test_a_random_environment_is_found_out_on_restore():
    vector = make_vector(BadEnv, 1, seed=0, kwargs={"fault": "random", "at": 50})
    vector.reset()
    vector.step(torch.zeros(1, dtype=torch.int64))
    state = vector.snapshot()
    with pytest.raises(DataError, match=r"BadEnv.*not deterministic.*get_state"):
        make_vector(BadEnv, 1, seed=0, kwargs={"fault": "random", "at": 50}).restore(state)


def test_an_error_names_environment_index_and_step():
    vector = make_vector(BadEnv, 2, seed=0, index0=6, kwargs={"fault": "raise", "at": 3})
    vector.reset()
    for _ in range(2):
        vector.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(
        DataError, match=r"BadEnv' \(index 6, episode 0, step 3\) raised RuntimeError: the environment broke"
    ) as e:
        vector.step(torch.zeros(2, dtype=torch.int64))
    assert isinstance(e.value.__cause__, RuntimeError)


def test_a_wrong_observation_shape_is_refused_at_reset():
    class Wrong(TruncationTrap):
        def reset(self, *, seed=None, options=None):
            return np.zeros(3, np.float32), {}

    vector = make_vector(Wrong, 1, seed=0)
    with pytest.raises(DataError, match=r"shape \(3,\), but its space says \(1,\)"):
        vector.reset()


def test_no_environments_is_a_config_error():
    with pytest.raises(ConfigError, match="num_envs"):
        make_vector("CartPole-v1", 0, seed=0)


def test_an_environment_that_cannot_be_reset_is_named():
    class Dead(TruncationTrap):
        def reset(self, *, seed=None, options=None):
            raise OSError("no display")

    for make in (lambda: make_vector(Dead, 2, seed=0), lambda: probe_env(Dead)):
        with pytest.raises(DataError, match=r"Dead' raised OSError at its first reset: no display"):
            make()


def test_returns_add_up_in_double_precision():
    class Tenths(TruncationTrap):
        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            return obs, np.float32(0.1), terminated, truncated, info

    vector = make_vector(Tenths, 1, seed=0, kwargs={"max_steps": 1000})
    vector.reset()
    for _ in range(1000):
        vector.step(torch.zeros(1, dtype=torch.int64))
    assert vector.episodes()[0].total == pytest.approx(1000 * float(np.float32(0.1)), abs=1e-9)


def test_naming_environments_needs_no_gymnasium():
    code = "import sys, runnel.envs.sampler, runnel.envs.registry as r, runnel.eval.runner, runnel.testing.envs\n"
    code += "r.make_vector('tensor:CartPole-v1', 2, seed=0).reset(); sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
