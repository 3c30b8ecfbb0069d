"""The vector contract, over every back end that this machine has."""

import gc
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from toy_envs import DictGoal
from vector_cases import (
    AlwaysBreaks,
    Breaks,
    Frames,
    PricedCartPole,
    PricedSameStep,
    PricedVector,
    PricedWalk,
    Walk,
    WalkNextStep,
    WalkSameStep,
    WalkVector,
    actions_of,
    record,
    same,
)

from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import Channels
from runnel.envs.registry import make_vector
from runnel.envs.toy import Counter, MaskedBandit, PointMass
from runnel.envs.vector import VectorConfig, VectorEnv, episode_seed
from runnel.envs.vector.measure import random_actions

SERIAL, OWN = VectorConfig(backend="serial"), VectorConfig(backend="gymnasium")
ONE, TWO, THREE = (VectorConfig(backend="processes", num_workers=n) for n in (1, 2, 3))
needs_pool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")
needs_atari = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")

ALL = [
    pytest.param(Walk, SERIAL, id="serial"),
    pytest.param(Walk, TWO, id="processes"),
    pytest.param(DictGoal, TWO, id="processes-dict"),
    pytest.param("CartPole-v1", OWN, id="gymnasium-next-step"),
    pytest.param(WalkVector, OWN, id="gymnasium-disabled"),
    pytest.param(WalkSameStep, OWN, id="gymnasium-same-step"),
    pytest.param("envpool:CartPole-v1", None, id="envpool", marks=needs_pool),
    pytest.param("atari:Breakout", None, id="atari", marks=needs_atari),
]
RESTORABLE = [p for p in ALL if p.id not in ("gymnasium-same-step", "envpool")]


@pytest.fixture
def make():
    made = []

    def build(target, num_envs=3, **options):
        made.append(make_vector(target, num_envs, **{"seed": 7, **options}))
        return made[-1]

    yield build
    for vector in made:
        vector.close()


# ----------------------------------------------------------------------------------------------------- what all of them do
@pytest.mark.parametrize(("target", "config"), ALL)
def test_it_keeps_the_contract(make, target, config):
    vector = make(target, 4, config=config, index0=10)
    assert isinstance(vector, VectorEnv)
    out = vector.reset()
    places = {k: x.data_ptr() for k, x in {**out.obs, "r": out.reward, "t": out.terminated}.items()}
    rng, lengths, totals, ended = np.random.default_rng(0), np.zeros(4, int), np.zeros(4), []
    for _ in range(80 if "atari" not in str(target) else 30):
        before = {k: x.clone() for k, x in out.obs.items()}
        vector.send(random_actions(vector, rng))
        assert isinstance(vector.ready(), bool)
        assert vector.recv() is out
        lengths, totals = lengths + 1, totals + out.reward.double().numpy()
        flags = out.terminated | out.truncated
        assert out.final_rows == flags.nonzero().flatten().tolist()
        for f, row in enumerate(out.final_rows):
            ended.append((10 + row, totals[row], lengths[row]))
            if out.terminated[row]:
                assert not all(torch.equal(out.final_obs[k][f], before[k][row]) for k in before)
        lengths[out.final_rows], totals[out.final_rows] = 0, 0.0
    assert places == {k: x.data_ptr() for k, x in {**out.obs, "r": out.reward, "t": out.terminated}.items()}
    found = [(e.env, pytest.approx(e.total, abs=1e-4), e.length) for e in vector.episodes()]
    assert found == ended
    assert len(ended) >= 3
    assert vector.episodes() == [] == vector.faults()


@pytest.mark.parametrize(("target", "config"), [p for p in ALL if p.id != "atari"])
def test_a_seed_means_the_same_episodes(make, target, config):
    steps = 40
    first, second = make(target, config=config), make(target, config=config, seed=8)
    first.reset()
    actions = actions_of(first, steps)
    one = record(first, actions)
    second.reset(7)
    assert same(record(second, actions), one)
    begun = first.reset(9).obs.map(torch.clone)
    assert not same(dict(begun), dict(one[0][0][0]))


