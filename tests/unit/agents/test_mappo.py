"""MAPPO: who reads the global state, on which scale the critic learns, and what changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_segments import SHARING, shared_segment

from runnel.agents.mappo import MAPPOConfig, MAPPOLearner
from runnel.core.records import Batch, Segment
from runnel.core.trajectories import ACTIVE
from runnel.losses.on_policy import huber_value_loss, value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import central_body
from runnel.nets.layers import NetConfig


def network(*, agent_state: bool = True, normalise_obs: bool = False) -> ActorCritic:
    body = central_body(SHARING, NetConfig(hidden=(16,)), seed=0, agent_state=agent_state)
    torch.nn.init.normal_(body.actor.weight[-1], generator=torch.Generator().manual_seed(0))
    return ActorCritic(SHARING, body, normalise_obs=normalise_obs)


def learner(**config: object) -> MAPPOLearner:
    return MAPPOLearner(MAPPOConfig(**config), network(normalise_obs=True), seed=1)  # type: ignore[arg-type]


def update(mappo: MAPPOLearner, segment: Segment) -> dict[str, float]:
    return dict(mappo.update(mappo.prepare({"a": [segment]}, progress=0.0)).metrics)


def weights(mappo: MAPPOLearner) -> list[torch.Tensor]:
    return [*(x.clone() for x in mappo.params().values()), *(x.clone() for x in mappo.value_norm.state_dict().values())]


def rows(seed: int, keys: tuple[str, ...]) -> Batch:
    """Random rows, of which the leaves in `keys` are drawn from another seed."""
    made = Batch()
    for i, (key, leaf) in enumerate(SHARING.obs.items()):
        generator = torch.Generator().manual_seed(10 * i + (seed if key in keys else 0))
        made[key] = torch.randn(4, *leaf.shape, generator=generator)
    return made


@pytest.mark.parametrize("agent_state", [True, False])
def test_the_policy_never_reads_the_global_state(agent_state: bool) -> None:
    net, shared = network(agent_state=agent_state), ("shared/seen", "shared/agent")
    (scores, value), (other_scores, other_value) = net.both(rows(1, shared)), net.both(rows(2, shared))
    assert torch.equal(scores, other_scores)
    assert not torch.equal(value, other_value)
    assert not torch.equal(scores, net.both(rows(1, ("obs",)))[0])
    alone = net.act(Batch(obs=rows(1, shared)["obs"]), greedy=True)
    assert torch.equal(alone["action"], net.act(rows(2, shared), greedy=True)["action"])
    assert list(net.policy_obs) == ["obs"]


def test_the_plain_critic_gives_all_agents_one_value() -> None:
    plain, own = network(agent_state=False), network()
    for keys in (("obs",), ("shared/agent",)):
        assert torch.equal(plain.value(rows(1, keys)), plain.value(rows(2, keys)))
        assert not torch.equal(own.value(rows(1, keys)), own.value(rows(2, keys)))


def test_advantages_are_of_values_on_the_scale_of_returns() -> None:
    """One environment of which both rows decide, three steps, no end: GAE in plain Python on 40 + 5 v."""
    mappo = learner(gamma=0.9, gae_lambda=0.8, normalise_advantage=False, normalise_obs=True)
    for name, number in (("m", 40.0), ("s", 40.0**2 + 25.0), ("w", 1.0)):
        getattr(mappo.value_norm, name).fill_(number)
    made = shared_segment(num_steps=3, num_envs=2)
    made.arrays[ACTIVE].fill_(True)
    made.arrays["terminated"].fill_(False)
    made.arrays["truncated"].fill_(False)
    cut = {k: x[:0] if k.startswith("final_") else x for k, x in made.arrays.items()}
    segment = Segment(0, made.spec, made.header, Batch(cut))
    batch = mappo.prepare({"a": [segment]}, progress=0.0)
    mappo.net.eval()
    v = 40.0 + 5.0 * mappo.net.value({k: cut[k] for k in SHARING.obs}).detach().double().numpy()
    r, ahead, advantage = cut["rewards/env"].double().numpy(), np.zeros(2), np.zeros((3, 2))
    for t in (2, 1, 0):
        ahead = r[t] + 0.9 * v[t + 1] - v[t] + 0.9 * 0.8 * ahead
        advantage[t] = ahead
    np.testing.assert_allclose(batch["advantage"].numpy(), advantage.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch["return"].numpy(), (advantage + v[:3]).ravel(), rtol=1e-4)


def test_the_first_step_of_the_critic_is_towards_normalised_returns() -> None:
    """The value loss of the first step is that of raw outputs and returns on their new scale; no clip bites yet."""
    mappo = learner(num_epochs=1, huber_delta=None, value_clip=None)
    batch = mappo.prepare({"a": [shared_segment()]}, progress=0.0)
    mappo.net.eval()
    raw, returns = mappo.net.value(batch).detach().numpy(), batch["return"].numpy()
    target = (returns - returns.mean()) / returns.std()
    expected = ((raw - target) ** 2).mean() / 2
    assert mappo.update(batch).metrics["loss/value"] == pytest.approx(float(expected), rel=1e-5)
    for more in ({"value_clip": 1e-3}, {"value_clip": 1e-3, "huber_delta": 100.0}):
        same = learner(num_epochs=1, **{"huber_delta": None, **more})
        assert update(same, shared_segment())["loss/value"] == pytest.approx(float(expected), rel=1e-5)


def test_without_its_scale_it_is_ppo_with_that_network() -> None:
    mappo = learner(normalise_value=False, num_epochs=2)
    for seed in (1, 2):
        update(mappo, shared_segment(seed))
    assert not any(x.any() for x in mappo.value_norm.state_dict().values())


def test_what_stands_in_rows_that_do_not_decide_changes_nothing() -> None:
    found = []
    for other in (False, True):
        mappo = learner(num_epochs=2, num_minibatches=2)
        for seed in (1, 2):
            segment = shared_segment(seed, num_steps=10)
            if other:
                for key in ("obs", "shared/seen", "shared/agent"):
                    segment.arrays[key][~segment.arrays[ACTIVE]] = 9.0
                segment.arrays["logprob"][~segment.arrays[ACTIVE][:-1]] = -9.0
            metrics = update(mappo, segment)
        found.append((metrics, weights(mappo)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_a_learner_that_is_loaded_goes_on_bit_for_bit() -> None:
    whole, part = learner(), learner()
    for one in (whole, part):
        update(one, shared_segment(1))
    again = learner()
    again.load_state_dict(part.state_dict())
    assert update(whole, shared_segment(2)) == update(again, shared_segment(2))
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(again), strict=True))


def test_huber_bounds_large_errors() -> None:
    value, target = torch.tensor([0.0, 0.0]), torch.tensor([0.5, -3.0])
    loss = huber_value_loss(value, target, delta=1.0, denominator=2.0)
    assert loss.value.item() == pytest.approx((0.125 + 1.0 * (3.0 - 0.5)) / 2)
    near = {"behaviour_value": torch.tensor([0.0, 1.0]), "clip": 0.25, "denominator": 2.0}
    # the second value was 1, so its clamped one is 0.75: an error of 3.75
    assert huber_value_loss(value, target, delta=1.0, **near).value.item() == pytest.approx((0.125 + 3.25) / 2)  # type: ignore[arg-type]
    wide = huber_value_loss(value, target, delta=1e3, **near).value  # type: ignore[arg-type]
    assert wide.item() == pytest.approx(value_loss(value, target, **near).value.item())  # type: ignore[arg-type]
