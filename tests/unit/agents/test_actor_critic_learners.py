"""A2C and IMPALA: losses and step against an independent computation, exact resume, ranks, clear failures, learning."""

import copy

import numpy as np
import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED, Twin, credit_loop, make_net, make_segment

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.impala import IMPALAConfig, IMPALALearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Header, Segment
from runnel.core.rng import make_rng
from runnel.core.trajectories import trajectory_stream

KINDS = {"a2c": (A2CConfig, A2CLearner), "impala": (IMPALAConfig, IMPALALearner)}


def make(kind, *, spec=DISCRETE, seed=0, net=None, **settings):
    config_class, learner_class = KINDS[kind]
    config = config_class(**settings)
    return learner_class(config, net or make_net(spec, seed=seed, normalise_obs=config.normalise_obs))


def step(learner, *segments, progress=0.0):
    return learner.update(learner.prepare({"trajectories": segments}, progress=progress)).metrics


@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED])
@pytest.mark.parametrize(
    ("kind", "bars"), [("a2c", {}), ("impala", {"rho_bar": 1.0, "c_bar": 1.0}), ("impala", {"rho_bar": 1.8, "c_bar": 1.2})]
)
def test_losses_and_step_equal_a_plain_computation(kind, bars, spec):
    """The numbers it reports, and the weights after it, by loops and torch's own Adam."""
    settings = {"gamma": 0.9, "gae_lambda": 0.8, "entropy_coef": 0.02, "value_coef": 0.7}
    settings |= {"max_grad_norm": 1e9, "lr": 0.01, **bars}
    learner, data = make(kind, spec=spec, **settings), make_segment(spec=spec)
    twin = copy.deepcopy(learner.net)
    targets, advantages = credit_loop(twin, data, gamma=0.9, lam=0.8, **bars)

    a = data.arrays
    mask = a["action_mask"][:-1] if spec.has_mask else None
    logprob, entropy = twin.evaluate({"obs": a["obs"][:-1]}, a["action"], mask)
    values = twin.value({"obs": a["obs"][:-1]})
    policy = -(logprob * torch.from_numpy(advantages)).mean()
    value = 0.5 * (values - torch.from_numpy(targets)).square().mean()
    total = policy + 0.7 * value - 0.02 * entropy.mean()
    optimiser = torch.optim.Adam(twin.parameters(), lr=0.01, eps=1e-5)
    total.backward()
    optimiser.step()

    metrics = step(learner, data)
    for name, want in (("loss/policy", policy), ("loss/value", value), ("loss/total", total), ("entropy", entropy.mean())):
        assert metrics[name] == pytest.approx(want.item(), rel=1e-4, abs=1e-5), name
    for key, want in twin.state_dict().items():
        torch.testing.assert_close(learner.params()[key], want, rtol=1e-3, atol=1e-5)


def test_impala_on_its_own_data_is_a2c():
    data = make_segment()
    one, two = make("a2c"), make("impala")
    data.arrays["logprob"].copy_(one.net.evaluate({"obs": data.arrays["obs"][:-1]}, data.arrays["action"])[0].detach())
    first, second = step(one, data), step(two, data)
    assert first == pytest.approx(second, abs=1e-5)
    for key, value in one.params().items():
        torch.testing.assert_close(value, two.params()[key])


@pytest.mark.parametrize("kind", KINDS)
def test_segments_side_by_side_are_one_wide_batch(kind):
    """Half the sum of the gradients of two segments alone."""
    parts, learner = [make_segment(1), make_segment(2)], make(kind, max_grad_norm=1e9)
    apart = [step(make(kind, max_grad_norm=1e9), part) for part in parts]
    together = step(learner, *parts)
    assert together["loss/total"] == pytest.approx(sum(m["loss/total"] for m in apart) / 2, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_with_the_same_data_step_like_one(kind):
    one, two = make(kind), make(kind)
    two.collective = Twin()
    step(one, make_segment())
    step(two, make_segment())
    for key, value in one.params().items():
        torch.testing.assert_close(value, two.params()[key])


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_networks_train_on_whole_segments(kind, core):
    """The state at the segment's start matters, and the gradient reaches the core."""
    net = make_net(core=core, core_size=8)
    learner = make(kind, net=net)
    data = make_segment(state=net.state_spec)
    before = {k: v.clone() for k, v in learner.params().items()}
    other = make(kind, net=make_net(core=core, core_size=8))
    moved = make_segment(state=net.state_spec)
    for name in net.state_spec:
        moved.arrays[name].fill_(0.5)
    assert step(learner, data)["loss/total"] != step(other, moved)["loss/total"]
    assert not any(torch.equal(before[k], v) for k, v in learner.params().items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED])
