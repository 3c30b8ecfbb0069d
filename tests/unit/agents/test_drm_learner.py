"""DrMLearner: dormant units, noise, targets and perturbations against numbers computed by hand or in numpy; exact resume."""

import math

import numpy as np
import pytest
import torch
from replay_segments import BOX, numpy_mlp, segment

from runnel.agents.drm import DrMConfig, DrMLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.losses.actor import expectile_loss
from runnel.nets.continuous import DeterministicActor, QEnsemble, VNet
from runnel.nets.layers import NetConfig
from runnel.ops.dormancy import dormant_share

NET = NetConfig(hidden=(16, 16), activation="relu")
PLAIN = {"target_noise": 0.0, "actor_lr": 0.01, "critic_lr": 0.01, "tau": 0.5}


def nets(seed):
    return DeterministicActor(BOX, NET, seed=seed), QEnsemble(BOX, NET, seed=seed), VNet(BOX, NET, seed=seed)


def make(seed=0, **settings):
    return DrMLearner(DrMConfig(**PLAIN | settings), nets, seed=seed)


def step(learner, data, progress=0.0):
    return learner.update(learner.prepare({"replay": [data]}, progress=progress))


def test_dormant_units_by_hand():
    """Means 0, 1 and 5 of their mean 2 are scores 0, 0.5 and 2.5; of the other layer, 1 and 1."""
    first = torch.tensor([[0.0, 1.0, -4.0], [0.0, -1.0, 6.0]])
    second = torch.tensor([[1.0, -2.0], [-3.0, 2.0]])
    for threshold, share in [(0.025, 1 / 5), (0.5, 2 / 5), (0.49, 1 / 5), (0.0, 1 / 5)]:
        assert dormant_share([first, second], threshold=threshold).item() == pytest.approx(share)


def test_the_share_is_of_the_actors_hidden_units():
    learner, data = make(dormant_below=0.3), segment(2, num=32)
    head, x, sleeping = learner.actor.head, data.arrays["obs"].numpy(), []
    for w, b in list(zip(head.weight, head.bias, strict=True))[:-1]:
        x = np.maximum(x @ w.detach().numpy() + b.detach().numpy(), 0.0)
        sleeping.append(np.abs(x).mean(0) <= 0.3 * np.abs(x).mean())
    assert step(learner, data).metrics["dormant"] == pytest.approx(np.concatenate(sleeping).mean())
    assert 0.0 < learner.dormant < 1.0


def test_noise_weights_and_perturbations_follow_the_papers_formulas():
    c = DrMConfig(exploration_noise="linear(1, 0.1, 0.5)")
    assert c.noise(0.5, None) == pytest.approx(1 / (1 + math.exp(-10 * (0.5 - 0.2))))
    assert c.noise(0.0, 0.25) == pytest.approx(0.55), "the schedule is above 1 / (1 + e^2) = 0.12"
    assert c.noise(0.0, 1.0) == pytest.approx(1 / (1 + math.exp(2.0)))
    assert c.exploitation(0.1) == pytest.approx(0.6 / (1 + math.exp(50 * (0.1 - 0.2))))
    assert c.exploitation(1.0) == pytest.approx(0.0, abs=1e-12)
    assert [c.kept(x) for x in (0.0, 0.2, 0.5, 1.0)] == pytest.approx([0.9, 0.6, 0.2, 0.2])


def test_the_value_is_an_expectile():
    """Of 0, 1 and 5: the least loss is where errors above, times 0.9, equal errors below, times 0.1."""
    target = torch.tensor([0.0, 1.0, 5.0])
    loss = expectile_loss(torch.full((3,), 2.0), target, expectile=0.9, denominator=3)
    assert loss.value.item() == pytest.approx((0.1 * 4.0 + 0.1 * 1.0 + 0.9 * 9.0) / 3)
    grid = torch.linspace(0.0, 5.0, 5001)
    best = grid[
        torch.stack([expectile_loss(x.expand(3), target, expectile=0.9, denominator=3).value for x in grid]).argmin()
    ].item()
    assert 0.9 * (5.0 - best) == pytest.approx(0.1 * (best - 0.0) + 0.1 * (best - 1.0), abs=0.01)


def test_targets_mix_the_best_of_the_memory_with_the_policys_own():
    learner, a = make(exploit=0.5, awake_below=0.9), segment(1).arrays
    learner.dormant = 0.85
    share = 0.5 / (1 + math.exp(50 * (0.85 - 0.9)))
    action = np.tanh(numpy_mlp(learner.target_actor.head, a["next_obs"].numpy()))
    state = np.concatenate([a["next_obs"].numpy(), action], -1)
    q = np.min([numpy_mlp(learner.target_critic.head, state, i)[:, 0] for i in range(2)], axis=0)
    v = numpy_mlp(learner.value.head, a["next_obs"].numpy())[:, 0]
    expected = a["rewards/env"].numpy() + a["discount"].numpy() * (share * v + (1 - share) * q)
    with torch.no_grad():
        np.testing.assert_allclose(learner.target(a).numpy(), expected, atol=1e-5)


def test_a_perturbation_goes_part_of_the_way_to_fresh_networks():
    learner = make(perturb_every=3, perturb_rate=0.0, perturb_high=0.75)
    for i in range(2):
        step(learner, segment(i))
    twin = make(perturb_every=1_000)
    twin.load_state_dict(learner.state_dict())
    step(learner, segment(2))
    step(twin, segment(2))
    fresh = [p for net in nets(make_seed(0, "perturbation", 2)) for p in net.parameters()]
    moved = [p for net in (learner.actor, learner.critic, learner.value) for p in net.parameters()]
    stayed = [p for net in (twin.actor, twin.critic, twin.value) for p in net.parameters()]
    for new, old, drawn in zip(moved, stayed, fresh, strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * drawn)
    for net, same in ((learner.target_actor, twin.target_actor), (learner.target_critic, twin.target_critic)):
        assert all(torch.equal(x, y) for x, y in zip(net.parameters(), same.parameters(), strict=True))


def test_noise_awakes_once_and_is_published():
    learner = make(awake_below=0.99)
    published = learner.params()
    assert published["noise_scale"].item() == pytest.approx(1 / (1 + math.exp(-10 * (1.0 - 0.99))))
    step(learner, segment(0), progress=0.2)
    step(learner, segment(1), progress=0.3)
    step(learner, segment(2), progress=0.55)
    assert published["noise_scale"].item() == pytest.approx(0.55), "linear(1, 0.1, 0.5), 0.25 after it awoke"


def test_resume_is_bit_identical():
    settings = {"perturb_every": 2, "awake_below": 0.9}
    first, second = make(**settings), make(seed=0, **settings)
    for i in range(5):
        step(first, segment(i), progress=i / 10)
    second.load_state_dict(first.state_dict())
    for i in range(5, 9):
        assert step(first, segment(i), progress=i / 10).metrics == step(second, segment(i), progress=i / 10).metrics
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())
    assert isinstance(first, Learner)


@pytest.mark.parametrize(
    "settings",
    [
        {"perturb_every": 0},
        {"expectile": 1.0},
        {"dormant_below": -0.1},
        {"perturb_low": 0.8, "perturb_high": 0.5},
        {"tau": 0.0},
    ],
)
def test_settings_that_cannot_train_are_refused(settings):
    with pytest.raises(ConfigError, match=r"drm\."):
        DrMConfig(**settings).check()
