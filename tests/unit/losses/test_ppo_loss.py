"""The loss of PPO as its learner composes it, and its gradient in what the network says: against formulas in numpy, by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.errors import DataError
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic

DISCRETE = ActionSpec("discrete", num_actions=3)
BOX = ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
LOG_STD = (0.2, -0.4)
N = 40


class AsSeen(nn.Module):
    """Says what it sees: scores in the first columns of the observation, the value in the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        return self.one * obs["obs"][..., :-1]

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        return self.one * obs["obs"][..., -1]


def learner_of(action: ActionSpec, config: PPOConfig) -> PPOLearner:
    num_scores = action.num_actions if action.kind == "discrete" else action.size
    net = ActorCritic(EnvSpec({"obs": ArraySpec((num_scores + 1,))}, action), AsSeen())
    if net.log_std is not None:
        net.log_std.data.copy_(torch.tensor(LOG_STD))
    return PPOLearner(config, net, seed=0)


def rows_of(learner: PPOLearner, *, masked: bool = False) -> dict[str, Tensor]:
    """Random rows; the policy that acted was near the one that learns, so that some ratios are outside the interval."""
    g, action = torch.Generator().manual_seed(0), learner.net.env_spec.action
    rows = {k: torch.randn(N, generator=g) for k in ("advantage", "return", "value")}
    rows["action"] = torch.randint(0, 3, (N,), generator=g) if action is DISCRETE else torch.randn(N, 2, generator=g)
    rows["obs"] = torch.randn(N, 4 if action is DISCRETE else 3, generator=g)
    if masked:
        mask = torch.rand(N, 3, generator=g) > 0.3
        rows["action_mask"] = mask.scatter(1, rows["action"].unsqueeze(1), True)
    with torch.no_grad():
        logprob, _ = learner.net.evaluate(rows, rows["action"], rows.get("action_mask"))
    return rows | {"logprob": logprob + 0.3 * torch.randn(N, generator=g)}


def by_formula(rows: dict[str, Tensor], c: PPOConfig, *, count: int) -> tuple[dict[str, float], list[Any]]:
    """The parts of the loss, and its gradient in scores, values and log_std, in float64. With H the entropy, p the
    probabilities, L' = dL/dlogprob, n the count:

        categorical:  dL/dscore_j = L' (1[j = a] - p_j) + entropy_coef / n p_j (log p_j + H)
        Gaussian:     dL/dmean_j  = L' z_j / std_j,  dL/dlog_std_j = sum L' (z_j^2 - 1) - entropy_coef N / n
    """
    r = {k: x.numpy().astype(np.float64 if x.is_floating_point() else x.numpy().dtype) for k, x in rows.items()}
    scores, values, advantage = r["obs"][:, :-1], r["obs"][:, -1], r["advantage"]
    if r["action"].ndim == 1:
        weights = np.exp(scores) * r.get("action_mask", np.ones_like(scores))
        probs = weights / weights.sum(-1, keepdims=True)
        logs = np.log(probs, where=probs > 0, out=np.zeros_like(probs))
        logprob, entropy = logs[np.arange(N), r["action"]], -(probs * logs).sum(-1)
        slope = np.eye(3)[r["action"]] - probs
        bonus_slope = -probs * (logs + entropy[:, None])
    else:
        std = np.exp(LOG_STD)
        z = (r["action"] - scores) / std
        logprob = (-0.5 * z**2 - LOG_STD - 0.5 * np.log(2 * np.pi)).sum(-1)
        entropy = np.full(N, (np.array(LOG_STD) + 0.5 * np.log(2 * np.pi * np.e)).sum())
        slope, bonus_slope = z / std, np.zeros_like(z)
    ratio = np.exp(logprob - r["logprob"])
    held = np.clip(ratio, 1.0 - c.clip_range, 1.0 + c.clip_range)
    earned, earns = np.minimum(ratio * advantage, held * advantage), ratio * advantage <= held * advantage
    if c.dual_clip is not None:
        bound = (advantage < 0) & (earned < c.dual_clip * advantage)
        earned, earns = np.where(bound, c.dual_clip * advantage, earned), earns & ~bound
    error, squared = values - r["return"], (values - r["return"]) ** 2
    if c.value_clip is not None:
        moved = values - r["value"]
        near = r["value"] + np.clip(moved, -c.value_clip, c.value_clip) - r["return"]
        error = np.where(near**2 > squared, near * (np.abs(moved) < c.value_clip), error)
        squared = np.maximum(squared, near**2)
    per_logprob = -ratio * advantage * earns / count
    parts = {
        "loss/policy": -earned.sum() / count,
        "loss/value": 0.5 * squared.sum() / count,
        "entropy": entropy.sum() / count,
        "kl": (ratio - 1.0 - np.log(ratio)).sum() / count,
        "clip_fraction": (ratio != held).sum() / count,
    }
    parts["loss/total"] = parts["loss/policy"] + c.value_coef * parts["loss/value"] - c.entropy_coef * parts["entropy"]
    grads = [per_logprob[:, None] * slope - c.entropy_coef / count * bonus_slope, c.value_coef / count * error]
    if r["action"].ndim == 2:
        grads.append((per_logprob[:, None] * (z**2 - 1.0)).sum(0) - c.entropy_coef * N / count)
    return parts, grads


