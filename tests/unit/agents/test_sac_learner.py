"""SACLearner: errors and gradients against numpy, the temperature, the targets, exact resume; continuous and discrete."""

import copy
import math

import numpy as np
import pytest
import torch
from replay_segments import BOX, CHOICE, MASKED, numpy_mlp, segment

from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Header, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.data.replay import replay_stream
from runnel.nets.continuous import CategoricalActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig
from runnel.ops.distributions import squashed_gaussian

NET = NetConfig(hidden=(16, 16), activation="relu")


def make(config=None, spec=BOX, seed=0):
    actor = (CategoricalActor if spec.action.kind == "discrete" else SquashedGaussianActor)(spec, NET, seed=seed)
    return SACLearner(config or SACConfig(), actor, QEnsemble(spec, NET, seed=seed), seed=seed)


def step(learner, data, progress=0.0):
    return learner.update(learner.prepare({"replay": [data]}, progress=progress))


def same(generator):
    """A generator that will draw what this one will draw."""
    return torch.Generator().set_state(generator.get_state())


def numpy_errors(learner, a):
    """|Q - y| averaged over both critics, with the noise that the learner will draw."""
    z = torch.randn(len(a["discount"]), 2, generator=same(learner._generator)).double().numpy()
    mean, log_std = np.split(numpy_mlp(learner.actor.head, a["next_obs"].numpy()), 2, axis=-1)
    log_std = np.clip(log_std, -20.0, 2.0)
    x = mean + np.exp(log_std) * z
    following = np.tanh(x)
    logprob = (-0.5 * z**2 - log_std - 0.5 * np.log(2.0 * np.pi) - np.log1p(-(following**2))).sum(-1)
    state = np.concatenate([a["next_obs"].numpy(), following], -1)
    best = np.minimum(*(numpy_mlp(learner.target_critic.head, state, i)[:, 0] for i in range(2)))
    alpha = math.exp(learner._log_temperature.item())
    y = a["rewards/env"].numpy() + a["discount"].numpy() * (best - alpha * logprob)
    played = (a["action"].numpy() - [0.0, 5.0]) / [2.0, 5.0]
    state = np.concatenate([a["obs"].numpy(), played], -1)
    return np.mean([np.abs(numpy_mlp(learner.critic.head, state, i)[:, 0] - y) for i in range(2)], axis=0)


def numpy_errors_discrete(learner, a):
    logits = numpy_mlp(learner.actor.head, a["next_obs"].numpy())
    logits[~a["next_action_mask"].numpy()] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    best = np.minimum(*(numpy_mlp(learner.target_critic.head, a["next_obs"].numpy(), i) for i in range(2)))
    logs = np.log(np.where(probs > 0, probs, 1.0))
    value = (probs * (best - math.exp(learner._log_temperature.item()) * logs)).sum(-1)
    y = a["rewards/env"].numpy() + a["discount"].numpy() * value
    rows = np.arange(len(y)), a["action"].numpy()
    return np.mean([np.abs(numpy_mlp(learner.critic.head, a["obs"].numpy(), i)[rows] - y) for i in range(2)], axis=0)


@pytest.mark.parametrize(("spec", "expected"), [(BOX, numpy_errors), (MASKED, numpy_errors_discrete)])
def test_errors_are_those_of_an_independent_computation(spec, expected):
    learner = make(SACConfig(critic_lr=0.05, actor_lr=0.05, tau=0.5), spec)
    for i in range(3):
        step(learner, segment(5 + i, spec=spec))
    data = segment(0, spec=spec)
    errors = expected(learner, data.arrays)
    update = step(learner, data)
    (word,) = update.feedback["replay"]
    np.testing.assert_allclose(word["priority"].numpy(), errors, atol=1e-4)
    assert torch.equal(word["index"], data.arrays["index"])
    assert isinstance(learner, Learner)


def first_steps(before, now, grads, *, lr):
    """Adam's first step is `lr` against the sign of the gradient."""
    for old, new, grad in zip(before, now, grads, strict=True):
        sure = grad.abs() > 1e-4
        assert sure.any()
        torch.testing.assert_close((new - old)[sure], -lr * grad.sign()[sure], atol=0.02 * lr, rtol=0.0)


