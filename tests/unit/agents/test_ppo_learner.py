"""PPOLearner: batches against an independent computation, learning on a bandit, exact resume, clear failures."""

import numpy as np
import pytest
import torch

from runnel.agents.base import merge_segments
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Header, Segment, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
BOX = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2))
MASKED = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2), has_mask=True)


def make(config=None, spec=SPEC, seed=0):
    config = config or PPOConfig()
    net = ActorCritic(spec, build_body(spec, NetConfig(hidden=(16,)), seed=seed), normalise_obs=config.normalise_obs)
    return PPOLearner(config, net, seed=seed)


def segment(seed=0, *, spec=SPEC, num_steps=8, num_envs=4):
    """Random data with ends; `final_obs` differs from `obs[t + 1]`."""
    rng = make_rng(seed, "segment")
    stream = trajectory_stream(spec, num_steps=num_steps, num_envs=num_envs)
    arrays = stream.allocate()
    arrays["obs"].copy_(torch.from_numpy(rng.normal(size=arrays["obs"].shape)))
    if spec.action.kind == "discrete":
        arrays["action"].copy_(torch.from_numpy(rng.integers(0, 2, size=arrays["action"].shape)))
    else:
        arrays["action"].copy_(torch.from_numpy(rng.normal(size=arrays["action"].shape)))
    if spec.has_mask:
        arrays["action_mask"].fill_(True)
    arrays["rewards/env"].copy_(torch.from_numpy(rng.normal(size=arrays["rewards/env"].shape)))
    arrays["logprob"].fill_(-0.7)
    end = torch.from_numpy(rng.random((num_steps, num_envs)))
    arrays["terminated"].copy_(end < 0.15)
    arrays["truncated"].copy_((end >= 0.15) & (end < 0.3))
    index = (end < 0.3).flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    arrays["final_obs"][: len(index)] = torch.from_numpy(rng.normal(size=(len(index), 3))).float()
    used = {"F": len(index)}
    return Segment(0, stream, Header(used=used), trim(stream, arrays, used))


def test_prepare_equals_a_plain_loop():
    learner, data = make(PPOConfig(normalise_advantage=False, gamma=0.9, gae_lambda=0.8)), segment()
    batch = learner.prepare({"trainer": [data]}, progress=0.0)
    a, value = data.arrays, lambda x: learner.net.value({"obs": x}).detach().numpy()
    values, finals = value(a["obs"]), value(a["final_obs"])
    where = {int(i): f for f, i in enumerate(a["final_index"])}
    advantage = np.zeros((8, 4))
    for b in range(4):
        following = 0.0
        for t in reversed(range(8)):
            terminated, truncated = bool(a["terminated"][t, b]), bool(a["truncated"][t, b])
            bootstrap = finals[where[t * 4 + b]] if terminated or truncated else values[t + 1, b]
            delta = a["rewards/env"][t, b].item() + 0.9 * (0.0 if terminated else bootstrap) - values[t, b]
            following = delta + (0.0 if terminated or truncated else 0.72 * following)
            advantage[t, b] = following
    np.testing.assert_allclose(batch["advantage"].numpy(), advantage.reshape(-1), atol=1e-5)
    np.testing.assert_allclose(batch["return"].numpy(), (advantage + values[:8]).reshape(-1), atol=1e-5)
    assert torch.equal(batch["obs"], a["obs"][:8].reshape(32, 3))


def test_segments_side_by_side_equal_one_wide_segment():
    learner, parts = make(PPOConfig(normalise_advantage=False)), [segment(1), segment(2)]
    merged = merge_segments(parts)
    assert merged["obs"].shape == (9, 8, 3)
    together = learner.prepare({"trainer": parts}, progress=0.0)["advantage"].view(8, 8)
    apart = [learner.prepare({"trainer": [p]}, progress=0.0)["advantage"].view(8, 4) for p in parts]
    torch.testing.assert_close(together, torch.cat(apart, dim=1))


def test_advantages_are_standardised_over_all_ranks():
    class Twin:
        rank, world_size = 0, 2

        def all_reduce(self, x):
            return 2 * x

    alone = make().prepare({"trainer": [segment()]}, progress=0.0)["advantage"]
    assert alone.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert alone.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    learner = make()
    learner.collective = Twin()
    torch.testing.assert_close(learner.prepare({"trainer": [segment()]}, progress=0.0)["advantage"], alone)


