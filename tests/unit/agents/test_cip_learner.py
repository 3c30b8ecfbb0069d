"""CIPLearner: causes, exchanged rows, empowerment and the actor's loss against numpy; SAC is left where both weights are 0."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from made_ranks import together
from replay_segments import BOX, CHOICE, numpy_mlp, segment
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from runnel.agents.cip import CIPConfig, CIPLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.continuous import CategoricalActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig
from runnel.ops.causes import cause_shares, exchange, find_needed
from runnel.ops.distributions import squashed_gaussian
from runnel.ops.empowerment import gaussian_logprobs, squashed_logprobs, weighted_information

NET = NetConfig(hidden=(16, 16), activation="relu")
PLAIN = {"actor_lr": 0.01, "critic_lr": 0.01}
CAUSES = {"fit_rows": 24, "fit_every": 3}


def make(seed=0, kind=CIPLearner, config=CIPConfig, spec=BOX, **settings):
    given = PLAIN | (CAUSES if config is CIPConfig else {}) | settings
    return kind(config(**given), SquashedGaussianActor(spec, NET, seed=seed), QEnsemble(spec, NET, seed=seed), seed=seed)


def step(learner, data):
    return learner.update(learner.prepare({"replay": [data]}, progress=0.0))


def known(*strong, num=5):
    """Shares in which each pair (effect, cause) is strong."""
    shares = torch.zeros(num, 5, dtype=torch.float64)
    for effect, cause in strong:
        shares[effect, cause] = 1.0
    return shares


# ---------------------------------------------------------------------------------------------------------------- causes
def test_shares_of_linear_effects_are_the_coefficients_of_a_linear_non_gaussian_model():
    """x1 = 0.8 x0 + e, r = 2 x0 - 0.5 x2 + e with uniform and Laplace noise: x1 goes with r, but does not cause it."""
    rng = np.random.default_rng(3)
    x = np.stack([rng.uniform(-1, 1, 20_000), np.zeros(20_000), rng.laplace(size=20_000), rng.uniform(-1, 1, 20_000)], 1)
    x[:, 1] = 0.8 * x[:, 0] + rng.uniform(-0.5, 0.5, 20_000)
    r = 2.0 * x[:, 0] - 0.5 * x[:, 2] + rng.laplace(scale=0.3, size=20_000)
    shares = cause_shares(torch.from_numpy(x), torch.from_numpy(r[:, None]))[0].numpy()
    assert abs(np.corrcoef(x[:, 1], r)[0, 1]) > 0.6
    np.testing.assert_allclose(shares, [2 * x[:, 0].std() / r.std(), 0, 0.5 * x[:, 2].std() / r.std(), 0], atol=0.03)


def test_shares_are_those_of_a_regression_in_numpy():
    rng = np.random.default_rng(1)
    x = rng.exponential(size=(300, 3)) - 0.5
    y = np.stack([x[:, 0] ** 2 - x[:, 1], np.abs(x[:, 2]) + rng.normal(size=300)], 1)
    z = (x - x.mean(0)) / x.std(0)
    q = (z**2 - 1) / (z**2).std(0)
    weight, *_ = np.linalg.lstsq(np.concatenate([z, q], 1), (y - y.mean(0)) / y.std(0), rcond=None)
    expected = [[(z[:, j] * weight[j, e] + q[:, j] * weight[3 + j, e]).std() for j in range(3)] for e in range(2)]
    np.testing.assert_allclose(cause_shares(torch.from_numpy(x), torch.from_numpy(y)).numpy(), expected, atol=1e-4)


def test_what_never_changes_has_no_share():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 0.1
    shares = cause_shares(x, torch.stack([x[:, 0] ** 2, torch.full((200,), -0.7)], 1))
    assert shares[0, 0].item() == pytest.approx(1.0, abs=1e-4)
    assert shares[0, 1].item() == shares[1].abs().max().item() == 0.0
    assert cause_shares(x.clone().fill_(2.0), x).abs().max().item() == 0.0


def test_what_is_needed_is_found_backwards_from_the_roots():
    """Rows: reward, end, changes of 0, 1 and 2; columns: 0, 1, 2, and two actions. 2 moves by itself and by an action."""
    shares = known((0, 0), (2, 1), (3, 3), (4, 4), (4, 0))
    needed, actions = find_needed(shares, num_roots=2, threshold=0.2)
    assert needed.tolist() == [True, True, False]
    assert actions.tolist() == [1.0, 0.0]
    needed, _ = find_needed(known((1, 2)), num_roots=2, threshold=0.2)
    assert needed.tolist() == [False, False, True], "an end is a root too"
    weak = shares.clone()
    weak[0, 2] = 0.19
    assert not find_needed(weak, num_roots=2, threshold=0.2)[0][2]
    assert find_needed(weak, num_roots=2, threshold=0.19)[0][2]


def test_the_learner_finds_the_causes_of_a_reward():
    """r = |s0|, s0 moves by s1 and s1 by the first action; s2 and the second action have nothing to do with it."""
    learner, rng = make(fit_rows=2_000, fit_every=30), np.random.default_rng(0)
    for seed in range(30):
        data = segment(seed, num=100)
        a, low = data.arrays, torch.tensor([[0.0, 5.0]])
        action = (a["action"] - low) / torch.tensor([[2.0, 5.0]])
        a["rewards/env"].copy_(-a["obs"][:, 0].abs())
        a["discount"].fill_(0.9)
        change = torch.stack([a["obs"][:, 1], action[:, 0], torch.from_numpy(rng.normal(size=100)).float()], 1)
        a["next_obs"].copy_(a["obs"] + 0.1 * change)
        metrics = step(learner, data).metrics
    assert learner.needed.tolist() == [True, True, False]
    assert learner.action_weight.tolist() == [2.0, 0.0]
    assert metrics["needed"] == pytest.approx(2 / 3)


def test_before_the_first_estimate_and_without_rewards_everything_counts():
    learner = make(fit_every=2)
    for i in range(7):
        data = segment(i)
        data.arrays["rewards/env"].zero_()
        data.arrays["discount"].fill_(0.9)
        step(learner, data)
        assert learner.needed.all()
        assert learner.action_weight.tolist() == [1.0, 1.0]


def test_ranks_agree_on_the_mean_of_what_each_found():
    def work(ranks):
        config, actor = CIPConfig(fit_rows=24, fit_every=3, swap=0.5), SquashedGaussianActor(BOX, NET, seed=0)
        learner = CIPLearner(config, actor, QEnsemble(BOX, NET, seed=0), seed=0, collective=ranks)
        for i in range(3):
            step(learner, segment(10 * ranks.rank + i, num=8))
        state, action, roots, change = learner._sample.split([3, 2, 2, 3], -1)
        own = cause_shares(torch.cat([state, action], -1), torch.cat([roots, change], -1))
        return learner._shares, own, learner.params()

    first, second = together(2, work)
    assert not torch.equal(first[1], second[1])
    torch.testing.assert_close(first[0], (first[1] + second[1]) / 2)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(x, second[2][k]) for k, x in first[2].items()), "although each exchanged rows of its own"


# ---------------------------------------------------------------------------------------------------------- augmentation
def test_exchange_by_hand():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    take = torch.tensor([[True, False], [False, False], [True, True]])
    assert exchange(x, order=torch.tensor([1, 2, 0]), take=take).tolist() == [[3.0, 2.0], [3.0, 4.0], [1.0, 2.0]]


def test_only_what_is_not_needed_is_exchanged_and_alike_before_and_after():
    learner, a = make(swap=0.5), segment(2, num=64).arrays
    learner.know(known((0, 0)))
    before = {key: x.clone() for key, x in a.items()}
    found = learner.counterfactual(a)
    assert all(torch.equal(a[key], x) for key, x in before.items()), "the stream's memory stays as it was"
    for key, x in before.items():
        if key not in ("obs", "next_obs"):
            assert torch.equal(found[key], x), key
    assert torch.equal(found["obs"][:, 0], before["obs"][:, 0])
    assert torch.equal(found["next_obs"][:, 0], before["next_obs"][:, 0])
    both = torch.cat([before["obs"][:, 1:], before["next_obs"][:, 1:]], 1)
    mixed = torch.cat([found["obs"][:, 1:], found["next_obs"][:, 1:]], 1)
    source = (mixed.unsqueeze(1) == both).all(-1)
    assert (source.sum(1) == 1).all(), "all of them come from one row"
    moved = source.to(torch.int64).argmax(1) != torch.arange(64)
    assert 0.3 < moved.float().mean() < 0.7


def test_parts_of_an_observation_are_exchanged_as_one_vector_would_be():
    obs = {"obs/b": ArraySpec((1,)), "obs/a": ArraySpec((2,))}
    parts, whole = make(spec=EnvSpec(obs, BOX.action)), make()
    one = segment(3, num=32).arrays
    two = Batch({k: x for k, x in one.items() if "obs" not in k})
    for prefix in ("", "next_"):
        two |= {prefix + "obs/a": one[prefix + "obs"][:, :2], prefix + "obs/b": one[prefix + "obs"][:, 2:]}
    for learner in (parts, whole):
        learner.know(known((0, 1)))
    found, expected = parts.counterfactual(Batch(two)), whole.counterfactual(one)
    for prefix in ("", "next_"):
        both = torch.cat([found[prefix + "obs/a"], found[prefix + "obs/b"]], -1)
        assert torch.equal(both, expected[prefix + "obs"])


# ----------------------------------------------------------------------------------------------------------- empowerment
def test_densities_are_those_of_torch_distributions():
    mean, log_std, z = torch.randn(3, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind(0)
    action, logprobs = squashed_logprobs(mean, log_std, z)
    whole, summed = squashed_gaussian(mean, log_std, z)
    assert torch.equal(action, whole)
    torch.testing.assert_close(logprobs.sum(-1), summed)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    torch.testing.assert_close(logprobs, squashed.log_prob(action))
    torch.testing.assert_close(gaussian_logprobs(z, mean, log_std), Normal(mean, log_std.exp()).log_prob(z))


def test_the_information_of_a_noisy_channel():
    """a normal, s' = a + noise of the same size: I = log(2) / 2 for each coordinate that is weighted by 1."""
    rng = torch.Generator().manual_seed(0)
    a, noise = torch.randn(2, 200_000, 2, generator=rng).unbind(0)
    told = gaussian_logprobs(a, (a + noise) / 2, torch.full_like(a, 0.5 * np.log(0.5)))
    chosen = gaussian_logprobs(a, torch.zeros_like(a), torch.zeros_like(a))
    for weight, times in (([1.0, 1.0], 2), ([2.0, 0.0], 2), ([0.5, 0.0], 0.5)):
        found = weighted_information(told, chosen, weight=torch.tensor(weight)).mean().item()
        assert found == pytest.approx(times * 0.5 * np.log(2.0), abs=0.01)


