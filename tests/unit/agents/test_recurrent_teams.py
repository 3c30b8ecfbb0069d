"""Recurrent PPO on rows that do not decide at every step: idle steps move no state and reach no loss, and burn-in moves the
state without being learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_segments import DISCRETE, MASKED, make_net, make_segment

from runnel.agents.deciding import part_burn_in
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.records import Batch, Segment, trim
from runnel.core.trajectories import ACTIVE, trajectory_stream

CORES = ["none", "gru", "lstm"]
CONFIG = PPOConfig(num_epochs=2, num_minibatches=2, normalise_obs=True, normalise_reward=True)


def net_of(core: str, spec: Any = DISCRETE, **more: Any) -> Any:
    sizes = {} if core == "none" else {"core": core, "core_size": 4}
    return make_net(spec, normalise_obs=True, **sizes, **more)


def team_segment(net: Any, active: torch.Tensor, *, burn_in: int = 0, seed: int = 0) -> Segment:
    """A made-up segment with a field that says who decides. `active` `[burn_in + T + 1, B]`"""
    total, num_envs = len(active) - 1, active.shape[1]
    made = make_segment(seed, spec=net.env_spec, num_steps=total, num_envs=num_envs, state=net.state_spec)
    spec = trajectory_stream(
        net.env_spec,
        num_steps=total - burn_in,
        num_envs=num_envs,
        state=net.state_spec,
        burn_in=burn_in,
        active=True,
        carried=("rewards/env",),
    )
    arrays = Batch({**made.arrays, ACTIVE: active})
    own = arrays["final_index"] >= burn_in * num_envs
    arrays |= {k: arrays[k][own] for k in arrays if k.startswith("final_")}
    arrays |= {k: torch.randn(arrays[k].shape, generator=torch.Generator().manual_seed(seed)) for k in net.state_spec}
    used = {"F": int(own.sum())}
    made.header.used = used
    return Segment(0, spec, made.header, trim(spec, arrays, used))


def some(num_steps: int, num_envs: int, seed: int, share: float = 0.6) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((num_steps, num_envs)) < share)


def trained(net: Any, segment: Segment, config: PPOConfig = CONFIG) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and parameters (statistics among them) after an update."""
    ppo = PPOLearner(config, net, seed=1)
    metrics = ppo.update(ppo.prepare({"a": [segment]}, progress=0.0)).metrics
    return dict(metrics), {k: v.clone() for k, v in ppo.state_dict()["net"].items()} | ppo.state_dict()["reward_scale"]