def test_update_reports_and_moves_the_weights_in_place():
    learner = make(PPOConfig(lr="linear(0.01, 0)"))
    assert isinstance(learner, Learner)
    before = {k: v.clone() for k, v in learner.params().items()}
    address = {k: v.data_ptr() for k, v in learner.params().items()}
    metrics = learner.update(learner.prepare({"trainer": [segment()]}, progress=0.25)).metrics
    assert {
        "loss/policy",
        "loss/value",
        "loss/total",
        "entropy",
        "kl",
        "clip_fraction",
        "explained_variance",
        "grad_norm",
    } <= set(metrics)
    assert metrics["lr"] == pytest.approx(0.0075)
    assert metrics["optimiser_steps"] == 32
    assert all(np.isfinite(v) for v in metrics.values())
    assert not any(torch.equal(before[k], v) for k, v in learner.params().items())
    assert address == {k: v.data_ptr() for k, v in learner.params().items()}
    assert learner.version == 1


def test_the_first_minibatch_starts_at_ratio_one_also_with_normalisation():
    learner = make(PPOConfig(num_epochs=1, num_minibatches=1, normalise_obs=True))
    for i in range(2):
        data = segment(i)
        data.arrays["logprob"].copy_(learner.net.evaluate(data.arrays.map(lambda x: x[:8]), data.arrays["action"])[0].detach())
        metrics = learner.update(learner.prepare({"trainer": [data]}, progress=0.0)).metrics
        assert abs(metrics["kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0.0
    assert learner.net.normalisers["obs"].count.item() == 64


@pytest.mark.parametrize("config", [PPOConfig(), PPOConfig(normalise_obs=True, entropy_coef=0.01, value_clip=0.2)])
@pytest.mark.parametrize("spec", [SPEC, BOX, MASKED])
def test_resume_is_bit_identical(config, spec):
    first = make(config, spec)
    for i in range(2):
        first.update(first.prepare({"trainer": [segment(i, spec=spec)]}, progress=0.1 * i))
    second = make(config, spec, seed=9)
    second.load_state_dict(first.state_dict())
    for i in range(2, 4):
        one, two = (
            learner.update(learner.prepare({"trainer": [segment(i, spec=spec)]}, progress=0.3)) for learner in (first, second)
        )
        assert one.metrics == two.metrics
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_target_kl_ends_the_update_early():
    learner = make(PPOConfig(lr=0.1, target_kl=1e-4))
    assert learner.update(learner.prepare({"trainer": [segment()]}, progress=0.0)).metrics["optimiser_steps"] < 16


@pytest.mark.parametrize(("key", "name"), [("obs", "obs"), ("rewards/env", "rewards/env"), ("logprob", "logprob")])
def test_bad_numbers_stop_before_the_step(key, name):
    learner, data = make(), segment()
    before = {k: v.clone() for k, v in learner.params().items()}
    data.arrays[key][0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=name):
        learner.update(learner.prepare({"trainer": [data]}, progress=0.0))
    assert all(torch.equal(before[k], v) for k, v in learner.params().items()) or key == "logprob"
    assert all(v.isfinite().all() for v in learner.params().values())


@pytest.mark.parametrize(
    "config", [PPOConfig(num_minibatches=3), PPOConfig(lr="fast"), PPOConfig(gamma=1.5), PPOConfig(num_epochs=0)]
)
def test_impossible_settings_name_the_field(config):
    with pytest.raises(ConfigError, match=r"ppo\."):
        config.check(1024)


def test_learns_a_two_armed_bandit():
    learner = make(PPOConfig(lr=3e-3, normalise_obs=True))
    stream = trajectory_stream(SPEC, num_steps=16, num_envs=8)
    rng, arrays = make_rng(0, "bandit"), stream.allocate()
    share = 0.0
    for step in range(25):
        arrays["obs"].copy_(torch.from_numpy(rng.normal(size=(17, 8, 3))))
        rows = Batch(obs=arrays["obs"][:16].flatten(0, 1), noise=torch.from_numpy(rng.random((128, 1), dtype=np.float32)))
        with torch.no_grad():
            answer = learner.net.act(rows)
        good = answer["action"] == (rows["obs"][:, 0] > 0)
        arrays["action"].copy_(answer["action"].view(16, 8))
        arrays["logprob"].copy_(answer["logprob"].view(16, 8))
        arrays["rewards/env"].copy_(good.view(16, 8))
        arrays["terminated"].fill_(True)
        arrays["final_index"].copy_(torch.arange(128))
        arrays["final_obs"].copy_(rows["obs"])
        share = good.float().mean().item()
        data = Segment(0, stream, Header(used={"F": 128}), arrays)
        learner.update(learner.prepare({"trainer": [data]}, progress=step / 25))
    assert share > 0.9