@pytest.mark.parametrize(("target", "config"), RESTORABLE)
@pytest.mark.parametrize("played", [0, 33])
def test_a_restored_vector_goes_on_bit_for_bit(make, target, config, played):
    if "atari" in str(target) and not played:
        pytest.skip("its resets take long")
    vector = make(target, config=config)
    vector.reset()
    record(vector, actions_of(vector, played))
    twin = make(target, config=config, seed=99)
    twin.restore(vector.snapshot())
    assert same(dict(twin.out.obs), dict(vector.out.obs))
    actions = actions_of(vector, 50 if "atari" not in str(target) else 10, seed=1)
    assert same(record(twin, actions), record(vector, actions))
    assert twin.faults() == []


PRICED = [
    pytest.param(PricedWalk, SERIAL, id="serial"),
    pytest.param(PricedWalk, TWO, id="processes"),
    pytest.param(PricedCartPole, OWN, id="gymnasium-next-step"),
    pytest.param(PricedVector, OWN, id="gymnasium-disabled"),
    pytest.param(PricedSameStep, OWN, id="gymnasium-same-step"),
]
CHANNELS = Channels(rewards=("forward",), costs=("hazard",))


@pytest.mark.parametrize(("target", "config"), PRICED)
def test_channels_are_of_the_step_also_where_it_is_the_last(make, target, config):
    """What a step costs follows from what it showed, which for a last step is the final observation."""
    vector = make(target, 4, config=config, index0=10, channels=CHANNELS)
    out = vector.reset()
    assert {k: (x.tolist(), x.dtype) for k, x in out.channels.items()} == dict.fromkeys(
        ("rewards/forward", "costs/hazard"), ([0.0] * 4, torch.float32)
    )
    sums, ended = np.zeros((4, 2)), []
    for actions in actions_of(vector, 90):
        vector.step(actions)
        seen = out.obs["obs"].clone()
        seen[out.final_rows] = out.final_obs["obs"][: len(out.final_rows)]
        assert torch.equal(out.channels["costs/hazard"], (seen[:, 0] > 0).float())
        assert torch.equal(out.channels["rewards/forward"], seen[:, 1])
        sums += torch.stack((seen[:, 1], seen[:, 0] > 0), dim=1).numpy()
        ended += [(10 + row, *sums[row]) for row in out.final_rows]
        sums[out.final_rows] = 0.0
    found = [(e.env, e.channels["rewards/forward"], e.channels["costs/hazard"]) for e in vector.episodes()]
    assert found == [(env, pytest.approx(forward, abs=1e-4), hazard) for env, forward, hazard in ended]
    assert len(ended) > 5
    assert len({hazard for *_, hazard in ended}) > 2


@needs_pool
def test_channels_of_envpool_are_of_the_step_also_where_it_is_the_last(make):
    """The parts of Reacher's reward sum up to it in every step; its episodes have 50 steps."""
    vector = make("envpool:Reacher-v4", 4, channels=Channels(rewards=("reward_dist", "reward_ctrl")))
    out, ends = vector.reset(), 0
    for actions in actions_of(vector, 120):
        vector.step(actions)
        ends += len(out.final_rows)
        torch.testing.assert_close(out.channels["rewards/reward_dist"] + out.channels["rewards/reward_ctrl"], out.reward)
    assert ends == 8
    for e in vector.episodes():
        assert sum(e.channels.values()) == pytest.approx(e.total, abs=1e-4)


@pytest.mark.parametrize(("target", "config"), [p for p in PRICED if p.id != "gymnasium-same-step"])
def test_sums_of_channels_go_on_after_a_resume(make, target, config):
    vector = make(target, config=config, channels=CHANNELS)
    vector.reset()
    record(vector, actions_of(vector, 13))
    twin = make(target, config=config, seed=99, channels=CHANNELS)
    twin.restore(vector.snapshot())
    actions = actions_of(vector, 60, seed=1)
    for each in (vector, twin):
        for a in actions:
            each.step(a)
    one, other = ([(e.env, e.length, dict(e.channels)) for e in each.episodes()] for each in (vector, twin))
    assert one == other
    assert len(one) > 3


