"""Actors and critic ensembles of replay methods: bounds, exploration, gradients by hand."""

import copy
import math

import numpy as np
import pytest
import torch

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.continuous import CategoricalActor, DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import ACTIVATIONS, NetConfig
from runnel.nets.optim import Adam
from runnel.ops.distributions import squashed_gaussian

NET = NetConfig(hidden=(16, 16), activation="relu")
OBS = {"obs": ArraySpec((3,))}
BOX = EnvSpec(OBS, ActionSpec("continuous", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0)))
CHOICE = EnvSpec(OBS, ActionSpec("discrete", num_actions=4))
MASKED = EnvSpec(OBS, ActionSpec("discrete", num_actions=4), has_mask=True)


def rows(num=64, width=2, seed=0):
    rng = make_rng(seed, "rows")
    obs, noise = rng.normal(size=(num, 3)), rng.uniform(1e-6, 1.0 - 1e-6, (num, width))
    return Batch(obs=torch.tensor(obs, dtype=torch.float32), noise=torch.tensor(noise, dtype=torch.float32))


@pytest.mark.parametrize("make", [SquashedGaussianActor, DeterministicActor])
def test_actions_are_in_the_units_of_the_environment(make):
    actor = make(BOX, NET, seed=0)
    for greedy in (True, False):
        for explore in (0.0, 1.0):
            actor.explore.fill_(explore)
            action = actor.act(rows(), greedy=greedy)["action"]
            assert action.shape == (64, 2)
            assert (action >= torch.tensor([-2.0, 0.0])).all()
            assert (action <= torch.tensor([2.0, 10.0])).all()


@pytest.mark.parametrize("make", [SquashedGaussianActor, DeterministicActor])
def test_before_the_first_update_actions_are_uniform_from_the_noise(make):
    actor, data = make(BOX, NET, seed=0), rows()
    assert actor.state_dict()["explore"].item() == 1.0
    expected = torch.tensor([-2.0, 0.0]) + data["noise"] * torch.tensor([4.0, 10.0])
    torch.testing.assert_close(actor.act(data)["action"], expected)
    middle = actor.act(data, greedy=True)["action"]
    torch.testing.assert_close(middle, torch.tensor([0.0, 5.0]).expand(64, 2), atol=0.2, rtol=0.0)


def test_normalising_undoes_scaling():
    box = SquashedGaussianActor(BOX, NET, seed=0).box
    action = torch.tensor([[-1.0, 1.0], [0.25, -0.5]])
    assert box.scale(action).tolist() == [[-2.0, 10.0], [0.5, 2.5]]
    torch.testing.assert_close(box.normalise(box.scale(action)), action)


def test_a_sampled_action_is_the_one_that_acting_gives():
    actor, data = SquashedGaussianActor(BOX, NET, seed=3), rows()
    actor.explore.zero_()
    with torch.no_grad():
        action, logprob = actor.sample(data, torch.special.ndtri(data["noise"]))
        torch.testing.assert_close(actor.act(data)["action"], actor.box.scale(action))
    assert logprob.shape == (64,)


def test_the_deviation_of_a_sample_is_bounded_and_has_no_gradient_beyond():
    """Scores of 3 and -30 for the log of the deviation are 2 and -20, and constants there."""
    actor = SquashedGaussianActor(EnvSpec(OBS, ActionSpec("continuous", (1,), (-1.0,), (1.0,))), NET, seed=0)
    scores, z = torch.tensor([[0.3, 3.0], [-0.2, -30.0]], requires_grad=True), torch.tensor([[0.5], [1.0]])
    actor.scores = lambda obs: scores
    action, logprob = actor.sample({}, z)
    wanted = squashed_gaussian(scores[:, :1], torch.tensor([[2.0], [-20.0]]), z)
    torch.testing.assert_close((action, logprob), wanted)
    (grad,) = torch.autograd.grad(logprob.sum() + action.sum(), scores)
    assert grad[:, 1].tolist() == [0.0, 0.0]
    assert (grad[:, 0] != 0.0).all()


