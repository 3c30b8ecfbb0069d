"""Networks: shapes, seeds, leaf order, exploration, normalisation."""

import numpy as np
import pytest
import torch
from torch import nn

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig, flatten_leaves
from runnel.nets.q_nets import QNet

DISCRETE = EnvSpec({"obs": ArraySpec((4,))}, ActionSpec("discrete", num_actions=3))
BOX = EnvSpec({"obs": ArraySpec((4,))}, ActionSpec("continuous", shape=(2, 1), low=(-1.0, -1.0), high=(1.0, 1.0)))


def rows(num=6, seed=0, noise=1):
    generator = torch.Generator().manual_seed(seed)
    return Batch(obs=torch.randn(num, 4, generator=generator), noise=torch.rand(num, noise, generator=generator))


def make(spec=DISCRETE, seed=0, **kwargs):
    return ActorCritic(spec, build_body(spec, NetConfig(), seed=seed), **kwargs)


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, two, other = make(seed=1), make(seed=1), make(seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.body.nets.weight[0], other.body.nets.weight[0])


def test_orthogonal_gains():
    body = build_body(DISCRETE, NetConfig(), seed=0)
    hidden, head, value = body.nets.weight[1][0], body.nets.weight[2], body.nets.weight[3]
    torch.testing.assert_close(hidden @ hidden.T, 2.0 * torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(head.T @ head, 1e-4 * torch.eye(3), atol=1e-7, rtol=0)
    assert value.norm().item() == pytest.approx(1.0)
    assert all(not bias.any() for bias in body.nets.bias)


def test_leaves_are_joined_in_key_order_and_cast():
    leaves = sorted({"obs/b": ArraySpec((2, 1), torch.uint8), "obs/a": ArraySpec(())}.items())
    flat = flatten_leaves({"obs/b": torch.tensor([[[2], [3]]], dtype=torch.uint8), "obs/a": torch.tensor([1.0])}, leaves)
    assert flat.tolist() == [[1.0, 2.0, 3.0]]


def test_discrete_act_evaluate_and_value_agree():
    net, batch = make(), rows()
    answer = net.act(batch)
    logprob, entropy = net.evaluate(batch, answer["action"])
    torch.testing.assert_close(answer["logprob"], logprob)
    assert answer["action"].dtype == torch.int64
    assert entropy.shape == net.value(batch).shape == (6,)
    assert torch.equal(net.act(batch, greedy=True)["action"], net.body.policy(batch).argmax(-1))


def test_continuous_actions_keep_their_shape_and_the_mean_is_the_mode():
    net, batch = make(BOX), rows(noise=2)
    answer = net.act(batch)
    assert answer["action"].shape == (6, 2, 1)
    torch.testing.assert_close(net.evaluate(batch, answer["action"])[0], answer["logprob"])
    torch.testing.assert_close(net.act(batch, greedy=True)["action"].flatten(1), net.body.policy(batch))
    assert net.noise_size == 2
    assert "log_std" in net.state_dict()


def test_answers_do_not_depend_on_neighbours_and_the_mask_holds():
    net, batch = make(), rows(50)
    whole = net.act(batch)
    torch.testing.assert_close(net.act(batch.map(lambda x: x[10:11]))["logprob"], whole["logprob"][10:11])
    batch["action_mask"] = torch.tensor([False, True, True]).expand(50, 3)
    assert net.act(batch)["action"].min() >= 1
    assert net.act(batch, greedy=True)["action"].min() >= 1


def test_normalisation_is_published_and_used():
    net, batch = make(normalise_obs=True), rows(100)
    before = net.value(batch)
    torch.testing.assert_close(before, make().value(batch))
    net.update_statistics(batch, SingleProcess())
    keys = [k for k in net.state_dict() if k.startswith("normalisers")]
    assert keys == ["normalisers.obs.mean", "normalisers.obs.var", "normalisers.obs.count"]
    obs = batch["obs"]
    expected = net.body.value({"obs": (obs - obs.mean(0)) / obs.std(0, correction=0)})
    torch.testing.assert_close(net.value(batch), expected, atol=1e-5, rtol=1e-4)


def test_a_users_network_plugs_in():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 3))

        def policy(self, obs):
            return obs["obs"] @ self.w

        def value(self, obs):
            return obs["obs"].sum(-1)

    answer = ActorCritic(DISCRETE, Mine()).act(rows())
    torch.testing.assert_close(answer["logprob"].exp(), torch.full((6,), 1 / 3))


def test_q_net_explores_at_its_rate_among_allowed_actions():
    net = QNet(DISCRETE, NetConfig(), seed=0)
    generator = np.random.default_rng(0)
    batch = Batch(obs=torch.zeros(4000, 4), noise=torch.from_numpy(generator.random((4000, 2), dtype=np.float32)))
    net.epsilon.fill_(0.6)
    best = net.act(batch, greedy=True)["action"][0].item()
    share = (net.act(batch)["action"] == best).float().mean().item()
    assert share == pytest.approx(0.4 + 0.6 / 3, abs=0.03)
    batch["action_mask"] = torch.tensor([True, False, True]).expand(4000, 3)
    net.epsilon.fill_(1.0)
    counts = torch.bincount(net.act(batch)["action"], minlength=3) / 4000
    assert counts[1] == 0
    assert counts[0].item() == pytest.approx(0.5, abs=0.03)
    assert "epsilon" in net.state_dict()


def test_impossible_networks_say_so():
    with pytest.raises(ConfigError, match="discrete"):
        QNet(BOX, NetConfig(), seed=0)
    with pytest.raises(ConfigError, match=r"net\.hidden"):
        build_body(DISCRETE, NetConfig(hidden=(0,)), seed=0)