class Unpriced(PricedWalk):
    """Forgets its cost at step 5 of an episode, or gives another thing."""

    def __init__(self, cost=None):
        super().__init__()
        self._cost = cost

    def step(self, action):
        *rest, info = super().step(action)
        return (
            *rest,
            {"forward": 0.0, "costs": {"hazard": self._cost} if self._cost is not None else {}} if self._t == 5 else info,
        )


@pytest.mark.parametrize("config", [SERIAL, TWO], ids=["serial", "processes"])
@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, r"gave no cost 'hazard' in a step.*info of every step, 0\.0 where there is none"),
        ("much", "cost 'hazard'.*'much'"),
    ],
)
def test_a_step_without_its_cost_is_refused(make, config, cost, text):
    vector = make(Unpriced, config=config, kwargs={"cost": cost}, channels=CHANNELS)
    vector.reset()
    with pytest.raises(DataError, match=text):
        record(vector, actions_of(vector, 40))


class PartlyPriced(PricedSameStep):
    """A vector whose last row gives no cost."""

    def step(self, actions):
        *rest, _ = super().step(actions)
        given = np.array([True, True, False])
        return (*rest, {"hazard": np.ones(3), "_hazard": given, "forward": np.ones(3)})


def test_a_vector_that_gives_a_cost_for_some_rows_is_refused(make):
    vector = make(PartlyPriced, config=OWN, channels=CHANNELS)
    vector.reset()
    with pytest.raises(DataError, match="gave no cost 'hazard'"):
        record(vector, actions_of(vector, 1))


class BreaksPriced(Breaks):
    """`Breaks`, with a cost of 1 a step."""

    def step(self, action):
        *rest, _ = super().step(action)
        return (*rest, {"cost": 1.0})


