"""QNet: heads, dueling, acting against numpy, recurrent unrolling against single steps, gradients."""

import numpy as np
import pytest
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.layers import NetConfig
from runnel.nets.q_nets import QNet

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=4))
PIXELS = EnvSpec({"obs/image": ArraySpec((2, 10, 10), torch.uint8), "obs/x": ArraySpec((3,))}, SPEC.action)
HEADS = [{}, {"num_atoms": 7, "v_min": -2.0, "v_max": 3.0}]


def make(spec=SPEC, **kwargs):
    config = NetConfig(hidden=(8, 6), activation="relu", core=kwargs.pop("core", "none"), core_size=5)
    return QNet(spec, config, seed=1, **kwargs)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_acting_is_the_best_allowed_action_or_one_by_the_noise(head, dueling, masked):
    net, rng = make(dueling=dueling, **head), np.random.default_rng(0)
    net.epsilon.fill_(0.4)
    rows = Batch(
        obs=torch.from_numpy(rng.normal(size=(200, 3)).astype(np.float32)),
        noise=torch.from_numpy(rng.random((200, 2), np.float32)),
    )
    mask = rng.random((200, 4)) < 0.6 if masked else np.ones((200, 4), bool)
    mask[:, 2] = True
    if masked:
        rows["action_mask"] = torch.from_numpy(mask)
    with torch.inference_mode():
        greedy, played = net.act(rows, greedy=True)["action"], net.act(rows)["action"]
        q = np.where(mask, net.q(rows).numpy(), -np.inf)
    assert greedy.dtype == played.dtype == torch.int64
    assert greedy.tolist() == q.argmax(-1).tolist()
    allowed, (explore, pick) = [np.flatnonzero(row) for row in mask], rows["noise"].numpy().T
    random = [open_ones[int(u * len(open_ones))] for open_ones, u in zip(allowed, pick, strict=True)]
    assert played.tolist() == np.where(explore < 0.4, random, greedy.numpy()).tolist()
    assert len(greedy.unique()) > 1


def test_q_is_the_mean_of_its_distribution():
    net, obs = make(num_atoms=3, v_min=-1.0, v_max=1.0), torch.randn(5, 3)
    probs = net.scores({"obs": obs}).softmax(-1)
    torch.testing.assert_close(net.q({"obs": obs}), probs[..., 2] - probs[..., 0])
    assert net.scores({"obs": obs}).shape == (5, 4, 3)


def test_dueling_subtracts_the_mean_advantage():
    net, obs = make(dueling=True), torch.randn(5, 3)
    value, advantage = net.head(obs)
    q = net.q({"obs": obs})
    torch.testing.assert_close(q, value + advantage - advantage.mean(-1, keepdim=True))
    torch.testing.assert_close(q.mean(-1, keepdim=True), value)


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("spec", [SPEC, PIXELS])
def test_unrolling_is_stepping_with_resets(core, spec):
    net = make(spec, core=core, num_atoms=3, v_max=1.0)
    generator = torch.Generator().manual_seed(0)
    obs = {k: (torch.rand(6, 2, *leaf.shape, generator=generator) * 5).to(leaf.dtype) for k, leaf in spec.obs.items()}
    state = {k: torch.randn(2, *leaf.shape, generator=generator) for k, leaf in net.state_spec.items()}
    resets = torch.rand(6, 2, generator=generator) < 0.4
    scores, after = net.unroll(obs, state, resets)
    for t in range(6):
        state = {k: x * ~resets[t, :, None] for k, x in state.items()}
        rows = Batch({**{k: x[t] for k, x in obs.items()}, **state})
        answer = net.act(rows, greedy=True)
        out, state = net.step(rows, state)
        torch.testing.assert_close(scores[t], out)
        assert torch.equal(answer["action"], net.expected(out).argmax(-1))
        for key in state:
            torch.testing.assert_close(after[key][t], state[key])
            assert torch.equal(answer[key], state[key])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("spec", [SPEC, PIXELS])
def test_gradients_are_those_of_plain_layers(head, dueling, spec):
    """Scores and the gradient of every weight, against the same network written in products, copy by copy."""
    net = make(spec, dueling=dueling, **head)
    generator = torch.Generator().manual_seed(0)
    obs = {k: (torch.rand(6, *leaf.shape, generator=generator) * 5).to(leaf.dtype) for k, leaf in spec.obs.items()}
    found = net.scores(obs)
    x, (*trunk, last) = net.torso(obs), list(zip(net.head.weight, net.head.bias, strict=True))
    lasts = [trunk.pop(), last] if dueling else [last]
    outs = []
    for i, (w, b) in enumerate(lasts):
        h = x
        for weight, bias in trunk:
            h = (h @ (weight[i] if dueling else weight) + (bias[i] if dueling else bias)).relu()
        outs.append(h @ w + b)
    advantage = outs[-1].view(6, 4, -1)
    expected = outs[0][:, None] + advantage - advantage.mean(1, keepdim=True) if dueling else advantage
    torch.testing.assert_close(found, expected)
    grad = torch.randn(found.shape, generator=generator)
    grads = [torch.autograd.grad(out, list(net.parameters()), grad, retain_graph=True) for out in (found, expected)]
    assert all(g.abs().sum() > 0 for g in grads[0])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)
