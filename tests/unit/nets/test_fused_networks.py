"""The fused kernels against the network in torch: actions, values, gradients, optimiser steps, and populations."""

import pytest
import torch

from runnel.core.batch import Batch
from runnel.core.protocols import OneProcess
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.losses.actor_critic import ppo_gradient
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.bodies import build_body
from runnel.nets.fused import Fused, can_fuse, fuse
from runnel.nets.mlp import NetConfig
from runnel.ops.optimise import Adam

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ACTIONS = {"discrete": ActionSpec("discrete", num_actions=5), "continuous": ActionSpec("continuous", (3,))}
COEFS = {"clip": 0.2, "dual_clip": None, "value_clip": None, "value_coef": 0.5, "entropy_coef": 0.01}


def make(kind, *, width=6, seed=0, fused=True, **net):
    spec = EnvSpec({"obs": ArraySpec((width,))}, ACTIONS[kind])
    return ActorCritic(spec, build_body(spec, NetConfig(**net), seed=seed), fused=fused)


def made_rows(net, n, *, device="cuda"):
    rows = Batch(obs=torch.randn(n, 6, device=device), noise=torch.rand(n, net.noise_size, device=device))
    with torch.no_grad():
        answer = net.act(rows)
    rows |= {"action": answer["action"], "logprob": answer["logprob"] + 0.2 * torch.randn(n, device=device)}
    return rows | {k: torch.randn(n, device=device) for k in ("advantage", "return", "value")}


def test_on_the_host_nothing_is_fused():
    net = make("discrete")
    assert not can_fuse(net)
    assert fuse(net) is None
    assert net.kernels() is None
    with torch.no_grad():
        assert torch.equal(net.value({"obs": torch.ones(3, 6)}), make("discrete", fused=False).value({"obs": torch.ones(3, 6)}))


@cuda
@pytest.mark.cuda
def test_what_the_kernels_serve():
    assert can_fuse(make("discrete").cuda())
    assert fuse(make("discrete").cuda()) is None  # parameters do not lie side by side yet
    for net in ({"activation": "silu"}, {"hidden": (64,)}, {"hidden": (128, 64)}, {"shared": True}, {"core": "gru"}):
        assert not can_fuse(make("discrete", **net).cuda())


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("clips", [(None, None), (1.5, 0.2)])
def test_the_same_numbers_as_in_torch(kind, activation, clips):
    torch.manual_seed(0)
    net, plain = (make(kind, activation=activation, hidden=(64, 32), fused=f).cuda() for f in (True, False))
    adam, other = Adam(net.parameters(), lr=1e-3), Adam(plain.parameters(), lr=1e-3)
    adam.on_device()[0].add_(0.1 * torch.randn_like(adam.on_device()[0]))
    other.on_device()[0].copy_(adam.on_device()[0])
    n, total = 2000, adam.on_device()[0].numel()
    rows = made_rows(plain, n)
    with torch.no_grad():
        got, want = net.act(rows), plain.act(rows)
        assert torch.allclose(net.value(rows), plain.value(rows), atol=1e-2)
    assert isinstance(net.kernels(), Fused)
    assert plain.kernels() is None
    same = (got["action"] == want["action"]) if kind == "discrete" else torch.ones(n, dtype=torch.bool, device="cuda")
    assert same.float().mean() > 0.99
    assert torch.allclose(got["logprob"][same], want["logprob"][same], atol=1e-2)
    if kind == "continuous":
        assert torch.allclose(got["action"], want["action"], atol=1e-2)
    order, coefs = torch.randperm(n, device="cuda"), COEFS | {"dual_clip": clips[0], "value_clip": clips[1]}
    with torch.no_grad():
        part = {k: x[order[300:1500]] for k, x in rows.items()}
        scores, values, tape = plain.tape(part)
        slope = ppo_gradient(scores, values, plain.log_std, rows=part, denominator=1200, **coefs)
        want_grad = torch.cat([g.reshape(-1) for g in plain.backward(tape, slope.to_scores, slope.to_values, slope.to_log_std)])
        report = net.kernels().step(rows, order, rows=(300, 1500), optimiser=adam, max_norm=0.5, **coefs)
    assert (net.kernels().grad[0, :total] - want_grad).norm() < 0.02 * want_grad.norm()
    assert torch.allclose(report[0, :6], slope.numbers, atol=0.02)
    assert torch.allclose(report[0, 6], want_grad.norm(), rtol=0.02)


