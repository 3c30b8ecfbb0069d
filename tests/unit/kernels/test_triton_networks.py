"""Triton kernels against the plain network and learner: actions, values, gradients, optimiser steps, and populations."""

from dataclasses import replace

import pytest
import torch

from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.learning import SingleProcess
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.kernels.select import Accelerator
from runnel.kernels.small.triton.ppo import TritonActorCritic, why_not
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.optim import Adam
from runnel.nets.population import Population

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ACTIONS = {"discrete": ActionSpec("discrete", num_actions=5), "continuous": ActionSpec("continuous", (3,))}
CONFIG = PPOConfig(lr=1e-3, clip_range=0.2, value_coef=0.5, entropy_coef=0.01, max_grad_norm=0.5)
METRICS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction")


def make(kind, *, width=6, seed=0, **net):
    spec = EnvSpec({"obs": ArraySpec((width,))}, ACTIONS[kind])
    return ActorCritic(spec, build_body(spec, NetConfig(**net), seed=seed))


def kernels_for(net, optimiser, **more):
    return TritonActorCritic(net, optimiser.on_device()[0], **more)


def made_rows(net, n, *, device="cuda"):
    rows = Batch(obs=torch.randn(n, 6, device=device), noise=torch.rand(n, net.noise_size, device=device))
    with torch.no_grad():
        answer = net.act(rows)
    rows |= {"action": answer["action"], "logprob": answer["logprob"] + 0.2 * torch.randn(n, device=device)}
    return rows | {k: torch.randn(n, device=device) for k in ("advantage", "return", "value")}


def test_nothing_is_for_a_network_on_the_host():
    net = make("discrete")
    assert "CUDA" in why_not(net)
    made = Accelerator("auto", num_steps=1000).learner(PPOLearner(PPOConfig(), net, seed=0))
    assert not made.on
    assert "triton" not in made.text


@cuda
@pytest.mark.cuda
def test_what_the_kernels_serve():
    assert why_not(make("discrete").cuda()) == ""
    for net in ({"activation": "silu"}, {"hidden": (64,)}, {"hidden": (128, 64)}, {"shared": True}, {"core": "gru"}):
        assert why_not(make("discrete", **net).cuda()), net
    made = Accelerator("on").learner(PPOLearner(PPOConfig(), make("discrete"), seed=0, device="cuda"))
    assert made.on
    assert "triton" in made.text
    odd = Accelerator("on").learner(PPOLearner(PPOConfig(), make("discrete", hidden=(64,)), seed=0, device="cuda"))
    assert odd.on
    assert "triton" not in odd.text, "graphs alone"


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("clips", [(None, None), (1.5, 0.2)])
def test_the_same_numbers_as_in_torch(kind, activation, clips):
    torch.manual_seed(0)
    config = replace(CONFIG, dual_clip=clips[0], value_clip=clips[1])
    nets = [make(kind, activation=activation, hidden=(64, 32)) for _ in range(2)]
    ours, plain = (PPOLearner(config, net, seed=0, device="cuda") for net in nets)
    weights, other = (learner.optimiser.on_device()[0] for learner in (ours, plain))
    weights.add_(0.1 * torch.randn_like(weights))
    other.copy_(weights)
    n, total = 2000, weights.numel()
    rows, kernels, acts = made_rows(plain.net, n), kernels_for(ours.net, ours.optimiser), Accelerator("on").acts(ours.net)
    with torch.no_grad():
        got, want = acts.act(rows), plain.net.act(rows)
        assert torch.allclose(kernels.values(rows), plain.value(rows), atol=1e-2)
    same = (got["action"] == want["action"]) if kind == "discrete" else torch.ones(n, dtype=torch.bool, device="cuda")
    assert same.float().mean() > 0.99
    assert torch.allclose(got["logprob"][same], want["logprob"][same], atol=1e-2)
    if kind == "continuous":
        assert torch.allclose(got["action"], want["action"], atol=1e-2)
    order = torch.randperm(n, device="cuda")
    numbers = plain.loss({k: x[order[300:1500]] for k, x in rows.items()})
    grads = torch.autograd.grad(numbers["loss/total"], list(plain.net.parameters()))
    want_grad = torch.cat([g.reshape(-1) for g in grads])
    with torch.no_grad():
        report = kernels.step(rows, order, rows=(300, 1500), optimiser=ours.optimiser, config=config)
    assert (kernels.grad[0, :total] - want_grad).norm() < 0.02 * want_grad.norm()
    assert torch.allclose(report[0, :6], torch.stack([numbers[k].detach() for k in METRICS]), atol=0.02)
    assert torch.allclose(report[0, 6], want_grad.norm(), rtol=0.02)


