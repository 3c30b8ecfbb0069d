"""Stream AC and stream Q: steps of the optimiser, errors and traces against numpy, ends of traces, exact resume, refusals."""

import numpy as np
import pytest
import torch
from made_segments import BOX, DISCRETE, make_segment
from torch import nn

import runnel as rl
from runnel.agents.stream import (
    ObGD,
    StreamACConfig,
    StreamACLearner,
    StreamConfig,
    StreamQConfig,
    StreamQLearner,
)
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.layers import NetConfig
from runnel.nets.stream import StreamBody, StreamQNet, sparse_weights

NET = NetConfig(hidden=(16, 8))


def make(kind, seed=0, spec=DISCRETE, **settings):
    if kind == "ac":
        net = ActorCritic(spec, StreamBody(spec, NET, seed=seed), normalise_obs=True)
        return StreamACLearner(StreamACConfig(**settings), net)
    return StreamQLearner(StreamQConfig(**settings), StreamQNet(spec, NET, seed=seed))


def one(seed, spec=DISCRETE):
    return make_segment(seed, spec=spec, num_steps=1, num_envs=1)


def step(learner, data, progress=0.5):
    return learner.update(learner.prepare({"trajectories": [data]}, progress=progress))


def test_a_step_is_that_of_the_papers_algorithm_in_numpy():
    """Two outputs of one linear layer, one after the other, with errors below and above the bound."""
    weight = nn.Parameter(torch.tensor([0.5, -1.0]))
    stepper = ObGD([weight], lr=1.0, decay=0.9 * 0.8, kappa=2.0)
    w, z = np.array([0.5, -1.0]), np.zeros(2)
    for x, delta in [([1.0, 2.0], 0.5), ([0.0, -0.05], 3.0), ([0.001, 0.0], -0.2)]:
        z = 0.72 * z + np.array(x)
        size = 1.0 / max(1.0 * 2.0 * max(abs(delta), 1.0) * np.abs(z).sum(), 1.0)
        w = w + size * delta * z
        found = stepper.step((weight * torch.tensor(x)).sum(), torch.tensor(delta), ended=False)
        assert found.item() == pytest.approx(size)
        np.testing.assert_allclose(weight.detach().numpy(), w, atol=1e-6)
    stepper.step(weight.sum(), torch.tensor(0.0), ended=True)
    assert not stepper.traces[0].any(), "a trace ends with its episode"


def test_a_small_step_is_not_bounded():
    weight = nn.Parameter(torch.zeros(1))
    assert ObGD([weight], lr=0.1, decay=0.0, kappa=2.0).step(
        weight.sum(), torch.tensor(1.0), ended=False
    ).item() == pytest.approx(0.1)


