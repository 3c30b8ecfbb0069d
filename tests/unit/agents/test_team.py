"""Learners in lock-step train as each would alone, and their versions come apart again."""

import pytest
import torch
from made_segments import DISCRETE, make_segment
from replay_segments import BOX
from replay_segments import segment as transitions

import runnel as rl
from runnel.agents.team import TeamLearner
from runnel.core.contracts.learning import HasRng, HasWeightCheck, Learner, LoadsInitialParams, LoadsParams
from runnel.core.errors import ConfigError, DataError


def ppo(seed):
    net = rl.nets.ActorCritic(DISCRETE, rl.nets.build_body(DISCRETE, rl.NetConfig(hidden=(16,)), seed=seed))
    return rl.agents.PPOLearner(rl.agents.PPOConfig(num_epochs=2, num_minibatches=2), net, seed=seed)


def td3(seed):
    actor = rl.nets.DeterministicActor(BOX, rl.NetConfig(hidden=(16,)), seed=seed)
    critic = rl.nets.QEnsemble(BOX, rl.NetConfig(hidden=(16,)), copies=2, seed=seed)
    return rl.agents.TD3Learner(rl.agents.TD3Config(), actor, critic, seed=seed)


def team():
    return TeamLearner({"red": ppo(1), "blue": ppo(2), "off": td3(3)}, reads={"red": ("left", "right"), "off": ("replay",)})


def batch(k):
    return {
        "left": [make_segment(k)],
        "right": [make_segment(10 + k)],
        "blue": [make_segment(20 + k)],
        "replay": [transitions(k)],
    }


def equal(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) for k in a)


def test_every_member_trains_as_it_would_alone():
    together, alone = team(), {"red": ppo(1), "blue": ppo(2), "off": td3(3)}
    streams = {"red": ("left", "right"), "blue": ("blue",), "off": ("replay",)}
    for k in range(3):
        update = together.update(together.prepare(batch(k), progress=k / 3))
        for name, learner in alone.items():
            mine = {stream: batch(k)[stream] for stream in streams[name]}
            own = learner.update(learner.prepare(mine, progress=k / 3))
            assert {f"{name}/{key}": value for key, value in own.metrics.items()}.items() <= update.metrics.items()
            assert own.feedback.keys() <= update.feedback.keys()
    for name, learner in alone.items():
        mine = {key.removeprefix(f"{name}/"): x for key, x in together.params().items() if key.startswith(f"{name}/")}
        assert equal(mine, dict(learner.params()))


def test_a_member_without_segments_in_this_phase_stays():
    learner = team()
    before = {k: v.clone() for k, v in learner.params().items()}
    learner.update(learner.prepare({"blue": [make_segment(1)]}, progress=0.0))
    moved = {k.partition("/")[0] for k, v in learner.params().items() if not torch.equal(v, before[k])}
    assert moved == {"blue"}


def test_its_state_goes_on_bit_for_bit():
    first, second = team(), team()
    first.update(first.prepare(batch(0), progress=0.0))
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        learner.update(learner.prepare(batch(1), progress=0.5))
    assert equal(dict(first.params()), dict(second.params()))


def test_params_are_the_same_tensors_at_every_call():
    learner = team()
    a, b = learner.params(), learner.params()
    assert all(a[k].data_ptr() == b[k].data_ptr() for k in a)


def test_it_keeps_the_optional_abilities_of_its_members():
    learner = team()
    assert isinstance(learner, Learner)
    assert isinstance(learner, HasRng)
    assert isinstance(learner, LoadsInitialParams)
    assert isinstance(learner, LoadsParams)
    assert not isinstance(learner, HasWeightCheck)
    assert {"red/shuffle", "blue/shuffle"} <= set(learner.own_state) <= set(learner.state_dict())
    other = team()
    with torch.no_grad():
        for x in other.base_params().values():
            if x.is_floating_point():
                x.add_(0.25)
    learner.start_from({k: v.clone() for k, v in other.base_params().items()})
    assert equal(dict(learner.base_params()), dict(other.base_params()))


@pytest.mark.parametrize("shared", [True, False])
def test_an_inferencer_takes_the_part_of_its_member(shared):
    learner = team()
    net = rl.nets.ActorCritic(DISCRETE, rl.nets.build_body(DISCRETE, rl.NetConfig(hidden=(16,)), seed=9))
    inferencer = rl.nets.TorchInferencer(net, member="blue")
    inferencer.load_params(rl.core.ParamSet(0, learner.params(), shared=shared))
    assert equal(
        {f"blue/{k}": v for k, v in net.state_dict().items()}, {k: v for k, v in learner.params().items() if "blue/" in k}
    )
    learner.update(learner.prepare(batch(0), progress=0.0))
    inferencer.load_params(rl.core.ParamSet(1, learner.params(), shared=shared))
    assert all(torch.equal(net.state_dict()[k], v) for k, v in learner.members["blue"].params().items())


def test_an_inferencer_of_nobody_names_the_members():
    net = rl.nets.ActorCritic(DISCRETE, rl.nets.build_body(DISCRETE, rl.NetConfig(hidden=(16,)), seed=9))
    with pytest.raises(DataError, match="version 0 has nothing of member 'green'; it has blue, off, red"):
        rl.nets.TorchInferencer(net, member="green").load_params(rl.core.ParamSet(0, team().params()))


def test_what_cannot_be_a_team_is_refused():
    with pytest.raises(ConfigError, match="two members read this stream"):
        TeamLearner({"red": ppo(1), "blue": ppo(2)}, reads={"red": ("x",), "blue": ("x",)})
    with pytest.raises(ConfigError, match="without a slash"):
        TeamLearner({"red/1": ppo(1)})

    class Checked(rl.agents.PPOLearner):
        def weight_check(self):
            return None

    made = ppo(1)
    made.__class__ = Checked
    with pytest.raises(ConfigError, match="give it a trainer of its own"):
        TeamLearner({"red": made})