@pytest.mark.parametrize("core", CORES)
def test_with_every_row_active_it_is_the_plain_update(core: str) -> None:
    net = net_of(core)
    segment = team_segment(net, torch.ones(9, 4, dtype=torch.bool))
    plain_spec = trajectory_stream(net.env_spec, num_steps=8, num_envs=4, state=net.state_spec, carried=("rewards/env",))
    plain = Segment(0, plain_spec, segment.header, Batch({k: x for k, x in segment.arrays.items() if k != ACTIVE}))
    (metrics, params), (others, same) = trained(net_of(core), segment), trained(net_of(core), plain)
    assert metrics == pytest.approx(others, abs=2e-6)
    for key, value in params.items():
        torch.testing.assert_close(same[key], value, atol=1e-6, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    core=st.sampled_from(CORES),
    masked=st.booleans(),
    burn_in=st.integers(0, 3),
    seed=st.integers(0, 10_000),
    share=st.floats(0.0, 1.0),
    garbage=st.sampled_from([float("nan"), float("inf"), -1e30, 7.0]),
)
def test_whatever_stands_at_idle_steps_changes_no_metric_statistic_or_parameter(
    core: str, masked: bool, burn_in: int, seed: int, share: float, garbage: float
) -> None:
    spec, burn_in = (MASKED if masked else DISCRETE), 0 if core == "none" else burn_in
    active = some(burn_in + 7, 4, seed, share)
    segment = team_segment(net_of(core, spec), active, burn_in=burn_in, seed=seed)
    idle, other = ~active[:-1], Batch(segment.arrays)
    other["obs"] = other["obs"].masked_fill(~active.unsqueeze(-1), garbage)
    other["logprob"] = other["logprob"].masked_fill(idle, garbage)
    other["action"] = torch.where(idle, 1 - other["action"], other["action"])
    if masked:
        other["action_mask"] = other["action_mask"] & active.unsqueeze(-1)  # nothing is allowed at idle steps
    found = [trained(net_of(core, spec), Segment(0, segment.spec, segment.header, a)) for a in (segment.arrays, other)]
    assert found[0][0] == found[1][0]
    for key, value in found[0][1].items():
        assert torch.equal(value, found[1][1][key]), key
        assert value.isfinite().all()


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_idle_steps_between_decisions_are_as_if_they_were_not_there(core: str) -> None:
    """Four decisions in four steps, and the same four spread over nine: the critic says the same of them."""
    net, generator = net_of(core), torch.Generator().manual_seed(3)
    obs, places = torch.randn(5, 2, 3, generator=generator), [0, 1, 4, 6, 9]
    state = {k: torch.randn(2, 4, generator=generator) for k in net.state_spec}
    none = torch.zeros(0, dtype=torch.int64)

    def values(num_steps: int, where: list[int]) -> torch.Tensor:
        seen, active = torch.zeros(num_steps + 1, 2, 3), torch.zeros(num_steps + 1, 2, dtype=torch.bool)
        seen[where], active[where] = obs, True
        over = torch.zeros(num_steps, 2, dtype=torch.bool)
        data = {"obs": seen, ACTIVE: active, "action": over.long(), "terminated": over, "truncated": over}
        _, found, following = net.unroll({**data, **state, "final_obs": torch.zeros(0, 2, 3)[:, 0], "final_index": none})
        return torch.stack([found[where[:-1]], following[[w - 1 for w in where[1:]]]])

    torch.testing.assert_close(values(9, places), values(4, [0, 1, 2, 3, 4]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_burn_in_gives_the_state_of_the_present_parameters_and_no_gradient(core: str) -> None:
    net = net_of(core)
    segment = team_segment(net, some(12, 4, 5), burn_in=4, seed=2)
    ppo = PPOLearner(PPOConfig(num_epochs=1, num_minibatches=1, normalise_advantage=False), net, seed=1)
    batch = ppo.prepare({"a": [segment]}, progress=0.0)
    assert batch["action"].shape[:2] == (4, 7)
    assert batch["obs"].shape[:2] == (4, 11)
    # the same without burn-in, from the state that a loop over its steps gives
    before, rest = part_burn_in(segment.arrays, segment.spec)
    state = {k: before[k] for k in net.state_spec}
    for t in range(4):
        with torch.no_grad():
            _, _, after = net.body.step(net.observe({"obs": before["obs"][t]}), state)
        moved = {k: torch.where(before[ACTIVE][t].unsqueeze(-1), after[k], state[k]) for k in state}
        state = {k: x * (~before["resets"][t + 1]).unsqueeze(-1) for k, x in moved.items()}
    spec = trajectory_stream(DISCRETE, num_steps=7, num_envs=4, state=net.state_spec, active=True, carried=("rewards/env",))
    plain = ppo.prepare({"a": [Segment(0, spec, segment.header, Batch({**rest, **state}))]}, progress=0.0)
    for key in ("value", "advantage", "return", ACTIVE, "action"):
        torch.testing.assert_close(batch[key], plain[key], msg=key)
    losses = [ppo.loss(rows)["loss/total"] for rows in (batch, plain)]
    grads = [torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad]) for loss in losses]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_burn_in_without_a_field_that_says_who_decides_is_refused() -> None:
    with pytest.raises(Exception, match="burn_in = 2: is for streams that say which rows decide"):
        trajectory_stream(DISCRETE, num_steps=4, num_envs=2, burn_in=2)
