"""RLPD: critics with layer normalisation against numpy, subsets of targets, and SAC as its limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from replay_segments import BOX, CHOICE, numpy_mlp, segment

from runnel.agents.rlpd import RLPDConfig, RLPDLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError
from runnel.nets.continuous import QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16), activation="relu")


def make(seed: int = 0, **settings: Any) -> RLPDLearner:
    config = RLPDConfig(**{"num_critics": 4, "actor_every": 1, **settings})
    critic = QEnsemble(BOX, NET, copies=config.num_critics, layer_norm=config.layer_norm, seed=seed)
    if config.layer_norm:  # scales and shifts of their own: a test with ones and zeros would not see them
        with torch.no_grad():
            for i, x in enumerate((*critic.head.scale, *critic.head.shift)):
                x.add_(torch.linspace(-0.5, 0.5, x.numel()).reshape(x.shape) * (i + 1))
    return RLPDLearner(config, SquashedGaussianActor(BOX, NET, seed=seed), critic, seed=seed)


def both(learner: SACLearner, seed: int = 0) -> Any:
    """A batch of both readers."""
    return learner.prepare({"replay": [segment(seed, 6)], "offline": [segment(100 + seed, 6)]}, progress=0.0)


def numpy_q(head: Any, x: np.ndarray, copy: int) -> np.ndarray:
    """One critic in float64: products, normalisation over the layer's units, scale and shift, relu."""
    layers = [tuple(t.detach().double().numpy()[copy] for t in pair) for pair in zip(head.weight, head.bias, strict=True)]
    norms = [tuple(t.detach().double().numpy()[copy] for t in pair) for pair in zip(head.scale, head.shift, strict=True)]
    for (w, b), (scale, shift) in zip(layers, norms, strict=False):
        x = x @ w + b
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = np.maximum(scale * x + shift, 0.0)
    w, b = layers[-1]
    return (x @ w + b)[:, 0]


@pytest.mark.parametrize("entropy_backup", [True, False])
def test_targets_are_the_least_of_a_subset(entropy_backup: bool) -> None:
    learner = make(entropy_backup=entropy_backup)
    batch = both(learner)
    generator = torch.Generator().set_state(learner._generator.get_state())
    z = torch.randn(12, 2, generator=generator).double().numpy()
    mean, log_std = np.split(numpy_mlp(learner.actor.head, batch["next_obs"].numpy()), 2, axis=-1)
    following = np.tanh(mean + np.exp(log_std) * z)
    logprob = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log1p(-(following**2))).sum(-1)
    state = np.concatenate([batch["next_obs"].numpy(), following], -1)
    chosen = learner.chosen()
    best = np.min([numpy_q(learner.target_critic.head, state, i) for i in chosen], axis=0)
    alpha = math.exp(learner._log_temperature.item()) if entropy_backup else 0.0
    y = batch["rewards/env"].numpy() + batch["discount"].numpy() * (best - alpha * logprob)
    played = (batch["action"].numpy() - [0.0, 5.0]) / [2.0, 5.0]
    state = np.concatenate([batch["obs"].numpy(), played], -1)
    q = np.stack([numpy_q(learner.critic.head, state, i) for i in range(4)])
    weight = batch["weight"].numpy()
    due = 0.5 * (weight * (q - y) ** 2).sum() / 12
    update = learner.update(batch)
    assert update.metrics["loss/critic"] == pytest.approx(due, rel=1e-4)
    errors = np.abs(q - y).mean(0)
    for name, part in (("replay", errors[:6]), ("offline", errors[6:])):
        np.testing.assert_allclose(update.feedback[name][0]["priority"].numpy(), part, rtol=1e-4)


def test_subsets_have_no_repetition_and_change_from_version_to_version() -> None:
    learner, found = make(num_critics=5, subset=2), []
    for version in range(60):
        learner.version = version
        found.append(tuple(learner.chosen()))
    assert all(len(set(pair)) == 2 for pair in found)
    assert len(set(found)) == 10, "all pairs of five come up"


