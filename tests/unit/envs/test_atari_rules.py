"""What `atari:` does to a game, against the same rules written down on the bare emulator, and against Gymnasium's wrappers.

The table is in docs/guides/environments.md. Where it says that Stable-Baselines3 does the same (frames, lives, rewards), so
does `Rules`; FIRE after a lost life differs on purpose.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from runnel.envs.fire import NO_FIRE
from runnel.envs.preparation import describe_preparation
from runnel.envs.registry import evaluation_kwargs, make_env, make_vector
from runnel.envs.vector.cpu_base import episode_seed
from runnel.run import registry

needs_atari = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
needs_pool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")
FULL_SIZE = {"img_height": 210, "img_width": 160}
"""Frames as the emulator draws them: what is left to compare is bit for bit."""


def num_noops(seed: int, most: int = 30) -> int:
    """No-ops behind FIRE: the first number of a Mersenne twister, scaled to 0 ... most - 1; FIRE counts as one of them."""
    word = int(np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint32))
    return max(0, (word * most >> 32) - 1)


class Rules:
    """A game under the rules of the table."""

    def __init__(self, game: str, *, episodic_life: bool = True, reward_clip: bool = True) -> None:
        from ale_py import Action, ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale, self.episodic_life, self.reward_clip = ALEInterface(), episodic_life, reward_clip
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.fire, self.noop, self.rom = Action.FIRE, Action.NOOP, roms.get_rom_path(game)

    def reset(self, seed: int) -> np.ndarray:
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(self.rom)
        self.set = self.ale.getMinimalActionSet()
        self.ale.reset_game()
        for action in [self.fire, *[self.noop] * num_noops(seed)]:
            self.ale.act(action)
        self.lives, self.due, self.most = self.ale.lives(), False, 0.0
        self.last, self.stack = self.ale.getScreenGrayscale(), np.zeros((4, 210, 160), np.uint8)
        self.stack[-1] = self.last
        return self.stack.copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        chosen = self.fire if self.due else self.set[action]
        total, pair = 0.0, [self.last, self.last]
        for _ in range(4):
            total += self.ale.act(chosen)
            pair = [pair[1], self.ale.getScreenGrayscale()]
            if self.ale.game_over():
                break
        self.most = max(self.most, total)
        lost, self.lives = self.ale.lives() < self.lives, self.ale.lives()
        self.due = lost and self.lives > 0
        self.last = np.maximum(*pair)
        self.stack = np.concatenate([self.stack[1:], self.last[None]])
        ended = self.ale.game_over() or (self.episodic_life and lost)
        return self.stack.copy(), float(np.sign(total)) if self.reward_clip else total, ended


@needs_atari
@pytest.mark.parametrize(("game", "training"), [("Breakout", True), ("Breakout", False), ("SpaceInvaders", True)])
def test_games_are_played_by_the_rules_step_by_step(game: str, training: bool) -> None:
    """FIRE and no-ops of the seed, skip and maximum, the stack, lives, signs of rewards, FIRE first in a life: a whole game of
    Breakout, and Space Invaders for its rewards above 1. Evaluation plays the same game whole and for the score."""
    name, rom = f"atari:{game}", {"Breakout": "breakout", "SpaceInvaders": "space_invaders"}[game]
    kwargs = {} if training else evaluation_kwargs(name)
    vector = make_vector(name, 1, seed=5, kwargs={**kwargs, **FULL_SIZE})
    rules = Rules(rom, episodic_life=training, reward_clip=training)
    out, expected = vector.reset(), rules.reset(episode_seed(5, 0, 0))
    rng, ends, rewards = np.random.default_rng(1), 0, set()
    for t in range(400 if game == "Breakout" else 130):
        assert np.array_equal(out.obs["obs"][0].numpy(), expected), t
        action = int(rng.integers(0, 4))
        out = vector.step(torch.tensor([action]))
        expected, reward, ended = rules.step(action)
        assert (out.reward.item(), bool(out.terminated[0]), bool(out.truncated[0])) == (reward, ended, False), t
        rewards.add(reward)
        ends += ended
        if rules.ale.game_over():
            break
    assert ends == {"Breakout": 5 if training else 1, "SpaceInvaders": 0}[game]
    assert rewards == {0.0, 1.0}
    assert rules.most == (10.0 if game == "SpaceInvaders" else 1.0)
    vector.close()


@needs_atari
def test_a_policy_that_never_fires_plays_all_lives() -> None:
    """Breakout waits for FIRE: without it, the game would stand still from the first lost life on, for 27,000 steps."""
    vector = make_vector("atari:Breakout", 1, seed=1)
    vector.reset()
    for _ in range(160):
        vector.step(torch.tensor([0]))
    assert len(vector.episodes()) >= 5
    vector.close()


@needs_atari
def test_one_game_fires_as_a_vector_of_them_does() -> None:
    env = make_env("atari:Breakout")
    env.reset(seed=1)
    assert any(env.step(0)[2] for _ in range(160)), "the game ends"
    env.close()
    off = make_env("atari:Breakout", kwargs={"use_fire_reset": False})
    off.reset(seed=1)
    assert not any(off.step(0)[2] for _ in range(160)), "without FIRE it never begins"
    off.close()


@needs_pool
def test_a_policy_that_never_fires_plays_whole_games_of_envpool() -> None:
    """EnvPool presses FIRE when it resets, so after a lost life only where that ends the episode."""
    vector = make_vector("envpool:Breakout-v5", 2, seed=1)
    vector.reset()
    for _ in range(160):
        vector.step(torch.tensor([0, 0]))
    assert len(vector.episodes()) >= 2
    vector.close()
    env = make_env("envpool:Breakout-v5")
    env.reset()
    assert any(env.step(0)[2] for _ in range(160))
    env.close()


@needs_atari
def test_noops_are_drawn_evenly_over_seeds() -> None:
    """Those of a seed are known (`num_noops`, which the games above agree with); here, how they spread: 12 seeds share some of
    30 first frames as 12 throws of a die with 30 sides do, on average 10 different ones."""
    seeds = [episode_seed(s, 0, 0) for s in range(1500)]
    counts = np.bincount([num_noops(seed, 30) for seed in seeds], minlength=29)
    assert len(counts) == 29
    rest = counts[1:]  # none is drawn twice as often: by 0 and by 1
    assert ((rest - 50) ** 2 / 50).sum() < 56, "chi squared of 28 counts: 56 at one in a thousand"
    distinct = [len({num_noops(seed) for seed in seeds[i : i + 12]}) for i in range(0, 1500, 12)]
    assert np.mean(distinct) == pytest.approx(9.8, abs=0.4)


@needs_atari
def test_frames_are_those_of_gymnasiums_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """AtariPreprocessing and FrameStackObservation, without no-ops and FIRE, which they draw otherwise or do not press. They
    resize by OpenCV, to which full size is no work; what resizes to 84 x 84 is compared below."""
    import ale_py  # noqa: F401
    import gymnasium as gym
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    stub = types.SimpleNamespace(INTER_AREA=3, resize=lambda image, size, interpolation: image.copy())
    monkeypatch.setitem(sys.modules, "cv2", stub)  # type: ignore[arg-type]
    raw = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    theirs = FrameStackObservation(AtariPreprocessing(raw, noop_max=0, screen_size=(160, 210)), 4, padding_type="zero")
    plain = {"noop_max": 0, "use_fire_reset": False, "episodic_life": False, "reward_clip": False, **FULL_SIZE}
    ours = make_env("atari:Breakout", kwargs=plain)
    expected, found = theirs.reset(seed=1)[0], ours.reset(seed=1)[0]
    for t, action in enumerate([1, *np.random.default_rng(4).integers(0, 4, 250).tolist()]):
        assert np.array_equal(found, expected), t
        expected, reward, over, cut, _ = theirs.step(action)
        found, *told, _ = ours.step(action)
        assert told == [reward, over, cut], t
        if over:
            break
    assert over
    ours.close()
    theirs.close()


def area(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """OpenCV's INTER_AREA in plain words: each new pixel is the mean of the old ones under it, by the share that it covers."""

    def shares(old: int, new: int) -> np.ndarray:
        edges = np.arange(new + 1) * old / new
        low, high = np.maximum(edges[:-1, None], np.arange(old)), np.minimum(edges[1:, None], np.arange(1, old + 1))
        return np.maximum(high - low, 0.0) * new / old

    return shares(image.shape[0], height) @ image @ shares(image.shape[1], width).T