def test_exploration_noise_has_its_scale():
    actor = DeterministicActor(BOX, NET, seed=0)
    actor.explore.zero_()
    actor.noise_scale.fill_(0.1)
    data = rows(4000)
    with torch.no_grad():
        mode = actor.action(data)
        difference = actor.box.normalise(actor.act(data)["action"]) - mode
    assert difference.std().item() == pytest.approx(0.1, rel=0.05)
    actor.noise_scale.zero_()
    torch.testing.assert_close(actor.box.normalise(actor.act(data)["action"]).detach(), mode)


def test_discrete_actions_explore_uniformly_among_those_allowed():
    actor, data = CategoricalActor(MASKED, NET, seed=0), rows(4000, width=1)
    data["action_mask"] = torch.tensor([True, False, True, False]).expand(4000, 4)
    for parameter in actor.parameters():
        parameter.data.mul_(50.0)
    counts = np.bincount(actor.act(data)["action"].numpy(), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.0, 0.5, 0.0], atol=0.03)
    actor.explore.zero_()
    with torch.no_grad():
        probs = actor.logprobs(data, data["action_mask"]).exp().mean(0)
    counts = np.bincount(actor.act(data)["action"].numpy(), minlength=4) / 4000
    np.testing.assert_allclose(counts, probs.numpy(), atol=0.03)


def test_log_probabilities_of_forbidden_actions_are_finite():
    actor, data = CategoricalActor(MASKED, NET, seed=0), rows(8, width=1)
    mask = torch.tensor([True, False, True, False]).expand(8, 4)
    with torch.no_grad():
        logprobs = actor.logprobs(data, mask)
    torch.testing.assert_close(logprobs.exp().sum(-1), torch.ones(8))
    assert logprobs.isfinite().all()
    assert (logprobs.exp()[~mask] == 0.0).all()


def by_hand(critic, obs, action, index):
    """One critic of the stack in numpy."""
    x = np.concatenate([obs.numpy(), action.numpy()], axis=-1)
    layers = list(zip(critic.head.weight, critic.head.bias, strict=True))
    for i, (w, b) in enumerate(layers):
        x = x @ w[index].detach().numpy() + b[index].detach().numpy()
        x = np.maximum(x, 0.0) if i < len(layers) - 1 else x
    return x[:, 0]


@torch.no_grad()
def test_one_pass_gives_what_each_critic_gives_alone():
    critic, data, action = QEnsemble(BOX, NET, copies=2, seed=0), rows(), torch.linspace(-1, 1, 128).view(64, 2)
    q = critic.q(data, action)
    assert q.shape == (2, 64)
    for i in range(2):
        np.testing.assert_allclose(q[i].numpy(), by_hand(critic, data["obs"], action, i), atol=1e-5)
    assert not torch.allclose(q[0], q[1]), "the critics start apart"
    torch.testing.assert_close(critic.q(data, action, copies=1), q[:1])
    assert QEnsemble(CHOICE, NET, copies=2, seed=0).values(data).shape == (2, 64, 4)


NETS = [
    NetConfig(hidden=(16, 16), activation="relu"),
    NetConfig(hidden=(16,), activation="tanh"),
    NetConfig(hidden=(), activation="relu"),
    NetConfig(hidden=(8, 8), activation="silu"),
]


