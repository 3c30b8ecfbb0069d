"""PPO on a CUDA device: captured, fused and plain updates make the same steps; runs learn and are resumed exactly."""

import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED, make_segment

import runnel as rl
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.batch import Batch
from runnel.core.records import Segment
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.bodies import build_body
from runnel.nets.mlp import NetConfig

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make(config, spec, *, fused=False, device="cuda"):
    net = ActorCritic(spec, build_body(spec, NetConfig(), seed=0), fused=fused)
    return PPOLearner(config, net, seed=0, device=device)


def moved(segment, device):
    return Segment(0, segment.spec, segment.header, Batch({k: x.to(device) for k, x in segment.arrays.items()}))


def learn(learner, segment, *, num=1, forget=False):
    metrics = {}
    for _ in range(num):
        if forget:
            learner._train.forget()
            learner._make_batch.forget()
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
def test_a_fused_learner_makes_the_step_of_a_plain_one(spec, extra):
    """To the rounding of tf32; Adam's first step goes by signs, so weights may differ where a gradient is next to nothing."""
    config = PPOConfig(num_epochs=1, num_minibatches=1, entropy_coef=0.01, lr=1e-3, **extra)
    segment = moved(make_segment(0, spec=spec, num_envs=512), "cuda")
    fused, plain = (make(config, spec, fused=f) for f in (True, False))
    ours, theirs = learn(fused, segment), learn(plain, segment)
    assert fused.net.kernels() is not None
    assert plain.net.kernels() is None
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=0.02, abs=2e-3), key
    off = torch.cat([(fused.params()[k] - x).abs().flatten() for k, x in plain.params().items()])
    assert off.mean() < 2e-4


@pytest.mark.parametrize("fused", [True, False])
def test_graphs_make_the_steps_of_plain_calls(fused):
    config, segment = PPOConfig(num_epochs=2, num_minibatches=2), moved(make_segment(0, num_envs=128), "cuda")
    captured, called = (make(config, DISCRETE, fused=fused) for _ in range(2))
    assert learn(captured, segment, num=4) == learn(called, segment, num=4, forget=True)
    assert captured._train._graphs
    assert all(torch.equal(x, called.params()[k]) for k, x in captured.params().items())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FourRooms"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_run_is_resumed_bit_for_bit(env, fused, tmp_path, monkeypatch):
    monkeypatch.setattr("runnel.run.env_config.COMPILE_FROM", {"cuda": 0 if fused else 1 << 60})
    settings = {"env": f"tensor:{env}", "device": "cuda", "num_envs": 256, "num_steps": 16, "track": (), "checkpoint.every": 0}
    settings |= {"ppo.lr": 3e-3, "ppo.num_epochs": 4, "eval.episodes": 50}
    whole = rl.train("ppo", total_updates=30, out=str(tmp_path / "whole"), **settings)
    part = rl.train("ppo", total_updates=12, out=str(tmp_path / "part"), **settings)
    again = rl.resume(part.path, total_updates=30)
    ours, theirs = (rl.load(run.path).net.state_dict() for run in (whole, again))
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert whole.eval["num"] == 50
    if env == "CartPole-v1":
        assert whole.eval["mean"] > 100.0
