"""Atari, MinAtar and EnvPool by name: what they show, how their episodes end, what is said when they are not there."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from runnel.core.errors import ConfigError
from runnel.envs.registry import evaluation_kwargs, make_env, make_vector, obs_flattener, probe_env
from runnel.envs.vector import VectorConfig

needs_pool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")
needs_atari = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
needs_minatar = pytest.mark.skipif(importlib.util.find_spec("minatar") is None, reason="MinAtar is not installed")


class Colours(gym.Env):
    """Noise, channels first, last, or gray."""

    def __init__(self, shape=(3, 20, 20)):
        self.observation_space, self.action_space = spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


def stack_of(make, **kwargs):
    (leaf,) = probe_env(make, **kwargs).obs.values()
    return leaf.stack


def test_a_stack_is_known_by_its_wrapper_and_not_by_its_shape():
    """A replay keeps each frame of a stack once; three colours and four planes of a board have the shape of one."""
    gray = {"shape": (20, 20)}
    assert stack_of(Colours) == 0
    assert stack_of(lambda: Colours((20, 20, 3))) == 0
    assert stack_of(Colours, frame_stack=4) == 4
    assert stack_of(lambda: FrameStackObservation(Colours(**gray), 4)) == 4
    assert stack_of(lambda: TimeLimit(FrameStackObservation(Colours(**gray), 3), 10)) == 3
    cropped = spaces.Box(0, 255, (4, 10, 10), np.uint8)
    crop = TransformObservation(FrameStackObservation(Colours(**gray), 4), lambda x: x[:, :10, :10], cropped)
    assert stack_of(lambda: crop) == 0
    if importlib.util.find_spec("minatar") is not None:
        assert stack_of("MinAtar/Breakout-v1") == 0
        assert stack_of("MinAtar/Breakout-v1", frame_stack=2) == 2


@needs_minatar
@pytest.mark.parametrize(("game", "planes", "num_actions"), [("Breakout", 4, 3), ("SpaceInvaders", 6, 4), ("Seaquest", 10, 6)])
def test_minatar_boards(game, planes, num_actions):
    spec = probe_env(f"MinAtar/{game}-v1")
    assert spec.obs["obs"].shape == (planes, 10, 10)
    assert spec.obs["obs"].dtype == torch.uint8
    assert spec.action.num_actions == num_actions
    assert probe_env(f"MinAtar/{game}-v0").action.num_actions == 6


@needs_minatar
def test_minatar_plays_what_the_package_plays():
    from minatar import Environment

    theirs = Environment("breakout")
    theirs.seed(5)
    theirs.reset()
    env = make_env("MinAtar/Breakout-v1")
    obs, _ = env.reset(seed=5)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(400):
        assert set(np.unique(obs)) <= {0, 255}
        assert np.array_equal(obs // 255, theirs.state().transpose(2, 0, 1))
        action = int(rng.integers(3))
        obs, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated) == theirs.act(theirs.minimal_action_set()[action])
        assert not truncated
        if terminated:
            ends += 1
            seed = 100 + ends
            obs, _ = env.reset(seed=seed)
            theirs.seed(seed)
            theirs.last_action = 0
            theirs.reset()
    assert ends > 3


@needs_minatar
def test_minatar_forgets_its_last_action_so_that_a_replay_is_exact():
    env = make_env("MinAtar/Breakout-v1", kwargs={"sticky_action_prob": 1.0, "max_steps": 3})
    env.reset(seed=1)
    env._game.last_action = 3
    first = env.reset(seed=1)[0]
    moved = env.step(1)[0]
    other = make_env("MinAtar/Breakout-v1", kwargs={"sticky_action_prob": 1.0, "max_steps": 3})
    assert np.array_equal(other.reset(seed=1)[0], first)
    assert np.array_equal(other.step(2)[0], moved), "both repeat the action before the first: none"
    env.step(1)
    assert env.step(1)[3], "cut at max_steps"


@needs_minatar
def test_an_unknown_minatar_game_is_named():
    with pytest.raises(ConfigError, match="MinAtar/Asterix-v1"):
        make_env("MinAtar/Pong-v1")


@needs_atari
def test_atari_is_preprocessed_by_name():
    spec = probe_env("atari:Breakout")
    assert (spec.obs["obs"].shape, spec.obs["obs"].dtype, spec.obs["obs"].stack) == ((4, 84, 84), torch.uint8, 4)
    assert spec.action.num_actions == 4
    assert probe_env("atari:Breakout", frame_stack=2).obs["obs"].shape == (2, 84, 84)
    flat = obs_flattener("atari:Breakout")(np.zeros((4, 84, 84), np.uint8))
    assert flat["obs"].dtype == np.uint8


@needs_atari
def test_a_lost_life_ends_the_episode_and_the_game_goes_on():
    vector = make_vector("atari:Breakout", 2, seed=3)
    vector.reset()
    rng, lives, resets, games = np.random.default_rng(0), [], 0, [0, 0]
    for _ in range(120):
        out = vector.step(torch.from_numpy(rng.integers(0, 4, 2)))
        for f, row in enumerate(out.final_rows):
            assert out.terminated[row]
            begun = int(vector._resets._episode[row]) > games[row]
            games[row] += begun
            resets += begun
            lives.append(begun)
            if not begun:
                assert torch.equal(out.obs["obs"][row], out.final_obs["obs"][f]), "the next episode begins where this one ended"
    assert len(lives) >= 4
    assert resets < len(lives), "a lost life is no new game"
    vector.close()


@needs_atari
@pytest.mark.parametrize("steps_a_seed", [100, 4096])
def test_a_resume_replays_games_from_their_last_seed(monkeypatch, steps_a_seed):
    monkeypatch.setattr("runnel.envs.atari.STEPS_A_SEED", steps_a_seed)
    kwargs = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 280}
    vector, twin = (make_vector("atari:Breakout", 2, seed=seed, kwargs=kwargs) for seed in (3, 9))
    vector.reset()
    actions = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (320, 2)))
    for action in actions[:250]:
        vector.step(action)
    seeded, games = vector._resets._start.tolist(), vector._resets._episode.tolist()
    assert min(games) >= 2
    assert (seeded == [0, 0]) == (steps_a_seed > 250)
    twin.restore(vector.snapshot())
    for action in actions[250:]:
        ours, theirs = vector.step(action), twin.step(action)
        assert torch.equal(ours.obs["obs"], theirs.obs["obs"])
        assert torch.equal(ours.terminated, theirs.terminated)
    assert vector._resets._episode.tolist() == twin._resets._episode.tolist() > games
    vector.close()
    twin.close()


@needs_atari
def test_games_that_were_played_without_fire_after_a_life_are_brought_back():
    """A checkpoint from before: its replay gives the same frame, and from then on lives begin with FIRE."""
    vector, twin = (make_vector("atari:Breakout", 1, seed=seed) for seed in (3, 9))
    vector.reset()
    vector._resets.vec.presses = False
    for _ in range(60):
        vector.step(torch.tensor([0]))
    assert len(vector.episodes()) == 1
    state = vector.snapshot()
    del state["vec"]["fires"]
    twin.restore(state)
    assert torch.equal(vector.out.obs["obs"], twin.out.obs["obs"])
    twin.step(torch.tensor([1]))
    for _ in range(150):
        twin.step(torch.tensor([0]))
    assert len(twin.episodes()) >= 4
    vector.close()
    twin.close()


@needs_atari
def test_evaluation_plays_whole_games_for_the_score():
    assert evaluation_kwargs("atari:Pong", {"noop_max": 5}) == {"noop_max": 5, "episodic_life": False, "reward_clip": False}
    assert evaluation_kwargs("envpool:Pong-v5", {"episodic_life": True}) == {"episodic_life": False}
    assert evaluation_kwargs("CartPole-v1") == {}


@needs_atari
def test_atari_steps_itself():
    with pytest.raises(ConfigError, match="steps itself"):
        make_vector("atari:Breakout", 2, seed=0, config=VectorConfig(backend="processes"))


@needs_atari
def test_an_unknown_game_is_named():
    with pytest.raises(ConfigError, match="atari:SpaceInvaders"):
        make_env("atari:NoSuchGame")


@needs_pool
def test_envpool_by_name():
    spec = probe_env("envpool:HalfCheetah-v4")
    assert spec.obs["obs"].shape == (17,)
    assert spec.obs["obs"].dtype == torch.float32
    assert spec.action.kind == "continuous"
    with pytest.raises(ConfigError, match="no such environment"):
        make_env("envpool:NoSuch-v0")
    with pytest.raises(ConfigError, match="does not take this"):
        make_env("envpool:CartPole-v1", kwargs={"wings": 2})


@needs_pool
def test_envpool_never_shows_a_reset_as_a_step():
    """Against a pool of one that is stepped by hand: same seed, same actions, resets left out."""
    import envpool

    from runnel.core.rng import make_seed

    vector = make_vector("envpool:CartPole-v1", 1, seed=4, kwargs={"max_episode_steps": 15})
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=1, seed=make_seed(4, "envpool", 0), max_episode_steps=15)
    obs, _ = pool.reset()
    out = vector.reset()
    rng, cuts = np.random.default_rng(1), 0
    for _ in range(200):
        assert np.array_equal(out.obs["obs"].numpy(), obs)
        action = rng.integers(0, 2, 1)
        vector.send(torch.from_numpy(action))
        out = vector.recv()
        obs, reward, terminated, truncated, _ = pool.step(action.astype(np.int32))
        assert out.reward.numpy() == reward == 1.0
        assert (out.terminated.numpy(), out.truncated.numpy()) == (terminated, truncated)
        if terminated or truncated:
            cuts += int(truncated[0])
            assert np.array_equal(out.final_obs["obs"].numpy(), obs)
            obs, reward, *_ = pool.step(action.astype(np.int32))
            assert reward == 0.0
    assert cuts
    assert all(e.length <= 15 for e in vector.episodes())


@needs_pool
def test_one_environment_of_envpool_is_a_plain_one():
    env = make_env("envpool:CartPole-v1")
    first = env.reset(seed=3)[0]
    assert first.shape == (4,)
    assert np.array_equal(env.reset(seed=3)[0], first)
    assert not np.array_equal(env.reset(seed=4)[0], first)
    obs, reward, terminated, truncated, _ = env.step(1)
    assert (obs.shape, reward, terminated, truncated) == ((4,), 1.0, False, False)
    env.close()