def test_the_critics_follow_the_gradient_of_the_written_loss():
    """The mean over the batch of w (q - y)^2 / 2, summed over the critics."""
    learner, data = make(SACConfig(critic_lr=1e-3)), segment()
    probe = copy.deepcopy(learner.critic)
    batch = learner.prepare({"replay": [data]}, progress=0.0)
    z = torch.randn(len(batch["discount"]), 2, generator=same(learner._generator))
    with torch.no_grad():
        scores = learner.actor.scores({"obs": batch["next_obs"]})
        action, logprob = squashed_gaussian(*scores.chunk(2, -1), z)
        next_q = learner.target_critic.head(torch.cat([batch["next_obs"], action], -1)).squeeze(-1).min(0).values
        y = batch["rewards/env"] + batch["discount"] * (next_q - learner.config.temperature * logprob)
    pairs = torch.cat([batch["obs"], learner.actor.box.normalise(batch["action"])], -1)
    loss = sum((batch["weight"] * (q.squeeze(-1) - y).square()).mean() / 2 for q in probe.head(pairs))
    grads = torch.autograd.grad(loss, list(probe.parameters()))
    learner.update(batch)
    first_steps(probe.parameters(), learner.critic.parameters(), grads, lr=1e-3)


def test_the_actor_follows_the_gradient_of_the_written_loss():
    """temperature log pi(a | s) - min Q(s, a), by the critics after their own step."""
    learner, data = make(SACConfig(temperature=0.3)), segment(num=32)
    probe = copy.deepcopy(learner.actor)
    batch = learner.prepare({"replay": [data]}, progress=0.0)
    generator = same(learner._generator)
    _, z = (torch.randn(32, 2, generator=generator) for _ in range(2))
    learner.update(batch)
    action, logprob = squashed_gaussian(*probe.scores(batch).chunk(2, -1), z)
    q = learner.critic.head(torch.cat([batch["obs"], action], -1)).squeeze(-1)
    loss = (0.3 * logprob - q.min(0).values).mean()
    grads = torch.autograd.grad(loss, list(probe.parameters()))
    first_steps(probe.parameters(), learner.actor.parameters(), grads, lr=3e-4)


@pytest.mark.parametrize(("target", "sign"), [(2.0, 1.0), (0.0, -1.0)])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(target, sign):
    """A fresh policy has most of the 2 log 2 = 1.39 nats that two coordinates can hold."""
    learner = make(SACConfig(target_entropy=target))
    metrics = [step(learner, segment(i, num=64)).metrics for i in range(5)]
    assert metrics[0]["entropy"] == pytest.approx(1.25, abs=0.15)
    assert metrics[0]["temperature"] == 1.0
    assert sign * (metrics[-1]["temperature"] - 1.0) > 0.0


def test_the_default_target_entropy_is_the_papers_but_for_discrete_actions_which_it_would_keep_near_random_play():
    assert make().target_entropy == -2.0
    assert make(spec=CHOICE).target_entropy == pytest.approx(0.3 * math.log(3.0))
    assert make(SACConfig(entropy_share=0.98), CHOICE).target_entropy == pytest.approx(0.98 * math.log(3.0))
    assert make(SACConfig(target_entropy=-0.5)).target_entropy == -0.5
    fixed = make(SACConfig(auto_temperature=False, temperature=0.2))
    for i in range(3):
        assert step(fixed, segment(i)).metrics["temperature"] == pytest.approx(0.2)


def test_the_target_critics_follow_slowly():
    learner = make(SACConfig(tau=0.25))
    old = [p.clone() for p in learner.target_critic.parameters()]
    step(learner, segment())
    for before, now, online in zip(old, learner.target_critic.parameters(), learner.critic.parameters(), strict=True):
        torch.testing.assert_close(now, before + 0.25 * (online - before))


def test_exploration_ends_with_the_first_update():
    learner = make()
    assert learner.params()["explore"].item() == 1.0
    published = learner.params()
    step(learner, segment())
    assert learner.params() is published
    assert published["explore"].item() == 0.0
    assert not any("critic" in key or "centre" in key for key in published)


def test_metrics_may_be_read_less_often():
    learner = make(SACConfig(metrics_every=3))
    assert [bool(step(learner, segment(i)).metrics) for i in range(6)] == [False, False, True, False, False, True]