@needs_atari
def test_frames_are_resized_by_area() -> None:
    small, full = (make_env("atari:Breakout", kwargs=kwargs) for kwargs in ({}, FULL_SIZE))
    small.reset(seed=3)
    full.reset(seed=3)
    for action in (0, 2, 3, 0, 2, 2):
        shown, raw = small.step(action)[0], full.step(action)[0]
        for a, b in zip(shown, raw, strict=True):
            assert np.abs(area(b.astype(float), 84, 84) - a).max() <= 1.0
    small.close()
    full.close()


@needs_atari
def test_games_without_fire_are_those_of_the_emulator() -> None:
    from ale_py import Action, ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    for game in ("asterix", "breakout", "freeway", "video_checkers"):
        ale = ALEInterface()
        ale.loadROM(roms.get_rom_path(game))
        actions = ale.getMinimalActionSet()
        assert (game in NO_FIRE) == (len(actions) < 2 or actions[1] != Action.FIRE), game


@needs_atari
def test_a_run_says_how_its_game_is_prepared() -> None:
    def told(**settings: Any) -> str:
        config = registry.configure(registry.load_recipe("dqn"), {**settings, "deterministic": True})
        _, lines = config.settle()
        return next((line for line in lines if "lost life" in line or "lives" in line), "")

    ours = told(env="atari:Breakout")
    assert "a lost life ends the episode in training, rewards are clipped to their sign in training" in ours
    assert "FIRE at the start and after a lost life" in ours
    assert "sticky actions 0.25" in told(env="atari:Breakout", env_kwargs={"repeat_action_probability": 0.25})
    assert "no FIRE" in told(env="atari:Freeway")
    assert "lives as they are; atari:NAME" in told(env="ALE/Breakout-v5")
    assert told(env="CartPole-v1") == ""


@needs_atari
@needs_pool
def test_settings_make_the_names_of_a_game_equal() -> None:
    same = {"episodic_life": True, "reward_clip": True}
    ours, theirs = (describe_preparation(name, same) for name in ("atari:Breakout", "envpool:Breakout-v5"))
    assert ours.removeprefix("atari:Breakout") == theirs.removeprefix("envpool:Breakout-v5")
    plain = {"episodic_life": False, "reward_clip": False}
    assert describe_preparation("atari:Breakout", plain).removeprefix("atari:Breakout") == describe_preparation(
        "envpool:Breakout-v5"
    ).removeprefix("envpool:Breakout-v5")
    assert describe_preparation("envpool:Breakout-v5") != describe_preparation("envpool:Breakout-v5", same)
    assert describe_preparation("envpool:CartPole-v1") == ""