@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_replaced_environment_costs_nothing_in_the_step_that_broke(make, how):
    config = VectorConfig(backend="processes", num_workers=2, on_error="restart")
    options = {"how": how, "seed": episode_seed(7, 1, 0)}
    vector = make(BreaksPriced, 2, config=config, kwargs=options, channels=Channels(costs=("cost",)))
    out, costs = vector.reset(), []
    for actions in actions_of(vector, 4):
        vector.step(actions)
        costs.append(out.channels["costs/cost"].tolist())
    assert costs == [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(("target", "config"), [p for p in ALL if p.id in ("gymnasium-same-step", "envpool")])
def test_what_cannot_be_restored_begins_anew_and_says_so(make, target, config):
    vector = make(target, config=config)
    vector.reset()
    record(vector, actions_of(vector, 4))
    twin = make(target, config=config, seed=99)
    twin.restore(vector.snapshot())
    (fault,) = twin.faults()
    assert fault["kind"] == "env_restarted"
    assert fault["num_envs"] == 3
    old = twin.out.obs.map(torch.clone)
    assert same(dict(old), dict(vector.out.obs))
    out = twin.step(actions_of(twin, 1)[0])
    assert out.final_rows == [0, 1, 2]
    assert out.truncated.all()
    assert not out.terminated.any()
    assert not out.reward.any()
    assert same(dict(out.final_obs), dict(old))
    assert not same(dict(out.obs), dict(old))
    assert not same(dict(out.obs), dict(make(target, config=config).reset().obs)), (
        "a resume must not play the first episodes again"
    )
    _, episodes = record(twin, actions_of(twin, 30))
    assert episodes
    assert max(length for _, _, length in episodes) <= 30


# ------------------------------------------------------------------------------- the same episodes, whatever steps them
@pytest.mark.parametrize("config", [ONE, TWO, THREE], ids=["1", "2", "3"])
@pytest.mark.parametrize("target", [Walk, DictGoal, PointMass, Counter, "CartPole-v1", "Pendulum-v1"])
def test_processes_play_what_serial_plays(make, target, config):
    serial, processes = make(target, 5, index0=2), make(target, 5, index0=2, config=config)
    assert same(dict(serial.reset().obs), dict(processes.reset().obs))
    actions = actions_of(serial, 120)
    assert same(record(processes, actions), record(serial, actions))


@pytest.mark.parametrize(
    ("target", "backend", "steps"),
    [
        pytest.param("envpool:CartPole-v1", "envpool", 60, marks=needs_pool),
        pytest.param("atari:Breakout", "gymnasium", 5, marks=needs_atari),
    ],
)
def test_threads_change_nothing(make, target, backend, steps):
    """So their number may follow the machine's cores."""
    one, three = (make(target, config=VectorConfig(backend=backend, threads=n)) for n in (1, 3))
    assert same(dict(one.reset().obs), dict(three.reset().obs))
    actions = actions_of(one, steps)
    assert same(record(three, actions), record(one, actions))


def test_processes_carry_masks(make):
    serial, processes = make(MaskedBandit, 5), make(MaskedBandit, 5, config=TWO)
    serial.reset()
    processes.reset()
    for seed in range(20):
        assert torch.equal(serial.out.action_mask, processes.out.action_mask)
        (action,) = actions_of(serial, 1, seed)
        assert same(record(processes, [action]), record(serial, [action]))


def test_resets_by_mask_are_those_of_serial(make):
    serial, own = make(Walk, 4, index0=3), make(WalkVector, 4, index0=3, config=OWN)
    assert same(dict(serial.reset().obs), dict(own.reset().obs))
    actions = actions_of(serial, 150)
    log, episodes = record(own, actions)
    expected, expected_episodes = record(serial, actions)
    assert same(log, expected)
    assert [(e, n) for e, _, n in episodes] == [(e, n) for e, _, n in expected_episodes]


def test_a_checkpoint_of_serial_resumes_in_processes_and_back(make):
    serial, processes = make(Walk, 4), make(Walk, 4, config=THREE, seed=1)
    serial.reset()
    record(serial, actions_of(serial, 40))
    processes.restore(serial.snapshot())
    actions = actions_of(serial, 40, seed=5)
    assert same(record(processes, actions), record(serial, actions))
    back = make(Walk, 4, seed=2)
    back.restore(processes.snapshot())
    assert same(record(back, actions), record(serial, actions))


# ------------------------------------------------------------------------------------------------ Gymnasium's three modes
def test_no_reset_of_a_late_resetting_vector_becomes_a_transition(make):
    """Gymnasium's vector CartPole, step by step against the plain one put into the same states."""
    import gymnasium as gym

    vector = make("CartPole-v1", 6, config=OWN)
    plain = [gym.make("CartPole-v1").unwrapped for _ in range(6)]
    for env in plain:
        env.reset(seed=0)
    obs, ends = vector.reset().obs["obs"].numpy().copy(), 0
    for action in actions_of(vector, 300):
        state = vector._vec.state.T.copy()
        assert np.array_equal(state.astype(np.float32), obs)
        out = vector.step(action)
        finals = dict(zip(out.final_rows, out.final_obs["obs"].numpy(), strict=False))
        for row, env in enumerate(plain):
            env.state, env.steps_beyond_terminated = tuple(state[row]), None
            expected, reward, terminated, _, _ = env.step(int(action[row]))
            assert out.terminated[row] == terminated
            assert out.reward[row] == reward == 1.0
            found = finals[row] if row in finals else out.obs["obs"][row].numpy()
            assert np.allclose(found, expected, atol=1e-6)
            if row in finals:
                assert np.abs(out.obs["obs"][row].numpy()).max() <= 0.05
                ends += 1
        obs = out.obs["obs"].numpy().copy()
    assert ends > 30
    assert (vector._vec.steps <= 300).all()


def test_a_time_limit_of_a_late_resetting_vector_is_a_truncation(make):
    vector = make("CartPole-v1", 2, config=OWN)
    vector.reset()
    vector._vec.steps[:] = [498, 0]
    out = vector.step(torch.tensor([0, 1]))
    assert out.final_rows == []
    out = vector.step(torch.tensor([1, 0]))
    assert out.final_rows == [0]
    assert out.truncated.tolist() == [True, False]
    assert not out.terminated.any()
    out = vector.step(torch.tensor([1, 0]))
    assert out.final_rows == []
    assert vector._vec.steps.tolist() == [1, 3]


def test_a_vector_that_hides_its_state_and_resets_late_is_refused(make):
    with pytest.raises(ConfigError, match=r"NEXT_STEP.*SAME_STEP"):
        make(WalkNextStep, config=OWN)


def test_a_vector_with_other_spaces_is_refused(make):
    import gymnasium as gym

    name = "ALE/NotReally-v0"
    gym.register(name, entry_point="vector_cases:Frames", vector_entry_point="vector_cases:WalkVector")
    try:
        with pytest.raises(ConfigError, match=r"other spaces.*atari:NAME"):
            make(name, 1, config=OWN)
    finally:
        del gym.registry[name]


def test_a_registered_vector_of_a_users_own_is_found(make):
    import gymnasium as gym

    name = "WalkOfTests-v0"
    gym.register(name, entry_point="vector_cases:Walk", vector_entry_point="vector_cases:WalkSameStep")
    try:
        vector = make(name, 2, config=OWN)
        vector.reset()
        record(vector, actions_of(vector, 60))
        assert isinstance(vector._vec.unwrapped, WalkSameStep)
    finally:
        del gym.registry[name]


def test_an_environment_without_a_vector_says_so(make):
    with pytest.raises(ConfigError, match="no vector of its own"):
        make(Walk, config=OWN)


# ------------------------------------------------------------------------------------------------------------------ frames
@pytest.mark.parametrize("config", [SERIAL, TWO], ids=["serial", "processes"])
@pytest.mark.parametrize(("shape", "stacked"), [((5, 7), (3, 5, 7)), ((6, 7, 1), (3, 6, 7)), ((2, 5, 7), (6, 5, 7))])
def test_frames_are_stacked_oldest_first(make, config, shape, stacked):
    config = VectorConfig(backend=config.backend, num_workers=config.num_workers, frame_stack=3)
    vector = make(Frames, 2, config=config, kwargs={"length": 4, "shape": shape})
    (leaf,) = vector.spec.obs.values()
    assert (leaf.shape, leaf.dtype, leaf.stack) == (stacked, torch.uint8, 3)
    per = stacked[0] // 3

    def shown(x):
        assert (x == x[:, :, :1, :1]).all()
        return x[0, ::per, 0, 0].tolist()

    seen, finals = [shown(vector.reset().obs["obs"])], []
    for _ in range(9):
        out = vector.step(torch.zeros(2, dtype=torch.int64))
        seen.append(shown(out.obs["obs"]))
        if out.final_rows:
            finals.append(shown(out.final_obs["obs"][:1]))
    assert seen[:5] == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [1, 1, 1]]
    assert finals == [[3, 4, 5], [3, 4, 5]]