@pytest.mark.parametrize("config", NETS, ids=lambda c: f"{c.activation}{c.hidden}")
@pytest.mark.parametrize("copies", [1, 2])
def test_gradients_are_those_of_each_critic_alone(config, copies):
    """Of the weights and of the action, by all critics and by the first alone: the stack against its networks in float64."""
    critic, data = QEnsemble(BOX, config, copies=copies, seed=0), rows()
    action, weight = torch.rand(64, 2, requires_grad=True), torch.randn(copies, 64)
    double = [p.detach().double().requires_grad_() for p in critic.parameters()]
    given = action.detach().double().requires_grad_()
    alone = [one_critic(double, torch.cat([data["obs"].double(), given], -1), i, config.activation) for i in range(copies)]
    for used in (copies, 1):
        q = critic.q(data, action, copies=0 if used == copies else 1)
        found = torch.autograd.grad((q * weight[:used]).sum(), (*critic.parameters(), action))
        loss = sum((alone[i] * weight[i]).sum() for i in range(used))
        expected = torch.autograd.grad(loss, (*double, given), retain_graph=True)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-4)
    if copies > 1:
        assert all((g[1] == 0.0).all() for g in found[:-1]), "the first critic moves no other"


def one_critic(parameters, x, index, activation):
    """One critic of the stack, from all weights and then all biases, in plain operations. `[B]`"""
    num = len(parameters) // 2
    for i, (w, b) in enumerate(zip(parameters[:num], parameters[num:], strict=True)):
        x = x @ w[index] + b[index]
        x = ACTIVATIONS[activation](x) if i < num - 1 else x
    return x.squeeze(-1)


def test_critics_follow_their_weights_and_a_copy_has_its_own():
    critic, data, action = QEnsemble(BOX, NET, seed=0), rows(), torch.zeros(64, 2)
    adam = Adam(critic.parameters(), lr=0.1)
    before = critic.q(data, action)
    twin = copy.deepcopy(critic)
    adam.step(before.sum(), max_norm=None, collective=SingleProcess())
    before = before.detach()
    assert not torch.allclose(critic.q(data, action), before)
    torch.testing.assert_close(twin.q(data, action), before)
    critic.load_state_dict(twin.state_dict())
    torch.testing.assert_close(critic.q(data, action), before)
    assert critic.q(Batch(obs=torch.zeros(3, 3)), torch.zeros(3, 2)).shape == (2, 3), "another number of rows"


def test_images_go_through_convolutions():
    spec = EnvSpec({"obs": ArraySpec((4, 10, 10), torch.uint8)}, BOX.action)
    config = NetConfig(hidden=(16,), activation="relu")
    data = Batch(obs=torch.randint(0, 255, (5, 4, 10, 10), dtype=torch.uint8))
    actor, critic = SquashedGaussianActor(spec, config, seed=0), QEnsemble(spec, config, seed=0)
    action, logprob = actor.sample(data, torch.randn(5, 2))
    assert logprob.shape == (5,)
    q = critic.q(data, action)
    assert q.shape == (2, 5)
    by_action, *by_weights = torch.autograd.grad(q.sum(), (action, *critic.parameters()), retain_graph=True)
    assert by_action.shape == (5, 2)
    assert all(g.abs().sum() > 0 for g in by_weights)
    through = torch.autograd.grad(q.sum() + logprob.sum(), list(actor.parameters()))
    assert all(g.abs().sum() > 0 for g in through), "to the actor's convolutions, through the critics"


@pytest.mark.parametrize("make", [SquashedGaussianActor, DeterministicActor])
def test_infinite_bounds_are_refused_with_the_fix(make):
    spec = EnvSpec(OBS, ActionSpec("continuous", shape=(1,), low=(-math.inf,), high=(1.0,)))
    with pytest.raises(ConfigError, match="RescaleAction"):
        make(spec, NET, seed=0)
    with pytest.raises(ConfigError, match="continuous"):
        make(CHOICE, NET, seed=0)


def test_a_recurrent_core_and_composite_actions_are_refused():
    with pytest.raises(ConfigError, match=r"net\.core"):
        SquashedGaussianActor(BOX, NetConfig(core="gru"), seed=0)
    with pytest.raises(ConfigError, match="discrete"):
        CategoricalActor(BOX, NET, seed=0)
