"""QNet: heads, dueling, numpy and torch acting, recurrent unrolling against single steps."""

import numpy as np
import pytest
import torch

from runnel.core.batch import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.mlp import NetConfig
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
def test_acting_in_numpy_is_acting_in_torch(head, dueling, masked, monkeypatch):
    net, rng = make(dueling=dueling, **head), np.random.default_rng(0)
    net.epsilon.fill_(0.4)
    rows = Batch(
        obs=torch.from_numpy(rng.normal(size=(200, 3)).astype(np.float32)),
        noise=torch.from_numpy(rng.random((200, 2), np.float32)),
    )
    if masked:
        rows["action_mask"] = torch.from_numpy(rng.random((200, 4)) < 0.6)
        rows["action_mask"][:, 2] = True
    with torch.inference_mode():
        fast = [net.act(rows)["action"], net.act(rows, greedy=True)["action"]]
        monkeypatch.setattr("runnel.nets.host.HOST_ROWS", 0)
        slow = [net.act(rows)["action"], net.act(rows, greedy=True)["action"]]
    for one, two in zip(fast, slow, strict=True):
        assert torch.equal(one, two)
        assert one.dtype == two.dtype == torch.int64
        assert not masked or rows["action_mask"].gather(1, one[:, None]).all()
    assert len(slow[1].unique()) > 1


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
def test_the_written_gradient_is_that_of_autograd(head, dueling, spec):
    net = make(spec, dueling=dueling, **head)
    generator = torch.Generator().manual_seed(0)
    obs = {k: (torch.rand(6, *leaf.shape, generator=generator) * 5).to(leaf.dtype) for k, leaf in spec.obs.items()}
    direct = net.scores(obs)
    grad = torch.randn(direct.shape, generator=generator)
    with torch.no_grad():
        scores, tape = net.tape(obs)
        found = net.backward(tape, grad)
    torch.testing.assert_close(scores, direct)
    for ours, theirs in zip(found, torch.autograd.grad(direct, list(net.parameters()), grad), strict=True):
        torch.testing.assert_close(ours, theirs)