def test_resume_is_bit_identical(kind, spec):
    first, second = (make(kind, spec=spec, seed=seed, normalise_obs=True) for seed in (0, 9))
    for i in range(2):
        step(first, make_segment(i, spec=spec), progress=0.1 * i)
    second.load_state_dict(first.state_dict())
    for i in range(2, 4):
        one, two = (step(learner, make_segment(i, spec=spec), progress=0.3) for learner in (first, second))
        assert one == two
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_stay_where_they_are_and_the_rate_follows_its_schedule(kind):
    learner = make(kind, lr="linear(0.01, 0)", normalise_obs=True)
    assert isinstance(learner, Learner)
    address = {k: v.data_ptr() for k, v in learner.params().items()}
    metrics = step(learner, make_segment(), progress=0.25)
    assert metrics["lr"] == pytest.approx(0.0075)
    assert all(np.isfinite(v) for v in metrics.values())
    assert address == {k: v.data_ptr() for k, v in learner.params().items()}
    assert learner.net.normalisers["obs"].count.item() == 32
    assert learner.version == 1


@pytest.mark.parametrize(
    ("kind", "key"), [("a2c", "obs"), ("a2c", "rewards/env"), ("impala", "rewards/env"), ("impala", "logprob")]
)
def test_bad_numbers_stop_before_the_step(kind, key):
    learner, data = make(kind), make_segment()
    before = {k: v.clone() for k, v in learner.params().items()}
    data.arrays[key][0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=key):
        step(learner, data)
    assert all(torch.equal(before[k], v) for k, v in learner.params().items())


@pytest.mark.parametrize(
    "config",
    [A2CConfig(lr="fast"), A2CConfig(gamma=1.5), A2CConfig(max_grad_norm=0.0), A2CConfig(entropy_coef=float("nan"))],
)
def test_impossible_settings_name_the_field(config):
    with pytest.raises(ConfigError, match=r"a2c\."):
        config.check()


@pytest.mark.parametrize("config", [IMPALAConfig(gae_lambda=-1.0), IMPALAConfig(c_bar=0.0), IMPALAConfig(rho_bar=0.5)])
def test_impossible_settings_of_impala_name_the_field(config):
    with pytest.raises(ConfigError, match=r"impala\."):
        config.check()


def test_impala_learns_a_bandit_from_the_data_of_another_policy():
    """A fixed policy that is wrong three times in four made all the data; V-trace turns it into the right one."""
    learner, rng = make("impala", lr=5e-3, entropy_coef=0.0), make_rng(0, "bandit")
    stream = trajectory_stream(DISCRETE, num_steps=16, num_envs=8)
    arrays = stream.allocate()
    share = 0.0
    for _ in range(60):
        obs = torch.from_numpy(rng.normal(size=(17, 8, 3)).astype(np.float32))
        right = (obs[:16, :, 0] > 0).long()
        wrong = torch.from_numpy(rng.random((16, 8)) < 0.75)
        arrays["obs"].copy_(obs)
        arrays["action"].copy_(torch.where(wrong, 1 - right, right))
        arrays["logprob"].copy_(torch.where(wrong, 0.75, 0.25).log())
        arrays["rewards/env"].copy_(~wrong)
        arrays["terminated"].fill_(True)
        arrays["final_index"].copy_(torch.arange(128))
        arrays["final_obs"].copy_(obs[:16].flatten(0, 1))
        step(learner, Segment(0, stream, Header(used={"F": 128}), arrays))
        best = learner.net.act(Batch(obs=obs[:16].flatten(0, 1)), greedy=True)["action"]
        share = (best == right.flatten()).float().mean().item()
    assert share > 0.9
