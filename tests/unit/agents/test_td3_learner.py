"""TD3Learner and DDPGLearner: errors and gradients against numpy, smoothing, delay, targets, exact resume."""

import copy

import numpy as np
import pytest
import torch
from replay_segments import BOX, CHOICE, numpy_mlp, segment

from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.nets.continuous import DeterministicActor, QEnsemble
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16), activation="relu")


def make(config=None, seed=0):
    config = config or TD3Config()
    actor, ddpg = DeterministicActor(BOX, NET, seed=seed), isinstance(config, DDPGConfig)
    critic = QEnsemble(BOX, NET, copies=1 if ddpg else 2, seed=seed)
    return DDPGLearner(config, actor, critic, seed=seed) if ddpg else TD3Learner(config, actor, critic, seed=seed)


def step(learner, data, progress=0.0):
    return learner.update(learner.prepare({"replay": [data]}, progress=progress))


def numpy_errors(learner, a):
    """|Q - y| averaged over the critics, with the noise that the learner will draw."""
    config, num = learner.config, learner.critic.head.copies
    action = np.tanh(numpy_mlp(learner.target_actor.head, a["next_obs"].numpy()))
    if config.target_noise:
        generator = torch.Generator().set_state(learner._generator.get_state())
        noise = config.target_noise * torch.randn(action.shape, generator=generator).numpy()
        action = np.clip(action + np.clip(noise, -config.target_noise_clip, config.target_noise_clip), -1.0, 1.0)
    state = np.concatenate([a["next_obs"].numpy(), action], -1)
    best = np.min([numpy_mlp(learner.target_critic.head, state, i)[:, 0] for i in range(num)], axis=0)
    y = a["rewards/env"].numpy() + a["discount"].numpy() * best
    played = (a["action"].numpy() - [0.0, 5.0]) / [2.0, 5.0]
    state = np.concatenate([a["obs"].numpy(), played], -1)
    return np.mean([np.abs(numpy_mlp(learner.critic.head, state, i)[:, 0] - y) for i in range(num)], axis=0)


CONFIGS = [
    TD3Config(actor_lr=0.05, critic_lr=0.05, tau=0.5, target_noise=0.5, target_noise_clip=0.4),
    DDPGConfig(actor_lr=0.05, critic_lr=0.05, tau=0.5),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_errors_are_those_of_an_independent_computation(config):
    learner = make(config)
    for i in range(4):
        step(learner, segment(5 + i))
    data = segment(0)
    expected = numpy_errors(learner, data.arrays)
    (word,) = step(learner, data).feedback["replay"]
    np.testing.assert_allclose(word["priority"].numpy(), expected, atol=1e-4)
    assert torch.equal(word["index"], data.arrays["index"])
    assert isinstance(learner, Learner)


def test_the_actor_follows_the_gradient_of_the_first_critic():
    """-Q_1(s, mu(s)), by the critic after its own step; Adam's first step is lr against the sign."""
    learner, data = make(TD3Config(actor_delay=1, actor_lr=1e-3)), segment(num=32)
    probe = copy.deepcopy(learner.actor)
    batch = learner.prepare({"replay": [data]}, progress=0.0)
    learner.update(batch)
    action = probe.scores(batch).tanh()
    loss = -learner.critic.head(torch.cat([batch["obs"], action], -1))[0].mean()
    grads = torch.autograd.grad(loss, list(probe.parameters()))
    for old, new, grad in zip(probe.parameters(), learner.actor.parameters(), grads, strict=True):
        sure = grad.abs() > 1e-4
        assert sure.any()
        torch.testing.assert_close((new - old)[sure], -1e-3 * grad.sign()[sure], atol=2e-5, rtol=0.0)


def test_actor_and_targets_move_each_second_update_only():
    learner = make(TD3Config(actor_delay=2, tau=0.25))
    for i in range(4):
        nets = copy.deepcopy(learner._nets)
        metrics = step(learner, segment(i)).metrics
        moved = {
            name: not all(torch.equal(a, b) for a, b in zip(net.parameters(), learner._nets[name].parameters(), strict=True))
            for name, net in nets.items()
        }
        late = i % 2 == 1
        assert moved == {"actor": late, "critic": True, "target_actor": late, "target_critic": late}
        assert ("loss/actor" in metrics) == late, "what was not computed is not told"
        assert metrics.get("loss/actor") != 0.0
    for name in ("actor", "critic"):
        before, now, online = nets[f"target_{name}"], learner._nets[f"target_{name}"], learner._nets[name]
        for a, b, c in zip(before.parameters(), now.parameters(), online.parameters(), strict=True):
            torch.testing.assert_close(b, a + 0.25 * (c - a))


def test_ddpg_has_one_critic_and_moves_its_actor_at_every_update():
    learner = make(DDPGConfig())
    before = [p.clone() for p in learner.actor.parameters()]
    step(learner, segment())
    assert all(not torch.equal(a, b) for a, b in zip(before, learner.actor.parameters(), strict=True))
    assert learner.critic.q({"obs": torch.zeros(4, 3)}, torch.zeros(4, 2)).shape == (1, 4)
    with pytest.raises(ConfigError, match="one critic"):
        DDPGLearner(DDPGConfig(), DeterministicActor(BOX, NET, seed=0), QEnsemble(BOX, NET, copies=2, seed=0), seed=0)


def test_noise_and_flag_are_published():
    learner = make(TD3Config(exploration_noise="linear(0.4, 0)"))
    published = learner.params()
    assert (published["explore"].item(), published["noise_scale"].item()) == (1.0, pytest.approx(0.4))
    step(learner, segment(), progress=0.75)
    assert learner.params() is published
    assert (published["explore"].item(), published["noise_scale"].item()) == (0.0, pytest.approx(0.1))


@pytest.mark.parametrize("config", CONFIGS)
def test_resume_is_bit_identical(config):
    first, second = make(config), make(config, seed=4)
    for i in range(3):
        step(first, segment(i))
    second.load_state_dict(first.state_dict())
    for i in range(3, 7):
        one, two = (step(learner, segment(i), progress=0.5) for learner in (first, second))
        assert one.metrics == two.metrics
        assert torch.equal(one.feedback["replay"][0]["priority"], two.feedback["replay"][0]["priority"])
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_and_settings_are_refused():
    learner, data = make(), segment()
    data.arrays["rewards/env"][0] = float("nan")
    with pytest.raises(NonFiniteError, match="rewards/env"):
        step(learner, data)
    for config in (TD3Config(tau=0.0), TD3Config(actor_delay=0), TD3Config(target_noise=-1.0), TD3Config(critic_lr="x")):
        with pytest.raises(ConfigError, match=r"td3\."):
            config.check()
    for config in (DDPGConfig(batch_size=0), DDPGConfig(gamma=2.0)):
        with pytest.raises(ConfigError, match=r"ddpg\."):
            config.check()
    with pytest.raises(ConfigError, match="continuous"):
        DeterministicActor(CHOICE, NET, seed=0)
