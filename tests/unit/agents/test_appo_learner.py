"""APPOLearner: batches against an independent loop and against PPO's, whole segments for recurrent networks, exact resume."""

import numpy as np
import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED, Twin, credit_loop, make_net, make_segment

from runnel.agents.appo import APPOConfig, APPOLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError


def make(spec=DISCRETE, *, seed=0, net=None, **settings):
    config = APPOConfig(**settings)
    return APPOLearner(config, net or make_net(spec, seed=seed, normalise_obs=config.normalise_obs), seed=seed)


def prepare(learner, *segments, progress=0.0):
    return learner.prepare({"trajectories": segments}, progress=progress)


@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED])
@pytest.mark.parametrize("bars", [{"rho_bar": 1.0, "c_bar": 1.0}, {"rho_bar": 1.7, "c_bar": 1.1}])
def test_prepare_equals_a_plain_loop(spec, bars):
    learner, data = make(spec, gamma=0.9, gae_lambda=0.8, normalise_advantage=False, **bars), make_segment(spec=spec)
    targets, advantages = credit_loop(learner.net, data, gamma=0.9, lam=0.8, weighted=False, **bars)
    batch = prepare(learner, data)
    np.testing.assert_allclose(batch["return"].numpy(), targets.reshape(-1), atol=1e-5)
    np.testing.assert_allclose(batch["advantage"].numpy(), advantages.reshape(-1), atol=1e-5)
    assert torch.equal(batch["obs"], data.arrays["obs"][:8].reshape(32, 3))
    assert torch.equal(batch["logprob"], data.arrays["logprob"].reshape(32))


def test_on_the_newest_data_it_is_ppo():
    """Same batch, same minibatches, same weights after the update."""
    settings = {"num_epochs": 2, "num_minibatches": 4, "normalise_reward": True}
    one, two = make(**settings), PPOLearner(PPOConfig(**settings), make_net(), seed=0)
    data = make_segment()
    data.arrays["logprob"].copy_(one.net.evaluate({"obs": data.arrays["obs"][:-1]}, data.arrays["action"])[0].detach())
    first, second = prepare(one, data), prepare(two, data)
    assert set(first) == set(second)
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], rtol=1e-4, atol=1e-5)
    assert one.update(first).metrics == pytest.approx(two.update(second).metrics, rel=1e-3, abs=1e-4)


def test_segments_side_by_side_equal_one_wide_segment():
    learner, parts = make(normalise_advantage=False), [make_segment(1), make_segment(2)]
    together = prepare(learner, *parts)["advantage"].view(8, 8)
    apart = [prepare(learner, part)["advantage"].view(8, 4) for part in parts]
    torch.testing.assert_close(together, torch.cat(apart, dim=1))


def test_advantages_are_standardised_over_all_ranks():
    alone = prepare(make(), make_segment())["advantage"]
    assert alone.mean().item() == pytest.approx(0.0, abs=1e-6)
    learner = make()
    learner.collective = Twin()
    torch.testing.assert_close(prepare(learner, make_segment())["advantage"], alone)


def test_an_action_that_the_learner_has_left_behind_earns_no_gradient():
    """Good actions that are already twice as likely as when they were played, bad ones half as likely: nothing to learn."""
    learner, data = make(num_epochs=1, num_minibatches=1, value_coef=0.0, normalise_advantage=False), make_segment()
    logprob = learner.net.evaluate({"obs": data.arrays["obs"][:-1]}, data.arrays["action"])[0].detach()
    batch = prepare(learner, data)
    batch["logprob"] = torch.where(batch["advantage"] > 0, logprob.flatten() - 0.7, logprob.flatten() + 0.7)
    metrics = learner.update(batch).metrics
    assert metrics["grad_norm"] == 0.0
    assert metrics["clip_fraction"] == 1.0


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_recurrent_networks_train_on_whole_segments(core):
    net = make_net(core=core, core_size=8)
    learner, data = make(net=net, num_epochs=2, num_minibatches=2), make_segment(state=net.state_spec)
    batch = prepare(learner, data)
    assert batch["advantage"].shape == (4, 8)
    assert torch.equal(batch["obs"], data.arrays["obs"][:8].transpose(0, 1))
    before = {k: v.clone() for k, v in learner.params().items()}
    assert learner.update(batch).metrics["optimiser_steps"] == 4
    assert not any(torch.equal(before[k], v) for k, v in learner.params().items())


def test_a_recurrent_ratio_starts_at_one_on_the_newest_data():
    """The unrolled network gives back the very probabilities that one step after the other gave, over ends of episodes."""
    net = make_net(core="gru", core_size=8)
    data = make_segment(state=net.state_spec)
    with torch.no_grad():
        logprob, _ = net.evaluate_scores(net.unroll(data.arrays)[0], data.arrays["action"])
    data.arrays["logprob"].copy_(logprob)
    learner = make(net=net, num_epochs=1, num_minibatches=1)
    metrics = learner.update(prepare(learner, data)).metrics
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED])
def test_resume_is_bit_identical(spec):
    first, second = (make(spec, seed=seed, normalise_obs=True, normalise_reward=True) for seed in (0, 9))
    for i in range(2):
        first.update(prepare(first, make_segment(i, spec=spec), progress=0.1 * i))
    second.load_state_dict(first.state_dict())
    for i in range(2, 4):
        one, two = (k.update(prepare(k, make_segment(i, spec=spec), progress=0.3)).metrics for k in (first, second))
        assert one == two
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())
    assert isinstance(first, Learner)


@pytest.mark.parametrize(
    "config", [APPOConfig(num_minibatches=3), APPOConfig(lr="fast"), APPOConfig(c_bar=0.0), APPOConfig(rho_bar=0.5)]
)
def test_impossible_settings_name_the_field(config):
    with pytest.raises(ConfigError, match=r"^appo\."):
        config.check(1024)
