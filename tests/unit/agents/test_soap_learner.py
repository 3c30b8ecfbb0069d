"""SOAPLearner: the belief by Bayes' rule, credit against backpropagation through time and a loop, PPO as the case of one
option, exact resume."""

import numpy as np
import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED, credit_loop, make_segment

import runnel as rl
from runnel.agents.ppo import PPOConfig
from runnel.agents.soap import SOAPLearner, option_credit
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError
from runnel.nets.layers import NetConfig
from runnel.nets.options import OptionNet

NET = NetConfig(hidden=(16,))
PPO = PPOConfig(num_minibatches=2, num_epochs=2, lr=3e-3, normalise_advantage=False)


def make(seed=0, *, num_options=3, spec=DISCRETE, config=PPO):
    return SOAPLearner(config, OptionNet(spec, NET, num_options=num_options, seed=seed), seed=seed)


def segment(seed=0, *, num_options=3, spec=DISCRETE):
    state = OptionNet(spec, NET, num_options=num_options, seed=0).state_spec
    data = make_segment(seed, spec=spec, state=state)
    belief = torch.rand(4, num_options, generator=torch.Generator().manual_seed(seed))
    belief[0] = 0.0  # an episode begins
    data.arrays["state/belief"].copy_(belief / belief.sum(-1, keepdim=True).clamp(min=1e-9))
    return data


def prepare(learner, data):
    return learner.prepare({"trajectories": [data]}, progress=0.0)


def test_the_belief_follows_bayes_rule_in_numpy():
    net = OptionNet(DISCRETE, NET, num_options=3, seed=1)
    rows = rl.Batch({"obs": torch.randn(5, 3), "noise": torch.rand(5, 2), "state/belief": torch.rand(5, 3).softmax(-1)})
    reply = net.act(rows)
    out = net.outputs(rows)
    pi, psi = out.scores.softmax(-1).detach().numpy(), out.log_next.exp().detach().numpy()
    belief, action = rows["state/belief"].numpy(), reply["action"].numpy()
    for b in range(5):
        joint = belief[b][:, None] * pi[b, :, action[b]][:, None] * psi[b]
        assert reply["logprob"][b].item() == pytest.approx(np.log(joint.sum()), abs=1e-5)
        np.testing.assert_allclose(reply["state/belief"][b].detach().numpy(), joint.sum(0) / joint.sum(), atol=1e-6)


def test_actions_are_drawn_from_the_mixture():
    net = OptionNet(DISCRETE, NET, num_options=2, seed=3)
    belief = torch.tensor([[0.3, 0.7]]).repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)
    rows = rl.Batch({"obs": torch.ones(4000, 3), "noise": torch.rand(4000, 2, generator=generator), "state/belief": belief})
    pi = net.outputs(rows).scores.softmax(-1)[0, :, 1]
    assert net.act(rows)["action"].float().mean().item() == pytest.approx((0.3 * pi[0] + 0.7 * pi[1]).item(), abs=0.02)