def test_a_stack_comes_back_with_its_vector(make):
    config = VectorConfig(backend="serial", frame_stack=4)
    vector, twin = make(Frames, 2, config=config), make(Frames, 2, config=config)
    vector.reset()
    record(vector, actions_of(vector, 3))
    twin.restore(vector.snapshot())
    actions = actions_of(vector, 8)
    assert same(record(twin, actions), record(vector, actions))


def test_a_wrapped_environment_shows_what_its_vector_shows(make):
    from runnel.envs.registry import make_env

    vector = make(Frames, 1, config=VectorConfig(backend="serial", frame_stack=3))
    env = make_env(Frames, frame_stack=3)
    obs, _ = env.reset(seed=0)
    assert np.array_equal(vector.reset().obs["obs"][0], obs)
    for _ in range(5):
        obs, *_ = env.step(0)
        assert np.array_equal(vector.step(torch.zeros(1, dtype=torch.int64)).obs["obs"][0], obs)


def test_only_images_have_frames(make):
    with pytest.raises(ConfigError, match="only images"):
        make("CartPole-v1", config=VectorConfig(backend="serial", frame_stack=4))


# ------------------------------------------------------------------------------------------------------------------ faults
def broken(make, how, *, row=1, episode=1, **settings):
    bad = episode_seed(7, row, episode)
    kwargs = {"how": how, "at": 3, "max_steps": 6, "seed": bad}
    return make(Breaks, 3, kwargs=kwargs, config=VectorConfig(**settings)), bad


