"""Credit through deaths and idle turns: hand numbers, an independent loop, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runnel.ops.decisions import decisions, gae_of_decisions
from runnel.ops.returns import gae


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def credit(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    active: Tensor,
    gamma: float = 0.5,
    lam: float = 0.5,
) -> tuple[Tensor, Tensor, Tensor]:
    found = decisions(rewards, next_values, terminated, truncated, active)
    return *gae_of_decisions(found, values, active, gamma=gamma, lam=lam), found.counts


def test_hand_numbers_through_a_death_and_a_new_episode() -> None:
    # steps 0, 1 of one episode; the row dies at 1; steps 2, 3 are silent; step 4 begins the next one
    advantages, returns, counts = credit(
        column(1, 2, 9, 9, 3),
        column(4, 2, 7, 7, 1),
        column(2, 100, 7, 1, 6),
        flags(0, 1, 0, 0, 0),
        flags(0, 0, 0, 0, 0),
        flags(1, 1, 0, 0, 1, 1),
    )
    assert counts.flatten().tolist() == [True, True, False, False, True]
    # delta_1 = 2 - 2 = 0; delta_0 = 1 + 0.5 * 2 - 4 = -2; delta_4 = 3 + 0.5 * 6 - 1 = 5; A_3 = A_2 = A_4
    torch.testing.assert_close(advantages, column(-2.0, 0.0, 5.0, 5.0, 5.0))
    torch.testing.assert_close(returns[counts], column(2.0, 2.0, 6.0).flatten())


def test_hand_numbers_through_idle_turns() -> None:
    # decisions at 0, 2 and 4; what is paid at 1 and 3 belongs to 0 and 2; the episode ends while it waits at 5
    advantages, returns, counts = credit(
        column(1, -0.5, 1, -0.5, 1, -4),
        column(2, 50, 4, 60, 6, 70),
        column(50, 4, 60, 6, 70, 80),
        flags(0, 0, 0, 0, 0, 1),
        flags(0, 0, 0, 0, 0, 0),
        flags(1, 0, 1, 0, 1, 0, 1),
    )
    # delta_4 = 1 - 4 - 6 = -9; delta_2 = 0.5 + 0.5 * 6 - 4 = -0.5; delta_0 = 0.5 + 0.5 * 4 - 2 = 0.5; decay 0.25
    a4 = -9.0
    a2 = -0.5 + 0.25 * a4
    a0 = 0.5 + 0.25 * a2
    assert counts.flatten().tolist() == [True, False, True, False, True, False]
    torch.testing.assert_close(advantages[::2], column(a0, a2, a4))
    torch.testing.assert_close(advantages[1::2][:2], column(a2, a4))
    torch.testing.assert_close(returns[counts], column(a0 + 2, a2 + 4, a4 + 6).flatten())


def test_a_truncation_while_a_row_waits_bootstraps_from_its_final_observation() -> None:
    advantages, _, counts = credit(column(1, 2), column(3, 50), column(50, 10), flags(0, 0), flags(0, 1), flags(1, 0, 1))
    torch.testing.assert_close(advantages[0], column(1 + 2 + 0.5 * 10 - 3)[0])
    assert counts.flatten().tolist() == [True, False]


def test_a_decision_without_an_outcome_in_the_segment_is_not_trained_on_and_the_one_before_takes_its_value() -> None:
    advantages, _, counts = credit(
        column(1, 2, 3), column(3, 4, 50), column(4, 50, 60), flags(0, 0, 0), flags(0, 0, 0), flags(1, 1, 0, 0)
    )
    assert counts.flatten().tolist() == [True, False, False]
    torch.testing.assert_close(advantages[0], column(1 + 0.5 * 4 - 3)[0])


def loop(arrays: list[np.ndarray], ends: list[np.ndarray], active: np.ndarray, *, gamma: float, lam: float) -> list[np.ndarray]:
    """One row forwards: its decisions as a list of steps of their own, and `gae` over that list."""
    rewards, values, following = arrays
    advantages, counts = np.zeros_like(rewards), np.zeros(rewards.shape, bool)
    num_steps = len(rewards)
    for row in range(rewards.shape[1]):
        steps = []
        for t in np.flatnonzero(active[:-1, row]):
            paid, k = rewards[t, row], t
            while k < num_steps and not ends[0][k, row] and not ends[1][k, row] and not active[k + 1, row]:
                k += 1
                paid += rewards[k, row] if k < num_steps else 0.0
            if k < num_steps:
                steps.append((t, paid, following[k, row], ends[0][k, row], ends[1][k, row]))
        carried = 0.0
        for t, paid, value, terminated, truncated in reversed(steps):
            delta = paid + gamma * value * (1 - terminated) - values[t, row]
            carried = delta + gamma * lam * (1 - max(terminated, truncated)) * carried
            advantages[t, row], counts[t, row] = carried, True
    return [advantages, counts]


def draw(num_steps: int, num_envs: int, seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    rng = np.random.default_rng(seed)
    arrays = [torch.from_numpy(rng.normal(size=(num_steps, num_envs))) for _ in range(3)]
    ends = [torch.from_numpy(rng.random((num_steps, num_envs)) < 0.15) for _ in range(2)]
    return arrays, ends, torch.from_numpy(rng.random((num_steps + 1, num_envs)) < 0.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_loop_over_decisions(num_steps: int, num_envs: int, seed: int, gamma: float, lam: float) -> None:
    (rewards, values, following), ends, active = draw(num_steps, num_envs, seed)
    got, returns, counts = credit(rewards, values, following, *ends, active, gamma, lam)
    arrays, flags = [x.numpy() for x in (rewards, values, following)], [e.numpy() for e in ends]
    want, counted = loop(arrays, flags, active.numpy(), gamma=gamma, lam=lam)
    np.testing.assert_array_equal(counts.numpy(), counted)
    np.testing.assert_allclose(got.numpy()[counted], want[counted], atol=1e-9)
    np.testing.assert_allclose(returns.numpy()[counted], (want + values.numpy())[counted], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**31))
def test_values_at_idle_steps_and_rewards_of_the_dead_change_nothing(num_steps: int, num_envs: int, seed: int) -> None:
    (rewards, values, following), ends, active = draw(num_steps, num_envs, seed)
    plain = credit(rewards, values, following, *ends, active)
    idle = ~active[:-1]
    ended = ends[0] | ends[1]
    dead = torch.zeros_like(idle)
    for t in range(1, num_steps):
        dead[t] = idle[t] & ~ended[t] & (dead[t - 1] | ended[t - 1])
    rubbish = torch.full_like(rewards, float("nan"))
    open_step = ~(ended | active[1:])
    other = credit(
        torch.where(dead, 1e3, rewards),
        torch.where(idle, rubbish, values),
        torch.where(open_step, rubbish, following),
        *ends,
        active,
    )
    counts = plain[2]
    assert torch.equal(counts, other[2])
    for left, right in zip(plain[:2], other[:2], strict=True):
        torch.testing.assert_close(left[counts], right[counts], rtol=0, atol=0)


@pytest.mark.parametrize("num_steps", [1, 2, 33])
def test_it_is_gae_where_every_row_decides_at_every_step(num_steps: int) -> None:
    (rewards, values, following), ends, _ = draw(num_steps, 3, 7)
    active = torch.ones(num_steps + 1, 3, dtype=torch.bool)
    got, returns, counts = credit(rewards, values, following, *ends, active, 0.9, 0.8)
    want = gae(rewards, values, following, *ends, gamma=0.9, lam=0.8)
    assert counts.all()
    torch.testing.assert_close(got, want[0])
    torch.testing.assert_close(returns, want[1])
