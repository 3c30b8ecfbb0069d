"""PPO on a CUDA device: plain updates, graphs and kernels make the same steps; runs learn and are resumed exactly."""

import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED, make_segment

import runnel as rl
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.records import Batch, Segment
from runnel.kernels.select import Accelerator
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make(config, spec, *, mode="off", device="cuda"):
    """A learner as a run with this `compiled` has it: auto (of a short run) has graphs, on has kernels in them."""
    learner = PPOLearner(config, ActorCritic(spec, build_body(spec, NetConfig(), seed=0)), seed=0, device=device)
    made = Accelerator(mode).learner(learner)
    assert made.on == (mode != "off")
    assert ("CUDA graphs" in made.text, "triton" in made.text) == (mode != "off", mode == "on")
    return made.learner


def moved(segment, device):
    return Segment(0, segment.spec, segment.header, Batch({k: x.to(device) for k, x in segment.arrays.items()}))


def learn(learner, segment, *, num=1, forget=False):
    metrics = {}
    for _ in range(num):
        if forget:
            learner.learn.forget()
            learner.make_batch.forget()
        metrics = learner.update(learner.prepare({"trajectories": [segment]}, progress=0.0)).metrics
    return metrics


@pytest.mark.parametrize("num_envs", [16, 1024])
@pytest.mark.parametrize("spec", [DISCRETE, BOX, MASKED], ids=["discrete", "continuous", "masked"])
def test_a_device_makes_the_step_of_the_host(spec, num_envs):
    """One minibatch, so that the order of rows does not matter."""
    config = PPOConfig(num_epochs=1, num_minibatches=1, entropy_coef=0.01)
    told, params = [], []
    for device in ("cpu", "cuda"):
        learner = make(config, spec, device=device)
        told.append(learn(learner, moved(make_segment(0, spec=spec, num_envs=num_envs), device)))
        params.append(torch.cat([x.cpu().flatten() for x in learner.params().values()]))
    for key, value in told[0].items():
        assert told[1][key] == pytest.approx(value, rel=1e-3, abs=0.02 if key == "clip_fraction" else 1e-5), key
    assert (params[0] - params[1]).abs().mean() < 2e-5


@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "continuous"])
@pytest.mark.parametrize("extra", [{}, {"dual_clip": 2.0, "value_clip": 0.2}], ids=["plain", "clips"])
def test_kernels_make_the_step_of_a_plain_learner(spec, extra):
    """To the rounding of tf32; Adam's first step goes by signs, so weights may differ where a gradient is next to nothing."""
    config = PPOConfig(num_epochs=1, num_minibatches=1, entropy_coef=0.01, lr=1e-3, **extra)
    segment = moved(make_segment(0, spec=spec, num_envs=512), "cuda")
    kernels, plain = (make(config, spec, mode=mode) for mode in ("on", "off"))
    ours, theirs = learn(kernels, segment), learn(plain, segment)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=0.02, abs=2e-3), key
    off = torch.cat([(kernels.params()[k] - x).abs().flatten() for k, x in plain.params().items()])
    assert off.mean() < 2e-4


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_graphs_make_the_steps_of_plain_calls(mode):
    """Bit for bit: replayed, and called anew each time (with auto also by the plain learner)."""
    config, segment = PPOConfig(num_epochs=2, num_minibatches=2), moved(make_segment(0, num_envs=128), "cuda")
    captured, called = (make(config, DISCRETE, mode=mode) for _ in range(2))
    told = learn(captured, segment, num=4)
    assert told == learn(called, segment, num=4, forget=True)
    assert captured.learn._graphs
    if mode == "auto":
        plain = make(config, DISCRETE)
        assert told == learn(plain, segment, num=4)
        assert all(torch.equal(x, plain.params()[k]) for k, x in captured.params().items())
    assert all(torch.equal(x, called.params()[k]) for k, x in captured.params().items())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FourRooms"])
@pytest.mark.parametrize("compiled", ["on", "auto"])
def test_a_run_is_resumed_bit_for_bit(env, compiled, tmp_path):
    settings = {"env": f"tensor:{env}", "device": "cuda", "num_envs": 256, "num_steps": 16, "track": (), "checkpoint.every": 0}
    settings |= {"ppo.lr": 3e-3, "ppo.num_epochs": 4, "eval.episodes": 50, "compiled": compiled}
    whole = rl.train("ppo", total_updates=30, out=str(tmp_path / "whole"), **settings)
    part = rl.train("ppo", total_updates=12, out=str(tmp_path / "part"), **settings)
    again = rl.resume(part.path, total_updates=30)
    ours, theirs = (rl.load(run.path).net.state_dict() for run in (whole, again))
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert whole.eval["num"] == 50
    if env == "CartPole-v1":
        assert whole.eval["mean"] > 100.0
