"""Behaviour cloning: its loss and its step against numpy, masks, statistics of observations, exact resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replay_segments import BOX, CHOICE, MASKED

from runnel.agents.bc import BCConfig, BCLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Header, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import EnvSpec
from runnel.data.offline import imitation_stream
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16))


def make(spec: EnvSpec = CHOICE, *, seed: int = 0, **settings: object) -> BCLearner:
    config = BCConfig(**settings)  # type: ignore[arg-type]
    return BCLearner(config, ActorCritic(spec, build_body(spec, NET, seed=seed), normalise_obs=config.normalise_obs))


def rows(spec: EnvSpec, num: int = 12, seed: int = 0) -> Segment:
    stream, rng = imitation_stream(spec, batch_size=num), make_rng(seed, "rows")
    arrays = stream.allocate()
    arrays["obs"].copy_(torch.from_numpy(rng.normal(2.0, 3.0, (num, 3))))
    if spec.action.kind == "discrete":
        arrays["action"].copy_(torch.from_numpy(rng.integers(0, 3, num)))
    else:
        arrays["action"].copy_(torch.from_numpy(rng.normal(size=(num, 2))))
    if spec.has_mask:
        arrays["action_mask"].copy_(torch.from_numpy(rng.random((num, 3)) < 0.5))
        arrays["action_mask"].scatter_(1, arrays["action"].unsqueeze(-1), True)
    return Segment(0, stream, Header(version_min=-1, version_max=-1), arrays)


def step(learner: BCLearner, data: Segment) -> dict[str, float]:
    return learner.update(learner.prepare({"offline": [data]}, progress=0.0)).metrics


def scores(learner: BCLearner, obs: np.ndarray) -> np.ndarray:
    """The actor's outputs by matrix products in float64."""
    layers, x = learner.net.body.nets, obs.astype(np.float64)
    for i, (w, b) in enumerate(zip(layers.weight[:2], layers.bias[:2], strict=True)):
        x = np.tanh(x @ w[0].detach().double().numpy() + b[0].detach().double().numpy())
        assert i < 2
    return x @ layers.weight[2].detach().double().numpy() + layers.bias[2].detach().double().numpy()


@pytest.mark.parametrize("spec", [CHOICE, MASKED], ids=["plain", "masked"])
def test_discrete_actions_have_the_cross_entropy_of_what_was_done(spec: EnvSpec) -> None:
    learner, data = make(spec, normalise_obs=False), rows(spec)
    logits = scores(learner, data.arrays["obs"].numpy())
    if spec.has_mask:
        logits[~data.arrays["action_mask"].numpy()] = -np.inf
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    due = -logprobs[np.arange(12), data.arrays["action"].numpy()].mean()
    found = step(learner, data)
    assert found["loss/imitation"] == pytest.approx(due, rel=1e-5)
    probs = np.exp(logprobs)
    entropy = -np.where(probs > 0, probs * np.where(probs > 0, logprobs, 0.0), 0.0).sum(-1).mean()
    assert found["entropy"] == pytest.approx(entropy, rel=1e-5)


def test_continuous_actions_have_the_likelihood_of_a_gaussian() -> None:
    learner, data = make(BOX, normalise_obs=False), rows(BOX)
    with torch.no_grad():
        learner.net.log_std.copy_(torch.tensor([0.3, -0.7]))
    mean, std = scores(learner, data.arrays["obs"].numpy()), np.exp([0.3, -0.7])
    z = (data.arrays["action"].numpy() - mean) / std
    due = (0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)).sum(-1).mean()
    assert step(learner, data)["loss/imitation"] == pytest.approx(due, rel=1e-5)


def test_the_best_mean_and_deviation_are_those_of_the_data() -> None:
    """Without inputs that tell anything, the likelihood is greatest at the actions' own mean and deviation."""
    learner, data = make(BOX, normalise_obs=False, lr=0.02), rows(BOX, 64)
    data.arrays["obs"].zero_()
    for _ in range(600):
        step(learner, data)
    actions = data.arrays["action"].double().numpy()
    np.testing.assert_allclose(scores(learner, np.zeros((1, 3)))[0], actions.mean(0), atol=0.02)
    np.testing.assert_allclose(learner.net.log_std.exp().detach().numpy(), actions.std(0), atol=0.02)


def test_observations_are_scaled_by_what_was_seen_and_the_policy_keeps_it() -> None:
    learner, data = make(), rows(CHOICE, 2_000)
    step(learner, data)
    statistics = learner.net.normalisers["obs"]
    np.testing.assert_allclose(statistics.mean.numpy(), data.arrays["obs"].double().numpy().mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.var.numpy(), data.arrays["obs"].double().numpy().var(0), rtol=1e-6)
    assert {name for name in learner.params() if "normalisers" in name}


def test_the_critic_is_not_touched() -> None:
    learner = make()
    before = [x[1].clone() for x in (*learner.net.body.nets.weight[:2], *learner.net.body.nets.bias[:2])]
    for seed in range(5):
        step(learner, rows(CHOICE, seed=seed))
    after = [x[1] for x in (*learner.net.body.nets.weight[:2], *learner.net.body.nets.bias[:2])]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_it_goes_on_exactly_from_its_state() -> None:
    one, two = make(), make(seed=9)
    for seed in range(3):
        step(one, rows(CHOICE, seed=seed))
    two.load_state_dict(one.state_dict())
    for seed in range(3, 6):
        assert step(one, rows(CHOICE, seed=seed)) == step(two, rows(CHOICE, seed=seed))
    assert all(torch.equal(a, two.params()[name]) for name, a in one.params().items())
    assert isinstance(one, Learner)


def test_numbers_that_are_not_finite_stop_the_run_before_a_step() -> None:
    learner, data = make(BOX), rows(BOX)
    before = {name: x.clone() for name, x in learner.net.named_parameters()}
    data.arrays["action"][3, 0] = np.nan
    with pytest.raises(NonFiniteError, match="loss/imitation"):
        step(learner, data)
    assert all(torch.equal(x, before[name]) for name, x in learner.net.named_parameters())


def test_settings_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bc\.batch_size = 0"):
        make(batch_size=0)


def test_a_batch_of_several_segments_is_one_batch() -> None:
    learner = make()
    batch = learner.prepare({"offline": [rows(CHOICE, 4), rows(CHOICE, 5)]}, progress=0.0)
    assert isinstance(batch, Batch)
    assert len(batch["action"]) == 9