CASES = list(itertools.product(["discrete", "masked", "continuous"], [None, 1.2], [None, 0.3], [0.0, 0.02], [1, 2]))


@pytest.mark.parametrize(("kind", "dual_clip", "value_clip", "entropy_coef", "num_ranks"), CASES)
def test_the_loss_and_its_gradient_are_the_formulas(
    kind: str, dual_clip: float | None, value_clip: float | None, entropy_coef: float, num_ranks: int
) -> None:
    action = BOX if kind == "continuous" else DISCRETE
    config = PPOConfig(clip_range=0.2, dual_clip=dual_clip, value_clip=value_clip, entropy_coef=entropy_coef)
    learner = learner_of(action, config)
    rows = rows_of(learner, masked=kind == "masked")
    learner.collective.world_size = num_ranks  # type: ignore[misc]
    parts, expected = by_formula(rows, config, count=num_ranks * N)
    assert 0.1 < parts["clip_fraction"] < 0.9 / num_ranks
    rows["obs"].requires_grad_()
    found = learner.loss(rows)
    assert found.keys() == parts.keys()
    for name, value in parts.items():
        assert found[name].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name
    log_std = learner.net.log_std
    grads = torch.autograd.grad(found["loss/total"], [rows["obs"], *([] if log_std is None else [log_std])])
    for a, b in zip((grads[0][:, :-1], grads[0][:, -1], *grads[1:]), expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, atol=1e-6, rtol=1e-4)


def test_one_row_by_hand() -> None:
    """Two actions with logits (0, 0), action 0, A = 2, behaviour probability 0.5: the ratio is 1, and
    dL/dscore = -A (1 - p, -p) = (-1, 1); value 1 against return 3 gives c_v (1 - 3) = -1; entropy is log 2."""
    learner = learner_of(ActionSpec("discrete", num_actions=2), PPOConfig(value_coef=0.5, entropy_coef=0.0))
    rows = {
        "obs": torch.tensor([[0.0, 0.0, 1.0]], requires_grad=True),
        "action": torch.tensor([0]),
        "logprob": torch.tensor([np.log(0.5)], dtype=torch.float32),
        "advantage": torch.tensor([2.0]),
        "return": torch.tensor([3.0]),
        "value": torch.tensor([0.0]),
    }
    found = learner.loss(rows)
    (grad,) = torch.autograd.grad(found["loss/total"], rows["obs"])
    assert grad.tolist() == [[-1.0, 1.0, -1.0]]
    wanted = [-2.0 + 0.5 * 2.0, -2.0, 2.0, np.log(2.0), 0.0, 0.0]
    names = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction")
    assert [found[name].item() for name in names] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["logprob", "advantage", "return", "value"])
def test_columns_of_another_shape_are_refused(name: str) -> None:
    learner = learner_of(DISCRETE, PPOConfig())
    rows = rows_of(learner)
    learner.loss(rows)
    with pytest.raises(DataError, match=r"^(clipped_policy_loss|value_loss): .* must have one shape"):
        learner.loss(rows | {name: rows[name].unsqueeze(-1)})