def test_the_loss_of_the_actor_is_that_of_an_independent_computation():
    learner, eta = make(empowerment=0.3, swap=0.0), 0.3
    for i in range(4):
        step(learner, segment(5 + i))
    learner.know(known((0, 0), (0, 3)) * torch.tensor([1.0, 1.0, 1.0, 0.6, 1.0]))
    learner.action_weight = torch.tensor([1.5, 0.5])
    with torch.no_grad():
        learner.teller.bias[-1][2] -= 3.0  # q of the first coordinate is as sharp as it may be, and no sharper
    a, temperature = segment(0).arrays, torch.tensor(0.2)
    obs = a["obs"].numpy().astype(np.float64)
    z = torch.randn(8, 2, generator=torch.Generator().set_state(learner._generator.get_state()))
    mean, log_std = (torch.from_numpy(x) for x in np.split(numpy_mlp(learner.actor.head, obs), 2, -1))
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    action = (mean + log_std.exp() * z).tanh()
    chosen = squashed.log_prob(action).numpy()
    q = np.min([numpy_mlp(learner.critic.head, np.concatenate([obs, action], -1), i)[:, 0] for i in range(2)], axis=0)
    after = obs + numpy_mlp(learner.following, np.concatenate([obs, action], -1))
    m, s = (torch.from_numpy(x) for x in np.split(numpy_mlp(learner.teller, np.concatenate([obs, after], -1)), 2, -1))
    told = Normal(m, s.clamp(-1.0, 1.0).exp()).log_prob(action).numpy()
    gain = ((told - chosen) * [1.5, 0.5]).sum(-1)
    loss = learner.actor_loss(a, temperature)
    assert loss.value.item() == pytest.approx(np.mean(0.2 * chosen.sum(-1) - q - eta * gain), abs=1e-4)
    assert loss.metrics["empowerment"].item() == pytest.approx(gain.mean(), abs=1e-4)


