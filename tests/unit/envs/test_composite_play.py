"""Composite actions end to end: vector, head and masks, on every kind of action space; a wrong action or mask would raise."""

from __future__ import annotations

import pytest
import torch
from toy_envs import Composite

from runnel.core.trajectories import trajectory_stream
from runnel.envs.registry import make_vector, probe_env
from runnel.ops.distributions import make_head

KINDS = sorted(Composite.SPACES)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_actions_are_accepted_and_the_best_ones_pay_one(kind: str, masked: bool) -> None:
    kwargs = {"action": kind, "masked": masked}
    vector = make_vector(Composite, 4, seed=0, kwargs=kwargs)
    spec = vector.spec.action
    head, g = make_head(spec), torch.Generator().manual_seed(0)
    log_std = torch.zeros(head.num_log_std)
    out = vector.reset()
    assert (out.action_mask is not None) == masked
    for _ in range(50):
        mask = out.action_mask
        assert mask is None or mask.shape == (4, spec.mask_size)
        scores, noise = torch.randn(4, head.num_scores, generator=g), torch.rand(4, head.noise_size, generator=g)
        action, _ = head.sample(scores, noise, mask, log_std)
        out = vector.step(action)
        assert (out.reward <= 1).all()
    for _ in range(10):
        action = best(spec, out.obs["obs"])
        out = vector.step(action)
        torch.testing.assert_close(out.reward, torch.ones(4))
    vector.close()


def best(spec, side):
    """Stored actions `[B, K]` that pay 1: the last or first value of a choice, half the side in a box."""
    columns = []
    for part in spec.parts:
        if part.kind == "discrete":
            columns.append(torch.where(side > 0, part.num_actions - 1, 0).float())
        else:
            columns.append((side / 2).expand(-1, part.size))
    return torch.cat(columns, dim=-1).to(spec.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_holds_them_in_one_array(kind: str) -> None:
    env = probe_env(Composite, kwargs={"action": kind, "masked": True})
    stream = trajectory_stream(env, num_steps=3, num_envs=2)
    assert stream.shape("action") == (3, 2, env.action.noise_size)
    assert stream.fields["action"].dtype == env.action.dtype
    assert stream.shape("action_mask") == (4, 2, env.action.mask_size)
