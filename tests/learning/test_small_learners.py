"""Learners that change one thing of a stock one, each on a task that shows the change: a stated return on k of n seeds. What
the stock learner reaches on the same seeds and steps is said beside it, as it was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runnel as rl

QUIET: dict[str, Any] = {"track": (), "checkpoint": {"every": 0}}
POINT = "runnel.envs.toy:PointMass"
FAST: dict[str, Any] = {"actor_lr": 3e-3, "critic_lr": 3e-3, "gamma": 0.95, "tau": 0.02, "batch_size": 64}
REPLAY: dict[str, Any] = {"min_fill": 200, "net": {"hidden": (32, 32)}}
DISTRACTED = str(Path(__file__).parent / "distracted.py") + ":Distracted"
ASLEEP = str(Path(__file__).parent / "asleep.py")


def scores(recipe: str, out: Path, seeds: range, *, episodes: int = 20, **settings: Any) -> list[float]:
    found = []
    for seed in seeds:
        run = rl.train(recipe, seed=seed, out=str(out), eval={"episodes": episodes}, **QUIET, **settings)
        assert run.eval is not None
        found.append(float(run.eval["mean"]))
    return found


def test_a_critic_that_is_told_more_helps_a_policy_that_is_not(tmp_path: Path) -> None:
    """Luck: rewards are 1 for the right action and 30 times a normal number. With a critic that reads that number, the policy
    (which never does) takes the right action in at least 95 of 100 draws on 3 of 3 seeds. Where nobody is told it, five seeds
    reached 0.51, 0.35, 0.48, 0.98 and 0.89."""
    given: dict[str, Any] = {"env": "toy_envs:Luck", "total_steps": 8_192, "num_steps": 32, "ppo": {"lr": 3e-3}}
    cue = np.random.default_rng(0).choice([-1.0, 1.0], (500, 1)).astype(np.float32)
    for seed in range(1, 4):
        net = {"critic_only": ("luck",)}
        run = rl.train("ppo", seed=seed, out=str(tmp_path), net=net, eval={"episodes": 0}, **QUIET, **given)
        action = rl.load(run.path).act({"cue": cue}, deterministic=False)
        assert np.mean((2 * action - 1) * cue[:, 0] > 0) >= 0.95, seed


def test_stream_ac_learns_from_each_transition_once(tmp_path: Path) -> None:
    """PointMass, 2,500 steps: at least -1 on 2 of 5 seeds (at random about -7, at best about -0.3). On one machine six of seeds
    1 to 8 reach it, 2 and 5 do not (-4.4, -11.4); on another, which rounds otherwise, 2 does. Seeds after the second that
    reaches it are not played."""
    found: list[float] = []
    for seed in range(1, 6):
        found += scores("stream_ac", tmp_path, range(seed, seed + 1), env=POINT, total_steps=2_500, net={"hidden": (32,)})
        if sum(score >= -1.0 for score in found) == 2:
            return
    pytest.fail(f"too few reach -1: {found}")


def test_stream_q_learns_from_each_transition_once(tmp_path: Path) -> None:
    """DictGoal, 2,500 steps: at least 0.75 on 2 of 2 seeds (at best about 0.9)."""
    found = scores("stream_q", tmp_path, range(1, 3), env="toy_envs:DictGoal", total_steps=2_500, net={"hidden": (32,)})
    assert min(found) >= 0.75, found


@pytest.mark.parametrize("woken", [True, False], ids=["drm", "td3"])
def test_drm_wakes_an_actor_that_td3_leaves_asleep(woken: bool, tmp_path: Path) -> None:
    """PointMass from an actor whose relus are all shut: DrM reaches -1.2 on 3 of 3 seeds; TD3, to whose actor no gradient
    comes, stays below -4."""
    given = {"env": POINT, "total_steps": 1_200, "woken": woken, "drm": {**FAST, "perturb_every": 100}}
    found = scores(ASLEEP, tmp_path, range(11, 14 if woken else 12), **REPLAY, **given)
    assert min(found) >= -1.2 if woken else max(found) < -4.0, found


def test_mex_learns_what_td3_learns(tmp_path: Path) -> None:
    """PointMass within 900 steps: at least -0.8 on 2 of 2 seeds, although its critics are asked to promise more."""
    found = scores("mex", tmp_path, range(11, 13), env=POINT, total_steps=900, **REPLAY, td3={**FAST, "eta": 0.01})
    assert min(found) >= -0.8, found


def test_cip_learns_among_numbers_that_mean_nothing(tmp_path: Path) -> None:
    """Distracted within 700 steps: at least -2.8 on 2 of 2 seeds (eight had -2.7 to -1.82). SAC had -4.54 to -3.1 on the same
    eight."""
    sac = {**FAST, "fit_rows": 2_000, "fit_every": 100}
    found = scores("cip", tmp_path, range(11, 13), episodes=50, env=DISTRACTED, total_steps=700, **REPLAY, sac=sac)
    assert min(found) >= -2.8, found


def test_sqirl_looks_ahead_as_far_as_it_is_told(tmp_path: Path) -> None:
    """Lookahead: the random policy's Q prefers a sure 0.4 to an unsure 1; one step of Q-iteration on it does not. 1 on 3 of 3
    seeds with a depth of 2, and 0.4 with 1, after two updates; PPO is at 0.4 then, and at 1 after twenty."""
    sqirl: dict[str, Any] = {"horizon": 2, "num_epochs": 100, "lr": 3e-3}
    given: dict[str, Any] = {"env": "toy_envs:Lookahead", "num_steps": 64, "total_updates": 2, "net": {"hidden": (16,)}}
    assert scores("sqirl", tmp_path, range(1, 4), **given, sqirl={**sqirl, "depth": 2}) == [1.0] * 3
    assert scores("sqirl", tmp_path, range(1, 2), **given, sqirl=sqirl) == [pytest.approx(0.4)]


def test_soap_finds_options_that_remember(tmp_path: Path) -> None:
    """Recall: a cue is shown once and asked for two steps later. At least 0.95 within 8,192 steps on 2 of 3 seeds (1 and 2 had
    1 after 4,096); PPO without a memory is at the 0.5 of chance (0.55, 0.6, 0.5, 0.25 and 0.4 on five seeds)."""
    given = {"env": "runnel.envs.toy:Recall", "env_kwargs": {"delay": 2}, "total_steps": 8_192, "num_steps": 32}
    found = scores("soap", tmp_path, range(1, 3), **given, ppo={"lr": 3e-3})
    if min(found) < 0.95:  # else two of three are good, whatever the third is
        found += scores("soap", tmp_path, range(3, 4), **given, ppo={"lr": 3e-3})
    assert sum(score >= 0.95 for score in found) == 2, found


def test_trees_learn_the_rules_of_a_table(tmp_path: Path) -> None:
    """Rules: at least 0.95 of decisions right within 8,192 steps on 2 of 2 seeds (0.98 and 0.99 after 4,096); PPO's network had
    0.93, 0.96 and 0.84 on three after 16,384."""
    found = scores("gbrl", tmp_path, range(1, 3), episodes=300, env="toy_envs:Rules", total_steps=8_192, num_steps=64)
    assert min(found) >= 0.95, found