STOPS = [
    ("raise", {"backend": "serial"}, "raised RuntimeError: the environment broke"),
    ("raise", {"backend": "processes", "num_workers": 2}, "raised RuntimeError: the environment broke"),
    ("die", {"backend": "processes", "num_workers": 3}, "died: its process was killed by signal SIGKILL"),
    ("hang", {"backend": "processes", "num_workers": 3, "step_timeout_s": 0.5}, r"hung: a step took more than 0\.5 s"),
]


@pytest.mark.parametrize(("how", "settings", "words"), STOPS)
def test_a_broken_environment_is_named(make, how, settings, words):
    vector, bad = broken(make, how, **settings)
    vector.reset()
    for action in actions_of(vector, 8):
        vector.step(action)
    with pytest.raises(DataError, match=rf"Breaks' \(index 1, episode 1, step 3\) {words}.*reset\(seed={bad}\)"):
        vector.step(actions_of(vector, 1)[0])


@pytest.mark.parametrize(("how", "settings", "words"), STOPS)
def test_a_broken_environment_is_made_anew_and_counted(make, how, settings, words):
    vector, bad = broken(make, how, on_error="restart", **settings)
    vector.reset()
    for action in actions_of(vector, 8):
        vector.step(action)
    assert len(vector.episodes()) == 3
    out = vector.step(actions_of(vector, 1)[0])
    assert out.final_rows == [1]
    assert (out.reward.tolist(), out.truncated.tolist()) == ([1.0, 0.0, 1.0], [False, True, False])
    assert not out.terminated.any()
    assert out.final_obs["obs"][0].item() == 2.0, "the last good observation"
    assert out.obs["obs"].flatten().tolist() == [3.0, 0.0, 3.0]
    (fault,) = vector.faults()
    assert {k: fault[k] for k in ("kind", "env", "episode", "step", "seed")} == {
        "kind": "env_failed",
        "env": 1,
        "episode": 1,
        "step": 3,
        "seed": bad,
    }
    assert vector.episodes() == []
    for action in actions_of(vector, 6):
        out = vector.step(action)
    assert sorted((e.env, e.length) for e in vector.episodes()) == [(0, 6), (1, 6), (2, 6)]
    assert vector.snapshot()["envs"][1]["episode"] == 3
    assert vector.faults() == []


@pytest.mark.parametrize(("how", "backend"), [("raise", "serial"), ("raise", "processes"), ("die", "processes")])
def test_what_breaks_every_time_is_not_made_anew_for_ever(make, how, backend):
    config = VectorConfig(backend=backend, num_workers=int(backend == "processes"), on_error="restart")
    vector = make(AlwaysBreaks, 1, kwargs={"how": how}, config=config)
    vector.reset()
    record(vector, actions_of(vector, 11))
    assert [f["episode"] for f in vector.faults()] == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"AlwaysBreaks' \(index 0, episode 5, step 2\)"):
        vector.step(actions_of(vector, 1)[0])


