"""Episodes for a data set: what is yielded is what a plain environment plays; cuts, crashes and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runnel.core.contracts.inference import Reply
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.envs.registry import make_vector
from runnel.envs.toy import Counter, MaskedBandit, PointMass
from runnel.envs.vector import VectorConfig, VectorEnv, episode_seed
from runnel.eval.episodes import EpisodePlayer


class Rule:
    """An inline client of a fixed rule."""

    def __init__(self, rule: Callable[[Batch], torch.Tensor]) -> None:
        self.rule = rule

    def submit(self, rows: Batch, *, version: int = -1) -> int:
        self._reply = Reply(0, Batch(action=self.rule(rows)), 0)
        return 0

    def ready(self, ticket: int) -> Reply:
        return self._reply

    def poll(self) -> int:
        return 0


def lean(rows: Batch) -> torch.Tensor:
    return (rows["obs"][:, 2] > 0).long()


def ones(rows: Batch) -> torch.Tensor:
    return torch.ones(len(rows["obs"]), dtype=torch.int64)


def player(make: Callable[[], VectorEnv], episodes: int, *, max_steps: int = 1_000) -> EpisodePlayer:
    return EpisodePlayer(make, episodes, seed=4, noise_size=1, state={}, max_steps=max_steps)


def play(make: Callable[[], VectorEnv], episodes: int, rule: Callable[[Batch], torch.Tensor], **more: Any) -> list[dict]:
    return [dict(found) for found in player(make, episodes, **more).run(Rule(rule))]


def test_episodes_are_those_that_a_plain_environment_plays() -> None:
    found = play(lambda: make_vector("CartPole-v1", 3, seed=0), 7, lean)
    seed, env, due = make_seed(4, "record", 0), gym.make("CartPole-v1"), []
    for row, quota in enumerate((3, 2, 2)):
        for k in range(quota):
            obs, over, seen, steps = env.reset(seed=episode_seed(seed, row, k))[0], False, [], []
            while not over:
                seen.append(obs)
                obs, reward, terminated, truncated, _ = env.step(int(obs[2] > 0))
                steps.append((int(seen[-1][2] > 0), reward, terminated, truncated))
                over = terminated or truncated
            due.append((np.stack([*seen, obs]), *(np.array(x) for x in zip(*steps, strict=True))))
    names = ("obs", "action", "rewards/env", "terminated", "truncated")
    # they come in the order in which they end: sorted by content both are the same
    key = lambda columns: columns[0].tobytes()  # noqa: E731
    for one, two in zip(sorted(([e[n] for n in names] for e in found), key=key), sorted(due, key=key), strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_short_episodes_are_not_favoured() -> None:
    lengths = iter([2, 50])
    found = play(lambda: make_vector(lambda: Counter(next(lengths)), 2, seed=0), 4, ones)
    assert sorted(len(e["action"]) for e in found) == [2, 2, 50, 50]


def test_an_episode_without_end_is_cut_and_that_is_a_truncation() -> None:
    """Longer ones are cut after 3 steps; what their environments do until they end is not recorded."""
    found = play(lambda: make_vector(lambda: Counter(5), 2, seed=0), 5, ones, max_steps=3)
    assert len(found) == 5
    for episode in found:
        assert episode["obs"].ravel().tolist() == [0.0, 1.0, 2.0, 3.0]
        assert episode["truncated"].tolist() == [False, False, True]
        assert not episode["terminated"].any()


def test_an_episode_that_crashes_is_left_out_and_counted() -> None:
    class Breaks(Counter):
        """The second episode of each environment breaks."""

        played = 0

        def reset(self, **asked: Any) -> Any:
            type(self).played += 1
            self.number = type(self).played
            return super().reset(**asked)

        def step(self, action: int) -> Any:
            if self.number == 2 and self._t == 1:
                raise RuntimeError("the environment broke")
            return super().step(action)

    made = player(lambda: make_vector(lambda: Breaks(3), 1, seed=0, config=VectorConfig(on_error="restart")), 3)
    found = list(made.run(Rule(ones)))
    assert made.crashed == 1
    assert [len(e["action"]) for e in found] == [3, 3, 3]
    assert all(e["terminated"].tolist() == [False, False, True] for e in found)


def test_masks_are_those_of_each_observation() -> None:
    found = play(lambda: make_vector(MaskedBandit, 2, seed=0), 6, lambda rows: rows["action_mask"].long().argmax(1))
    for episode in found:
        assert episode["action_mask"].shape == (len(episode["action"]) + 1, 4)
        assert episode["action_mask"][:-1][np.arange(len(episode["action"])), episode["action"]].all()


def test_actions_are_those_that_were_executed() -> None:
    """A box clips: what lies outside is recorded at the bound, and the next position is that of the clipped action."""
    found = play(lambda: make_vector(PointMass, 2, seed=0), 2, lambda rows: 9.0 * rows["obs"])
    for episode in found:
        assert np.abs(episode["action"]).max() == 1.0
        np.testing.assert_allclose(episode["obs"][1:], episode["obs"][:-1] + 0.2 * episode["action"], rtol=1e-5)


def test_tensor_environments_are_recorded_too() -> None:
    found = play(lambda: make_vector("tensor:CartPole-v1", 4, seed=0), 8, lean)
    assert len(found) == 8
    for episode in found:
        assert len(episode["obs"]) == len(episode["action"]) + 1
        assert (episode["terminated"] | episode["truncated"]).tolist() == [False] * (len(episode["action"]) - 1) + [True]