def test_the_models_learn_what_actions_do():
    """The first action moves the first dimension: the model foresees it, and the action can be told from it."""
    learner = make(empowerment=0.1)
    for seed in range(400):
        data = segment(seed % 20, num=64)
        a = data.arrays
        a["next_obs"].copy_(a["obs"] + torch.nn.functional.pad(a["action"][:, :1], (0, 2)))
        metrics = step(learner, data).metrics
    told = learner.told(a["obs"], a["next_obs"], learner.actor.box.normalise(a["action"])).mean(0)
    assert told[0] > 0.0 > np.log(0.5) + 0.3 > told[1], "a uniform coordinate has a log-density of log(1 / 2)"
    assert metrics["loss/models"] < 1.0


# ----------------------------------------------------------------------------------------------------------------- whole
def test_without_both_it_is_sac():
    cip = make(swap=0.0, empowerment=0.0)
    sac = make(kind=SACLearner, config=SACConfig)
    sac._generator.set_state(cip._generator.get_state())
    for i in range(4):
        step(cip, segment(i))
        step(sac, segment(i))
    assert all(torch.equal(v, sac.params()[k]) for k, v in cip.params().items())


@pytest.mark.parametrize(("swap", "empowerment"), list(product((0.0, 0.5), (0.0, 0.1))))
def test_resume_is_bit_identical(swap, empowerment):
    first, second = (make(seed=s, swap=swap, empowerment=empowerment, cause_threshold=1.0) for s in (0, 4))
    for i in range(7):
        step(first, segment(i))
    assert not first.needed.all()
    second.load_state_dict(first.state_dict())
    for i in range(7, 12):
        assert step(first, segment(i)).metrics == step(second, segment(i)).metrics
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())
    assert isinstance(first, Learner)


def test_settings_and_tasks_that_cannot_train_are_refused():
    for change in ({"swap": 1.5}, {"cause_threshold": 0.0}, {"fit_every": 0}, {"fit_rows": 3}, {"empowerment": -1.0}):
        with pytest.raises(ConfigError, match=rf"sac\.{next(iter(change))}"):
            replace(CIPConfig(), **change).check()
    with pytest.raises(ConfigError, match=r"sac.fit_rows = 19: there are 5 dimensions of state and action; use at least 20"):
        make(fit_rows=19)
    with pytest.raises(ConfigError, match="use sac or dqn"):
        CIPLearner(CIPConfig(), CategoricalActor(CHOICE, NET, seed=0), QEnsemble(CHOICE, NET, seed=0), seed=0)
    with pytest.raises(ConfigError, match="must be a vector of real numbers"):
        make(spec=EnvSpec({"obs": ArraySpec((2, 3))}, BOX.action))
