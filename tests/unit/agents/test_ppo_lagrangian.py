"""PPO-Lagrangian: credit, multipliers and critics of costs against plain loops, its state, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_segments import COSTLY, DISCRETE, credit_loop, make_net, make_segment

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.ppo_lagrangian import LagrangianConfig, PPOLagrangianLearner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Segment
from runnel.core.spaces import Channels
from runnel.nets.cost_critics import CostCritics
from runnel.nets.layers import NetConfig
from runnel.ops.constraints import lagrangian_advantage, next_multipliers

COSTS = ("heat", "noise")
PPO: dict[str, Any] = {"num_epochs": 2, "num_minibatches": 2, "gamma": 0.9, "gae_lambda": 0.8}


def make(limits: dict[str, float] | None = None, ppo: dict[str, Any] | None = None, **settings: Any) -> PPOLagrangianLearner:
    config = LagrangianConfig(limits or dict.fromkeys(COSTS, 0.5), **settings)
    critics = CostCritics(COSTLY, NetConfig(hidden=(16,)), tuple(config.limits), seed=3)
    return PPOLagrangianLearner(PPOConfig(**PPO | (ppo or {})), config, make_net(COSTLY), critics, seed=1)


def episode_costs(segments: list[Segment], cost: str) -> list[float]:
    """What the episodes that ended cost, step by step."""
    found = []
    for segment in segments:
        a = segment.arrays
        for b in range(a["action"].shape[1]):
            total = a[f"carried_costs/{cost}"][b].item()
            for t in range(len(a["action"])):
                total += a[f"costs/{cost}"][t, b].item()
                if a["terminated"][t, b] or a["truncated"][t, b]:
                    found.append(total)
                    total = 0.0
    return found


def test_the_advantage_is_that_of_the_lagrangian() -> None:
    """Reward and costs by generalised advantage estimation in plain loops, each with its own critic, joined in numpy."""
    learner, segment = make(initial_multiplier=0.75, ppo={"normalise_advantage": False}), make_segment(spec=COSTLY)
    learner.multipliers.copy_(torch.tensor([0.75, 2.0]))
    batch = learner.prepare({"s": [segment]}, progress=0.0)
    _, reward = credit_loop(learner.net, segment, gamma=0.9, lam=0.8)
    targets, costs = [], []
    for i, name in enumerate(COSTS):
        critic = _Critic(learner, i)
        priced = Segment(
            0, segment.spec, segment.header, Batch(segment.arrays | {"rewards/env": segment.arrays[f"costs/{name}"]})
        )
        target, advantage = credit_loop(critic, priced, gamma=0.9, lam=0.8)
        targets.append(target)
        costs.append(advantage)
    expected = (reward - 0.75 * costs[0] - 2.0 * costs[1]) / (1.0 + 0.75 + 2.0)
    np.testing.assert_allclose(batch["advantage"].numpy(), expected.reshape(-1), atol=1e-5)
    for name, target in zip(COSTS, targets, strict=True):
        np.testing.assert_allclose(batch[f"cost_return/{name}"].numpy(), target.reshape(-1), atol=1e-5)
    assert "cost_return/heat" not in segment.arrays, "the stream's memory is not the learner's"


class _Critic:
    """The critic of one cost, as `credit_loop` asks for values."""

    def __init__(self, learner: PPOLagrangianLearner, index: int) -> None:
        self._learner, self._index = learner, index

    def value(self, obs: Any) -> torch.Tensor:
        flat = {k: x.reshape(-1, 3) for k, x in obs.items()}
        return self._learner.critics(flat)[self._index].reshape(obs["obs"].shape[:-1])

    def evaluate(self, obs: Any, action: torch.Tensor, mask: Any) -> tuple[torch.Tensor]:
        return (torch.zeros(action.shape),)


def test_without_a_price_it_is_ppo() -> None:
    """Multipliers of 0: the policy, its critic and the order of minibatches are those of PPO, bit for bit."""
    ours = make(dict.fromkeys(COSTS, 1e9))
    plain = PPOLearner(PPOConfig(**PPO), make_net(COSTLY), seed=1)
    for seed in range(3):
        for learner in (ours, plain):
            learner.update(learner.prepare({"s": [make_segment(seed, spec=COSTLY)]}, progress=0.0))
    assert all(torch.equal(x, plain.params()[k]) for k, x in ours.params().items())


def test_multipliers_follow_what_episodes_cost() -> None:
    """The equations in numpy, over several updates; episodes go on from segment to segment."""
    learner = make({"heat": 1.0, "noise": 5.0}, multiplier_lr=0.1, proportional=0.3, initial_multiplier=0.2)
    integral, multipliers = np.full(2, 0.2), np.full(2, 0.2)
    for seed in range(6):
        segments = [make_segment(seed, spec=COSTLY), make_segment(100 + seed, spec=COSTLY)]
        found = learner.update(learner.prepare({"s": segments}, progress=0.0)).metrics
        mean = np.array([np.mean(episode_costs(segments, name)) for name in COSTS])
        for i, name in enumerate(COSTS):
            assert found[f"multiplier/{name}"] == pytest.approx(multipliers[i], rel=1e-5)
            assert found[f"cost_in_batch/{name}"] == pytest.approx(mean[i], rel=1e-5)
        excess = mean - [1.0, 5.0]
        integral = np.maximum(0.0, integral + 0.1 * excess)
        multipliers = np.maximum(0.0, integral + 0.3 * excess)
        np.testing.assert_allclose(learner.multipliers.numpy(), multipliers, rtol=1e-5)
    assert multipliers[0] > 0.2
    assert multipliers[1] == 0.0


def test_without_an_end_multipliers_stay() -> None:
    learner, segment = make(initial_multiplier=0.4), make_segment(spec=COSTLY)
    for flag in ("terminated", "truncated"):
        segment.arrays[flag].zero_()
    none = {k: segment.arrays[k][:0] for k in ("final_index", "final_obs")}
    arrays = Batch(segment.arrays | none)
    found = learner.update(learner.prepare({"s": [Segment(0, segment.spec, segment.header, arrays)]}, progress=0.0)).metrics
    assert learner.multipliers.tolist() == pytest.approx([0.4, 0.4])
    assert "cost_in_batch/heat" not in found


def test_critics_of_costs_learn_their_returns() -> None:
    learner, losses = make(ppo={"lr": 1e-2}), []
    for _ in range(150):
        update = learner.update(learner.prepare({"s": [make_segment(spec=COSTLY)]}, progress=0.0))
        losses.append(update.metrics["loss/cost_value"])
    assert losses[-1] < 0.5 * losses[0]


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    first = make(multiplier_lr=0.1)
    for seed in range(3):
        first.update(first.prepare({"s": [make_segment(seed, spec=COSTLY)]}, progress=0.0))
    twin = make(multiplier_lr=0.1)
    twin.load_state_dict(first.state_dict())
    for learner in (first, twin):
        for seed in range(3, 6):
            learner.update(learner.prepare({"s": [make_segment(seed, spec=COSTLY)]}, progress=0.1))
    assert _same(first.state_dict(), twin.state_dict())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else str(a) == str(b)


finite = st.floats(-100.0, 100.0, width=32)


@given(st.lists(st.tuples(st.floats(0, 50, width=32), finite), min_size=1, max_size=4), st.floats(1e-4, 1.0), st.floats(0, 1.0))
def test_multipliers_are_never_negative_and_move_with_the_excess(
    rows: list[tuple[float, float]], lr: float, gain: float
) -> None:
    integral, excess = (torch.tensor(column) for column in zip(*rows, strict=True))
    after, multipliers = next_multipliers(integral, excess, lr=lr, proportional=gain)
    assert (after >= 0).all()
    assert (multipliers >= 0).all()
    assert ((after - integral) * excess >= -1e-3).all()
    assert (multipliers[excess >= 0] >= after[excess >= 0]).all()


@given(st.lists(finite, min_size=3, max_size=3), st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_the_advantage_stays_in_the_hull_of_its_parts(values: list[float], multipliers: list[float]) -> None:
    """A weighted mean of the reward's advantage and the negative ones of costs: it cannot grow with the multipliers."""
    reward, costs = torch.tensor(values[:1]), torch.tensor(values[1:]).unsqueeze(1)
    found = lagrangian_advantage(reward, costs, torch.tensor(multipliers)).item()
    parts = [values[0], -values[1], -values[2]]
    assert min(parts) - 1e-2 <= found <= max(parts) + 1e-2