@pytest.mark.parametrize("spec", [BOX, MASKED])
def test_resume_is_bit_identical(spec):
    first, second = make(spec=spec), make(spec=spec, seed=4)
    for i in range(3):
        step(first, segment(i, spec=spec))
    second.load_state_dict(first.state_dict())
    for i in range(3, 6):
        one, two = (step(learner, segment(i, spec=spec), progress=0.5) for learner in (first, second))
        assert one.metrics == two.metrics
        assert torch.equal(one.feedback["replay"][0]["priority"], two.feedback["replay"][0]["priority"])
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_and_settings_are_refused():
    learner, data = make(), segment()
    data.arrays["next_obs"][0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="next_obs"):
        step(learner, data)
    data = segment()
    data.arrays["weight"][0] = float("nan")
    with pytest.raises(NonFiniteError, match="loss/critic"):
        step(learner, data)
    for config in (SACConfig(tau=0.0), SACConfig(batch_size=0), SACConfig(actor_lr="linear(1)"), SACConfig(temperature=0.0)):
        with pytest.raises(ConfigError, match=r"sac\."):
            config.check()


def numpy_heat(learner, a):
    """temperature (entropy - target), both means over states, each state with the entropy that its open actions allow."""
    logits, mask = numpy_mlp(learner.actor.head, a["obs"].numpy()), a["action_mask"].numpy()
    logits[~mask] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
    most = learner.config.entropy_share * np.log(mask.sum(-1))
    wanted = most if learner.config.target_entropy is None else np.minimum(most, learner.config.target_entropy)
    return math.exp(learner._log_temperature.item()) * (entropy - wanted).mean()


@pytest.mark.parametrize("target", [None, 0.4])
def test_the_target_entropy_of_a_state_is_that_of_its_open_actions(target):
    learner, data = make(SACConfig(target_entropy=target), MASKED), segment(0, num=64, spec=MASKED)
    open_actions = data.arrays["action_mask"].sum(-1)
    assert set(open_actions.tolist()) == {1, 2, 3}
    expected = numpy_heat(learner, data.arrays)
    assert step(learner, data).metrics["loss/temperature"] == pytest.approx(expected, abs=1e-5)


def test_where_there_is_no_choice_the_temperature_stays():
    learner, data = make(spec=MASKED), segment(0, spec=MASKED)
    data.arrays["action_mask"].copy_(torch.eye(3, dtype=torch.bool)[data.arrays["action"]])
    told = [step(learner, data).metrics for _ in range(20)]
    assert told[-1]["temperature"] == told[0]["temperature"] == 1.0


def test_masks_do_not_make_the_temperature_run_away():
    """A bandit of 8 arms, 4 of them open: arm a pays a / 7. All its states together have half the entropy of all arms."""
    spec = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=8), has_mask=True)
    learner, rng = make(SACConfig(actor_lr=3e-3, critic_lr=1e-2, entropy_share=0.98), spec), make_rng(0, "bandit")
    stream = replay_stream(spec, batch_size=64)
    for _ in range(400):
        arrays = stream.allocate()
        open_arms = torch.from_numpy(rng.permuted(np.tile(np.arange(8) < 4, (64, 1)), axis=1))
        arrays["obs"].fill_(1.0), arrays["weight"].fill_(1.0), arrays["next_action_mask"].fill_(True)
        arrays["action_mask"].copy_(open_arms)
        arrays["action"].copy_(torch.multinomial(open_arms.float(), 1, generator=learner._generator).squeeze(-1))
        arrays["rewards/env"].copy_(arrays["action"] / 7.0)
        metrics = step(learner, Segment(0, stream, Header(), arrays)).metrics
    assert metrics["temperature"] < 2.0
    assert metrics["entropy"] == pytest.approx(0.98 * math.log(4.0), abs=0.05)
    best = learner.actor.act(Batch(obs=torch.ones(64, 1), action_mask=open_arms), greedy=True)["action"]
    assert torch.equal(best, 7 - open_arms.flip(-1).int().argmax(-1))


def test_an_entropy_that_no_policy_has_is_refused():
    with pytest.raises(ConfigError, match=r"sac.target_entropy.*3 actions have at most 1.0986 nats"):
        make(SACConfig(target_entropy=1.2), CHOICE)
