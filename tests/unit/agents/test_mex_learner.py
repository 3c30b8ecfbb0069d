"""MEXLearner: the promise of the critics in numpy, its gradient, and that TD3 is left where `eta` is 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from replay_segments import BOX, numpy_mlp, segment

from runnel.agents.mex import MEXConfig, MEXLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.errors import ConfigError
from runnel.nets.continuous import DeterministicActor, QEnsemble
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16), activation="relu")
PLAIN = {"target_noise": 0.0, "actor_lr": 0.01, "critic_lr": 0.01}


def make(seed=0, **settings):
    return MEXLearner(
        MEXConfig(**PLAIN | settings), DeterministicActor(BOX, NET, seed=seed), QEnsemble(BOX, NET, seed=seed), seed=seed
    )


def step(learner, data):
    return learner.update(learner.prepare({"replay": [data]}, progress=0.0))


def numpy_promise(learner, a, contrast):
    obs, following = a["obs"].numpy(), a["next_obs"].numpy()
    own, later = (np.tanh(numpy_mlp(learner.actor.head, x)) for x in (obs, following))
    generator = torch.Generator().set_state(learner._generator.get_state())
    uniform = 2.0 * torch.rand(own.shape, generator=generator).numpy() - 1.0
    played = (a["action"].numpy() - [0.0, 5.0]) / [2.0, 5.0]

    def q(action, i):
        return numpy_mlp(learner.critic.head, np.concatenate([obs, action], -1), i)[:, 0]

    rivals = [np.log(sum(np.exp(q(x, i)) for x in (played, later, uniform))) for i in range(2)]
    return sum(np.mean(q(own, i) - contrast * rivals[i]) for i in range(2))


@pytest.mark.parametrize("contrast", [True, False])
def test_the_promise_is_that_of_an_independent_computation(contrast):
    learner = make(contrast=contrast)
    for i in range(3):
        step(learner, segment(5 + i))
    a = segment(0).arrays
    expected = numpy_promise(learner, a, contrast)
    plain = TD3Learner.critic_loss(learner, a).value.item()
    loss = learner.critic_loss(a)
    assert loss.metrics["promise"].item() == pytest.approx(expected, abs=1e-4)
    assert loss.value.item() == pytest.approx(plain - 0.001 * expected, abs=1e-5)


def test_without_optimism_it_is_td3():
    mex = make(eta=0.0)
    td3 = TD3Learner(TD3Config(**PLAIN), DeterministicActor(BOX, NET, seed=0), QEnsemble(BOX, NET, seed=0), seed=0)
    for i in range(4):
        step(mex, segment(i))
        step(td3, segment(i))
    assert all(torch.equal(v, td3.params()[k]) for k, v in mex.params().items())


def test_optimism_raises_the_policys_action_above_others():
    promises = []
    for eta in (0.0, 0.5):
        learner = make(eta=eta, actor_delay=1_000)
        for i in range(60):
            step(learner, segment(i % 3))
        promises.append(learner.promise(segment(1).arrays).item())
    assert promises[1] > promises[0] + 1.0


def test_resume_is_bit_identical():
    first, second = make(eta=0.1), make(seed=4, eta=0.1)
    for i in range(3):
        step(first, segment(i))
    second.load_state_dict(first.state_dict())
    for i in range(3, 7):
        assert step(first, segment(i)).metrics == step(second, segment(i)).metrics


def test_settings_that_cannot_train_are_refused():
    for config in (MEXConfig(eta=-1.0), MEXConfig(tau=0.0), replace(MEXConfig(), batch_size=0)):
        with pytest.raises(ConfigError, match=r"td3\."):
            config.check()