def made_roll(num_steps=7, num_envs=2, num_options=3):
    generator = torch.Generator().manual_seed(0)
    shape = (num_steps, num_envs, num_options)
    drawn = {k: torch.randn(*shape, generator=generator, dtype=torch.float64) for k in ("values", "next_values")}
    logits = torch.randn(*shape, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    options = torch.randn(*shape, num_options, generator=generator, dtype=torch.float64, requires_grad=True)
    rewards = torch.randn(*shape[:2], generator=generator, dtype=torch.float64)
    action = torch.randint(0, 2, shape[:2], generator=generator)
    terminated, truncated = (torch.zeros(shape[:2], dtype=torch.bool) for _ in range(2))
    terminated[2, 0] = truncated[3, 1] = True
    logprob = logits.log_softmax(-1).gather(-1, action[..., None, None].expand(*shape, 1)).squeeze(-1)
    log_next, over = options.log_softmax(-1), terminated | truncated
    belief, beliefs, log_alphas = torch.full(shape[1:], 1 / num_options, dtype=torch.float64), [], []
    for t in range(num_steps):
        beliefs.append(belief)
        belief, log_alpha = OptionNet.move(belief, logprob[t], log_next[t])
        belief = torch.where(over[t].unsqueeze(-1), 1 / num_options, belief)
        log_alphas.append(log_alpha)
    return (
        drawn,
        (logits, options),
        rewards,
        (terminated, truncated),
        (torch.stack(beliefs), torch.stack(log_alphas), logprob, log_next),
    )


def credit_of(drawn, rewards, ends, roll):
    beliefs, log_alpha, logprob, log_next = (x.detach() for x in roll)
    lift = (logprob - log_alpha.unsqueeze(-1)).exp()
    return option_credit(rewards, *drawn.values(), beliefs, lift, log_next.exp(), *ends, gamma=0.9, lam=0.8)


def test_the_credit_is_backpropagation_through_the_beliefs():
    """The gradient of `sum zeta / alpha G P` is that of `sum_t A_t log alpha_t` through all of time, with `A_t` the mean of the
    options' advantages: a policy gradient whose memory is differentiated, too."""
    drawn, leaves, rewards, ends, roll = made_roll()
    found = credit_of(drawn, rewards, ends, roll)
    beliefs, log_alpha, logprob, log_next = roll
    advantage = (beliefs.detach() * found.advantage).sum(-1)
    through_time = torch.autograd.grad((advantage * log_alpha).sum(), leaves, retain_graph=True)
    joint = (logprob - log_alpha.detach().unsqueeze(-1)).unsqueeze(-1).add(log_next).exp()
    local = torch.autograd.grad((beliefs.detach().unsqueeze(-1) * found.ending.unsqueeze(-2) * joint).sum(), leaves)
    for a, b in zip(local, through_time, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)
        assert a.abs().max() > 0.1


def test_advantages_are_those_of_a_loop_over_options():
    drawn, _, rewards, (terminated, truncated), roll = made_roll()
    found, psi = credit_of(drawn, rewards, (terminated, truncated), roll).advantage, roll[3].exp().detach()
    later = np.zeros((2, 3))
    for t in reversed(range(7)):
        now = np.zeros((2, 3))
        for b in range(2):
            over = bool(terminated[t, b] | truncated[t, b])
            for z in range(3):
                for y in range(3):
                    following = 0.0 if terminated[t, b] else drawn["next_values"][t, b, y].item()
                    ahead = 0.0 if over else later[b, y]
                    delta = rewards[t, b].item() + 0.9 * following + 0.72 * ahead - drawn["values"][t, b, z].item()
                    now[b, z] += psi[t, b, z, y].item() * delta
        np.testing.assert_allclose(found[t].numpy(), now, atol=1e-9)
        later = now


def test_one_option_has_the_credit_of_ppo():
    learner, data = make(num_options=1), segment(2, num_options=1)
    batch = prepare(learner, data)

    class Plain:
        def value(self, obs):
            return learner.net.outputs(obs).value.squeeze(-1)

        def evaluate(self, obs, action, mask):
            return (torch.zeros(action.shape),)

    targets, advantages = credit_loop(Plain(), data, gamma=PPO.gamma, lam=PPO.gae_lambda)
    np.testing.assert_allclose(batch["advantage"].view(8, 4).numpy(), advantages, atol=1e-5)
    np.testing.assert_allclose(batch["option_return"].view(8, 4).numpy(), targets, atol=1e-5)


@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED], ids=["discrete", "box", "masked"])
def test_it_learns_from_every_kind_of_action(spec):
    learner = make(spec=spec)
    batch = prepare(learner, segment(spec=spec))
    first = learner.loss(batch)
    assert first["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert first["clip_fraction"].item() == 0.0
    metrics = learner.update(batch).metrics
    assert metrics["loss/total"] != 0.0
    assert isinstance(learner, Learner)


def test_resume_is_bit_identical():
    first, second = make(), make(seed=4)
    for i in range(2):
        first.update(prepare(first, segment(i)))
    second.load_state_dict(first.state_dict())
    for i in range(2, 5):
        assert first.update(prepare(first, segment(i))).metrics == second.update(prepare(second, segment(i))).metrics


def test_settings_without_a_place_are_refused():
    for given, field in [
        ({"num_options": 0}, "num_options"),
        ({"ppo": {"dual_clip": 2.0}}, "dual_clip"),
        ({"net": {"core": "gru"}}, "net.core"),
    ]:
        with pytest.raises(ConfigError, match=field):
            rl.train("soap", total_updates=1, **given)
