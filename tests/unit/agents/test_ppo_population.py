"""A population of PPO learners: each member as if it were alone, the choice of the best, runs, and all at once by kernels."""

import re

import pytest
import torch
from made_segments import BOX, DISCRETE, make_segment

import runnel as rl
from runnel.agents.exchange import ExchangeConfig, times
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.ppo_population import PopulationLearner
from runnel.core import schedule
from runnel.core.contracts.evaluation import EvalResult
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Segment
from runnel.core.trajectories import trajectory_stream
from runnel.eval.population import PopulationEvaluation
from runnel.kernels.select import Accelerator
from runnel.kernels.small.triton.population import TritonPopulationLearner
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.population import BEST, Population

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CONFIG = PPOConfig(num_epochs=2, num_minibatches=2, entropy_coef=0.01)
TINY = {"num_envs": 4, "num_steps": 16, "track": (), "ppo.num_epochs": 2, "eval.episodes": 6, "checkpoint.every": 0}


def member(seed, *, spec=DISCRETE, hidden=(16,)):
    return ActorCritic(spec, build_body(spec, NetConfig(hidden=hidden), seed=seed))


def made(num=3, *, num_envs=2, chosen=None, **kwargs):
    return Population([member(i, **kwargs) for i in range(num)], num_envs=num_envs, chosen=chosen)