@pytest.mark.parametrize(
    ("limits", "field", "text"),
    [
        ({}, "lagrangian.limits", "give a cost its limit.*heat, noise"),
        ({"head": 1.0}, "lagrangian.limits", "no cost 'head' but heat, noise; --channels.costs head"),
        ({"heat": math.nan}, "lagrangian.limits", "must be a finite number"),
        ({"heat": "low"}, "lagrangian.limits", "must be a finite number"),
        ({"noise": 1.0}, "channels.weights", "'noise' has a limit"),
    ],
)
def test_limits_that_cannot_be_held_are_refused(limits: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        LagrangianConfig(limits).check(Channels(costs=COSTS), {"costs/noise": -1.0})
    assert caught.value.field == field


def test_a_network_with_a_memory_is_refused() -> None:
    net, critics = make_net(core="gru"), CostCritics(DISCRETE, NetConfig(hidden=(4,)), ["heat"], seed=0)
    with pytest.raises(ConfigError, match="have no memory"):
        PPOLagrangianLearner(PPOConfig(), LagrangianConfig({"heat": 1.0}), net, critics, seed=0)


def test_a_critic_that_breaks_is_named() -> None:
    learner = make()
    batch = learner.prepare({"s": [make_segment(spec=COSTLY)]}, progress=0.0)
    batch["cost_return/heat"][3] = math.inf
    with pytest.raises(NonFiniteError, match="loss/cost_value"):
        learner.update(batch)
