"""Level-based foraging: the numbers of the package, its time limit as a truncation, and exact states."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import runnel as rl
from runnel.core.state import State
from runnel.envs.registry import make_team_env

TASK = "Foraging-5x5-2p-1f-v3"
COOP = "lbforaging:Foraging-8x8-2p-2f-coop-v3"


def test_an_episode_is_that_of_the_package_but_for_its_time_limit() -> None:
    """The same seed and actions by hand, on the environment that Gymnasium's registry makes: both ways to end come up."""
    env, rng = make_team_env(f"lbforaging:{TASK}"), np.random.default_rng(3)
    theirs, ends = gym.make(TASK, disable_env_checker=True), set()
    for seed in range(25):
        obs, _ = env.reset(seed=seed)
        raw, _ = theirs.reset(seed=seed)
        total, step, over = 0.0, 0, False
        while not over:
            assert [x.tolist() for x in obs.values()] == [x.tolist() for x in raw]
            actions = rng.integers(0, 6, 2)
            obs, rewards, terminated, truncated, _ = env.step(dict(zip(env.possible_agents, actions, strict=True)))
            raw, paid, over, _, _ = theirs.step(tuple(actions))
            assert list(rewards.values()) == paid
            total, step = total + sum(rewards.values()), step + 1
            eaten = theirs.unwrapped.field.sum() == 0
            assert set(terminated.values()) == {bool(over and eaten)}
            assert set(truncated.values()) == {bool(over and not eaten)}
            assert bool(env.agents) != over
        ends.add((eaten, step == 50))
        assert total == pytest.approx(float(eaten))  # there is one food, so the share is all or nothing
    assert ends == {(True, False), (False, True)}


def test_its_seeds_are_seeds_and_its_state_is_exact() -> None:
    """The contract check plays it twice under a seed and in a second instance, and from a saved state; PettingZoo's own tests
    run, and a warning of theirs fails."""
    for name in (COOP, "lbforaging:Foraging-2s-8x8-3p-2f-v3"):
        report = rl.check_env(name, num_steps=60, max_steps=200)
        assert not report
        assert not report.warnings
        assert not report.hints


def test_a_saved_state_also_holds_the_generator_of_the_next_episode() -> None:
    first, second = make_team_env(COOP), make_team_env(COOP)
    first.reset(seed=4)
    first.step(dict.fromkeys(first.possible_agents, 1))
    second.reset(seed=5)
    state: State = first.get_state()
    second.set_state(state)
    assert [x.tolist() for x in first.reset()[0].values()] == [x.tolist() for x in second.reset()[0].values()]


def test_with_a_common_reward_each_gets_what_all_got() -> None:
    alone, together = (make_team_env(f"lbforaging:{TASK}", kwargs={"common_reward": common}) for common in (False, True))
    rng, sums = np.random.default_rng(0), []
    for seed in range(10):
        alone.reset(seed=seed)
        together.reset(seed=seed)
        while alone.agents:
            actions = dict(zip(alone.possible_agents, rng.integers(0, 6, 2), strict=True))
            paid, common = alone.step(actions)[1], together.step(actions)[1]
            assert list(common.values()) == [sum(paid.values())] * 2
            sums.append(sum(paid.values()))
    assert any(sums)


def test_a_name_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(rl.ConfigError, match="has no task 'Foraging-8x8-2p-2f-coop-v2'; did you mean Foraging-8x8-2p-2f-coop"):
        make_team_env("lbforaging:Foraging-8x8-2p-2f-coop-v2")
    with pytest.raises(rl.RunnelError, match="making it raised TypeError"):
        make_team_env(COOP, kwargs={"speed": 2})