def own_columns(segment, first, width):
    """The environments `first ... first + width - 1` of a segment, as a segment of their own."""
    a, num = segment.arrays, segment.num_rows
    stream = trajectory_stream(DISCRETE, num_steps=8, num_envs=width)
    mine = [i for i, x in enumerate(a["final_index"].tolist()) if first <= x % num < first + width]
    arrays = Batch({k: a[k][:, first : first + width].clone() for k in ("obs", "action", "rewards/env", "terminated")})
    arrays |= {k: a[k][:, first : first + width].clone() for k in ("truncated", "logprob")}
    arrays |= {"final_obs": a["final_obs"][mine], "policy_version": a["policy_version"]}
    arrays["final_index"] = torch.tensor([x // num * width + x % num - first for x in a["final_index"][mine].tolist()])
    arrays["final_index"] = arrays["final_index"].long()
    return Segment(0, stream, segment.header, arrays)


def test_members_act_on_their_own_rows():
    net = made()
    rows = Batch(obs=torch.randn(6, 3), noise=torch.rand(6, 1))
    for greedy in (False, True):
        together = net.act(rows, greedy=greedy)
        for i in range(3):
            own = member(i).act(rows.map(lambda x, i=i: x[2 * i : 2 * i + 2]), greedy=greedy)
            assert torch.equal(together["action"][2 * i : 2 * i + 2], own["action"])
            assert torch.equal(together["logprob"][2 * i : 2 * i + 2], own["logprob"])


def test_a_member_learns_what_it_would_learn_alone():
    """Bit for bit, over two updates."""
    learner = PopulationLearner(CONFIG, made(), seed=7)
    alone = [PPOLearner(CONFIG, member(i), seed=7 + i) for i in range(3)]
    for k in range(2):
        segment = make_segment(k, num_envs=6)
        update = learner.update(learner.prepare({"trajectories": [segment]}, progress=0.5))
        told = []
        for i, single in enumerate(alone):
            batch = single.prepare({"trajectories": [own_columns(segment, 2 * i, 2)]}, progress=0.5)
            told.append(single.update(batch).metrics)
        assert update.metrics["loss/total"] == pytest.approx(sum(m["loss/total"] for m in told) / 3)
    for i, single in enumerate(alone):
        weights = torch.cat([x.flatten() for x in single.params().values()])
        assert torch.equal(learner.params()[f"member/{i}"], weights)


def test_a_restored_population_goes_on_bit_for_bit():
    learner, twin = (PopulationLearner(CONFIG, made(), seed=s) for s in (1, 2))
    segments = [{"trajectories": [make_segment(k, num_envs=6)]} for k in range(2)]
    learner.update(learner.prepare(segments[0], progress=0.0))
    twin.load_state_dict(learner.state_dict())
    for x in (learner, twin):
        x.update(x.prepare(segments[1], progress=0.5))
    assert all(torch.equal(v, twin.params()[k]) for k, v in learner.params().items())


def test_the_best_member_is_the_one_with_the_highest_return():
    net, best = made(), made(chosen=BEST)
    rewards, ended = torch.ones(10, 6), torch.zeros(10, 6, dtype=torch.bool)
    ended[::2, :2], ended[9, 2:4], ended[4, 4:] = True, True, True
    ended[8, 4:] = True  # returns of 2, 10 and 5
    net.keep(rewards, ended)
    assert net.tally.tolist() == [[20.0, 10.0], [20.0, 2.0], [20.0, 4.0]]
    assert net.best() == 1
    best.load_state_dict(net.state_dict())
    rows = Batch(obs=torch.randn(5, 3))
    assert torch.equal(best.act(rows, greedy=True)["logprob"], member(1).act(rows, greedy=True)["logprob"])
    with pytest.raises(ConfigError, match="member = 3"):
        made(chosen=3)


def test_an_evaluation_tells_members_apart():
    evaluation = PopulationEvaluation(lambda n: None, members=2, episodes=3, most_envs=2, seed=0)

    class Fixed:
        def run(self, clients, *, round_index, progress):
            return EvalResult([1.0, 2.0, 3.0, 10.0, 20.0, 30.0], {"length": [1.0] * 6})

    evaluation._all = Fixed()
    extra = evaluation.run(None, round_index=0).extra
    assert extra["member/0"] == [1.0, 2.0, 3.0]
    assert extra["member/1"] == [10.0, 20.0, 30.0]
    assert (extra["best_member"], extra["worst_member"]) == ([20.0], [2.0])


def test_a_run_of_a_population_is_evaluated_loaded_and_resumed(tmp_path):
    settings = {"env": "tensor:CartPole-v1", "population": 3, "out": str(tmp_path), **TINY}
    run = rl.train("ppo", total_updates=2, **settings)
    assert run.steps == 2 * 3 * 4 * 16
    assert run.eval["num"] == 18
    means = [run.eval["extra"][f"member/{i}"] for i in range(3)]
    assert run.eval["mean"] == pytest.approx(sum(means) / 3)
    assert run.eval["extra"]["best_member"] == max(means)
    assert isinstance(rl.load(run.path).act([0.0] * 4), int)
    assert isinstance(rl.load(run.path, member=2).act([0.0] * 4), int)
    assert rl.resume(run.path, total_updates=3).version == 3


@pytest.mark.parametrize(
    "wrong", [{"population": 0}, {"num_actors": 2}, {"num_env_groups": 2}, {"placement.policy_workers": 1}, {"net.core": "gru"}]
)
def test_what_a_population_cannot_be(wrong, tmp_path):
    settings = {"env": "tensor:CartPole-v1", "population": 2, "out": str(tmp_path), **TINY, **wrong}
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        rl.train("ppo", total_updates=1, **settings)


def test_kernels_of_the_host_let_each_member_learn_what_it_would_learn_alone():
    """Each member by itself, with its own kernels; to float32 rounding."""
    pytest.importorskip("numba")
    config = PPOConfig(num_epochs=2, num_minibatches=2, entropy_coef=0.01, lr=1e-3)
    plain, twin = (PopulationLearner(config, made(num_envs=4, hidden=(8, 8)), seed=7) for _ in range(2))
    accelerated = Accelerator("on").learner(twin)
    assert accelerated.on
    assert accelerated.learner is twin
    told = []
    for learner in (plain, twin):
        segments = [make_segment(k, num_envs=12) for k in range(2)]
        told.append([learner.update(learner.prepare({"trajectories": [s]}, progress=0.5)).metrics for s in segments])
    for ours, theirs in zip(*told, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-5)
    for key, x in plain.params().items():
        torch.testing.assert_close(twin.params()[key], x, atol=2e-5, rtol=1e-3)


# --------------------------------------------------------------------------------------------------------------- device
@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_kernels_teach_all_members_what_they_would_learn_one_by_one(spec):
    """One minibatch, so that the order of rows does not matter; rounding apart (tf32, and Adam's first step is a sign)."""
    config = PPOConfig(num_epochs=1, num_minibatches=1, entropy_coef=0.01, lr=1e-3)
    plain = [PopulationLearner(config, made(num_envs=64, spec=spec, hidden=(64, 64)), seed=1, device="cuda") for _ in range(2)]
    accelerated = Accelerator("on").learner(plain[0])
    assert accelerated.on
    learners = [accelerated.learner, plain[1]]
    assert isinstance(learners[0], TritonPopulationLearner)
    segment = make_segment(3, spec=spec, num_envs=192)
    arrays = Batch({k: x.cuda() for k, x in segment.arrays.items()})
    arrays["truncated"].zero_()  # final observations as a device lays them out: a row for each environment
    arrays |= {"final_index": torch.arange(7 * 192, 8 * 192, device="cuda"), "final_obs": arrays["obs"][8].clone()}
    segment = Segment(0, segment.spec, segment.header, arrays)
    metrics, batches = [], []
    for learner in learners:
        batches.append(learner.prepare({"trajectories": [segment]}, progress=0.0))
        metrics.append(learner.update(batches[-1]).metrics)
    advantages = torch.stack([batches[1][f"{i}/advantage"].view(8, 64) for i in range(3)], dim=1).flatten()
    assert torch.allclose(batches[0]["advantage"], advantages, atol=0.02)
    for key in ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "grad_norm"):
        assert metrics[0][key] == pytest.approx(metrics[1][key], rel=0.02, abs=2e-3), key
    # the variance over the returns of all members, or the mean of each member's own
    assert metrics[0]["explained_variance"] == pytest.approx(metrics[1]["explained_variance"], abs=0.05)
    ours, theirs = learners[0].params(), learners[1].params()
    off = torch.cat([(ours[k] - theirs[k]).abs().flatten() for k in ours if k != "tally"])
    assert off.mean() < 2e-4  # a step of Adam is 1e-3 for each weight


@cuda
@pytest.mark.cuda
def test_a_population_by_kernels_learns_and_is_resumed(tmp_path):
    settings = {"env": "tensor:CartPole-v1", "population": 4, "device": "cuda", **TINY, "num_envs": 64, "ppo.lr": 3e-3}
    settings["compiled"] = "on"
    runs = [rl.train("ppo", total_updates=n, out=str(tmp_path / str(n)), **settings) for n in (40, 20)]
    assert runs[0].eval["extra"]["worst_member"] > 100.0
    again = rl.resume(runs[1].path, total_updates=40)
    whole, parts = (rl.load(run.path).net.state_dict() for run in (runs[0], again))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


EXCHANGE = ExchangeConfig(every=2, settings=("lr", "entropy_coef"), spread=4.0)


def population(seed=7, *, exchange=EXCHANGE, num=4):
    return PopulationLearner(CONFIG, made(num, num_envs=2), seed=seed, exchange=exchange)


def fed(learner, updates, *, first=0):
    """So many updates on made segments of 8 environments; what was told."""
    told = []
    for i in range(first, first + updates):
        segment = make_segment(num_envs=8, seed=i)
        told += learner.update(learner.prepare({"trajectories": [segment]}, progress=0.0)).events
    return told


def test_members_begin_with_settings_of_their_own():
    settings = [(x.config.lr, x.config.entropy_coef) for x in population().learners]
    assert len(set(settings)) == 4
    assert all(start / 4 <= schedule.at(lr, 0.0) <= start * 4 for lr, _ in settings for start in [schedule.at(CONFIG.lr, 0.0)])
    assert all(0.01 / 4 <= coef <= 0.01 * 4 for _, coef in settings)
    assert [(x.config.lr, x.config.entropy_coef) for x in population().learners] == settings, "by the seed"
    assert {x.config.lr for x in population(exchange=None).learners} == {CONFIG.lr}


def test_the_worst_member_takes_over_from_the_best():
    """At every second version, by the returns that the tally keeps: weights, optimiser and settings moved a little."""
    learner = population()
    assert fed(learner, 1) == []
    before = [dict(own) for own in learner._settings]
    (event,) = fed(learner, 1, first=1)
    returns = learner.net.returns()
    best, worst = learner.net.best(), int(re.match(r"member (\d)", event["text"])[1])
    assert event["text"].startswith(f"member {worst} took over from member {best}")
    child, parent = (learner.learners[n].state_dict() for n in (worst, best))
    assert all(torch.equal(child["net"][k], x) for k, x in parent["net"].items())
    assert torch.equal(child["optimiser"]["square"], parent["optimiser"]["square"])
    assert child["shuffle"] != parent["shuffle"]
    assert returns[worst] == returns[best]
    for name in EXCHANGE.settings:
        now = getattr(learner.learners[worst].config, name)
        tried = [times(before[best][name], factor) for factor in (0.8, 1.25)]
        assert now in tried
    assert [learner._settings[n] for n in range(4) if n != worst] == [before[n] for n in range(4) if n != worst]


def test_a_population_goes_on_from_its_state():
    """Settings, weights and who takes over from whom, bit for bit."""
    whole, broken = population(), population()
    fed(whole, 7)
    fed(broken, 3)
    again = population()
    again.load_state_dict(broken.state_dict())
    assert again._settings == broken._settings
    told = fed(again, 4, first=3)
    assert len(told) == 2
    assert all(torch.equal(x, whole.params()[k]) for k, x in again.params().items())
    assert again._settings == whole._settings


def test_settings_of_one_member_and_of_all():
    learner = population(exchange=None)
    learner.set("2/clip_range", 0.5)
    assert [x.config.clip_range for x in learner.learners] == [0.2, 0.2, 0.5, 0.2]
    learner.set("clip_range", 0.3)
    assert {x.config.clip_range for x in learner.learners} == {0.3}
    with pytest.raises(ConfigError, match="there is no such member; use one of 0, 1, 2, 3"):
        learner.set("7/lr", 0.1)
    with pytest.raises(
        ConfigError, match=r"gamma = 0\.1: may not change while a run goes on; live settings here: lr, gae_lambda"
    ):
        learner.set("gamma", 0.1)
    with pytest.raises(ConfigError, match=r"lr = 0\.1: may not change"):
        population().set("0/lr", 0.1)  # exchanges move it


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"settings": ["gamma"]}, "gamma.*may not change while a run goes on; live settings here: lr"),
        ({"settings": ["num_epochs"]}, "num_epochs.*members get it times a factor"),
        ({"settings": ["entropy_coef"]}, r"entropy_coef.*is 0.0; give it a value above 0, or leave it out"),
        ({"settings": ["value_clip"]}, "value_clip.*members get it times a factor"),
        ({"spread": 0.5}, "spread.*at least 1"),
    ],
)
def test_exchanges_that_cannot_work_are_refused_before_anything_starts(settings, why, tmp_path):
    given = {"exchange.every": 2, **{f"exchange.{k}": v for k, v in settings.items()}}
    with pytest.raises(ConfigError, match=why):
        rl.train("ppo", out=str(tmp_path), population=4, total_updates=4, **TINY, **given)
    assert list(tmp_path.iterdir()) == []


def test_exchanges_in_a_run_are_told_and_replayed(tmp_path):
    """Cut off between two exchanges and resumed, a run is what it would have been."""
    settings = {**TINY, "population": 4, "total_updates": 8, "exchange.every": 3, "checkpoint.every": 4, "seed": 3}
    whole = rl.train("ppo", out=str(tmp_path), name="whole", **settings)
    texts = [r["text"] for r in whole.rows("event") if "took over" in r["text"]]
    assert len(texts) == 2

    def cut(row):
        if row["version"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rl.train("ppo", out=str(tmp_path), name="cut", on_update=cut, **settings)
    resumed = rl.resume(tmp_path / "cut")
    assert [r["metrics"] for r in resumed.rows()] == [r["metrics"] for r in whole.rows()]
    assert [r["text"] for r in resumed.rows("event") if "took over" in r["text"]] == texts