@pytest.mark.parametrize("kappa", [0.5, 2.0, 5.0])
def test_a_linear_output_never_overshoots_its_target(kappa):
    """With kappa of 1 or more, a step on a linear function of inputs in [-1, 1] moves it by at most its error."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, weight = torch.from_numpy(rng.uniform(-1.0, 1.0, 5)).float(), nn.Parameter(torch.zeros(5))
        delta = torch.tensor(float(rng.normal() * 10.0))
        ObGD([weight], lr=1.0, decay=0.0, kappa=kappa).step(weight @ x, delta, ended=False)
        if kappa >= 1.0:
            assert abs((weight @ x).item()) <= abs(delta.item()) + 1e-6


def numpy_net(mlp, x):
    """Layer normalisation and a leaky relu before the last layer, in float64."""
    layers = [(w.detach().double().numpy(), b.detach().double().numpy()) for w, b in zip(mlp.weight, mlp.bias, strict=True)]
    for i, (w, b) in enumerate(layers):
        x = w @ x + b
        if i < len(layers) - 1:
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            x = np.where(x > 0.0, x, 0.01 * x)
    return x


def normalised(statistics, x):
    return np.clip((x - statistics.mean.numpy()) / np.sqrt(statistics.var.numpy() + 1e-8), -10.0, 10.0)


@pytest.mark.parametrize("kind", ["ac", "q"])
def test_errors_are_those_of_an_independent_computation(kind):
    """delta = r + gamma V(s') - V(s), on statistics that know s, with the reward scaled; a cut bootstraps, an end does not."""
    learner = make(kind, gamma=0.9)
    seen = set()
    for i in range(40):
        data = one(i)
        a = data.arrays
        truncated, terminated = bool(a["truncated"][0, 0]), bool(a["terminated"][0, 0])
        before = [w.detach().clone() for w in learner._net.parameters()]
        batch = learner.prepare({"trajectories": [data]}, progress=0.5)
        reward = batch["rewards/env"].item()
        now = a["obs"][0, 0].double().numpy()
        after = (a["final_obs"][0] if truncated or terminated else a["obs"][1, 0]).double().numpy()
        twin = make(kind, gamma=0.9)
        twin.load_state_dict(learner.state_dict())
        found = learner.update(batch).metrics
        statistics = learner.net.statistics if kind == "q" else learner.net.normalisers["obs"]
        net = twin.net.head if kind == "q" else twin.net.body.critic
        value, following = (numpy_net(net, normalised(statistics, x)) for x in (now, after))
        out = value[int(a["action"])] if kind == "q" else value[0]
        delta = reward + 0.9 * (not terminated) * following.max() - out
        assert found["loss/td"] == pytest.approx(delta**2 / 2, rel=1e-3, abs=1e-5)
        assert any(not torch.equal(x, y) for x, y in zip(before, learner._net.parameters(), strict=True)) or delta == 0.0
        seen.add((truncated, terminated))
        ended = truncated or terminated or (kind == "q" and value.argmax() != int(a["action"]))
        for stepper in learner._steppers.values():
            assert any(bool(z.any()) for z in stepper.traces) != ended
    assert seen == {(False, False), (True, False), (False, True)}
    assert isinstance(learner, Learner)


def test_the_policy_follows_its_traces_and_its_entropy():
    """One step from the start is `size delta` along the gradient of `log pi + coef sign(delta) H`."""
    learner, data = make("ac", spec=BOX, entropy_coef=0.5), one(3, spec=BOX)
    batch = learner.prepare({"trajectories": [data]}, progress=0.0)
    twin = make("ac", spec=BOX, entropy_coef=0.5)
    twin.load_state_dict(learner.state_dict())
    metrics = learner.update(batch).metrics
    twin.net.load_state_dict({k: v for k, v in learner.params().items() if "normalisers" in k}, strict=False)
    scores, value, following = twin.net.unroll(batch)
    logprob, entropy = twin.net.evaluate_scores(scores, batch["action"])
    alive = (~batch["terminated"]).float()
    delta = (batch["rewards/env"] + 0.99 * alive * following - value).item()
    params = [*twin.net.body.actor.parameters(), twin.net.log_std]
    grads = torch.autograd.grad((logprob + 0.5 * np.sign(delta) * entropy).sum(), params)
    now = [*learner.net.body.actor.parameters(), learner.net.log_std]
    for old, new, grad in zip(params, now, grads, strict=True):
        torch.testing.assert_close(new, old + metrics["step_size/policy"] * delta * grad, atol=1e-6, rtol=1e-4)


def test_initial_weights_are_sparse_and_small():
    weight = sparse_weights(40, 30, torch.Generator().manual_seed(0))
    assert ((weight == 0.0).sum(1) == 36).all()
    assert weight.abs().max() <= 1.0 / np.sqrt(40)


def test_log_probabilities_are_those_of_epsilon_greedy():
    net = StreamQNet(DISCRETE, NET, seed=0)
    net.epsilon.fill_(0.3)
    rows = rl.Batch(obs=torch.randn(200, 3), noise=torch.rand(200, 2))
    reply = net.act(rows)
    best = net.act(rows, greedy=True)["action"] == reply["action"]
    expected = torch.where(best, 0.85, 0.15).log()
    torch.testing.assert_close(reply["logprob"], expected)
    assert 0.7 < best.float().mean() < 0.95


@pytest.mark.parametrize("kind", ["ac", "q"])
def test_resume_is_bit_identical(kind):
    first, second = make(kind), make(kind, seed=4)
    for i in range(5):
        step(first, one(i))
    second.load_state_dict(first.state_dict())
    for i in range(5, 12):
        assert step(first, one(i)).metrics == step(second, one(i)).metrics
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_batches_and_settings_are_refused():
    data = one(1)
    data.arrays["rewards/env"][0] = float("nan")
    with pytest.raises(NonFiniteError, match="rewards/env"):
        step(make("ac"), data)
    with pytest.raises(ConfigError, match="one step of one environment"):
        step(make("q"), make_segment(0, num_steps=2, num_envs=1))
    for config in (StreamConfig(lr=0.0), StreamConfig(kappa_value=0.0), StreamACConfig(entropy_coef=-1.0)):
        with pytest.raises(ConfigError, match=r"stream\."):
            config.check("stream")
    with pytest.raises(ConfigError, match="num_envs"):
        rl.train("stream_ac", num_envs=2, total_updates=1)
    with pytest.raises(ConfigError, match="discrete"):
        rl.train("stream_q", env="Pendulum-v1", total_updates=1)