def test_a_worker_that_dies_takes_its_neighbours_along(make):
    """One worker, three rows, the middle one dies: the first has stepped, the last has not."""
    vector, _ = broken(make, "die", backend="processes", num_workers=1, on_error="restart")
    vector.reset()
    for action in actions_of(vector, 8):
        vector.step(action)
    vector.episodes()
    out = vector.step(actions_of(vector, 1)[0])
    assert out.final_rows == [0, 1, 2]
    assert out.truncated.all()
    assert out.reward.tolist() == [1.0, 0.0, 0.0]
    assert out.final_obs["obs"].flatten().tolist() == [3.0, 2.0, 2.0]
    assert out.obs["obs"].flatten().tolist() == [0.0, 0.0, 0.0]
    assert [f["kind"] for f in vector.faults()] == ["env_lost", "env_failed", "env_lost"]
    for action in actions_of(vector, 6):
        out = vector.step(action)
    assert out.final_rows == [0, 1, 2]


def test_an_end_in_the_step_of_a_death_is_kept(make):
    """Row 0 ends its episode in the very step in which row 1, of the same worker, dies."""
    bad = episode_seed(7, 1, 0)
    kwargs = {"how": "die", "at": 4, "max_steps": 4, "seed": bad}
    config = VectorConfig(backend="processes", num_workers=1, on_error="restart")
    vector = make(Breaks, 3, kwargs=kwargs, config=config)
    vector.reset()
    for action in actions_of(vector, 3):
        vector.step(action)
    out = vector.step(actions_of(vector, 1)[0])
    assert out.final_rows == [0, 1, 2]
    assert out.final_obs["obs"].flatten().tolist() == [4.0, 3.0, 3.0]
    assert out.reward.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("config", [SERIAL, TWO], ids=["serial", "processes"])
def test_an_action_outside_its_space_is_refused(make, config):
    vector = make("CartPole-v1", 3, index0=4, config=config)
    vector.reset()
    for bad in (2, -1):
        with pytest.raises(DataError, match=rf"index 5\) was given action {bad}, outside of its space: there are 2 actions"):
            vector.step(torch.tensor([0, bad, 1]))


def test_an_environment_that_cannot_be_made_in_a_process_is_named(make):
    class Fussy(Walk):
        def __init__(self):
            super().__init__()
            if os.getpid() != parent:
                raise OSError("no licence")

    parent = os.getpid()
    with pytest.raises(DataError, match="no licence"):
        make(Fussy, config=TWO).reset()


# ----------------------------------------------------------------------------------------------------------------- the end
def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def named_memory():
    """Semaphores and shared tensors of this process; other tests make and remove theirs meanwhile."""
    return [name for name in os.listdir("/dev/shm") if f"left-{os.getpid()}-" in name or f"torch_{os.getpid()}_" in name]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("how", ["close", "forget", "stopped"])
def test_nothing_is_left_behind(how, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", f"/left-{os.getpid()}")
    kept = multiprocessing.get_context("spawn").Lock()
    assert len(named_memory()) == 1  # what is left is seen
    del kept
    before, fds, shm = children(), descriptors(), named_memory()
    assert not shm
    vector = make_vector(Walk, 4, seed=0, config=TWO)
    other = make_vector(Walk, 4, seed=0, config=TWO)
    vector.reset()
    assert len(children()) == len(before) + 4
    if how == "stopped":
        vector.send(actions_of(vector, 1)[0])
    if how == "forget":
        del vector
        gc.collect()
    else:
        vector.close()
        vector.close()
    assert len(children()) == len(before) + 2
    other.close()
    assert (children(), descriptors(), named_memory()) == (before, fds, shm)


def test_workers_die_with_their_parent():
    here = str(Path(__file__).parent)
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {here!r})
from vector_cases import Walk
from runnel.envs.registry import make_vector
from runnel.envs.vector import VectorConfig
v = make_vector(Walk, 2, seed=0, config=VectorConfig(backend="processes", num_workers=2)); v.reset()
print(*[w.child.pid for w in v._host._workers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pids = [int(p) for p in result.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline and any(_alive(p) for p in pids):
        time.sleep(0.02)
    assert not any(_alive(p) for p in pids)


def _alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
