"""DQNLearner: targets by hand, feedback by segment, target network, exact resume."""

import numpy as np
import pytest
import torch

from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Learner
from runnel.core.records import Header, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.data.replay import replay_stream
from runnel.nets.mlp import MLPConfig
from runnel.nets.q_nets import QNet

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
MASKED = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2), has_mask=True)


def make(config=None, seed=0, spec=SPEC):
    return DQNLearner(config or DQNConfig(), QNet(spec, MLPConfig(hidden=(16,), activation="relu"), seed=seed))


def segment(seed=0, num=8, spec=SPEC):
    stream = replay_stream(spec, batch_size=num)
    arrays, rng = stream.allocate(), make_rng(seed, "dqn")
    for key in ("obs", "next_obs", "rewards/env"):
        arrays[key].copy_(torch.from_numpy(rng.normal(size=arrays[key].shape)))
    arrays["action"].copy_(torch.from_numpy(rng.integers(0, 2, size=num)))
    arrays["terminated"].copy_(torch.from_numpy(rng.random(num) < 0.3))
    arrays["weight"].fill_(1.0)
    arrays["index"].copy_(torch.arange(num) + 100 * seed)
    if spec.has_mask:
        arrays["next_action_mask"][:, 1] = True
    return Segment(0, stream, Header(), arrays)


def numpy_errors(learner, a, *, double):
    online, target = (n.q({"obs": a["next_obs"]}).detach().numpy() for n in (learner.net, learner._target))
    chosen = (online if double else target).argmax(-1)
    bootstrap = target[np.arange(len(chosen)), chosen] * ~a["terminated"].numpy()
    q = learner.net.q({"obs": a["obs"]}).detach().numpy()[np.arange(len(chosen)), a["action"].numpy()]
    return np.abs(q - (a["rewards/env"].numpy() + 0.99 * bootstrap))


@pytest.mark.parametrize("double", [True, False])
def test_priorities_are_the_errors_of_an_independent_computation(double):
    learner = make(DQNConfig(double=double, target_every=1000, lr=0.05))
    learner.update(learner.prepare({"replay": [segment(5)]}, progress=0.0))
    data = segment(0)
    expected = numpy_errors(learner, data.arrays, double=double)
    update = learner.update(learner.prepare({"replay": [data]}, progress=0.0))
    (word,) = update.feedback["replay"]
    np.testing.assert_allclose(word["priority"].numpy(), expected, atol=1e-5)
    assert torch.equal(word["index"], data.arrays["index"])
    assert isinstance(learner, Learner)


def test_a_masked_action_is_never_bootstrapped_from():
    learner, data = make(spec=MASKED), segment(spec=MASKED)
    targets = learner._targets(learner.prepare({"replay": [data]}, progress=0.0))
    value = learner._target.q({"obs": data.arrays["next_obs"]})[:, 1]
    expected = data.arrays["rewards/env"] + 0.99 * value * ~data.arrays["terminated"]
    torch.testing.assert_close(targets, expected.detach())


def test_feedback_has_one_mapping_per_segment():
    learner = make()
    update = learner.update(learner.prepare({"a": [segment(1)], "b": [segment(2), segment(3)]}, progress=0.0))
    assert [len(v) for v in update.feedback.values()] == [1, 2]
    assert update.feedback["b"][1]["index"][0].item() == 300


def test_target_network_moves_on_schedule():
    learner = make(DQNConfig(target_every=2, target_tau=0.5))
    old = [p.clone() for p in learner._target.parameters()]
    for i in range(2):
        assert all(torch.equal(a, b) for a, b in zip(old, learner._target.parameters(), strict=True))
        learner.update(learner.prepare({"replay": [segment(i)]}, progress=0.0))
    for before, now, online in zip(old, learner._target.parameters(), learner.net.parameters(), strict=True):
        torch.testing.assert_close(now, (before + online) / 2)


def test_epsilon_is_published_and_follows_its_schedule():
    learner = make(DQNConfig(epsilon="linear(1, 0)"))
    assert learner.params()["epsilon"].item() == 1.0
    learner.prepare({"replay": [segment()]}, progress=0.75)
    assert learner.params()["epsilon"].item() == pytest.approx(0.25)


def test_it_fits_a_fixed_batch():
    learner = make(DQNConfig(lr=1e-2, gamma=0.0))
    losses = [learner.update(learner.prepare({"replay": [segment()]}, progress=0.0)).metrics["loss/td"] for _ in range(150)]
    assert losses[-1] < 0.02 * losses[0]


def test_resume_is_bit_identical():
    first, second = make(DQNConfig(target_every=3)), make(DQNConfig(target_every=3), seed=4)
    for i in range(4):
        first.update(first.prepare({"replay": [segment(i)]}, progress=0.0))
    second.load_state_dict(first.state_dict())
    for i in range(4, 8):
        one, two = (learner.update(learner.prepare({"replay": [segment(i)]}, progress=0.5)) for learner in (first, second))
        assert one.metrics == two.metrics
        assert torch.equal(one.feedback["replay"][0]["priority"], two.feedback["replay"][0]["priority"])
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_and_settings_are_refused():
    learner, data = make(), segment()
    data.arrays["next_obs"][0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="next_obs"):
        learner.update(learner.prepare({"replay": [data]}, progress=0.0))
    for config in (DQNConfig(target_tau=0.0), DQNConfig(batch_size=0), DQNConfig(epsilon="linear(1)")):
        with pytest.raises(ConfigError, match=r"dqn\."):
            config.check()
