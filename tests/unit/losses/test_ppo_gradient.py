"""The PPO gradient that is written out, against the plain losses under automatic differentiation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.losses.actor_critic import ppo_gradient
from runnel.losses.policy import clipped_policy_loss
from runnel.losses.value import value_loss
from runnel.nets.heads import make_head

DISCRETE = ActionSpec("discrete", num_actions=3)
BOX = ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
N = 40


def rows_of(spec: ActionSpec, *, masked: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    rows = {k: torch.randn(N, generator=g) for k in ("advantage", "return", "value")}
    rows["logprob"] = -1.0 + 0.6 * torch.randn(N, generator=g)
    rows["action"] = torch.randint(0, 3, (N,), generator=g) if spec is DISCRETE else torch.randn(N, 2, generator=g)
    if masked:
        mask = torch.rand(N, 3, generator=g) > 0.3
        rows["action_mask"] = mask.scatter(1, rows["action"].unsqueeze(1), True)
    return rows


CASES = list(itertools.product(["discrete", "masked", "continuous"], [None, 1.2], [None, 0.3], [0.0, 0.02]))


@pytest.mark.parametrize(("kind", "dual_clip", "value_clip", "entropy_coef"), CASES)
def test_equals_automatic_differentiation(
    kind: str, dual_clip: float | None, value_clip: float | None, entropy_coef: float
) -> None:
    spec = BOX if kind == "continuous" else DISCRETE
    head, rows = make_head(spec), rows_of(spec, masked=kind == "masked")
    g = torch.Generator().manual_seed(1)
    scores = torch.randn(N, head.num_scores, generator=g, requires_grad=True)
    values = torch.randn(N, generator=g, requires_grad=True)
    log_std = torch.tensor([0.2, -0.4], requires_grad=True) if spec is BOX else None
    logprob, entropy = head.evaluate(scores, rows["action"], rows.get("action_mask"), log_std)
    policy = clipped_policy_loss(logprob, rows["logprob"], rows["advantage"], clip=0.2, denominator=2 * N, dual_clip=dual_clip)
    value = value_loss(values, rows["return"], denominator=2 * N, behaviour_value=rows["value"], clip=value_clip)
    bonus = entropy.sum() / (2 * N)
    total = policy.value + 0.5 * value.value - entropy_coef * bonus
    wanted = [scores, values, *([] if log_std is None else [log_std])]
    expected = torch.autograd.grad(total, wanted)
    with torch.no_grad():
        found = ppo_gradient(
            scores,
            values,
            log_std,
            rows=rows,
            clip=0.2,
            dual_clip=dual_clip,
            value_clip=value_clip,
            value_coef=0.5,
            entropy_coef=entropy_coef,
            denominator=2 * N,
        )
    for a, b in zip(found[1:], expected, strict=False):
        assert a is not None
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    numbers = [total, policy.value, value.value, bonus, policy.metrics["kl"], policy.metrics["clip_fraction"]]
    # a masked action has probability 0 in both; the kl estimate of such rows is the same
    torch.testing.assert_close(found.numbers, torch.stack(numbers).detach(), atol=1e-5, rtol=1e-4)


def test_one_row_by_hand() -> None:
    """Two actions with logits (0, 0), action 0, A = 2, behaviour probability 0.5: the ratio is 1, and
    dL/dscore = -A (1 - p, -p) = (-1, 1); value 1 against return 3 gives c_v (1 - 3) = -1; entropy is log 2."""
    rows = {
        "action": torch.tensor([0]),
        "logprob": torch.tensor([np.log(0.5)], dtype=torch.float32),
        "advantage": torch.tensor([2.0]),
        "return": torch.tensor([3.0]),
        "value": torch.tensor([0.0]),
    }
    found = ppo_gradient(
        torch.zeros(1, 2),
        torch.ones(1),
        None,
        rows=rows,
        clip=0.2,
        dual_clip=None,
        value_clip=None,
        value_coef=0.5,
        entropy_coef=0.0,
        denominator=1,
    )
    assert found.to_scores.tolist() == [[-1.0, 1.0]]
    assert found.to_values.tolist() == [-1.0]
    assert found.numbers.tolist() == pytest.approx([-2.0 + 0.5 * 2.0, -2.0, 2.0, np.log(2.0), 0.0, 0.0], abs=1e-6)


def test_a_learner_steps_the_same_either_way() -> None:
    from runnel.agents.ppo import PPOConfig, PPOLearner
    from runnel.nets.actor_critic import ActorCritic
    from runnel.nets.bodies import build_body
    from runnel.nets.mlp import NetConfig

    class ByAutograd(ActorCritic):
        taped = False

    spec = EnvSpec({"obs": ArraySpec((3,))}, DISCRETE)
    rows = {**rows_of(DISCRETE, masked=False), "obs": torch.randn(N, 3, generator=torch.Generator().manual_seed(2))}
    numbers = []
    for kind in (ActorCritic, ByAutograd):
        net = kind(spec, build_body(spec, NetConfig(hidden=(8, 8)), seed=3))
        learner = PPOLearner(PPOConfig(entropy_coef=0.01), net, seed=1)
        for _ in range(5):
            found = learner._step(rows)
        numbers.append((found, torch.cat([p.detach().reshape(-1) for p in net.parameters()])))
    for a, b in zip(*numbers, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