def test_the_actor_follows_the_mean_of_the_critics() -> None:
    learner = make()
    batch, temperature = both(learner), torch.tensor(0.3)
    generator = torch.Generator().set_state(learner._generator.get_state())
    z = torch.randn(12, 2, generator=generator).double().numpy()
    loss = learner.actor_loss(batch, temperature)
    mean, log_std = np.split(numpy_mlp(learner.actor.head, batch["obs"].numpy()), 2, axis=-1)
    action = np.tanh(mean + np.exp(log_std) * z)
    logprob = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log1p(-(action**2))).sum(-1)
    state = np.concatenate([batch["obs"].numpy(), action], -1)
    q = np.mean([numpy_q(learner.critic.head, state, i) for i in range(4)], axis=0)
    assert loss.value.item() == pytest.approx((0.3 * logprob - q).mean(), rel=1e-4)


def test_with_two_critics_and_no_normalisation_the_critics_are_those_of_sac() -> None:
    """The actor's loss differs (mean, not minimum), so critics agree to the last bit as long as the actor stands still."""
    ours = make(num_critics=2, subset=2, layer_norm=False, actor_lr=0.0, auto_temperature=False)
    config = SACConfig(actor_lr=0.0, auto_temperature=False)
    theirs = SACLearner(config, SquashedGaussianActor(BOX, NET, seed=0), QEnsemble(BOX, NET, seed=0), seed=0)
    for seed in range(4):
        a, b = ours.update(both(ours, seed)), theirs.update(both(theirs, seed))
        assert a.metrics["loss/critic"] == b.metrics["loss/critic"]
    for name, x in ours.target_critic.state_dict().items():
        assert torch.equal(x, theirs.target_critic.state_dict()[name])


def test_between_updates_of_the_actor_only_critics_move() -> None:
    learner = make(actor_every=3)
    moved = []
    for seed in range(6):
        before = learner.actor.head.weight[0].clone(), learner._log_temperature.item(), learner.critic.head.weight[0].clone()
        learner.update(both(learner, seed))
        now = learner.actor.head.weight[0], learner._log_temperature.item(), learner.critic.head.weight[0]
        assert not torch.equal(before[2], now[2])
        moved.append(not torch.equal(before[0], now[0]))
        assert moved[-1] == (before[1] != now[1])
    assert moved == [False, False, True, False, False, True]
    assert learner.actor.explore == 0


def test_critics_are_normalised_and_the_actor_is_not() -> None:
    learner = make()
    assert {name for name in dict(learner.critic.named_parameters()) if "scale" in name or "shift" in name} == {
        *("head.scale.0", "head.scale.1", "head.shift.0", "head.shift.1")
    }
    assert not [name for name in dict(learner.actor.named_parameters()) if "scale" in name or "shift" in name]


def test_one_network_of_a_normalised_stack_is_that_of_the_stack() -> None:
    head, x = make().critic.head, torch.randn(7, 5)
    whole = head(x)
    assert torch.equal(head(x, copies=2), whole[:2])
    for i in range(4):
        torch.testing.assert_close(head.one(x, i), whole[i])


def test_it_goes_on_exactly_from_its_state() -> None:
    one, two = make(actor_every=2), make(seed=9, actor_every=2)
    two._seed = one._seed
    for seed in range(3):
        one.update(both(one, seed))
    two.load_state_dict(one.state_dict())
    for seed in range(3, 6):
        assert one.update(both(one, seed)).metrics == two.update(both(two, seed)).metrics
    assert all(torch.equal(a, two.params()[name]) for name, a in one.params().items())
    assert isinstance(one, Learner)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rlpd.subset = 5: there are 4 critics"):
        make(subset=5)
    with pytest.raises(ConfigError, match=r"rlpd.actor_every = 0"):
        make(actor_every=0)
    with pytest.raises(ConfigError, match="box of continuous actions"):
        SquashedGaussianActor(CHOICE, NET, seed=0)