@cuda
@pytest.mark.cuda
def test_adam_steps_as_in_torch():
    torch.manual_seed(0)
    net, plain = make("discrete").cuda(), make("discrete").cuda()
    adam, other = (Adam(x.parameters(), lr=1e-2, eps=1e-5) for x in (net, plain))
    rows, order, kernels = made_rows(plain, 1024), torch.randperm(1024, device="cuda"), kernels_for(net, adam)
    for _ in range(3):
        report = kernels.step(rows, order, rows=(0, 1024), optimiser=adam, config=CONFIG)
        grad = kernels.grad[:, : adam.on_device()[0].numel()].clone()
        norm = other.apply([grad], 0.5, collective=SingleProcess())
        assert torch.allclose(report[0, 6], norm, rtol=1e-4)
    for ours, theirs in zip(adam.on_device(), other.on_device(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4)


@cuda
@pytest.mark.cuda
def test_loading_lets_the_kernels_follow():
    learner, actor = make("discrete").cuda(), make("discrete", seed=1).cuda()
    acts = Accelerator("on").acts(actor)
    rows = Batch(obs=torch.randn(10, 6, device="cuda"), noise=torch.rand(10, 1, device="cuda"))
    with torch.no_grad():
        before = acts.act(rows)["logprob"]
        Adam(learner.parameters(), lr=1e-3)
        params, wanted = dict(learner.state_dict()), Accelerator("on").acts(learner)
        actor.load_state_dict(params, assign=True)
        assert not torch.allclose(acts.act(rows)["logprob"], before)
        assert torch.equal(acts.act(rows)["logprob"], wanted.act(rows)["logprob"])
        params["body.nets.weight.0"].add_(0.1)
        assert torch.equal(acts.act(rows)["logprob"], wanted.act(rows)["logprob"])
        torch.testing.assert_close(acts.act(rows)["logprob"], learner.act(rows)["logprob"], atol=1e-2, rtol=0.0)


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_population_is_its_members(kind):
    """Three networks with 64 environments each, against each of them alone: bit for bit where sums have the same order."""
    torch.manual_seed(0)
    nets = [make(kind, seed=s).cuda() for s in range(3)]
    adams = [Adam(x.parameters(), lr=1e-2) for x in nets]
    together = Adam([torch.nn.Parameter(torch.cat([a.on_device()[0] for a in adams]))], lr=1e-2)
    kernels = kernels_for(nets[0], together, members=3)
    steps, each = 8, 64
    rows = made_rows(make(kind).cuda(), steps * 3 * each)
    order = torch.stack([torch.randperm(steps * each, device="cuda") for _ in range(3)])
    values = kernels.values(rows, width=3 * each)
    report = kernels.step(rows, order, rows=(0, 256), width=3 * each, optimiser=together, config=CONFIG)
    for i, (net, adam) in enumerate(zip(nets, adams, strict=True)):
        own = Batch({k: x.unflatten(0, (steps, 3, each))[:, i].flatten(0, 1).contiguous() for k, x in rows.items()})
        single = kernels_for(net, adam)
        with torch.no_grad():
            assert torch.equal(single.values(own), values.view(steps, 3, each)[:, i].flatten())
            torch.testing.assert_close(single.values(own), net.value(own), atol=1e-2, rtol=0.0)
        alone = single.step(own, order[i], rows=(0, 256), optimiser=adam, config=CONFIG)
        assert torch.allclose(alone[0], report[i], rtol=1e-4, atol=1e-6)
        assert torch.allclose(adam.on_device()[0], together.on_device()[0].view(3, -1)[i], atol=1e-5)
    first = Batch({k: x[: 3 * each] for k, x in rows.items()})
    action, _ = kernels.act(first, first["noise"])
    for i, net in enumerate(nets):
        own = Batch({k: x[i * each : (i + 1) * each].contiguous() for k, x in first.items()})
        alone, _ = TritonActorCritic(net, together.on_device()[0].view(3, -1)[i].contiguous()).act(own, own["noise"])
        assert torch.equal(alone, action[i * each : (i + 1) * each])


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("chosen", [None, 1])
def test_a_population_acts_as_its_members_do(chosen):
    torch.manual_seed(0)
    net = Population([make("continuous", seed=s) for s in range(3)], num_envs=4, chosen=chosen).to("cuda")
    Adam(net.parameters(), lr=1e-3)
    rows = Batch(obs=torch.randn(12, 6, device="cuda"), noise=torch.rand(12, net.noise_size, device="cuda"))
    acts = Accelerator("on").acts(net)
    with torch.no_grad():
        for greedy in (False, True):
            found, expected = (x.act(rows, greedy=greedy) for x in (acts, net))
            for key in ("action", "logprob"):
                torch.testing.assert_close(found[key], expected[key], atol=1e-2, rtol=0.0)