@cuda
@pytest.mark.cuda
def test_adam_steps_as_in_torch():
    torch.manual_seed(0)
    net, plain = make("discrete").cuda(), make("discrete", fused=False).cuda()
    adam, other = (Adam(x.parameters(), lr=1e-2, eps=1e-5) for x in (net, plain))
    rows, order = made_rows(plain, 1024), torch.randperm(1024, device="cuda")
    for _ in range(3):
        report = net.kernels().step(rows, order, rows=(0, 1024), optimiser=adam, max_norm=0.5, **COEFS)
        grad = net.kernels().grad[:, : adam.on_device()[0].numel()].clone()
        norm = other.apply([grad], 0.5, collective=OneProcess())
        assert torch.allclose(report[0, 6], norm, rtol=1e-4)
    for ours, theirs in zip(adam.on_device(), other.on_device(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4)


@cuda
@pytest.mark.cuda
def test_loading_lets_the_kernels_follow():
    learner, actor = make("discrete").cuda(), make("discrete", seed=1).cuda()
    Adam(learner.parameters(), lr=1e-3)
    params, obs = dict(learner.state_dict()), {"obs": torch.randn(10, 6, device="cuda")}
    actor.load_state_dict(params, assign=True)
    with torch.no_grad():
        assert torch.equal(actor.value(obs), learner.value(obs))
        params["body.nets.weight.0"].add_(0.1)
        assert torch.equal(actor.value(obs), learner.value(obs))


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_population_is_its_members(kind):
    """Three networks with 64 environments each, against each of them alone: bit for bit where sums have the same order."""
    torch.manual_seed(0)
    nets = [make(kind, seed=s).cuda() for s in range(3)]
    adams = [Adam(x.parameters(), lr=1e-2) for x in nets]
    together = Adam([torch.nn.Parameter(torch.cat([a.on_device()[0] for a in adams]))], lr=1e-2)
    fused = Fused(nets[0], together.on_device()[0], members=3)
    steps, each = 8, 64
    rows = made_rows(make(kind, fused=False).cuda(), steps * 3 * each)
    order = torch.stack([torch.randperm(steps * each, device="cuda") for _ in range(3)])
    values = fused.values(rows, width=3 * each)
    report = fused.step(rows, order, rows=(0, 256), width=3 * each, optimiser=together, max_norm=0.5, **COEFS)
    for i, (net, adam) in enumerate(zip(nets, adams, strict=True)):
        own = Batch({k: x.unflatten(0, (steps, 3, each))[:, i].flatten(0, 1).contiguous() for k, x in rows.items()})
        with torch.no_grad():
            assert torch.equal(net.value(own), values.view(steps, 3, each)[:, i].flatten())
        alone = net.kernels().step(own, order[i], rows=(0, 256), optimiser=adam, max_norm=0.5, **COEFS)
        assert torch.allclose(alone[0], report[i], rtol=1e-4, atol=1e-6)
        assert torch.allclose(adam.on_device()[0], together.on_device()[0].view(3, -1)[i], atol=1e-5)
    first = Batch({k: x[: 3 * each] for k, x in rows.items()})
    action, _ = fused.act(first, first["noise"])
    for i, net in enumerate(nets):
        own = Batch({k: x[i * each : (i + 1) * each].contiguous() for k, x in first.items()})
        alone, _ = Fused(net, together.on_device()[0].view(3, -1)[i].contiguous()).act(own, own["noise"])
        assert torch.equal(alone, action[i * each : (i + 1) * each])
